"""Policies that follow a trained one without a gradient of their own: moving averages and snapshots.

    ema        after every update of its source: ref ← rate · source + (1 − rate) · ref (Co-rewarding-II, arXiv
               2508.00410)
    snapshot   every ``every`` updates, from the ``first`` on, the source's weights enter a pool of ``keep``; one of the
               pool is played

Both start from the weights of the model that they name. They speak, judge and serve as reference like any policy, and
what they hold goes into every checkpoint.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from cotrain.algorithms.contract import PolicyVerbs
from cotrain.config.policies import Average, Snapshot
from cotrain.core.errors import StateError
from cotrain.core.seeding import seed_of
from cotrain.core.types import State, take_fields
from cotrain.distributed.policy_handles import ModelHandle
from cotrain.prompts.render import Rendering

PLAYED = "model."  # prefix of the weights that speak; those of the pool begin with "pool<n>."


class FollowerHandle(ModelHandle):
    """A following policy of a run, and the history of its weights as far as it is needed."""

    changes = True
    version = 0
    spec: Average | Snapshot

    def __init__(
        self,
        name: str,
        spec: Average | Snapshot,
        renderer: Rendering | None,
        model: nn.Module,
        seed: int,
        *,
        activate: Callable[[], object] | None = None,
    ) -> None:
        """``model`` is changed in place, so an engine that shares it has the new weights at once."""
        super().__init__(name, spec, renderer, model, activate=activate)
        self._seed = seed
        self._played = dict(model.named_parameters())
        self._pool: list[tuple[int, dict[str, torch.Tensor]]] = []  # (updates of the source, its weights), oldest first
        if isinstance(spec, Snapshot):
            self._pool.append((0, self._copy_for_pool(self._played)))

    @torch.no_grad()
    def follow(self, source: PolicyVerbs, planned: int) -> bool:
        weights, updates = dict(source.weights()), source.version
        if isinstance(self.spec, Average):
            rate = rate_at(self.spec, updates, planned)
            for name, parameter in self._played.items():
                source_weight = weights[name].to(parameter.dtype)  # where both rest, or one, the sum is made there
                parameter.copy_(parameter.to(source_weight.device).lerp(source_weight, rate))
        else:
            since = updates - self.spec.first
            if since < 0 or since % self.spec.every:
                return False
            self._pool = [*self._pool, (updates, self._copy_for_pool(weights))][-self.spec.keep :]
            for name, saved in self._pool[self._pick_index(updates)][1].items():
                self._played[name].copy_(saved)
        self.version += 1
        return True

    def _copy_for_pool(self, weights: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        return _copy_weights(weights, "cpu" if self.spec.offload else None)

    def _pick_index(self, updates: int) -> int:
        assert isinstance(self.spec, Snapshot)
        if self.spec.pick == "random":
            return seed_of(self._seed, "snapshot", updates) % len(self._pool)
        return 0 if self.spec.pick == "oldest" else -1

    def state(self) -> State:
        return {"version": self.version, "pool": [updates for updates, _ in self._pool]}

    def tensors(self) -> dict[str, torch.Tensor]:
        """Copies of all weights, beside the CPU: ``model.<parameter>`` and, of a pool, ``pool<n>.<parameter>``."""
        copies = {PLAYED + name: tensor for name, tensor in _copy_weights(self._played, "cpu").items()}
        for n, (_, weights) in enumerate(self._pool):
            copies |= {f"pool{n}.{name}": tensor for name, tensor in _copy_weights(weights, "cpu").items()}
        return copies

    def load(self, state: State, tensors: Mapping[str, torch.Tensor]) -> None:
        """Exactly what ``state`` and ``tensors`` gave; raises StateError, nothing changed, if it does not fit."""
        version, pool = take_fields("following policy", state, "version", "pool")
        prefixes = [PLAYED, *(f"pool{n}." for n in range(len(pool)))]
        expected = {prefix + name for prefix in prefixes for name in self._played}
        if set(tensors) != expected:
            raise StateError(f"tensors of a following policy do not fit: {sorted(set(tensors) ^ expected)[:3]}")
        with torch.no_grad():
            for name, parameter in self._played.items():
                parameter.copy_(tensors[PLAYED + name])
        self._pool = [
            (int(updates), {name: tensors[f"pool{n}.{name}"].clone() for name in self._played})
            for n, updates in enumerate(pool)
        ]
        self.version = int(version)


def rate_at(rule: Average, updates: int, planned: int) -> float:
    """Share of the source at its ``updates``-th update: half a cosine from ``rate`` to ``rate_end``."""
    if rule.rate_end is None:
        return rule.rate
    done = min(1.0, (updates - 1) / max(1, planned - 1))
    return rule.rate_end + (rule.rate - rule.rate_end) * 0.5 * (1.0 + math.cos(math.pi * done))


def _copy_weights(weights: Mapping[str, Any], device: str | None) -> dict[str, torch.Tensor]:
    """On ``device``; None: where each is."""
    return {name: tensor.detach().to(device or tensor.device, copy=True) for name, tensor in weights.items()}
