"""The schedule: which protocol samples the rollouts of a step and which objectives are trained, as a pure function of
the step.

So resuming needs nothing but the number of the step. Decays run on each policy's own number of updates and not on the
global step, because Tango's α is defined over the generator's updates alone. ``planned_batches`` computes that number
in advance.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn

from cotrain.core.arguments import bound_function, bound_options, check_kind, check_name_list, option_names
from cotrain.core.errors import ConfigError, UnknownName
from cotrain.core.seeding import permuted_index, seed_of
from cotrain.core.types import RolloutFn, Task, TaskSource

LEADING = "generator"  # name of the stream of tasks from which phases of the leading objective draw


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """One kind of step: the protocol that is run, on how many problems, and which objectives are trained."""

    name: str
    protocol: RolloutFn  # protocol, with its options bound, as in ``partial(solve_then_verify, reviews=8)``
    objectives: tuple[str, ...]  # names of the objectives that are trained
    tasks: int | None = None  # problems, None for the recipe's ``tasks_per_step``
    group_size: int | None = None  # episodes on each problem, None for the recipe's ``group_size``
    stores: tuple[str, ...] = ()  # names of the recipe's stores that are passed to the protocol
    unlabelled: float = 0.0  # share of its problems that are drawn from those without labels (``--labelled``)
    # The same objectives in the order in which they are trained, if each is to be trained before the rewards and
    # log-probabilities of the next one are computed; (): all at once.
    in_turn: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for label, names in (("objectives", self.objectives), ("stores", self.stores), ("in_turn", self.in_turn)):
            check_name_list(f"phase {self.name!r}: {label}", names)

    @property
    def options(self) -> Mapping[str, Any]:
        """The options that are bound to the protocol, for display."""
        return bound_options(self.protocol)


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """The phases of ``warmup``, each for its number of steps, then the phases of ``cycle`` over and over."""

    phases: tuple[Phase, ...]
    cycle: tuple[str, ...]  # names of phases, in turn
    warmup: tuple[tuple[str, int], ...] = ()  # (name of a phase, steps)

    def __post_init__(self) -> None:
        check_name_list("schedule: cycle", self.cycle)
        names = [phase.name for phase in self.phases]
        if len(set(names)) != len(names):
            raise ConfigError(f"two phases have one name: {names}", code="E_PHASE_TWICE")
        idle = [phase.name for phase in self.phases if not phase.objectives]
        if idle:
            raise ConfigError(
                f"phase {idle[0]!r} trains nobody; give it an objective or leave it out", code="E_PHASE_TRAINS_NOBODY"
            )
        for phase in self.phases:
            if not 0.0 <= phase.unlabelled <= 1.0:
                raise ConfigError(
                    f"phase {phase.name!r}: unlabelled is {phase.unlabelled}, expected a share in [0, 1]",
                    code="E_UNLABELLED_SHARE",
                )
            if phase.in_turn and sorted(phase.in_turn) != sorted(phase.objectives):
                raise ConfigError(
                    f"phase {phase.name!r}: in_turn {phase.in_turn} must name its objectives {phase.objectives}, "
                    "each once",
                    code="E_IN_TURN_NAMES",
                )
        if not self.cycle:
            raise ConfigError("schedule: the cycle is empty; name at least one phase", code="E_SCHEDULE_EMPTY")
        for name in (*self.cycle, *(phase_name for phase_name, _ in self.warmup)):
            if name not in names:
                raise ConfigError(f"schedule names phase {name!r}, but there are only {names}", code="E_NO_SUCH_PHASE")
        for name, length in self.warmup:
            if length < 0:
                raise ConfigError(
                    f"schedule: warmup of phase {name!r} is {length}, expected at least 0 steps", code="E_WARMUP_RANGE"
                )

    def _name_at(self, step: int) -> str:
        """The name of the phase of a step, counted from 0."""
        for name, length in self.warmup:
            if step < length:
                return name
            step -= length
        return self.cycle[step % len(self.cycle)]

    def phase_at(self, step: int) -> Phase:
        """The phase of a step, counted from 0."""
        name = self._name_at(step)
        return next(phase for phase in self.phases if phase.name == name)

    def steps_by_phase(self, steps: int) -> Counter[str]:
        """How many of the first ``steps`` steps are of each phase, by its name; without phases that have none."""
        counts = Counter[str]()
        remaining = steps
        for name, length in self.warmup:
            n_warmup = min(length, remaining)
            counts[name] += n_warmup
            remaining -= n_warmup
        rounds, rest = divmod(remaining, len(self.cycle))
        for place, name in enumerate(self.cycle):
            counts[name] += rounds + (place < rest)
        return +counts

    def position_in_stream(self, step: int, leading: str, tasks_of_phase: Mapping[str, int]) -> int:
        """The position of a step's first task in its stream (``stream_of``): the number of tasks that earlier steps
        drew from it.

        Args:
            step: counted from 0.
            leading: name of the recipe's leading objective.
            tasks_of_phase: how many tasks a step of each phase draws, by the phase's name.
        """
        streams = {phase.name: stream_of(phase, leading) for phase in self.phases}
        stream = streams[self._name_at(step)]
        earlier_steps = self.steps_by_phase(step)
        return sum(tasks_of_phase[name] * count for name, count in earlier_steps.items() if streams[name] == stream)

    def due_for_new_optimizer(self, step: int, policies: Mapping[str, str]) -> list[str]:
        """Policies whose objectives all change at this step, such as after a warm-up by cross-entropy. They get a new
        optimiser: Adam's moments of large gradients would make the first hundred steps on small ones too short.

        Stages are the phases of the warm-up, and the cycle. A policy is returned if a stage begins at this step and
        none of the objectives that train it there trained it in the last stage in which it was trained.

        Args:
            policies: the policy that each objective trains, by the objective's name.
        """
        objectives_of_phase = {phase.name: set(phase.objectives) for phase in self.phases}
        stages = [(length, objectives_of_phase[name]) for name, length in self.warmup]
        objectives_of_cycle = set().union(*(objectives_of_phase[name] for name in self.cycle))
        stages.append((1, objectives_of_cycle))

        stage_start = 0
        trained_last: dict[str, set[str]] = {}  # policy → the objectives that trained it last
        for length, objectives in stages:
            trained_now: dict[str, set[str]] = {}
            for objective, policy in policies.items():
                if objective in objectives:
                    trained_now.setdefault(policy, set()).add(objective)
            if stage_start == step:
                changed = []
                for policy in dict.fromkeys(policies.values()):
                    now = trained_now.get(policy)
                    last = trained_last.get(policy)
                    if now and last and now.isdisjoint(last):
                        changed.append(policy)
                return changed

            trained_last |= trained_now
            stage_start += length
        return []

    def planned_batches(self, objectives: Collection[str], steps: int) -> int:
        """The number of batches in the first ``steps`` steps for a policy that these objectives train: one for each
        step that trains any of them, or, in phases with ``in_turn``, one for each of them."""
        batches_of_phase = {}
        for phase in self.phases:
            n_in_turn = len(set(objectives).intersection(phase.in_turn))
            is_trained = not set(objectives).isdisjoint(phase.objectives)
            batches_of_phase[phase.name] = n_in_turn or int(is_trained)
        return sum(batches_of_phase[name] * count for name, count in self.steps_by_phase(steps).items())


def stream_of(phase: Phase, leading: str) -> str:
    """The name of the stream from which the steps of a phase draw their tasks, one after the other.

    All phases that train the recipe's ``leading`` objective draw from ``LEADING``. So the n-th such step of two recipes
    with one seed has the same problems, whatever their objectives are called and whatever other steps are between."""
    return LEADING if leading in phase.objectives else phase.objectives[0]


def rebind_options(protocol: RolloutFn, options: Mapping[str, Any]) -> RolloutFn:
    """The protocol with these options bound instead of earlier ones."""
    return partial(bound_function(protocol), **options)


def constant_schedule(
    protocol: RolloutFn,
    *objectives: str,
    name: str = "train",
    group_size: int | None = None,
    unlabelled: float = 0.0,
    stores: tuple[str, ...] = (),
    in_turn: tuple[str, ...] = (),
    **misplaced: Any,
) -> Schedule:
    """The same phase at every step; see ``Phase`` for its settings. ``misplaced`` catches options of the protocol,
    which are to be bound with ``partial``: they raise ConfigError."""
    if misplaced:
        _raise_misplaced(protocol, next(iter(misplaced)))
    phase = Phase(
        name=name,
        protocol=protocol,
        objectives=objectives,
        group_size=group_size,
        unlabelled=unlabelled,
        stores=stores,
        in_turn=in_turn,
    )
    return Schedule(phases=(phase,), cycle=(name,))


def _raise_misplaced(protocol: RolloutFn, keyword: str) -> NoReturn:
    """Raise UnknownName for a keyword that neither ``constant_schedule`` nor the protocol has; ConfigError for an
    option of the protocol, which is to be bound."""
    function = bound_function(protocol)
    label = getattr(function, "__name__", str(function))
    options = option_names(function)
    if keyword not in options:
        own = ("name", "group_size", "unlabelled", "stores", "in_turn")
        raise UnknownName(f"argument of constant_schedule(), or option of {label},", keyword, [*own, *options])
    raise ConfigError(
        f"constant_schedule: {keyword} is an option of {label}; bind it, as in "
        f"constant_schedule(partial({label}, {keyword}=…), …)",
        code="E_OPTION_NOT_BOUND",
    )


def alternate(*phases: Phase, ratio: tuple[int, ...], warmup: Mapping[str, int] | None = None) -> Schedule:
    """Each phase for its number of steps in ``ratio``, in turn; before that, warm-up phases by name."""
    for phase in phases:
        check_kind("alternate: a phase", phase, Phase, "alternate(Phase(…), Phase(…), ratio=(3, 1))")
    check_kind("alternate: ratio", ratio, (tuple, list), "the steps of each phase in a tuple, as in ratio=(3, 1)")
    if warmup is not None:
        check_kind("alternate: warmup", warmup, Mapping, "steps by the name of a phase, as in {'verifier': 20}")
    if len(ratio) != len(phases) or any(steps < 0 for steps in ratio) or not any(ratio):
        raise ConfigError(
            f"schedule: ratio {ratio} needs one whole number >= 0 for each of {len(phases)} phases, not all 0",
            code="E_SCHEDULE_RATIO",
        )
    cycle: list[str] = []
    for phase, steps in zip(phases, ratio, strict=True):
        cycle += [phase.name] * steps
    warmup_phases = tuple((name, length) for name, length in (warmup or {}).items() if length != 0)
    return Schedule(phases=phases, cycle=tuple(cycle), warmup=warmup_phases)


# -- The problem that a training step draws is a function of seed, stream and position, so that a run keeps no list.


def train_task(
    source: TaskSource, seed: int, stream: str, position: int, split: str = "train", share: float = 1.0
) -> Task:
    """The ``position``-th training problem of a stream. An endless source is sampled by hash. A finite one, or its
    first ``share``, is shuffled anew for each epoch, by a Feistel permutation that needs no list. ``share``: in
    (0, 1]."""
    size = source.size(split)
    if size is None:
        return source.get(split, seed_of("draw", seed, stream, position) % 2**40)
    size = math.ceil(share * size)
    epoch, index = divmod(position, size)
    return source.get(split, permuted_index(index, size, seed_of("epoch", seed, stream, epoch)))
