"""The policies of a run by name, and what of them goes into a checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import torch

from cotrain.config.policies import Learning
from cotrain.core.errors import UnknownName
from cotrain.core.types import State, take_fields
from cotrain.distributed.policy_handles import SCORING_OOM, PolicyHandle
from cotrain.prompts.render import Renderer, Rendering
from cotrain.storage.tensor_files import TensorParts, is_finite
from cotrain.trainer.failures import NotFinite

MEMORY_SUFFIX = "/out_of_memory"  # behind a policy's name: the key of how often its memory ran out in a step


class PolicyStore:
    """All policies of one run, by name."""

    def __init__(self, handles: Mapping[str, PolicyHandle]) -> None:
        self._handles = dict(handles)

    def __getitem__(self, name: str) -> PolicyHandle:
        if name not in self._handles:
            raise UnknownName("policy", name, self._handles)
        return self._handles[name]

    def __iter__(self) -> Iterator[PolicyHandle]:
        return iter(self._handles.values())

    @property
    def renderers(self) -> dict[str, Rendering]:
        """The renderers of the policies that are asked, by their names."""
        return {h.name: h.renderer for h in self if h.renderer is not None}

    @property
    def trained_names(self) -> list[str]:
        """The policies that are trained."""
        return [h.name for h in self if h.spec.is_trained]

    @property
    def update_counts(self) -> dict[str, int]:
        """Optimiser steps so far of each policy that is trained."""
        return {h.name: h.version for h in self if h.spec.is_trained}

    def set_template_time(self, moment: datetime | None) -> None:
        """Chat templates that ask for the time are told this one, the beginning of the run."""
        if moment is None:
            return
        for renderer in self.renderers.values():
            if isinstance(renderer, Renderer):
                renderer.set_time(moment)

    def report_to(self, tell: Callable[[str], None]) -> None:
        """From now on ``tell`` is told what servers of policies say."""
        for handle in self:
            handle.tell = tell

    def followers_of(self, policy: str) -> list[PolicyHandle]:
        """The policies that change after an update of this one."""
        return [h for h in self if h.spec.source_policy == policy]

    def reset_optimizers(self, names: Iterable[str]) -> None:
        """Give each of these policies a new optimiser."""
        for name in names:
            self[name].reset_optimizer()

    @property
    def any_may_restart(self) -> bool:
        """True if a policy returns to its initial weights after each iteration (``reset_to_start``)."""
        return bool(self._restarting)

    @property
    def _restarting(self) -> list[PolicyHandle]:
        return [h for h in self if isinstance(h.spec, Learning) and h.spec.reset_to_start]

    def restart_weights_if_iteration_over(self) -> list[str]:
        """Before a step: policies with ``reset_to_start`` whose iteration is over begin the next one with their initial
        weights. Returns their names."""
        return [handle.name for handle in self._restarting if handle.reset_weights()]

    def served_versions(self) -> dict[str, int]:
        """The versions that the engine is told: of every policy that changes and is asked."""
        return {h.name: h.version for h in self if h.changes and h.renderer is not None}

    def outside_counts(self) -> dict[str, float]:
        """Counts of the policies that answer from outside: ``{policy}/remote/answers`` and so on."""
        counts: dict[str, float] = {}
        for handle in self:
            counts |= handle.counts()
        return {key: value for key, value in counts.items() if not key.endswith(SCORING_OOM)}

    def scoring_oom_counts(self) -> dict[str, float]:
        """How often memory ran out while a policy scored, by its key in a row; a learner reports its own."""
        return {
            handle.name + MEMORY_SUFFIX: handle.counts().get(f"{handle.name}/{SCORING_OOM}", 0.0) for handle in self
        }

    def state(self) -> State:
        return {h.name: h.state() for h in self if h.changes}

    def tensors(self) -> dict[str, dict[str, torch.Tensor]]:
        """Weights and optimiser moments of every policy that changes, by policy."""
        return {h.name: h.tensors() for h in self if h.changes}

    def checkpoint_parts(self) -> dict[str, Mapping[str, torch.Tensor] | TensorParts]:
        """``tensors`` for a checkpoint, or who writes them. Raises NotFinite for weights that no run can go on
        with."""
        parts = {h.name: h.checkpoint_tensors() for h in self if h.changes}
        for policy, group in parts.items():
            if not is_finite(group):
                raise NotFinite(f"policy {policy!r} has weights that are not finite", code="E_WEIGHTS_NOT_FINITE")
        return parts

    def check_can_save_to(self, folder: Path) -> None:
        """Raise ConfigError where checkpoints cannot be written there."""
        for handle in self:
            handle.check_folder(folder)

    def load(self, state: Mapping[str, Any], tensors: Mapping[str, Mapping[str, torch.Tensor]]) -> None:
        changing = [h for h in self if h.changes]
        take_fields("policies", state, *(h.name for h in changing))
        take_fields("tensors of policies", tensors, *(h.name for h in changing))
        for handle in changing:
            handle.load(state[handle.name], tensors[handle.name])
