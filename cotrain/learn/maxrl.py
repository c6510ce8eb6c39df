"""MaxRL (Tajwar et al. 2026, arXiv 2602.02710): maximum likelihood of a right answer, from samples that are right or
wrong.

    A_i = (r_i − mean) / mean      within each group; 0 where the group has no success

The gradient of log p is that of p divided by p, which the mean of the group estimates: a problem that is rarely solved
weighs as much more. With N samples the expectation is that of Σ_{k ≤ N} 1/k · ∇pass@k, whose first term is REINFORCE
and whose limit is maximum likelihood. Left out: rewards below 0, which have no rate of success.
"""

from __future__ import annotations

from functools import partial

import torch

from cotrain.core.errors import ConfigError
from cotrain.functional.credit import pool_moments
from cotrain.learn.policy_gradient import PolicyGradient


def over_success(values: torch.Tensor, pools: torch.Tensor) -> torch.Tensor:
    """``values`` ``[N]`` of at least 0 and ``pools`` ``[N]`` → advantages ``[N]``. Raises ConfigError for a negative
    reward."""
    if bool((values < 0.0).any()):
        raise ConfigError(f"maxrl: a reward is {float(values.min())}; expected 0 for failure and 1 for success")
    _, mean, flat = pool_moments(values, pools)
    return torch.where(flat[pools], torch.zeros_like(values), (values - mean[pools]) / mean[pools])


maxrl = partial(PolicyGradient, advantage=over_success)
