"""``--labelled``: problems of which only some have an answer that may be used for rewards or training.

    "16"                 sixteen training problems, other ones for each seed
    "10%"                a tenth of a finite set
    "words:2-3"          all training problems of a second source, and none of the first: labels on easier problems, or
    "easy.jsonl"         in another domain, as ``--tasks`` and ``--data`` name them
    "answers"            those that have an answer, of ``--data`` where some rows have none
    "test:64"            none: the training problems are the test's own 64, without their answers, other ones for each
                         seed (test-time training, as in TTRL)

Split "train" then holds the labelled problems alone, so that a method which knows nothing of labels learns from these.
The other training problems are in the split "unlabelled", for phases that ask for them (``Phase.unlabelled``); their
``Task.labelled`` is False, and what graders say of their answers is for metrics. Problems of a file that have no answer
are never graded (``Task.gradable``). Validation problems are of the labelled kind, since a checkpoint may be chosen by
them; all other splits are those of the first source.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

from cotrain.core.errors import ConfigError, UnknownName
from cotrain.core.seeding import permuted_index, seed_of
from cotrain.core.types import UNLABELLED, Task, TaskSource, has_split


@dataclass(frozen=True, slots=True, kw_only=True)
class PartlyLabelled:
    """``targets``, of which ``count`` training problems are labelled; none where ``easier`` has the labelled ones, and
    none ``on_test``, where ``count`` test problems are the unlabelled ones."""

    targets: TaskSource
    count: int = 0
    easier: TaskSource | None = None
    seed: int = 0  # which problems are labelled
    on_test: bool = False
    name: str = field(default="labelled", init=False)

    def get(self, split: str, index: int) -> Task:
        """The same task for the same (split, index), always. Raises IndexError past ``size``, UnknownName for a
        split."""
        size = self.size(split)
        if size is not None and not 0 <= index < size:
            raise IndexError(f"labelled: index {index} of split {split!r}, which has {size} problems")
        if self.on_test:
            return self._task_on_test(split, index)
        if self.easier is not None:
            return self._task_with_easier(self.easier, split, index)
        return self._task_of_targets(split, index)

    def _task_on_test(self, split: str, index: int) -> Task:
        """The test problems of this seed are also the unlabelled training problems."""
        if split not in ("test", UNLABELLED):
            return self.targets.get(split, index)
        place = self.seed * self.count + index
        test_size = self.targets.size("test")
        task = self.targets.get("test", place if test_size is None else place % test_size)
        return task if split == "test" else replace(task, labelled=False)

    def _task_with_easier(self, easier: TaskSource, split: str, index: int) -> Task:
        """All training problems of the targets are unlabelled, those with an answer first."""
        if split == UNLABELLED:
            n_answered = self.targets.size("train")
            if n_answered is None or index < n_answered:
                return replace(self.targets.get("train", index), labelled=False)
            return self.targets.get(UNLABELLED, index - n_answered)
        source = self._source_of(split)
        task = source.get(split, index)
        if source is easier:
            return replace(task, id=f"labelled-{task.id}")  # the targets may have a task of this id
        return task

    def _task_of_targets(self, split: str, index: int) -> Task:
        """The first ``count`` training problems, in an order of the seed's own, are labelled."""
        if split == "train":
            return self.targets.get("train", self._permuted_place(index))
        if split == UNLABELLED:
            train_size = self.targets.size("train")
            train_index = index if train_size is None else self._permuted_place(self.count + index)
            return replace(self.targets.get("train", train_index), labelled=False)
        return self.targets.get(split, index)

    def _permuted_place(self, index: int) -> int:
        """The place of the ``index``-th training problem in ``targets``, in an order of the seed's own."""
        whole = self.targets.size("train")
        if whole is None:
            return seed_of("labelled", self.seed, index) % 2**40
        return permuted_index(index, whole, seed_of("labelled", self.seed))

    def size(self, split: str) -> int | None:
        """Number of tasks in a split, None where it is endless. Raises UnknownName."""
        if self.on_test and split in ("train", "test", UNLABELLED):
            return 0 if split == "train" else self.count
        if split == "train":
            return self.count if self.easier is None else self.easier.size(split)
        if split == UNLABELLED:
            whole = self.targets.size("train")
            unanswered = self.targets.size(UNLABELLED) if has_split(self.targets, UNLABELLED) else 0
            return None if whole is None else whole - self.count + (unanswered or 0)
        return self._source_of(split).size(split)

    def _source_of(self, split: str) -> TaskSource:
        """The source of a split. Where no target has an answer, the held-out problems are labelled ones."""
        if self.easier is None or (split not in ("train", "validation") and self.targets.size(split) != 0):
            return self.targets
        return self.easier

    @property
    def notes(self) -> list[str]:
        """The notes of both sources that are printed as a run begins."""
        on_test = [f"the {self.count} test problems are trained on, without their answers"] if self.on_test else []
        return on_test + [note for source in (self.targets, self.easier) for note in getattr(source, "notes", [])]

    @property
    def quarantine(self) -> Any:
        """Rows that the first source set aside, if it reads any."""
        return getattr(self.targets, "quarantine", None)

    def describe(self) -> dict[str, Any]:
        """For recipe.json; a run is built again from its arguments."""
        settings: dict[str, Any] = {"targets": self.targets.describe(), "count": self.count, "seed": self.seed}
        if self.easier is not None:
            settings["easier"] = self.easier.describe()
        if self.on_test:
            settings["on_test"] = True
        return {"kind": self.name, "settings": settings}


@dataclass(frozen=True, slots=True, kw_only=True)
class Unanswered:
    """Problems of which none has an answer: a tenth of them, by a hash, is held out as the test set and a tenth as the
    validation set, and the others are trained on. Nothing is graded."""

    source: TaskSource
    places: Mapping[str, Sequence[int]]  # split → places in the source's unlabelled problems
    name: str = field(default="unanswered", init=False)

    @classmethod
    def of(cls, source: TaskSource) -> Unanswered:
        """All problems without an answer of a source, in their splits."""
        from cotrain.data.files import cut_into_splits

        prompts = [source.get(UNLABELLED, place).prompt for place in range(source.size(UNLABELLED) or 0)]
        places: dict[str, list[int]] = {"train": [], "validation": [], "test": []}
        for place, split in enumerate(cut_into_splits(prompts)):
            places[split].append(place)
        return cls(source=source, places={"train": [], UNLABELLED: places.pop("train"), **places})

    def get(self, split: str, index: int) -> Task:
        """The same task for the same (split, index), always. Raises IndexError past ``size``, UnknownName for a
        split."""
        if not 0 <= index < self.size(split):
            raise IndexError(f"unanswered: index {index} of split {split!r}, which has {self.size(split)} problems")
        return self.source.get(UNLABELLED, self.places[split][index])

    def size(self, split: str) -> int:
        """Number of tasks in a split. Raises UnknownName."""
        if split not in self.places:
            raise UnknownName("split", split, self.places)
        return len(self.places[split])

    @property
    def notes(self) -> list[str]:
        """The notes of the source that are printed as a run begins, and one that says what is not measured."""
        return [NO_TRUTH, *getattr(self.source, "notes", [])]

    @property
    def quarantine(self) -> Any:
        """Rows that the source set aside, if it reads any."""
        return getattr(self.source, "quarantine", None)

    def describe(self) -> dict[str, Any]:
        """For recipe.json; a run is built again from its arguments."""
        return {"kind": self.name, "settings": {"source": self.source.describe()}}


NO_TRUTH = (
    "note: no problem has an answer, so no truth is measured: figures say what the model agrees with, not what is "
    "right; bring solved problems in a file of their own with --labelled FILE to measure it"
)


def with_labels(targets: TaskSource, labelled: str, seed: int) -> TaskSource:
    """``targets`` with the labels that ``--labelled`` means. Raises ConfigError and UnknownName, one line each."""
    spec = labelled.strip()
    if spec == "answers":
        check_unlabelled(targets, f"labelled is {labelled!r}, which")
        none_has_one = all(targets.size(split) == 0 for split in ("train", "validation", "test"))
        return Unanswered.of(targets) if none_has_one else targets
    if spec.startswith("test:"):
        test_size = targets.size("test")
        number = spec.removeprefix("test:")
        if not number.isdecimal() or int(number) < 1 or (test_size is not None and int(number) > test_size):
            most = "" if test_size is None else f" and at most the {test_size} test problems"
            raise ConfigError(
                f"labelled is {labelled!r}; expected test:N, with N of at least 1{most}", code="E_LABELLED_TEST"
            )
        return PartlyLabelled(targets=targets, count=int(number), seed=seed, on_test=True)
    if not re.fullmatch(r"-?[\d.]+%?", spec):
        from cotrain.data.row_files import DATA_ENDINGS
        from cotrain.data.sources import problem_source

        file = spec.lower().endswith(DATA_ENDINGS)
        try:
            easier = problem_source("jsonl" if file else spec, spec if file else None)
        except UnknownName as error:
            raise UnknownName("source of labels", spec, ["answers", *error.known], code=error.code) from error
        return PartlyLabelled(targets=targets, easier=easier, seed=seed)

    train_size = targets.size("train")
    if spec.endswith("%") and train_size is None:
        raise ConfigError(
            f"labelled is {labelled!r}, and there is no end of training problems; give a number, such as 16",
            code="E_LABELLED_SHARE_ENDLESS",
        )
    count = Fraction(spec.rstrip("%")) if re.fullmatch(r"\d+(\.\d+)?%?", spec) else Fraction(0)
    if train_size is not None and spec.endswith("%"):
        count = Fraction(round(train_size * count / 100))
    if count.denominator != 1 or count < 1 or (train_size is not None and count >= train_size):
        most = "" if train_size is None else f" and fewer than the {train_size} training problems"
        raise ConfigError(
            f"labelled is {labelled!r}; expected a number of at least 1{most}, a share such as 10%, or a source such "
            "as words:2-3",
            code="E_LABELLED_NUMBER",
        )
    return PartlyLabelled(targets=targets, count=int(count), seed=seed)


def check_truth_is_known(source: TaskSource, audits: int | None) -> None:
    """Raise ConfigError where the truth of some training problems is not known, so that it cannot be paid."""
    if audits is not None:
        raise ConfigError(
            f"the truth cannot be paid: audits is {audits}, so most of it is not looked up; leave it out",
            code="E_TRUTH_PAID_WITH_AUDITS",
        )
    if has_split(source, UNLABELLED) and source.size(UNLABELLED) != 0 and not source.get(UNLABELLED, 0).gradable:
        raise ConfigError(
            "the truth cannot be paid: some training problems have no answer (--labelled)",
            code="E_TRUTH_PAID_UNLABELLED",
        )


def check_unlabelled(source: TaskSource, where: str) -> None:
    """Raise ConfigError where there are no problems without labels, and ``where`` wants some."""
    try:
        left = source.size(UNLABELLED)
    except UnknownName:
        left = 0
    if left == 0:
        raise ConfigError(
            f"{where} wants problems without labels, and all of {source.name!r} have one; say which have one with "
            "--labelled, such as --labelled 16",
            code="E_NO_UNLABELLED_PROBLEMS",
        )
