"""One reward channel → advantages of every token: pool, subtract a baseline, normalise, spread over the tokens.

Each estimator is a way to *centre* values within pools; what follows is the same for all of them.

    "grpo"         z-score within the group                       centred, then spread over tokens
    "rloo"         minus the mean of the others of the group      centred, then spread over tokens
    "ema"          minus a running mean of the role               centred, then spread over tokens
    "reinforce++"  whitening over all tokens of the batch         spread over tokens, then whitened

Whole-trace values reach every token of their trace (reward on the last token, γ = 1). Step values stand on the last
token of their step and are summed towards the front: A(t) = Σ_{k: end_k ≥ t} z_k (RL Tango, arXiv 2505.15034). The
pool of a step channel is *all* flagged steps of all traces of a group, so traces of many steps weigh more in it.
REINFORCE++ whitens a step channel over the tokens of the traces that have steps; a trace without has zeros there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import torch

from cotrain.functional.credit import group_mean_std, leave_one_out, pool_is_flat, process_advantage, whiten
from cotrain.learn.signals import Reading

Estimator = Literal["grpo", "rloo", "reinforce++", "ema"]
ESTIMATORS: tuple[Estimator, ...] = ("grpo", "rloo", "reinforce++", "ema")
Centre = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]  # values [N], pools [N] → [N]


def centre_of(estimator: Estimator, std: bool) -> Centre:
    """The centring function of an estimator that keeps no state; "reinforce++" centres later, over tokens."""
    if estimator == "grpo":
        return lambda values, pools: group_mean_std(values, pools, std="sample" if std else None)
    if estimator == "rloo":
        return leave_one_out
    return lambda values, pools: values


class Channel:
    """The advantages of one channel: ``tokens[i]`` is float64 ``[T_i]`` of reading i."""

    def __init__(self, tokens: list[torch.Tensor], flat: torch.Tensor) -> None:
        self.tokens = tokens
        self.flat = flat  # [G] bool: groups whose values in this channel are all equal (or at most one)

    @property
    def magnitude(self) -> float:
        """Mean |A| over tokens."""
        count = sum(len(t) for t in self.tokens)
        return float(sum(t.abs().sum() for t in self.tokens)) / count if count else 0.0


def whole_channel(
    readings: Sequence[Reading],
    values: Sequence[float],
    pools: torch.Tensor,
    groups: int,
    centre: Centre,
    whitened: bool,
) -> Channel:
    """One value for each trace (``values`` and ``pools`` ``[N]``), the same advantage at all of its tokens."""
    raw = torch.tensor(values, dtype=torch.float64)
    centred = centre(raw, pools)
    tokens = [centred[i].repeat(reading.length) for i, reading in enumerate(readings)]
    if whitened:
        tokens = _whiten_tokens(tokens, [True] * len(tokens))
    return Channel(tokens, pool_is_flat(raw, pools, groups))


def step_channel(
    readings: Sequence[Reading], name: str, pools: torch.Tensor, groups: int, centre: Centre, whitened: bool
) -> Channel:
    """The steps of signal ``name``, pooled over the traces of a group (``pools`` ``[N]``: group of each trace)."""
    steps = [reading.steps[name] for reading in readings]
    counts = torch.tensor([len(s.values) for s in steps], dtype=torch.int64)
    raw = torch.tensor([v for s in steps for v in s.values], dtype=torch.float64)  # [M] all flagged steps
    pool_of_step = pools.repeat_interleave(counts)
    centred = centre(raw, pool_of_step)
    tokens = []
    for reading, step, scores in zip(readings, steps, centred.split(counts.tolist()), strict=True):
        shares = torch.tensor(step.shares, dtype=torch.float64)
        ends = torch.tensor(step.ends, dtype=torch.int64)
        tokens.append(process_advantage(scores * shares, ends, reading.length))
    if whitened:
        tokens = _whiten_tokens(tokens, [s.count > 0 for s in steps])
    return Channel(tokens, pool_is_flat(raw, pool_of_step, groups))


def _whiten_tokens(tokens: list[torch.Tensor], take: list[bool]) -> list[torch.Tensor]:
    """Whiten over the tokens of the traces that ``take`` part; the others keep their zeros."""
    lengths = [len(t) for t, taken in zip(tokens, take, strict=True) if taken]
    if not lengths:
        return tokens
    chosen = torch.cat([t for t, taken in zip(tokens, take, strict=True) if taken])
    parts = iter(whiten(chosen).split(lengths))
    return [next(parts) if taken else t for t, taken in zip(tokens, take, strict=True)]
