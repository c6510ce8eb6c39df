"""Policies whose models are in another process: ``HostedPolicy`` is the run's side, ``LearnerHost`` the other one.

::

    policy.update(terms) ──pack──▶ LearnerHost.update("generator", …) ──▶ the handle of that process
                         (``policy_handles.py``) ◀─unpack── (its answer, the version of its weights then)

Each method of ``learn.contract.PolicyClient`` is written out on both sides. Tensors cross as numpy arrays, which Ray's
store hands on without a copy (torch tensors are pickled: six times as slow for 500 MB), policies as their names. Knows
no Ray: ``ray_processes.py`` makes the host an actor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy
import torch

from cotrain.algorithms.contract import ContextTokens, LossTerm, PolicyClient, Sequences, UpdateReport
from cotrain.core.types import State
from cotrain.distributed.local import PolicyFactory
from cotrain.distributed.policy_handles import ComputeShape, PolicyHandle, PolicySpec
from cotrain.prompts.render import Rendering

DEPTH = 3  # containers within each other in which tensors are looked for: arguments, sequences, pairs; not token ids
Arrays = dict[str, Any]  # name → numpy array


class Process(Protocol):
    """A host in a process of its own."""

    def ask(self, method: str, *arguments: Any) -> Any:
        """Call a method there and wait. Raises what it raised, and ProcessLost when there is no answer."""
        ...

    def send(self, method: str, *arguments: Any) -> Any:
        """Call a method there. What comes back stands for its answer: as an argument to another process, or in
        ``wait``."""
        ...

    def wait(self, reference: Any, method: str) -> Any:
        """The answer of ``send``. Errors: as ``ask``."""
        ...

    def kill(self) -> None:
        """Whatever it does, and if it is gone already."""
        ...


class WatchedProcess(Process, Protocol):
    """A process that can be asked whether an answer is there, without waiting for it."""

    def is_done(self, reference: Any, seconds: float) -> bool:
        """Whether the answer of ``send``, or its error, is there within these seconds."""
        ...


class Launcher(Protocol):
    """Begins processes, and carries what is said to them."""

    @property
    def here(self) -> bool:
        """Whether all processes are on this machine."""
        ...

    @property
    def deadline(self) -> float:
        """Seconds for each answer."""
        ...

    def start(self) -> None:
        """Make ready. Raises ConfigError where that cannot be."""
        ...

    def begin(self, what: str, host: type, settings: tuple[Any, ...]) -> WatchedProcess:
        """A process that holds ``host(*settings)``; it need not stand yet."""
        ...

    def stop(self) -> None:
        """No process is left behind."""
        ...

    def describe(self) -> dict[str, Any]:
        """JSON values for the run's provenance."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyInfo:
    """The facts of a policy that the run itself has to know."""

    renderer: Rendering | None
    shape: ComputeShape | None
    changes: bool


@dataclass(frozen=True, slots=True)
class PolicyName:
    """Stands for a policy on the way to the process that has it."""

    name: str


class HostedPolicy(PolicyHandle):
    """A policy whose model is in the process of the learners, which has a method of the same name."""

    version = 0  # the version that the learners reported last

    def __init__(self, name: str, spec: PolicySpec, opened: PolicyInfo, learners: Callable[[], Process]) -> None:
        """``learners``: the process that holds it now."""
        super().__init__(name, spec, opened.renderer)
        self.changes = opened.changes
        self._shape = opened.shape
        self._learners = learners

    def update(self, terms: Sequence[LossTerm]) -> UpdateReport:
        report: UpdateReport = self._ask(LearnerHost.update, terms)
        return report

    def reset_optimizer(self) -> None:
        self._ask(LearnerHost.reset_optimizer)

    def reset_weights(self) -> bool:
        return bool(self._ask(LearnerHost.reset_weights))

    def logprobs(
        self, sequences: Sequences, *, temperature: float = 1.0, context_tokens: Sequence[ContextTokens] = ()
    ) -> list[torch.Tensor]:
        return list(self._ask(LearnerHost.logprobs, sequences, temperature, context_tokens))

    def weights(self) -> Iterable[tuple[str, torch.Tensor]]:
        weights: Iterable[tuple[str, torch.Tensor]] = self._ask(LearnerHost.weights)
        return weights

    def follow(self, source: PolicyClient, planned: int) -> bool:
        return bool(self._ask(LearnerHost.follow, source, planned))

    def state(self) -> State:
        state: State = self._ask(LearnerHost.state)
        return state

    def tensors(self) -> dict[str, torch.Tensor]:
        return dict(self._ask(LearnerHost.tensors))

    def load(self, state: State, tensors: Mapping[str, torch.Tensor]) -> None:
        self._ask(LearnerHost.load, state, tensors)

    def scoring_limit(self) -> int | None:
        tokens: int | None = self._ask(LearnerHost.scoring_limit)
        return tokens

    def set_scoring_limit(self, tokens: int | None) -> None:
        self._ask(LearnerHost.set_scoring_limit, tokens)

    def _ask(self, method: Callable[..., Answer], *arguments: Any) -> Any:
        """Call this method of ``LearnerHost`` in its process, and note the version that it tells."""
        answer, self.version = self._learners().ask(method.__name__, self.name, *pack(arguments))
        return unpack(answer)

    def shape(self) -> ComputeShape | None:
        return self._shape


Answer = tuple[Any, int]  # a policy's answer, packed, and the version of its weights after it


class LearnerHost:
    """All policies whose models this run holds, with their optimisers. The methods of ``PolicyClient`` take the
    policy's name first, then packed arguments."""

    def __init__(
        self,
        policies: Mapping[str, PolicySpec],
        seed: int,
        device: str,
        threads: int,
        policy_factory: type[PolicyFactory] = PolicyFactory,
    ) -> None:
        """``policies``: all of the run; ``threads``: of the CPU; ``policy_factory``: where they are built."""
        torch.set_num_threads(threads)
        factory = policy_factory(policies, seed, device)
        self.handles: dict[str, PolicyHandle] = {n: factory.get_handle(n) for n, spec in policies.items() if spec.head}

    def update(self, policy: str, terms: Sequence[LossTerm]) -> Answer:
        return self._pack_answer(policy, self.handles[policy].update(terms))

    def reset_optimizer(self, policy: str) -> Answer:
        self.handles[policy].reset_optimizer()
        return self._pack_answer(policy, None)

    def reset_weights(self, policy: str) -> Answer:
        return self._pack_answer(policy, self.handles[policy].reset_weights())

    def logprobs(self, policy: str, sequences: Sequences, temperature: float, given: Sequence[ContextTokens]) -> Answer:
        logprobs = self.handles[policy].logprobs(sequences, temperature=temperature, context_tokens=given)
        return self._pack_answer(policy, logprobs)

    def weights(self, policy: str) -> Answer:
        return self._pack_answer(policy, self.handles[policy].weights())

    def follow(self, policy: str, source: PolicyName, planned: int) -> Answer:
        return self._pack_answer(policy, self.handles[policy].follow(self.handles[source.name], planned))

    def state(self, policy: str) -> Answer:
        return self._pack_answer(policy, self.handles[policy].state())

    def tensors(self, policy: str) -> Answer:
        return self._pack_answer(policy, self.handles[policy].tensors())

    def load(self, policy: str, state: State, tensors: Arrays) -> Answer:
        self.handles[policy].load(state, unpack(tensors))
        return self._pack_answer(policy, None)

    def scoring_limit(self, policy: str) -> Answer:
        return self._pack_answer(policy, self.handles[policy].scoring_limit())

    def set_scoring_limit(self, policy: str, tokens: int | None) -> Answer:
        self.handles[policy].set_scoring_limit(tokens)
        return self._pack_answer(policy, None)

    def _pack_answer(self, policy: str, answer: Any) -> Answer:
        """The answer as it is sent, with the version of the policy's weights."""
        return pack(answer), self.handles[policy].version

    def describe_policies(self) -> dict[str, PolicyInfo]:
        return {
            name: PolicyInfo(renderer=handle.renderer, shape=handle.shape(), changes=handle.changes)
            for name, handle in self.handles.items()
        }

    def weights_to_publish(self, policy: str) -> Arrays:
        """For an engine, to whose process they go."""
        return dict(pack(self.handles[policy].weights()))


def pack(value: Any, depth: int = DEPTH) -> Any:
    """The same with numpy arrays in the place of tensors, names in that of policies, and lists in that of iterators."""
    if isinstance(value, torch.Tensor):
        return value.detach().cpu().numpy()
    if isinstance(value, PolicyHandle):
        return PolicyName(value.name)
    if isinstance(value, Iterator):
        return [pack(one, depth - 1) for one in value]
    return _map_items(value, lambda one: pack(one, depth - 1)) if depth else value


def unpack(value: Any, depth: int = DEPTH) -> Any:
    """Undo ``pack``; names of policies stay names. Tensors get memory of their own, since what comes out of Ray's store
    is read only."""
    if isinstance(value, numpy.ndarray):
        return torch.from_numpy(value.copy())
    return _map_items(value, lambda one: unpack(one, depth - 1)) if depth else value


def _map_items(value: Any, change: Callable[[Any], Any]) -> Any:
    """The same container of other items; what is none as it is."""
    if isinstance(value, Mapping):
        return {name: change(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        items = [change(one) for one in value]
        return tuple(items) if isinstance(value, tuple) else items
    return value
