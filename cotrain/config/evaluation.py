"""The evaluation of a recipe: which held-out problems, and what is measured; ``cotrain.trainer.evaluation`` runs it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cotrain.core.arguments import bound_options
from cotrain.core.errors import ConfigError
from cotrain.core.types import RolloutFn, Task, TaskSource
from cotrain.metrics.heldout import Measure


@dataclass(frozen=True, kw_only=True)
class ImplicitReward:
    """Measures the implicit reward log π_policy − log π_reference of solutions (DPO's reward, an implicit PRM)."""

    policy: str
    reference: str | None = None  # None: no rewards, the surprisal alone
    role: str = "solver"  # role whose solutions are scored
    replies: bool = False  # also measure the policy's surprisal, −log π per token, at right solutions


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """The protocol, the problems and the measures of an evaluation."""

    protocol: RolloutFn  # protocol, with its options bound
    measures: tuple[Measure, ...]
    greedy: bool = True  # collect a second set of episodes at temperature 0, for the figures in ``GREEDY_NAMES``
    tasks: int = 256  # problems of the test split, before and after
    curve_tasks: int = 64  # problems of the validation split, while training
    group_size: int = 8  # episodes for each problem
    splits: tuple[str, ...] = ()  # further splits, measured at the end with four samples a problem; keys get their name
    # Role → frozen policy that plays it in a second measurement. So verifiers are also measured on solutions that do
    # not change during the run; keys get ``fixed``, and only figures of verifiers are kept.
    frozen_roles: Mapping[str, str] = field(default_factory=dict)
    implicit_rewards: tuple[ImplicitReward, ...] = ()  # reward models, which are measured without sampling from them
    # Early stopping: the run ends with the state that was best in this figure on the validation split, such as
    # "solver/greedy"; "" for the last state.
    best: str = ""

    def __post_init__(self) -> None:
        are_functions = isinstance(self.measures, tuple | list) and all(map(callable, self.measures))
        if not are_functions:
            raise ConfigError(
                f"measures is {shown_measures(self.measures)}; expected functions in a tuple, as in "
                "measures=(measure_solver('solver', 8),)",
                code="E_MEASURES_NOT_TUPLE",
            )

    @property
    def options(self) -> Mapping[str, Any]:
        """The options that are bound to the protocol, for display."""
        return bound_options(self.protocol)


def shown_measures(measures: Any) -> str:
    """What was given in the place of measures, in few words."""
    if isinstance(measures, tuple | list):
        wrong = next(measure for measure in measures if not callable(measure))
        return f"a {type(measures).__name__} with {wrong!r} in it"
    return f"a {type(measures).__name__}"


def held_out(source: TaskSource, split: str, count: int, seed: int) -> list[Task]:
    """``count`` problems of a held-out split, or all if it has fewer.

    Each seed has a block of its own: the same problems in every recipe, before and after training. If a split is too
    small for that, blocks wrap around and overlap."""
    size = source.size(split)
    if size is not None:
        count = min(count, size)
    indices: Sequence[int] = range(seed * count, (seed + 1) * count)
    if size is not None:
        indices = [index % size for index in indices]
    return [source.get(split, index) for index in indices]
