"""GRPO and its relatives by name: ``PolicyGradient`` with other functions; each takes every setting of it.

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
from typing import Any, Literal

from cotrain.algorithms.functional.credit import pool_moments, whiten
from cotrain.algorithms.functional.late_torch import torch
from cotrain.algorithms.policy_gradient import (
    Clipped,
    Kl,
    PolicyGradient,
    leave_one_out,
    mean_baseline,
    pull_to,
    z_score,
)
from cotrain.algorithms.policy_loss import ScoreFunction
from cotrain.algorithms.running_mean import RunningMean
from cotrain.core.errors import ConfigError

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

# -- MaxRL (Tajwar et al. 2026, arXiv 2602.02710): maximum likelihood of a right answer, from samples that are right or
# wrong.
#
#     A_i = (r_i − mean) / mean      within each group; 0 where the group has no success
#
# The gradient of log p is that of p divided by p, which the mean of the group estimates: a problem that is rarely
# solved weighs as much more. With N samples the expectation is that of Σ_{k ≤ N} 1/k · ∇pass@k, whose first term is
# REINFORCE and whose limit is maximum likelihood. Left out: rewards below 0, which have no rate of success.


def over_success(values: torch.Tensor, pools: torch.Tensor) -> torch.Tensor:
    """``values`` ``[N]`` of at least 0 and ``pools`` ``[N]`` → advantages ``[N]``. Raises ConfigError for a negative
    reward."""
    if bool((values < 0.0).any()):
        raise ConfigError(f"maxrl: a reward is {float(values.min())}; expected 0 for failure and 1 for success")
    _, mean, flat = pool_moments(values, pools)
    return torch.where(flat[pools], torch.zeros_like(values), (values - mean[pools]) / mean[pools])


# -- by name


def grpo(**settings: Any) -> PolicyGradient:
    """Rewards are standardised within the group."""
    return PolicyGradient(**{"advantage": z_score, **settings})


def dr_grpo(**settings: Any) -> PolicyGradient:
    """The mean of the group is subtracted, and nothing divided."""
    return PolicyGradient(**{"advantage": mean_baseline, **settings})


def rloo(**settings: Any) -> PolicyGradient:
    """The mean of the other answers of the group is subtracted."""
    return PolicyGradient(**{"advantage": leave_one_out, **settings})


def maxrl(**settings: Any) -> PolicyGradient:
    """As ``mean_baseline``, divided by the share of right answers in the group."""
    return PolicyGradient(**{"advantage": over_success, **settings})


def reinforce(**settings: Any) -> PolicyGradient:
    """A running mean of the role is subtracted; no group, no ratio."""
    return PolicyGradient(**{"advantage": None, "baseline": RunningMean(), "loss": ScoreFunction(), **settings})


def reinforce_pp(**settings: Any) -> PolicyGradient:
    """Rewards are standardised over all tokens of the batch; no group."""
    return PolicyGradient(**{"advantage": None, "over_batch": whiten, **settings})


Name = Literal["grpo", "dr_grpo", "rloo", "maxrl", "reinforce++"]  # what a flag of a recipe may say
BY_NAME: Mapping[Name, Callable[..., PolicyGradient]] = {
    "grpo": grpo,
    "dr_grpo": dr_grpo,
    "rloo": rloo,
    "maxrl": maxrl,
    "reinforce++": reinforce_pp,
}
