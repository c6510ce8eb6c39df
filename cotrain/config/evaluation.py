"""The evaluation of a recipe: which held-out problems, and what is measured; ``cotrain.trainer.evaluation`` runs it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cotrain.core.arguments import bound_options
from cotrain.core.types import RolloutFn, Task, TaskSource
from cotrain.metrics.heldout import Measure


@dataclass(frozen=True, kw_only=True)
class ImplicitReward:
    """A reward model that samples no text: log-ratios of ``policy`` to ``reference`` at the tokens of ``role``'s
    solutions; with ``replies``, also the policy's surprisal at those that are right."""

    policy: str
    reference: str | None = None  # None: no log-ratios, its surprisal alone
    role: str = "solver"
    replies: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """The protocol, the problems and the measures of an evaluation."""

    protocol: RolloutFn  # protocol, with its options bound
    measures: tuple[Measure, ...]
    greedy: bool = True  # play once more, greedily, for the figures in ``GREEDY_NAMES``
    tasks: int = 256  # problems of the test split, before and after
    curve_tasks: int = 64  # problems of the validation split, while training
    group_size: int = 8  # episodes a problem
    splits: tuple[str, ...] = ()  # further ones, measured with four samples each at the end; keys get the split's name
    frozen_roles: Mapping[str, str] = field(default_factory=dict)  # role → frozen policy that plays it instead, for
    # figures on solutions that do not change while the run goes on; keys get ``fixed``, and only judging roles are kept
    implicit_rewards: tuple[ImplicitReward, ...] = ()  # reward models read off log-probabilities
    best: str = ""  # early stopping: the end is the state that was highest in this figure on the validation split, such
    # as solver/greedy; "": the last one

    @property
    def options(self) -> Mapping[str, Any]:
        """The options that are bound to the protocol, for display."""
        return bound_options(self.protocol)


def held_out(source: TaskSource, split: str, count: int, seed: int) -> list[Task]:
    """``count`` problems of a held-out split, or all where it has no more. Each seed has a block of its own, the same
    one in every recipe and before and after; where a split is too small for that, blocks go round and overlap."""
    size = source.size(split)
    if size is not None:
        count = min(count, size)
    places: Sequence[int] = range(seed * count, (seed + 1) * count)
    if size is not None:
        places = [place % size for place in places]
    return [source.get(split, place) for place in places]
