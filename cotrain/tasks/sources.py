"""Task sources by name, for the command line, and from their own description, for resuming.

A source describes itself as ``{"kind": …, "settings": {…}}``; ``settings`` are the arguments of its constructor.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cotrain.core.errors import ConfigError, StateError, UnknownName
from cotrain.core.state import take
from cotrain.core.types import TaskSource

NAMES = ("words", "gsm8k", "jsonl", "gym:NAME")


def task_source(spec: str, data: str | None = None) -> TaskSource:
    """The source that ``--tasks SPEC --data FILE`` means: "words", "gsm8k" and "jsonl" (with data), or "gym:NAME".

    Raises UnknownName, and ConfigError when data is missing or is given to a source that has none.
    """
    if spec in ("gsm8k", "jsonl"):
        if data is None:
            raise ConfigError(f"tasks {spec!r} are read from a local file; add --data FILE")
        from cotrain.tasks.jsonl import JsonlTasks, gsm8k

        return gsm8k(data) if spec == "gsm8k" else JsonlTasks(data)
    kind, colon, name = spec.partition(":")
    if spec != "words" and not (kind == "gym" and colon):
        raise UnknownName("task source", spec, NAMES)
    if data is not None:
        raise ConfigError(
            f"tasks {spec!r} are generated and read no file; leave out --data {data}, or use --tasks jsonl"
        )
    return from_description({"kind": kind, "settings": {"dataset": name} if kind == "gym" else {}})


def from_description(description: Mapping[str, Any]) -> TaskSource:
    """Build a source again from what its ``describe()`` returned.

    Raises StateError for a description or settings that do not fit, UnknownName for a kind that does not exist.
    """
    kind, settings = take("a task source", description, "kind", "settings")
    try:
        if kind == "words":
            from cotrain.tasks.words.source import WordProblems

            return WordProblems(**settings)
        if kind == "jsonl":
            from cotrain.tasks.jsonl import JsonlTasks

            return JsonlTasks(**settings)
        if kind == "gym":
            from cotrain.tasks.gym import GymTasks

            return GymTasks(**settings)
    except TypeError as error:
        raise StateError(f"settings of the task source {kind!r} do not fit: {error}") from error
    raise UnknownName("kind of task source", str(kind), ("words", "jsonl", "gym"))
