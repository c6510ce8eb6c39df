"""``--ramp``: training problems from easy to hard, by how often a model solves them.

::

    cotrain eval MODEL --suite jsonl --data problems.jsonl --samples 8 --out evals/ramp
    cotrain run grpo --model MODEL --data problems.jsonl --ramp evals/ramp/suite-jsonl.jsonl --out runs/ramp

A step draws among the easiest share of the training problems. The share begins at ``BEGIN``. How it grows is one of
two:

- Fixed, by the step alone: the competence of Platanios et al. 2019 (arXiv 1903.09848, section 2.2),

      c(t) = sqrt(t · (1 − c0²) / T + c0²)        c0 = ``BEGIN``, T the first half of the steps; then all

- Adaptive, with ``--target-solve-rate r``: by the share of right answers in the steps so far,

      share ← share + gain · (solve rate of the step − r)        within [``BEGIN``, 1]

  So it widens while more than r are solved, and narrows while fewer are. AdaRFT moves its target difficulty in this way
  (Shi et al. 2025, arXiv 2504.05520). It has a tanh around the difference, which bounds it, and draws the problems
  nearest to the target alone; here easier ones stay in.

The share is known when a step draws, and no later: with ``--async-steps K`` it is that of K steps before.

Left out: rates of single problems that are measured again while the run goes on; sources without end.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from cotrain.core.errors import ConfigError, DataError
from cotrain.core.notes import CORRECT
from cotrain.core.seeding import seed_of
from cotrain.core.types import Episode, State, Task, TaskSource, take_fields
from cotrain.core.verbosity import print_note
from cotrain.data.question_text import normal_question
from cotrain.data.row_files import lines_of, object_of

BEGIN = 0.1  # share of the problems at the first step
GAIN = 0.2  # with a target of 0.5, nine steps in which all is solved take the share from ``BEGIN`` to 1


@dataclass(frozen=True, slots=True, kw_only=True)
class RampedTasks:
    """``source`` with its training problems in the order from easy to hard."""

    source: TaskSource
    order: tuple[int, ...] = field(repr=False)  # places of the training problems in ``source``
    name: str = field(default="ramp", init=False)

    def get(self, split: str, index: int) -> Task:
        return self.source.get(split, self.order[index] if split == "train" else index)

    def size(self, split: str) -> int | None:
        return self.source.size(split)

    def share_at(self, step: int, steps: int) -> float:
        """The easiest share of the training problems that a step draws among, on a fixed ramp."""
        return share_at(step, steps)

    @property
    def notes(self) -> list[str]:
        return list(getattr(self.source, "notes", []))

    @property
    def quarantine(self) -> Any:
        return getattr(self.source, "quarantine", None)

    def describe(self) -> dict[str, Any]:
        """For recipe.json; a run is built again from its arguments."""
        digest = f"{seed_of('ramp', str(self.order)):016x}"
        return {"kind": self.name, "settings": {"source": self.source.describe(), "digest": digest}}


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptiveRamp:
    """The share of an adaptive ramp. It is a store of the run (``rollout/stores.py``): brought up to date when a step
    is over, and part of every checkpoint."""

    target: float  # solve rate above which the share grows
    roles: tuple[str, ...]  # whose answers count
    gain: float = GAIN  # by how much the share grows at a solve rate of 1 more than ``target``
    share: float = BEGIN  # the easiest share of the training problems, among which the next problems are drawn
    solve_rate: float | None = None  # of the newest step with graded answers

    def __post_init__(self) -> None:
        if not 0.0 < self.target < 1.0:
            raise ConfigError(
                f"target_solve_rate is {self.target}, expected a share between 0 and 1, such as 0.5",
                code="E_TARGET_SOLVE_RATE_RANGE",
            )
        for name, value, least in (("gain", self.gain, 0.0), ("share", self.share, BEGIN)):
            if not least <= value <= 1.0:
                raise ConfigError(
                    f"{name} of a ramp is {value}, expected a number from {least:g} to 1", code="E_RAMP_RANGE"
                )

    def with_episodes(self, episodes: Sequence[Episode], step: int) -> AdaptiveRamp:
        """The ramp after a step with these episodes. Without a graded answer, as when graders failed, it holds; where
        nobody answered in the first step, it says so. Raises ConfigError where answers are never graded: whether a
        protocol grades them shows when it is played."""
        grades = self._grades(episodes)
        graded = [grade for grade in grades if grade is not None]
        if graded:
            solve_rate = sum(graded) / len(graded)
            moved = self.share + self.gain * (solve_rate - self.target)
            return replace(self, share=min(1.0, max(BEGIN, moved)), solve_rate=solve_rate)

        if grades and self.solve_rate is None:
            raise ConfigError(
                f"target_solve_rate: none of the {len(grades)} answers of step {step + 1} was graded, so there is no "
                "solve rate to follow; leave it out",
                code="E_RAMP_NOTHING_GRADED",
            )
        if not grades and step == 0:
            print_note(
                f"target_solve_rate: {_role_words(self.roles)} gave no answer in step 1, so training problems stay the "
                f"easiest {self.share:.0%} until there are some"
            )
        return self

    def _grades(self, episodes: Sequence[Episode]) -> list[bool | None]:
        """Whether each answer that did not fail is right; None for one that was not graded."""
        from cotrain.metrics.heldout import trajectories_in

        answers = [answer for episode in episodes for answer in trajectories_in(episode)]
        return [CORRECT.of(answer) for answer in answers if answer.role in self.roles and answer.failure is None]

    def metrics(self) -> dict[str, float]:
        return {} if self.solve_rate is None else {"solve_rate": self.solve_rate}

    def state(self) -> State:
        return {"share": self.share, "solve_rate": self.solve_rate}

    def restore_state(self, state: State) -> AdaptiveRamp:
        share, solve_rate = take_fields("a ramp", state, "share", "solve_rate")
        return replace(self, share=share, solve_rate=solve_rate)


def _role_words(roles: Sequence[str]) -> str:
    """These roles in a sentence: role 'solver'; roles 'first', 'second'."""
    names = ", ".join(map(repr, roles))
    return f"role {names}" if len(roles) == 1 else f"roles {names}"


def share_at(step: int, steps: int) -> float:
    """c of a step, counted from 0, in a run of ``steps``: in [``BEGIN``, 1]."""
    return min(1.0, math.sqrt(2 * step / steps * (1 - BEGIN**2) + BEGIN**2))


def with_ramp(source: TaskSource, path: str) -> RampedTasks:
    """``source`` in the order of the solve rates in a file of samples. Raises ConfigError for a source without end, and
    for training problems that the file has no graded sample of; DataError for a file that has other rows."""
    size = source.size("train")
    if size is None:
        raise ConfigError(
            f"ramp orders problems of a file, and there is no end of {source.name}; leave it out", code="E_RAMP_ENDLESS"
        )
    rates = _read_rates(path)
    keys = [normal_question(source.get("train", place).prompt) for place in range(size)]
    missing = [key for key in keys if key not in rates]
    if missing:
        raise ConfigError(
            f"ramp: {path} has no graded sample of {len(missing)} of {size} training problems, such as "
            f"{missing[0][:60]!r}; measure all: cotrain eval MODEL --suite jsonl --data FILE --samples 8",
            code="E_RAMP_UNGRADED",
        )
    order = sorted(range(size), key=lambda place: (-rates[keys[place]], seed_of("ramp", keys[place])))
    return RampedTasks(source=source, order=tuple(order))


def _read_rates(path: str) -> dict[str, float]:
    """Question → share of its graded samples that are right, of a ``suite-NAME.jsonl``; greedy answers left out."""
    right = Counter[str]()
    graded = Counter[str]()
    for number, line in lines_of(Path(path)):
        row = object_of(line, f"{path}, row {number}")
        if row.keys() == {"settings"} or row.get("sample", 0) < 0 or row.get("correct", 0) is None:
            continue
        if not isinstance(row.get("problem"), str) or not isinstance(row.get("correct"), bool):
            raise DataError(
                f"{path}, row {number}: expected a sample of `cotrain eval --suite`: problem and correct",
                code="E_NOT_EVAL_SAMPLE",
            )
        key = normal_question(row["problem"])
        graded[key] += 1
        right[key] += row["correct"]
    return {key: right[key] / count for key, count in graded.items()}
