"""Asking a model a few questions before a run, in one format after another, until most replies can be read. Used for
answers (``answers.py``) and reviews (``verdicts.py``)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Protocol, TypeVar

from cotrain.backend.local import LocalBackend
from cotrain.config.recipe import Recipe
from cotrain.core.address import seed_of
from cotrain.core.errors import ConfigError
from cotrain.core.types import Task
from cotrain.core.verbosity import Pace
from cotrain.engine.contract import as_serving_engine
from cotrain.rollout.common_roles import speaks_short
from cotrain.rollout.executor import Executor, Roles, grade_outside
from cotrain.rollout.role import Role
from cotrain.train.lag import StoppableEngine
from cotrain.train.policy_store import PolicyStore

AUTO = "auto"
PROBED = 8  # problems
ENOUGH_READ = 6  # texts of them that must be read for a way to be taken at once
STEP = -3  # the step in the addresses of these texts

Say = Callable[[str], None]


class ProbeReading(Protocol):
    """What could be read of the texts to one way of asking."""

    @property
    def total(self) -> int: ...

    @property
    def readable(self) -> int: ...


R = TypeVar("R", bound=ProbeReading)


# ---- asking


def is_package_model(recipe: Recipe, role: Role) -> bool:
    """Whether a model of the package plays this role, or one that has no words."""
    spec = recipe.policies[role.policy]
    return not spec.head or speaks_short(spec.model)


def probe_tasks(recipe: Recipe) -> list[Task]:
    """``PROBED`` training problems, spread over the split where it ends."""
    size = recipe.tasks.size("train")
    return [recipe.tasks.get("train", i) for i in (range(PROBED) if size is None else spread_indices(size))]


def spread_indices(size: int) -> list[int]:
    """At most ``PROBED`` of so many, spread over them."""
    count = min(PROBED, size)
    return [i * size // count for i in range(count)]


async def ask_solver(task: Task, roles: Roles) -> None:
    """The solver answers, and nobody grades it."""
    await roles.solver(problem=task.prompt)


def player_factory(
    recipe: Recipe, policies: Iterable[str], *, what: str, device: str, say: Say
) -> Callable[[Mapping[str, Role]], Executor]:
    """Who plays roles of these policies, as they begin. ``what``: the texts that progress counts, "answers"."""
    backend = LocalBackend(device)
    store = PolicyStore(backend.open({n: recipe.policies[n] for n in sorted(policies)}, seed=recipe.seed))
    seed = seed_of("probe", recipe.seed)

    def make_player(roles: Mapping[str, Role]) -> Executor:
        return Executor(
            StoppableEngine(backend.engine, lambda: 0),
            store.renderers,
            roles,
            seed,
            grader=grade_outside,
            watch=lambda total: Pace(total, f"  {{}} {what}", say).add,
        )

    return make_player


def context_of(recipe: Recipe, role: Role, executor: Executor) -> int | None:
    """Tokens of prompt and answer that the model of a role takes; None where another server has it."""
    engine = getattr(executor.engine, "engine", executor.engine)
    return as_serving_engine(engine).context(role.policy) if recipe.policies[role.policy].speaks else None


# ---- choosing


def first_clear(readings: Iterable[R], asked: int) -> R:
    """The first that reads ``ENOUGH_READ`` in ``PROBED`` of what was asked, none behind it drawn; else
    ``most_read``."""
    tried: list[R] = []
    for reading in readings:
        tried.append(reading)
        if reading.readable * PROBED >= ENOUGH_READ * asked:
            break
    return most_read(tried)


def most_read(readings: Iterable[R]) -> R:
    """The one that reads most, of equals the first."""
    return max(readings, key=lambda reading: reading.readable)


def report_choice(best: ProbeReading, lines: Iterable[str], why: Callable[[], str], *, named: bool, say: Say) -> None:
    """Say what was chosen, and where not half of it can be read, ``why``: as a note where the way was ``named``, else
    as a ConfigError."""
    for line in lines:
        say(line)
    if best.total and 2 * best.readable >= best.total:
        return
    if not named:
        raise ConfigError(why())
    say(f"note: {why()}")
