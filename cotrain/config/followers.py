"""Policies that follow a trained one without a gradient of their own: moving averages and snapshots.

    ema        after every update of its source: w ← rate · source + (1 − rate) · w (Co-rewarding-II, arXiv 2508.00410)
    snapshot   after every ``every`` updates of its source, beginning with update ``first``, the source's weights enter
               a pool of ``keep`` snapshots; the policy has the weights of one of them

Both start with the weights of their model. They can play roles and be references like any policy, and their weights are
in every checkpoint.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Protocol

import torch
from torch import nn

from cotrain.algorithms.contract import PolicyClient
from cotrain.core.errors import StateError
from cotrain.core.seeding import seed_of
from cotrain.core.types import State, take_fields
from cotrain.distributed.policy_handles import ModelHandle, ModelSpec
from cotrain.prompts.render import Rendering

CURRENT = "model."  # prefix of the policy's own weights; those of the pool begin with "pool<n>."


class FollowerSpec(ModelSpec, Protocol):
    """A policy that follows another one."""

    @property
    def offload(self) -> bool: ...


class AverageSpec(FollowerSpec, Protocol):
    """``policies.Average``."""

    @property
    def rate(self) -> float: ...

    @property
    def rate_end(self) -> float | None: ...


class SnapshotSpec(FollowerSpec, Protocol):
    """``policies.Snapshot``."""

    @property
    def every(self) -> int: ...

    @property
    def keep(self) -> int: ...

    @property
    def pick(self) -> str: ...

    @property
    def first(self) -> int: ...


class AverageHandle(ModelHandle):
    """A moving average of another policy's weights."""

    changes = True
    version = 0
    spec: AverageSpec

    def __init__(
        self,
        name: str,
        spec: AverageSpec,
        renderer: Rendering | None,
        model: nn.Module,
        *,
        activate: Callable[[], object] | None = None,
    ) -> None:
        """``model`` is changed in place, so an engine that shares it has the new weights at once."""
        super().__init__(name, spec, renderer, model, activate=activate)
        self._parameters = dict(model.named_parameters())

    @torch.no_grad()
    def follow(self, source: PolicyClient, planned: int) -> bool:
        weights = dict(source.weights())
        rate = rate_at(self.spec, source.version, planned)
        for name, parameter in self._parameters.items():
            source_weight = weights[name].to(parameter.dtype)
            # Computed on the source's device, since offloaded weights of either policy are on the CPU.
            parameter.copy_(parameter.to(source_weight.device).lerp(source_weight, rate))
        self.forget_scorer()
        self.version += 1
        return True

    def state(self) -> State:
        return {"version": self.version, "pool": []}

    def tensors(self) -> dict[str, torch.Tensor]:
        """Copies of all weights on the CPU: ``model.<parameter>``."""
        return {CURRENT + name: tensor for name, tensor in _copy_weights(self._parameters, "cpu").items()}

    def load(self, state: State, tensors: Mapping[str, torch.Tensor]) -> None:
        """Restore what ``state`` and ``tensors`` returned. Raises StateError, with nothing changed, if it does not
        fit."""
        version, _ = take_fields("following policy", state, "version", "pool")
        _check_names(tensors, {CURRENT + name for name in self._parameters})
        _fill_weights(self._parameters, tensors)
        self.forget_scorer()
        self.version = int(version)


class SnapshotHandle(ModelHandle):
    """Earlier weights of another policy: a pool of snapshots, of which this policy has one at a time."""

    changes = True
    version = 0
    spec: SnapshotSpec

    def __init__(
        self,
        name: str,
        spec: SnapshotSpec,
        renderer: Rendering | None,
        model: nn.Module,
        seed: int,
        *,
        activate: Callable[[], object] | None = None,
    ) -> None:
        """``model`` is changed in place, so an engine that shares it has the new weights at once. ``seed``: for random
        picks."""
        super().__init__(name, spec, renderer, model, activate=activate)
        self._seed = seed
        self._parameters = dict(model.named_parameters())
        # (updates of the source, its weights), oldest first
        self._pool: list[tuple[int, dict[str, torch.Tensor]]] = [(0, self._copy_for_pool(self._parameters))]

    @torch.no_grad()
    def follow(self, source: PolicyClient, planned: int) -> bool:
        weights = dict(source.weights())
        updates = source.version
        updates_since_first = updates - self.spec.first
        if updates_since_first < 0 or updates_since_first % self.spec.every != 0:
            return False
        self._pool.append((updates, self._copy_for_pool(weights)))
        self._pool = self._pool[-self.spec.keep :]
        _, picked_weights = self._pool[self._pick_index(updates)]
        for name, saved in picked_weights.items():
            self._parameters[name].copy_(saved)
        self.forget_scorer()
        self.version += 1
        return True

    def _copy_for_pool(self, weights: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return _copy_weights(weights, "cpu" if self.spec.offload else None)

    def _pick_index(self, updates: int) -> int:
        """The index in the pool of the snapshot to use after so many updates of the source."""
        if self.spec.pick == "random":
            return seed_of(self._seed, "snapshot", updates) % len(self._pool)
        if self.spec.pick == "oldest":
            return 0
        return -1

    def state(self) -> State:
        return {"version": self.version, "pool": [updates for updates, _ in self._pool]}

    def tensors(self) -> dict[str, torch.Tensor]:
        """Copies of all weights on the CPU: ``model.<parameter>``, and those of the pool, ``pool<n>.<parameter>``."""
        copies = {CURRENT + name: tensor for name, tensor in _copy_weights(self._parameters, "cpu").items()}
        for n, (_, weights) in enumerate(self._pool):
            copies |= {f"pool{n}.{name}": tensor for name, tensor in _copy_weights(weights, "cpu").items()}
        return copies

    def load(self, state: State, tensors: Mapping[str, torch.Tensor]) -> None:
        """Restore what ``state`` and ``tensors`` returned. Raises StateError, with nothing changed, if it does not
        fit."""
        version, pool = take_fields("following policy", state, "version", "pool")
        prefixes = [CURRENT, *(f"pool{n}." for n in range(len(pool)))]
        _check_names(tensors, {prefix + name for prefix in prefixes for name in self._parameters})
        _fill_weights(self._parameters, tensors)
        self.forget_scorer()
        self._pool = []
        for n, updates in enumerate(pool):
            weights = {name: tensors[f"pool{n}.{name}"].clone() for name in self._parameters}
            self._pool.append((int(updates), weights))
        self.version = int(version)


def _check_names(tensors: Mapping[str, torch.Tensor], expected: set[str]) -> None:
    if set(tensors) != expected:
        raise StateError(
            f"tensors of a following policy do not fit: {sorted(set(tensors) ^ expected)[:3]}",
            code="E_FOLLOWER_TENSORS_MISFIT",
        )


def _fill_weights(weights: Mapping[str, torch.Tensor], tensors: Mapping[str, torch.Tensor]) -> None:
    with torch.no_grad():
        for name, parameter in weights.items():
            parameter.copy_(tensors[CURRENT + name])


def rate_at(rule: AverageSpec, updates: int, planned: int) -> float:
    """Share of the source at its ``updates``-th update: half a cosine from ``rate`` to ``rate_end``."""
    if rule.rate_end is None:
        return rule.rate
    done = min(1.0, (updates - 1) / max(1, planned - 1))
    return rule.rate_end + (rule.rate - rule.rate_end) * 0.5 * (1.0 + math.cos(math.pi * done))


def _copy_weights(weights: Mapping[str, torch.Tensor], device: str | None) -> dict[str, torch.Tensor]:
    """Copies on ``device``, or with None where each weight is."""
    return {name: tensor.detach().to(device or tensor.device, copy=True) for name, tensor in weights.items()}
