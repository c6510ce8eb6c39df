"""GRPO and its relatives by name: ``PolicyGradient`` with other functions; each takes every setting of it.

name           function      advantage
grpo           GRPO          (r − mean) / std of the group               GRPO, arXiv 2402.03300
dr_grpo        DrGRPO        r − mean of the group                       Dr. GRPO, arXiv 2503.20783
rloo           RLOO          r − mean of the others of the group         RLOO, arXiv 2402.14740
maxrl          MaxRL         (r − mean) / mean of the group              MaxRL, arXiv 2602.02710
reinforce++    ReinforcePP   r, whitened over all tokens of the batch    REINFORCE++, arXiv 2501.03262
(no name)      Reinforce     r − a running mean of the role              SPIRAL, arXiv 2506.24119; loss −A log π

- Dr. GRPO's division of the loss by a constant length is a setting: ``normalise="constant", constant=…``.
- REINFORCE++'s KL penalty is the setting ``kl``.
- ``Reinforce`` is for self-play, where groups have one member.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

from cotrain.algorithms.functional.advantages import group_moments, whiten
from cotrain.algorithms.functional.late_torch import torch
from cotrain.algorithms.policy_gradient import (
    AdvantageFn,
    KLPenalty,
    OverBatch,
    PolicyGradient,
    PPOClip,
    kl_penalty,
    leave_one_out,
    mean_baseline,
    z_score,
)
from cotrain.algorithms.policy_loss import ScoreFunction, TokenLoss
from cotrain.algorithms.running_mean import RunningMean
from cotrain.core.errors import ConfigError

__all__ = [
    "ALGORITHMS",
    "PPOClip",
    "KLPenalty",
    "AlgorithmName",
    "DrGRPO",
    "GRPO",
    "MaxRL",
    "kl_penalty",
    "Reinforce",
    "ReinforcePP",
    "RLOO",
]

# -- MaxRL (Tajwar et al. 2026, arXiv 2602.02710): maximum likelihood of a right answer, from samples that are right or
# wrong.
#
#     A_i = (r_i − mean) / mean      within each group; 0 where the group has no success
#
# - Why: ∇ log p = ∇p / p, and the mean of the group estimates p. So a problem that is rarely solved weighs more.
# - log p = −Σ_{k ≥ 1} (1 − p)^k / k, and pass@k = 1 − (1 − p)^k. So ∇ log p = Σ_{k ≥ 1} ∇pass@k / k.
# - A group of N samples estimates this sum up to k = N. The first term, ∇p, is what REINFORCE follows; for N → ∞ the
#   sum is maximum likelihood.
#
# Left out: rewards below 0, which have no rate of success.


def over_success(values: torch.Tensor, group_ids: torch.Tensor) -> torch.Tensor:
    """Minus the mean of the group, divided by that mean: the rate of success.

    ``values`` ``[N]`` of at least 0 and ``group_ids`` ``[N]`` → advantages ``[N]``. Raises ConfigError for a negative
    reward.
    """
    if bool((values < 0.0).any()):
        raise ConfigError(
            f"maxrl: a reward is {float(values.min())}; expected 0 for failure and 1 for success", code="E_MAXRL_REWARD"
        )

    _, mean, flat = group_moments(values, group_ids)
    relative = (values - mean[group_ids]) / mean[group_ids]
    # A group without success has mean 0, so ``relative`` is 0/0 there. It is flat as well, and gets 0 for that.
    return torch.where(flat[group_ids], torch.zeros_like(values), relative)


# -- The algorithms by name: functions, each of which returns a PolicyGradient with other defaults.


def GRPO(*, advantage: AdvantageFn | None = z_score, **settings: Any) -> PolicyGradient:
    """Rewards are standardised within the group."""
    return PolicyGradient(advantage=advantage, **settings)


def DrGRPO(*, advantage: AdvantageFn | None = mean_baseline, **settings: Any) -> PolicyGradient:
    """The mean of the group is subtracted, and nothing divided."""
    return PolicyGradient(advantage=advantage, **settings)


def RLOO(*, advantage: AdvantageFn | None = leave_one_out, **settings: Any) -> PolicyGradient:
    """The mean of the other answers of the group is subtracted."""
    return PolicyGradient(advantage=advantage, **settings)


def MaxRL(*, advantage: AdvantageFn | None = over_success, **settings: Any) -> PolicyGradient:
    """As ``mean_baseline``, divided by the share of right answers in the group."""
    return PolicyGradient(advantage=advantage, **settings)


MEAN_OF_EARLIER_EPISODES = RunningMean()
SCORE_FUNCTION = ScoreFunction()


def Reinforce(
    *,
    advantage: AdvantageFn | None = None,
    baseline: RunningMean | None = MEAN_OF_EARLIER_EPISODES,
    loss: TokenLoss = SCORE_FUNCTION,
    **settings: Any,
) -> PolicyGradient:
    """A running mean of the role is subtracted; no group, no ratio."""
    return PolicyGradient(advantage=advantage, baseline=baseline, loss=loss, **settings)


def ReinforcePP(
    *, advantage: AdvantageFn | None = None, over_batch: OverBatch | None = whiten, **settings: Any
) -> PolicyGradient:
    """Rewards are standardised over all tokens of the batch; no group."""
    return PolicyGradient(advantage=advantage, over_batch=over_batch, **settings)


AlgorithmName = Literal["grpo", "dr_grpo", "rloo", "maxrl", "reinforce++"]  # values of a recipe's flag
ALGORITHMS: Mapping[AlgorithmName, Callable[..., PolicyGradient]] = {
    "grpo": GRPO,
    "dr_grpo": DrGRPO,
    "rloo": RLOO,
    "maxrl": MaxRL,
    "reinforce++": ReinforcePP,
}
