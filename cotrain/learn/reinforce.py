"""Other baselines on the machinery of ``grpo.py``: only defaults differ, and every setting of ``Grpo`` is there.

    Rloo              minus the mean reward of the other traces of the group (RLOO, arXiv 2402.14740)
    Reinforce         minus a running mean of the role, plain gradient −A log π, no ratio; for self-play, where groups
                      have one member (Williams 1992; role-conditioned baseline as SPIRAL, arXiv 2506.24119)
    ReinforcePlusPlus whitened over all tokens of the batch (REINFORCE++, arXiv 2501.03262)

Left out of REINFORCE++: the KL penalty inside the reward; use ``kl=``.
"""

from __future__ import annotations

from dataclasses import dataclass

from cotrain.learn.channels import Estimator
from cotrain.learn.grpo import Grpo


@dataclass(frozen=True, kw_only=True)
class Rloo(Grpo):
    """Leave-one-out baseline within the group."""

    estimator: Estimator = "rloo"


@dataclass(frozen=True, kw_only=True)
class Reinforce(Grpo):
    """Running mean of each role as the baseline; the first batch is its own."""

    estimator: Estimator = "ema"
    clip: tuple[float, float] | None = None


@dataclass(frozen=True, kw_only=True)
class ReinforcePlusPlus(Grpo):
    """Whitening over the batch instead of a group baseline."""

    estimator: Estimator = "reinforce++"
