"""``--ramp``: training problems from easy to hard, by how often a model solves them.

::

    cotrain eval MODEL --suite jsonl --data problems.jsonl --samples 8 --out evals/ramp
    cotrain run grpo --model MODEL --data problems.jsonl --ramp evals/ramp/suite-jsonl.jsonl --out runs/ramp

The competence of Platanios et al. 2019 (arXiv 1903.09848, section 2.2): a step draws among the easiest share

    c(t) = sqrt(t · (1 − c0²) / T + c0²)        c0 = ``BEGIN``, T the first half of the steps; then all

of the training problems. Left out: rates that are measured again while the run goes on; sources without end.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cotrain.core.errors import ConfigError, DataError
from cotrain.core.seeding import seed_of
from cotrain.core.types import Task, TaskSource
from cotrain.data.question_text import normal_question
from cotrain.data.row_files import lines_of, object_of

BEGIN = 0.1  # share of the problems at the first step


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
        """The easiest share of the training problems that a step draws among."""
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
