"""Rewards → advantages: baselines, normalisation, and how the reward of a step reaches its tokens.

Functions take the rewards of many traces at once, with the index of the group of each. Means and standard deviations
are those of a group. Sums run in the dtype of the input; callers pass rewards as float64, since deviations of 1e-8 from
a float32 mean are not small next to ε = 1e-6. A group whose values are all equal gets exact zeros, never rounding noise
divided by ε. So does a group of one, which has nothing to be compared with (verl, as RL Tango uses it, keeps the raw
reward there).

Left out: mean-only variants with length terms, and per-token baselines (see ``values.gae``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from cotrain.algorithms.functional.late_torch import torch
from cotrain.algorithms.functional.reductions import check_same_shape

Std = Literal["sample", "population"]


def group_mean_std(
    values: torch.Tensor, group_ids: torch.Tensor, *, std: Std | None, eps: float = 1e-6
) -> torch.Tensor:
    """z_i = (r_i − mean) / (std + ε) within each group (GRPO, arXiv 2402.03300, §4.1.2).

    Args:
        values: ``[N]``.
        group_ids: ``[N]`` int64, index of each value's group.
        std: "sample" divides squares by n − 1 (``torch.std``; what verl and RL Tango do), "population" by n, None does
            not divide at all (Dr. GRPO, arXiv 2503.20783).
        eps: added to the standard deviation.

    For step rewards, ``values`` are those of all steps of all traces of a group.
    """
    count, mean, flat = group_moments(values, group_ids)
    deviation = values - mean[group_ids]
    if std is not None:
        squares = torch.zeros_like(mean).index_add_(0, group_ids, deviation.square())
        degrees = count - 1 if std == "sample" else count
        group_std = (squares / degrees).sqrt()
        deviation = deviation / (group_std + eps)[group_ids]
    return torch.where(flat[group_ids], torch.zeros_like(values), deviation)


def leave_one_out(values: torch.Tensor, group_ids: torch.Tensor) -> torch.Tensor:
    """A_i = r_i − mean_{j≠i} r_j = n/(n−1) · (r_i − mean) within each group (RLOO, arXiv 2402.14740)."""
    count, mean, flat = group_moments(values, group_ids)
    deviation = values - mean[group_ids]
    advantages = deviation * (count / (count - 1))[group_ids]
    return torch.where(flat[group_ids], torch.zeros_like(values), advantages)


def group_is_flat(values: torch.Tensor, group_ids: torch.Tensor, size: int) -> torch.Tensor:
    """``[size]`` bool: True for a group whose values are all equal, or that has at most one value."""
    check_group_ids(values, group_ids)
    low = values.new_full((size,), torch.inf).scatter_reduce_(0, group_ids, values, "amin")
    high = values.new_full((size,), -torch.inf).scatter_reduce_(0, group_ids, values, "amax")
    return high <= low  # an empty group has high = -inf


def whiten(values: torch.Tensor, *, std: Std = "sample", eps: float = 1e-6) -> torch.Tensor:
    """(x − mean) / (std + ε) over all of ``values`` ``[N]`` (REINFORCE++, arXiv 2501.03262).

    Give the tokens of the whole batch for REINFORCE++: then long traces weigh more in both moments. Returns zeros
    when all values are equal.
    """
    one_group = torch.zeros(values.shape, dtype=torch.int64)
    return group_mean_std(values, one_group, std=std, eps=eps)


def ema_baseline(
    rewards: torch.Tensor, episodes: Sequence[str], ema: float, *, decay: float
) -> tuple[torch.Tensor, float]:
    """A_i = r_i − b and the new b, a running mean over earlier episodes of one role (SPIRAL, arXiv 2506.24119).

    After each episode b ← decay · b + (1 − decay) · (mean of its rewards), so b does not depend on the reward from
    which it is subtracted.

    Args:
        rewards: ``[N]``.
        episodes: ``[N]`` the episode of each reward, in order.
        ema: b before this batch, 0 at first.
    """
    members: dict[str, list[int]] = {}
    for i, episode in enumerate(episodes):
        members.setdefault(episode, []).append(i)
    advantages = rewards.clone()
    for indices in members.values():
        advantages[indices] -= ema
        ema = decay * ema + (1.0 - decay) * float(rewards[indices].mean())
    return advantages, ema


def add_at_tokens(values: torch.Tensor, tokens: torch.Tensor, length: int) -> torch.Tensor:
    """Span values → token rewards: ``values`` ``[K]`` added up at token indices ``tokens`` ``[K]``, → ``[length]``.

    Raises ValueError for an index outside of ``[0, length)``.
    """
    check_group_ids(values, tokens)
    if len(tokens) and not (int(tokens.min()) >= 0 and int(tokens.max()) < length):
        raise ValueError(f"place: token indices {tokens.tolist()} in a trace of {length} tokens")
    return values.new_zeros(length).index_add_(0, tokens, values)


def reward_to_go(rewards: torch.Tensor, gamma: float = 1.0) -> torch.Tensor:
    """G_t = Σ_{u ≥ t} γ^(u−t) r_u along the last axis of ``rewards`` ``[..., T]``."""
    if gamma == 1.0:
        return rewards.flip(-1).cumsum(-1).flip(-1)
    returns = torch.empty_like(rewards)
    running = torch.zeros_like(rewards[..., 0])
    for t in reversed(range(rewards.shape[-1])):
        running = rewards[..., t] + gamma * running
        returns[..., t] = running
    return returns


def check_group_ids(values: torch.Tensor, group_ids: torch.Tensor) -> None:
    """Raise ValueError unless both are ``[N]``, values floating point and group ids int64."""
    if values.ndim != 1 or group_ids.shape != values.shape or group_ids.dtype != torch.int64:
        raise ValueError(
            f"expected values [N] and int64 [N], found {tuple(values.shape)}, "
            f"{tuple(group_ids.shape)} {group_ids.dtype}"
        )
    check_same_shape(values=values)


def group_moments(values: torch.Tensor, group_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The number of values, their mean, and whether all are equal, for each group: ``[G]`` each."""
    check_group_ids(values, group_ids)
    size = int(group_ids.max()) + 1 if len(group_ids) else 0
    count = torch.bincount(group_ids, minlength=size).to(values.dtype)
    mean = values.new_zeros(size).index_add_(0, group_ids, values) / count
    return count, mean, group_is_flat(values, group_ids, size)
