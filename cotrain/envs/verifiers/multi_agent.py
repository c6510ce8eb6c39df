"""Environments of several agents that were written for ``verifiers`` (0.4, its ``Env``) as a task source: a task is a
row of the taskset that an episode begins with. ``pip install -e '.[verifiers]'`` brings the package.

    environment:kuhn_poker           an installed taskset with an environment of its own
    environment:best-of-n+sums       an environment and a taskset

Tasks are read once, the first ``limit``, and cut into splits by a hash of their data. Below ``FEW`` nothing can be held
out, so all splits have all of them. Nothing grades a task: what is right, or worth something, the environment says.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

from cotrain.core.errors import ConfigError, DataError, UnknownName, UserError, first_line, install_extra
from cotrain.core.types import RolloutFn, Task
from cotrain.data.files import SPLITS, split_of
from cotrain.envs.played import Compare
from cotrain.envs.verifiers.seats import EnvironmentTask, make_environment_protocol, trainable_seats

FEW = 20  # with fewer tasks, all splits have all of them


def load_environment(spec: str, config: Mapping[str, Any], limit: int) -> tuple[Any, list[Any]]:
    """The environment ``[ENV+]TASKSET`` with verifiers' ``config`` for it, and its first ``limit`` tasks. Raises
    UserError where verifiers is not installed, ConfigError where the environment cannot be loaded."""
    try:
        from verifiers.v1.utils import loaders
    except ImportError as error:
        raise UserError(
            f"verifiers is not installed; run: {install_extra('verifiers')}", code="E_VERIFIERS_NOT_INSTALLED"
        ) from error
    env, _, taskset = spec.rpartition("+")
    try:
        settings = {"id": env, **config, "taskset": {"id": taskset, **config.get("taskset", {})}}
        environment = loaders.load_environment(loaders.resolve_env_config(settings))
        return environment, list(islice(environment.taskset, limit))
    except Exception as error:
        line = first_line(error)
        raise ConfigError(
            f"environment {spec!r} cannot be loaded ({type(error).__name__}: {line})", code="E_ENVIRONMENT_NOT_LOADED"
        ) from error


class Environments:
    """The tasks of one environment.

    ``digest``: hash of the tasks, as a run has recorded it; None: nothing is compared. Raises what ``load_environment``
    raises, and DataError for an environment without tasks, or whose tasks have changed.
    """

    def __init__(
        self, spec: str, config: Mapping[str, Any] | None = None, limit: int = 10_000, digest: str | None = None
    ) -> None:
        self.name = f"environment:{spec}"
        self._settings: dict[str, Any] = {"spec": spec, "config": dict(config or {}), "limit": limit}
        self.environment, rows = load_environment(spec, self._settings["config"], limit)
        if not rows:
            raise DataError(f"{self.name}: no tasks", code="E_ENVIRONMENT_EMPTY")
        row_texts = [row.data.model_dump_json() for row in rows]
        self.notes: list[str] = []
        self._rows: dict[str, list[Any]] = {split: [] for split in SPLITS}
        if len(rows) < FEW:
            self._rows = dict.fromkeys(SPLITS, rows)
            self.notes.append(f"{self.name} has {len(rows)} tasks, so that none is held out")
        else:
            for row, text in zip(rows, row_texts, strict=True):
                self._rows[split_of(text)].append(row)
        self._digest = hashlib.blake2b(json.dumps(row_texts).encode(), digest_size=16).hexdigest()
        if digest is not None and digest != self._digest:
            raise DataError(
                f"{self.name}: its tasks have changed since they were recorded; install the same version",
                code="E_DATA_CHANGED",
            )

    def get(self, split: str, index: int) -> Task:
        """Task ``index`` of a split. Raises UnknownName, and IndexError outside of 0 <= index < size."""
        if not 0 <= index < self.size(split):
            raise IndexError(f"{self.name}: no task {index} in split {split!r} of {self.size(split)}")
        row = self._rows[split][index]
        return Task(
            id=f"{self.name}/{split}/{index}",
            prompt=row.data.prompt_text,
            gold=None,
            solution=None,
            difficulty=0.0,
            grader=EnvironmentTask(task=row),
            gradable=False,
        )

    def size(self, split: str) -> int:
        if split not in SPLITS:
            raise UnknownName("split", split, SPLITS)
        return len(self._rows[split])

    def describe(self) -> dict[str, Any]:
        """``Environments(**source.describe()["settings"])`` is this source, as long as the package is the same."""
        return {"kind": "environment", "settings": {**self._settings, "digest": self._digest}}

    def seats(self) -> Mapping[str, bool]:
        """Name of a seat → may it learn, as the environment's ``setup`` says."""
        return trainable_seats(self.environment)

    def make_protocol(self, seats: Sequence[str], turns: int, compare: Compare) -> RolloutFn:
        """The protocol that plays an episode. ``turns``: most turns of a conversation of a seat."""
        return make_environment_protocol(self.environment, tuple(seats), turns, compare)
