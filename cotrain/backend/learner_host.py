"""The policies of a run with their optimisers, in a process of its own. Knows no Ray: ``on_ray.py`` makes it an actor.

The very handles of one process (``handles.py``) answer here, asked by name. Tensors leave as numpy arrays, which Ray's
store hands on without a copy (torch tensors are pickled: six times as slow for 500 MB).
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from cotrain.backend.handles import PolicyHandle, PolicySpec, Sequences
from cotrain.backend.local import PolicyFactory
from cotrain.backend.shapes import ComputeShape
from cotrain.core.state import State
from cotrain.learn.contract import Given, LossTerm, UpdateReport
from cotrain.text.render import Rendering

Arrays = dict[str, Any]  # name → numpy array


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyInfo:
    """What of a policy the run itself has to know."""

    renderer: Rendering | None
    shape: ComputeShape | None
    changes: bool


class LearnerHost:
    """All policies whose models this run holds."""

    def __init__(
        self,
        policies: Mapping[str, PolicySpec],
        seed: int,
        device: str,
        threads: int,
        room: type[PolicyFactory] = PolicyFactory,
    ) -> None:
        """``policies``: all of the run, as the backend has settled them; ``threads``: of the CPU; ``room``: where they
        are built."""
        torch.set_num_threads(threads)
        factory = room(policies, seed, device)
        self.handles: dict[str, PolicyHandle] = {n: factory.get_handle(n) for n, spec in policies.items() if spec.head}

    def pid(self) -> int:
        return os.getpid()

    def describe_policies(self) -> dict[str, PolicyInfo]:
        return {
            name: PolicyInfo(renderer=handle.renderer, shape=handle.shape(), changes=handle.changes)
            for name, handle in self.handles.items()
        }

    def update(self, policy: str, terms: Sequence[LossTerm]) -> tuple[UpdateReport, int]:
        """What the update did, and the version of the weights after it."""
        report = self.handles[policy].update(terms)
        return report, self.handles[policy].version

    def logprobs(self, policy: str, sequences: Sequences, temperature: float, given: Sequence[Given]) -> list[Any]:
        """A numpy array ``[T]`` for each sequence."""
        tensors = self.handles[policy].logprobs(sequences, temperature=temperature, given=given)
        return [values.numpy() for values in tensors]

    def follow(self, policy: str, source: str, planned: int) -> tuple[bool, int]:
        """Whether the weights of a following policy changed, and their version."""
        changed = self.handles[policy].follow(self.handles[source], planned)
        return changed, self.handles[policy].version

    def renew(self, policy: str) -> None:
        self.handles[policy].renew()

    def restart(self, policy: str) -> bool:
        return self.handles[policy].restart()

    def weights(self, policy: str) -> Arrays:
        return _to_arrays(dict(self.handles[policy].weights()))

    def state(self, policy: str) -> State:
        return self.handles[policy].state()

    def tensors(self, policy: str) -> Arrays:
        return _to_arrays(self.handles[policy].tensors())

    def load(self, policy: str, state: State, arrays: Arrays) -> int:
        """Put back what ``state`` and ``tensors`` gave; the version of the weights."""
        self.handles[policy].load(state, tensors_of(arrays))
        return self.handles[policy].version

    def limit(self, policy: str) -> int | None:
        return self.handles[policy].scoring_limit()

    def limit_to(self, policy: str, tokens: int | None) -> None:
        self.handles[policy].set_scoring_limit(tokens)


def _to_arrays(tensors: Mapping[str, torch.Tensor]) -> Arrays:
    return {name: tensor.detach().cpu().numpy() for name, tensor in tensors.items()}


def tensors_of(arrays: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """Tensors of their own: what comes out of Ray's store is read only."""
    return {name: torch.from_numpy(array.copy()) for name, array in arrays.items()}
