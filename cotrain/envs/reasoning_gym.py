"""Procedural puzzles of reasoning-gym (arXiv 2505.24760) as a task source; needs ``pip install -e '.[gym]'``.

reasoning-gym makes item i of seed s from ``Random(s + i)``, so neighbouring seeds share items. Here each block of
``BLOCK`` indices of a split has its own 63-bit seed (a hash of where it is), and a question goes to the split that a
hash of its text names; an item that belongs to another split is drawn again. So no question is in two splits.

Left out: reasoning-gym's own scorers. Several of them evaluate the answer as Python code, and what a model writes is
never run here. An answer is right when it equals the item's answer as text or as a number; data sets where that is not
the rule (many answers are right, or credit is graded) are refused.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from cotrain.core.errors import ConfigError, DataError, UnknownName, UserError, install_extra
from cotrain.core.seeding import seed_of
from cotrain.core.types import Grade, StepVerdicts, Task
from cotrain.data.files import SPLITS, split_of
from cotrain.formats.answers import final_answer
from cotrain.grading.compare_texts import read_answer

BLOCK = 1000  # indices of a split that share a seed
ATTEMPTS = 400  # draws for one task; a split that holds a tenth of the questions is missed this often 5 times in 10^19

# Data sets with a scorer of their own that accepts, for full credit, the item's one answer as text or number.
_ONE_ANSWER = frozenset({"calendar_arithmetic", "chain_sum", "decimal_chain_sum", "gsm_symbolic", "products"})


class GymTasks:
    """The data set ``dataset`` with reasoning-gym's ``settings`` for it, such as ``{"min_terms": 2}``.

    ``size``: tasks in each split, None for endless. Raises UserError when reasoning-gym is not installed, UnknownName,
    and ConfigError for settings that the data set refuses or a data set that cannot be graded here.
    """

    def __init__(self, dataset: str, size: int | None = None, settings: Mapping[str, Any] | None = None) -> None:
        try:
            from reasoning_gym.dataset import ProceduralDataset
            from reasoning_gym.factory import DATASETS
        except ImportError as error:
            raise UserError(
                f"reasoning-gym is not installed; run: {install_extra('gym')}", code="E_GYM_NOT_INSTALLED"
            ) from error
        if dataset not in DATASETS:
            raise UnknownName("reasoning-gym data set", dataset, DATASETS)
        if DATASETS[dataset][0].score_answer is not ProceduralDataset.score_answer and dataset not in _ONE_ANSWER:
            raise ConfigError(
                f"reasoning-gym's {dataset!r} accepts answers that only its own scorer can judge, and those scorers may"
                " run the answer as code; choose a data set with one right answer, such as 'chain_sum'",
                code="E_GYM_OWN_SCORER",
            )
        if size is not None and size < 1:
            raise ConfigError(f"size must be at least 1 or None, not {size}", code="E_TASKS_SIZE")
        self.name = f"gym:{dataset}"
        self._dataset = dataset
        self._size = size
        self._settings = dict(settings or {})
        self._blocks: dict[tuple[str, int], Any] = {}
        self._load_block("train", 0)

    def get(self, split: str, index: int) -> Task:
        """The task at an index. Raises UnknownName, IndexError, and DataError where questions are too few."""
        size = self.size(split)
        if index < 0 or (size is not None and index >= size):
            raise IndexError(f"{self.name}: no task {index} in split {split!r} of {size or 'endless'}")
        block, offset = divmod(index, BLOCK)
        items = self._load_block(split, block)
        for attempt in range(ATTEMPTS):
            item = items[offset + attempt * BLOCK]
            if split_of(item["question"]) == split:
                task_id = f"{self.name}/{split}/{index}"
                prompt = item["question"]
                answer = str(item["answer"])
                return Task(id=task_id, prompt=prompt, gold=answer, solution=None, difficulty=0.0, grader=self)
        raise DataError(
            f"{self.name}: too few different questions for a {split!r} split; make them longer by its settings",
            code="E_TOO_FEW_QUESTIONS",
        )

    def size(self, split: str) -> int | None:
        if split not in SPLITS:
            raise UnknownName("split", split, SPLITS)
        return self._size

    def describe(self) -> dict[str, Any]:
        """``GymTasks(**source.describe()["settings"])`` is this source."""
        settings = json.loads(json.dumps(self._settings))
        return {"kind": "gym", "settings": {"dataset": self._dataset, "size": self._size, "settings": settings}}

    def grade(self, task: Task, text: str) -> Grade:
        """Whether the answer that a text ends on equals the item's answer, as text or as a number."""
        assert task.gold is not None
        gold = task.gold.strip()
        answer = final_answer(text)
        if answer is None or answer == gold:
            return Grade(value=answer is not None)
        number = read_answer(gold).value
        return Grade(value=number is not None and number == read_answer(answer).value)

    def grade_steps(self, task: Task, steps: tuple[str, ...]) -> StepVerdicts | None:
        """None: reasoning-gym has no oracle for steps."""
        return None

    def _load_block(self, split: str, block: int) -> Any:
        from reasoning_gym.factory import create_dataset

        if (split, block) not in self._blocks:
            if len(self._blocks) >= 8:
                self._blocks.clear()
            seed = seed_of("gym", self._dataset, split, block)
            try:
                items = create_dataset(self._dataset, seed=seed, size=BLOCK * ATTEMPTS, **self._settings)
            except (TypeError, ValueError, AssertionError) as error:
                raise ConfigError(
                    f"reasoning-gym's {self._dataset!r} refuses the settings {self._settings}: {error}",
                    code="E_GYM_SETTINGS",
                ) from error
            self._blocks[split, block] = items
        return self._blocks[split, block]
