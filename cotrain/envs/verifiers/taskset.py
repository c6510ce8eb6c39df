"""Environments written for ``verifiers`` (0.4, its ``Taskset``) as a task source; needs ``pip install -e
'.[verifiers]'``.

A taskset is an installed package. Its prompts become tasks, and its ``@reward`` methods grade: an answer is right where
the weighted sum of rewards reaches ``right_at``. The methods are the taskset's own code and may never return, so they
run in processes that can be killed (``worker.py``). Those processes keep its code apart from training and are no
security boundary: install what you trust.

Tasks are read once, as many as ``limit``, and cut into splits by a hash of the prompt, as in ``data/files.py``.

Left out, and refused by name: tasks with tools, a container, a runtime or judge models; tasks that open with anything
but text. Environments of several agents belong to the recipe ``environment``.
"""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Mapping
from itertools import islice
from typing import Any

from cotrain.core.errors import ConfigError, DataError, UnknownName, UserError, first_line, install_extra
from cotrain.core.types import Grade, Task
from cotrain.data.files import SPLITS, cut_into_splits
from cotrain.formats.answers import final_answer
from cotrain.grading.pool import AnswerGrader, GradingPool

JUDGING = "cotrain.envs.verifiers.worker:load_taskset_judging"


def read_taskset(name: str, config: Mapping[str, Any], limit: int) -> list[Any]:
    """The first tasks of an installed taskset, as verifiers' own objects. Raises ImportError where there is no
    verifiers, ConfigError for a taskset that cannot be loaded."""
    from verifiers.v1.utils.loaders import load_taskset, taskset_config_type

    try:
        taskset = load_taskset(taskset_config_type(name)(id=name, **config))
        return list(islice(taskset, limit))
    except Exception as error:
        raise ConfigError(
            f"verifiers taskset {name!r} cannot be loaded ({type(error).__name__}: {first_line(error)})",
            code="E_ENVIRONMENT_NOT_LOADED",
        ) from error


class VerifiersGrader(AnswerGrader):
    """Grades by a taskset's own rewards, in other processes."""

    def __init__(self, places: dict[str, int], answer_as: str, pool: GradingPool) -> None:
        """``places``: id of a task → its place in the taskset. ``answer_as``: see ``VerifiersTasks``."""
        self._places = places
        self._answer_as = answer_as
        self._pool = pool

    def grade(self, task: Task, text: str) -> Grade:
        """Whether the rewards of this answer reach what counts as right."""
        shown_answer = self._answer_as.replace("{text}", text).replace("{answer}", final_answer(text) or "")
        return self._pool.grade_in_process(str(self._places[task.id]), shown_answer)

    async def agrade(self, task: Task, text: str) -> Grade:
        """``grade``, while others go on."""
        return await self._in_thread(task, text)


class VerifiersTasks:
    """The tasks of ``taskset``, with verifiers' ``config`` for it.

    ``limit``: tasks that are read. ``right_at``: sum of rewards that counts as right. ``answer_as``: what the rewards
    get to see, made of ``{text}``, all that the model wrote, and ``{answer}``, what it ends on, such as
    ``\\boxed{{answer}}``. ``deadline_s``: CPU seconds of one grade. Raises UserError when verifiers is not installed,
    ConfigError for tasks that this source cannot play, DataError for changed tasks.
    """

    def __init__(
        self,
        taskset: str,
        config: Mapping[str, Any] | None = None,
        limit: int = 10_000,
        right_at: float = 1.0,
        answer_as: str = "{text}",
        workers: int = 1,
        deadline_s: float = 10.0,
        digest: str | None = None,
    ) -> None:
        self.name = f"verifiers:{taskset}"
        self._settings: dict[str, Any] = {
            "taskset": taskset,
            "config": dict(config or {}),
            "limit": limit,
            "right_at": right_at,
            "answer_as": answer_as,
            "workers": workers,
            "deadline_s": deadline_s,
        }
        try:
            tasks = read_taskset(taskset, self._settings["config"], limit)
        except ImportError as error:
            raise UserError(
                f"verifiers is not installed; run: {install_extra('verifiers')}", code="E_VERIFIERS_NOT_INSTALLED"
            ) from error
        if not tasks:
            raise DataError(
                f"{self.name}: no tasks; check its config {self._settings['config']}", code="E_ENVIRONMENT_EMPTY"
            )
        prompts = [self._prompt_text(task, i) for i, task in enumerate(tasks)]
        self._splits: dict[str, list[str]] = {split: [] for split in SPLITS}  # split → prompts of its tasks
        places: dict[str, int] = {}  # id of a task → its place in the taskset
        for place, (prompt, split) in enumerate(zip(prompts, cut_into_splits(prompts), strict=True)):
            places[self._task_id(split, len(self._splits[split]))] = place
            self._splits[split].append(prompt)
        self._digest = hashlib.blake2b(json.dumps(prompts).encode(), digest_size=16).hexdigest()
        if digest is not None and digest != self._digest:
            raise DataError(
                f"{self.name}: its tasks have changed since they were recorded; install the same version",
                code="E_DATA_CHANGED",
            )
        worker_settings = {name: self._settings[name] for name in ("taskset", "config", "limit", "right_at")}
        pool = GradingPool(workers=workers, deadline_s=deadline_s, judging=(JUDGING, json.dumps(worker_settings)))
        self.grader = VerifiersGrader(places, answer_as, pool)

    def get(self, split: str, index: int) -> Task:
        """Task ``index`` of a split. Raises UnknownName, and IndexError outside of 0 <= index < size."""
        if not 0 <= index < self.size(split):
            raise IndexError(f"{self.name}: no task {index} in split {split!r} of {self.size(split)}")
        task_id = self._task_id(split, index)
        prompt = self._splits[split][index]
        return Task(id=task_id, prompt=prompt, gold=None, solution=None, difficulty=0.0, grader=self.grader)

    def size(self, split: str) -> int:
        if split not in self._splits:
            raise UnknownName("split", split, SPLITS)
        return len(self._splits[split])

    def describe(self) -> dict[str, Any]:
        """``VerifiersTasks(**source.describe()["settings"])`` is this source, as long as the package is the same."""
        return {"kind": "verifiers", "settings": {**self._settings, "digest": self._digest}}

    def close(self) -> None:
        """End the grading processes."""
        self.grader.close()

    def _task_id(self, split: str, index: int) -> str:
        return f"{self.name}/{split}/{index}"

    def _prompt_text(self, task: Any, index: int) -> str:
        """The text of a task. Raises ConfigError for a task that cannot be played here."""
        where = f"{self.name}, task {index}"
        data = task.data
        unfit = {
            "needs a container": task.NEEDS_CONTAINER,
            "has tools": bool(type(task).toolsets(task.config)),
            "is graded by judge models": bool(task.plugged_judges()),
            "has rewards that need a runtime": any(map(_needs_runtime, task.hooks("reward"))),
            "has no prompt": not data.prompt_text.strip(),
            "opens with several messages": not isinstance(data.prompt, str) and len(data.prompt or ()) > 1,
        }
        for reason, applies in unfit.items():
            if applies:
                raise ConfigError(
                    f"{where} {reason}; only tasks of one prompt and one answer, graded by code, can be run",
                    code="E_TASKSET_NOT_PLAIN",
                )
        return "\n\n".join(part for part in (data.system_prompt, data.prompt_text) if part)


def _needs_runtime(reward: Any) -> bool:
    parameter = inspect.signature(reward).parameters.get("runtime")
    return parameter is not None and parameter.default is inspect.Parameter.empty
