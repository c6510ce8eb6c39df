"""GRPO and its relatives by name: the same algorithm with other functions. Every setting of ``PolicyGradient`` is
there.

grpo          (r − mean) / std of the group                GRPO, arXiv 2402.03300
dr_grpo       r − mean of the group                        Dr. GRPO, arXiv 2503.20783; its constant length is
                                                           ``normalise``
rloo          r − mean of the others of the group          RLOO, arXiv 2402.14740
maxrl         (r − mean) / mean of the group               MaxRL, arXiv 2602.02710
reinforce     r − a running mean of the role, −A log π     for self-play, where groups have one member (SPIRAL,
                                                           2506.24119)
reinforce_pp  whitened over all tokens of the batch        REINFORCE++, arXiv 2501.03262; its KL penalty is ``kl``
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Literal

from cotrain.functional.credit import whiten
from cotrain.learn.estimators import RunningMean, centred, leave_one_out, z_score
from cotrain.learn.losses import Clipped, Kl, ScoreFunction, pull_to
from cotrain.learn.maxrl import maxrl
from cotrain.learn.policy_gradient import PolicyGradient

__all__ = [
    "BY_NAME",
    "Clipped",
    "Kl",
    "Name",
    "dr_grpo",
    "grpo",
    "maxrl",
    "pull_to",
    "reinforce",
    "reinforce_pp",
    "rloo",
]

grpo = partial(PolicyGradient, advantage=z_score)
dr_grpo = partial(PolicyGradient, advantage=centred)
rloo = partial(PolicyGradient, advantage=leave_one_out)
reinforce = partial(PolicyGradient, advantage=None, baseline=RunningMean(), loss=ScoreFunction())
reinforce_pp = partial(PolicyGradient, advantage=None, over_batch=whiten)

Name = Literal["grpo", "dr_grpo", "rloo", "maxrl", "reinforce++"]  # what a flag of a recipe may say
BY_NAME: Mapping[Name, Callable[..., PolicyGradient]] = {
    "grpo": grpo,
    "dr_grpo": dr_grpo,
    "rloo": rloo,
    "maxrl": maxrl,
    "reinforce++": reinforce_pp,
}
