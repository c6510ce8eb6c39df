"""The backend of several processes: the engine in one, the learners in another, the run itself in neither.

::

    run ──ask──▶ learners   update, logprobs, state …             weights ─┐ from process to process
     └──ask──▶ engine       advance: requests in, answers out   ◀──────────┘ (or several: ``placement.py``)

A policy may have learners of its own, one process or several ranks: then it is updated next to the others.

A process that is lost takes what it held with it:

    engine     copies only. The rollouts that it was lost in are sampled again, by a new one with the present weights
    learners   the run goes back to its newest checkpoint, or its start, and makes the steps since then again;
               where they are several ranks (``ranks.py``) or processes, the loss of one is the loss of all

Either gives the bits of an undisturbed run. Who begins processes and carries what is said is a ``Launcher``:
``ray_processes.py``.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import torch

from cotrain.algorithms.policy_loss import Bounds
from cotrain.core.errors import EngineLost, ProcessLost
from cotrain.core.types import Trace
from cotrain.distributed.contract import ProcessStats, short_name
from cotrain.distributed.local import PolicyFactory, cache_answers_by_policy
from cotrain.distributed.placement import ENGINE as ENGINE
from cotrain.distributed.placement import LEARNERS as LEARNERS
from cotrain.distributed.placement import (
    EnginePlacement,
    LearnerPlacement,
    PlacementRule,
    one_local_engine,
    place_learners,
    process_names,
    with_replicas,
)
from cotrain.distributed.policy_handles import PolicyHandle, PolicySpec, route_policies
from cotrain.distributed.ranks import RankGroup, RankGroupPolicy
from cotrain.distributed.remote_engines import EngineProcess, HostedEngines
from cotrain.distributed.remote_policies import HostedPolicy, Launcher, LearnerHost, PolicyInfo, Process
from cotrain.distributed.weight_sync_check import PublishCheck, check_publishing
from cotrain.prompts.render import Rendering

TRIES = 3  # to begin, or to publish weights, each with new processes
WEIGHTS = "weights_to_publish"  # the request to learners for the weights that an engine needs
Made = TypeVar("Made")


class TimedProcess:
    """A process, and the seconds in which it was asked for something. Implements ``contract.Process``."""

    def __init__(self, process: Process, worked: ProcessStats) -> None:
        self._process = process
        self._worked = worked
        # These return at once, or wait for others: they are passed on as they are.
        self.send = process.send
        self.wait = process.wait
        self.kill = process.kill

    def ask(self, method: str, *arguments: Any) -> Any:
        began = time.perf_counter()
        try:
            return self._process.ask(method, *arguments)
        finally:
            self._worked.busy += time.perf_counter() - began


class MultiProcessBackend:
    """Implements ``Backend``."""

    def __init__(
        self,
        launcher: Launcher,
        device: str = "cpu",
        *,
        world: int = 1,
        worlds: Mapping[str, int] | None = None,
        placing: PlacementRule = one_local_engine,
        replicas: int = 1,
        kind: str = "local",
        bounds: Bounds | None = None,
    ) -> None:
        """Args:
        world: ranks that hold the learners together.
        worlds: policies with learners of their own, and how many ranks those are.
        placing: which engines there are.
        replicas: processes of each engine.
        kind: kind of the engines, "local" or "vllm".
        bounds: see ``Backend``.
        """
        self.bounds = bounds
        self.world = world
        self.replicas = replicas
        self.worlds = dict(worlds or {})
        self.launcher = launcher
        self.device = device
        self.kind = kind
        self.placing = with_replicas(placing, replicas)
        self._handles: dict[str, PolicyHandle] = {}
        self.arrivals: list[PublishCheck] = []  # results of the self-tests of publishing
        self._learners: dict[str, Process] = {}  # by place
        self._engine_processes: dict[str, Process] = {}  # by place
        self._limits: dict[str, int] = {}  # tokens of a pass, by policy, where a rank's memory ran out
        self._published: dict[str, tuple[int, Any]] | None = None  # version and weights by policy, where they are kept

    def open(self, policies: Mapping[str, PolicySpec], *, seed: int) -> dict[str, PolicyHandle]:
        self._policies = dict(policies)
        self._seed = seed
        self._learner_places = place_learners(self._policies, self.world, self.worlds)
        self._home = {policy: place for place in self._learner_places for policy in place.policies}
        self._places = self.placing(*self._host_settings(self._policies))
        self._worked = self._new_stats()
        try:
            self.launcher.start()
            opened = retry_lost(self._start_processes, ProcessLost, self._kill_processes)
        except BaseException:
            self._stop_processes()
            raise
        outside = ModelFreeFactory(self._policies, opened)
        for name, spec in self._policies.items():
            if name in opened:
                home = self._home[name]
                handle_type = RankGroupPolicy if home.world > 1 else HostedPolicy
                handle = handle_type(name, spec, opened[name], partial(self._present_learners, home))
                handle.engine = self._engine
                self._handles[name] = handle
            else:
                self._handles[name] = outside.get_handle(name)

        self.engine = route_policies(self._handles, self._engine)
        try:
            # Replicas of an engine have the same policies, which are tested together.
            for group in dict.fromkeys(place.policies for place in self._places if place.tested):
                self.arrivals += self._test_publishing(group)
        except BaseException:
            self._stop_processes()
            raise
        return dict(self._handles)

    def _test_publishing(self, policies: Sequence[str]) -> list[PublishCheck]:
        """Check the policies of one engine, or its replicas. Raises ConfigError where new weights do not arrive."""
        handles = [self._handles[name] for name in policies]
        engines = self._engine.each_alone(handles[0].name)
        return retry_lost(lambda: check_publishing(handles, engines, self.publish), EngineLost)

    def _start_processes(self) -> dict[str, PolicyInfo]:
        """All processes, which load at once, and what the learners tell of the policies."""
        self._learners = {place.what: self._begin_learners(place) for place in self._learner_places}
        self._engine_processes = {place.what: self._begin_engine(place) for place in self._places}
        opened: dict[str, PolicyInfo] = {}
        for learners in self._learners.values():
            opened |= learners.ask("describe_policies")
        engines = [
            EngineProcess(process, place.policies, partial(self._new_engine, place), self._worked[place.what])
            for process, place in zip(self._engine_processes.values(), self._places, strict=True)
        ]
        self._engine = HostedEngines(engines)
        return opened

    def publish(self, policy: str, version: int) -> None:
        """Raises ProcessLost when the learners are lost, EngineLost after three engines one after the other."""
        retry_lost(lambda: self._try_publishing(policy, version), EngineLost)

    def _try_publishing(self, policy: str, version: int) -> None:
        home = self._home[policy]
        learners = self._present_learners(home)
        weights = learners.send(WEIGHTS, policy)
        if self._published is not None:
            self._published[policy] = version, weights
        began = time.perf_counter()
        try:
            byte_count = self._engine.send_weights(policy, version, weights)
        except EngineLost:
            learners.wait(weights, WEIGHTS)  # raises ProcessLost when it is the learners that are lost
            raise
        self._record_publishing(home, byte_count, time.perf_counter() - began)

    def lane_of(self, policy: str) -> str:
        """The process, or the ranks, that hold it."""
        return self._home[policy].what

    def held_while_learning(self, computing: Collection[str], changed: Collection[str]) -> Collection[str] | None:
        """The policies that change, as the engine has weights of its own. None if all learners are in one process, or
        if the engine cannot hold back the requests of one policy."""
        has_own_learners = bool(self.worlds)
        can_hold = self.engine.can_hold and self.kind == "local"
        if not has_own_learners or not can_hold:
            return None
        if self._published is None:
            self.try_to_overlap()
        return list(changed)

    def try_to_overlap(self) -> bool:
        """Keep the weights that were published last: an engine that is lost during an update gets those, and not new
        ones from the learners. They are kept by their references, so they stay in Ray's store."""
        self._published = {}
        retry_lost(self._publish_all, ProcessLost, self.restart_lost_processes)
        return True

    def _publish_all(self) -> None:
        for handle in self._handles.values():
            if handle.changes and handle.renderer is not None:
                self.publish(handle.name, handle.version)

    def cache_remote_answers(self, traces: Iterable[Trace]) -> None:
        cache_answers_by_policy(self._handles, traces)

    def restart_lost_processes(self) -> None:
        """Start new learners, for all policies. An engine that is lost too is replaced when it is asked next."""
        for learners in self._learners.values():
            learners.kill()
        self._learners = {}
        if self._published is not None:
            self._published = {}
        for handle in self._handles.values():
            if isinstance(handle, HostedPolicy):
                handle.version = 0
        for place in self._learner_places:
            self._present_learners(place)

    def process_stats(self) -> dict[str, ProcessStats]:
        return {short_name(what): replace(worked) for what, worked in self._worked.items()}

    def describe(self) -> dict[str, Any]:
        described = {**self.launcher.describe(), "engine": self.kind, "device": self.device}
        if self.world > 1:
            described["world"] = self.world
        if self.replicas > 1:
            described["replicas"] = self.replicas
        if self.worlds:
            described["learners"] = self.worlds
        return described

    async def close(self) -> None:
        await asyncio.gather(*(handle.close() for handle in self._handles.values()))
        self._stop_processes()

    def _present_learners(self, place: LearnerPlacement) -> Process:
        """The learners of a place, which are begun where there are none."""
        if place.what not in self._learners:
            self._learners[place.what] = self._begin_learners(place)
        return self._learners[place.what]

    def _new_engine(self, place: EnginePlacement) -> Process:
        """Another engine with the present weights. Raises EngineLost, and ProcessLost when it is the learners that are
        lost."""
        if place.what in self._engine_processes:
            self._engine_processes[place.what].kill()
        process = self._begin_engine(place)
        self._engine_processes[place.what] = process
        for name in place.policies:
            handle = self._handles.get(name)
            if handle is not None and handle.changes and handle.renderer is not None:
                learners = self._present_learners(self._home[handle.name])
                version, weights = self._weights_for(handle, learners)
                try:
                    byte_count = process.ask("publish", handle.name, version, weights, [])
                    self._worked[place.what].published_bytes += byte_count
                except ProcessLost as lost:
                    learners.wait(weights, WEIGHTS)
                    raise EngineLost(str(lost), code=lost.code) from lost
        return process

    def _weights_for(self, handle: PolicyHandle, learners: Process) -> tuple[int, Any]:
        """Version and weights for a new engine: those published last where an update may be going on."""
        if self._published is not None and handle.name in self._published:
            return self._published[handle.name]
        return handle.version, learners.send(WEIGHTS, handle.name)

    def _begin_learners(self, place: LearnerPlacement) -> Process:
        settings = self._host_settings({name: self._policies[name] for name in place.policies})
        if place.world > 1:
            worked = [self._worked[what] for what in process_names(place.what, place.world)]
            return RankGroup(place.what, self.launcher, settings, self._limits, worked)
        return TimedProcess(self.launcher.begin(place.what, LearnerHost, settings), self._worked[place.what])

    def _new_stats(self) -> dict[str, ProcessStats]:
        """Empty counts for all processes, by their names in messages."""
        learners = {
            what: ProcessStats(policies=place.policies)
            for place in self._learner_places
            for what in process_names(place.what, place.world)
        }
        engines = {place.what: ProcessStats(policies=place.policies, tokens=0.0) for place in self._places}
        return learners | engines

    def _record_publishing(self, place: LearnerPlacement, taken: int, seconds: float) -> None:
        """Weights went from learners to an engine, or to its replicas."""
        names = process_names(place.what, place.world)
        self._worked[names[0]].published_bytes += taken  # the first rank has gathered them
        for what in names:
            self._worked[what].publish_seconds += seconds

    def _begin_engine(self, place: EnginePlacement) -> Process:
        return self.launcher.begin(place.what, place.host, place.settings)

    def _host_settings(self, policies: Mapping[str, PolicySpec]) -> tuple[Any, ...]:
        return (policies, self._seed, self.device, torch.get_num_threads())

    def _kill_processes(self) -> None:
        for process in (*self._engine_processes.values(), *self._learners.values()):
            process.kill()
        self._engine_processes = {}
        self._learners = {}

    def _stop_processes(self) -> None:
        self._kill_processes()
        self.launcher.stop()


def retry_lost(work: Callable[[], Made], lost: type[ProcessLost], mend: Callable[[], object] = lambda: None) -> Made:
    """``work()``; where it loses a process it is done again, ``TRIES`` times in all, after ``mend()``."""
    for _ in range(TRIES - 1):
        try:
            return work()
        except lost:
            mend()
    return work()


class ModelFreeFactory(PolicyFactory):
    """The factory for policies without a model here: programs, and models of other servers."""

    def __init__(self, policies: Mapping[str, PolicySpec], opened: Mapping[str, PolicyInfo]) -> None:
        self.policies = policies
        self._opened = opened
        self._built = {}

    def renderer_of(self, name: str) -> Rendering | None:
        return self._opened[name].renderer if name in self._opened else super().renderer_of(name)
