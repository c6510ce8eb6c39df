"""The shape of a run's JSON files: every reader checks a file here first, so that one of another shape is an error of
one line.

A file that agrees with its seal can still be odd: another version or a person wrote both. Checked is what commands rely
on; further fields are free. Left out: what is within settings and arguments, which is held against the recipe when it
is built again.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from cotrain.core.errors import ModelError, RunDirectoryError
from cotrain.core.shipped import is_shipped
from cotrain.storage.jsonl import try_read_object

QUARANTINE = "quarantine.jsonl"  # rows that were set aside (``data/malformed_rows.py``)
RESULT = "result.json"  # what a finished ``pretrain``, ``sft`` or ``teach`` came to
DEEPEST = 64  # lists and objects inside each other
ShapeCheck = Callable[[Any, str, bool], str | None]  # value, where it is, may fields be missing → what is wrong


def check_path(path: Path) -> None:
    """Raise RunDirectoryError for what is no directory of a run, ModelError for an adapter."""
    refuse_adapter(path)
    if not (path / "recipe.json").is_file():
        if not path.exists():
            problem = "no such directory"
        elif not path.is_dir():
            problem = "a file"
        elif (path / "config.json").is_file():
            problem = "a model"
        else:
            problem = "no recipe.json in it"
        raise RunDirectoryError(
            f"{path} is not a run directory ({problem}); start one with `cotrain run RECIPE --out DIR`",
            code="E_NOT_RUN_DIRECTORY",
        )


def refuse_adapter(path: Path) -> None:
    """Raise ModelError for the directory of an adapter, which is neither a run nor a model without its base."""
    if not (path / "adapter_config.json").is_file() or (path / "config.json").is_file():
        return
    base = try_read_object(path / "adapter_config.json").get("base_model_name_or_path")
    named = f" {base!r}" if base else ""
    raise ModelError(
        f"model {str(path)!r}: an adapter without its base{named}; train it on with `cotrain run RECIPE --model BASE "
        f"--lora RANK --set policies.generator.lora.path={path}`, or give it within its base, as `cotrain export RUN "
        "--role ROLE --merged` writes it",
        code="E_ADAPTER_WITHOUT_BASE",
    )


def refuse_missing(where: str) -> None:
    """Raise RunDirectoryError for what can be neither a run nor a model: nothing is there, no model of the package is
    called so, and no model of the Hub can be. Raises ModelError for an adapter. What else is there is looked at by
    whoever opens it."""
    refuse_adapter(Path(where))
    folder = Path(where)
    could_be_of_hub = where.count("/") == 1 and not folder.parent.is_dir()
    if not (os.path.lexists(folder) or is_shipped(where) or could_be_of_hub):
        check_path(folder)


def fault_in(name: str, value: Any, *, partial: bool = False) -> str | None:
    """The fault of the value of the file of this name, in words; None without one. ``partial``: fields may be
    missing."""
    level = [value]
    for _ in range(DEEPEST):
        deeper: list[Any] = []
        for one in level:
            if isinstance(one, dict):
                deeper += one.values()
            elif isinstance(one, list):
                deeper += one
        level = deeper

    if any(isinstance(one, dict | list) for one in level):
        return f"nested more than {DEEPEST} times"
    if name not in SHAPES:
        return None
    return SHAPES[name](value, "", partial)


def _type_check(words: str, holds: Callable[[Any], bool]) -> ShapeCheck:
    def check(value: Any, where: str, partial: bool) -> str | None:
        return None if holds(value) else f"{where or 'it'} is {value!r:.40}, expected {words}"

    return check


anything = _type_check("a value", lambda value: True)
text = _type_check("a text", lambda value: isinstance(value, str))
integer = _type_check("a whole number", lambda value: type(value) is int and abs(value) < 2**63)
count = _type_check("a whole number of 0 or more", lambda value: type(value) is int and 0 <= value < 2**63)
positive = _type_check("a whole number above 0", lambda value: type(value) is int and 0 < value < 2**63)
number = _type_check("a number", lambda v: type(v) in (int, float) and abs(v) < 1e300)  # and so no NaN


def or_null(shape: ShapeCheck) -> ShapeCheck:
    return lambda value, where, partial: None if value is None else shape(value, where, partial)


def list_of(shape: ShapeCheck) -> ShapeCheck:
    def check(value: Any, where: str, partial: bool) -> str | None:
        if not isinstance(value, list):
            return f"{where or 'it'} is {value!r:.40}, expected a list"
        for index, item in enumerate(value):
            fault = shape(item, f"{where}[{index}]", partial)
            if fault is not None:
                return fault
        return None

    return check


def map_of(shape: ShapeCheck) -> ShapeCheck:
    def check(value: Any, where: str, partial: bool) -> str | None:
        if not isinstance(value, dict):
            return f"{where or 'it'} is {value!r:.40}, expected an object"
        for key, item in value.items():
            fault = shape(item, f"{where}.{key:.60}".lstrip("."), partial)
            if fault is not None:
                return fault
        return None

    return check


def record_of(needed: Mapping[str, ShapeCheck], free: Mapping[str, ShapeCheck] | None = None) -> ShapeCheck:
    """An object with all fields of ``needed``; those of ``free`` may be missing."""

    def check(value: Any, where: str, partial: bool) -> str | None:
        if not isinstance(value, dict):
            return f"{where or 'it'} is {value!r:.40}, expected an object"
        for key, shape in {**needed, **(free or {})}.items():
            at = f"{where}.{key}".lstrip(".")
            if key in value:
                fault = shape(value[key], at, partial)
                if fault is not None:
                    return fault
            elif key in needed and not partial:
                return f"{at} is missing"
        return None

    return check


def _check_tables(value: Any, where: str, partial: bool) -> str | None:
    """The fault of before_counts.json, which has a number a name in each row, and figures that name a table."""
    for table in value["tables"]:
        for task, row in table["tasks"].items():
            if len(row) != len(table["names"]) or not (task.isdecimal() and task.isascii() and len(task) < 19):
                return f"task {task!r:.40} has {len(row)} numbers, expected one for each of {len(table['names'])} names"
    bad_figure = next((key for key, place in value["figures"].items() if place >= len(value["tables"])), None)
    return None if bad_figure is None else f"figure {bad_figure!r:.60} names a table that there is not"


def both_of(first: ShapeCheck, second: ShapeCheck) -> ShapeCheck:
    return lambda value, where, partial: first(value, where, partial) or second(value, where, partial)


nonblank = _type_check("a name", lambda value: isinstance(value, str) and bool(value))
optional_number = or_null(number)
estimate = record_of({"value": optional_number}, {"low": optional_number, "high": optional_number, "n": count})
estimates = map_of(estimate)
policy = record_of(
    {"model": or_null(text)}, {"lora": or_null(record_of({}, {"path": or_null(text)})), "kind": or_null(text)}
)
origin = record_of(
    {"target": nonblank, "arguments": map_of(anything)},
    {"overrides": list_of(text), "by_size": map_of(anything)},
)
settings = record_of(
    {"steps": count, "policies": map_of(policy)},
    {
        "objectives": map_of(map_of(anything)),
        "roles": map_of(map_of(anything)),
        **dict.fromkeys(("horizon", "tokens", "flops", "seconds", "updates"), optional_number),
    },
)
alarm = record_of(
    {"band": text, "key": text, "step": count},
    {"last": count, "value": optional_number, "examples": list_of(text)}
    | dict.fromkeys(("reading", "healthy", "advice"), text),
)
signal = both_of(
    _type_check("a name, a value and a span", lambda value: isinstance(value, list) and len(value) == 3),
    lambda value, where, partial: text(value[0], f"{where}[0]", partial),
)


def _check_address(value: Any, where: str, partial: bool) -> str | None:
    step, task, member, role, *calls = value
    return list_of(integer)([step, task, member, *calls], where, partial) or text(role, where, partial)


address = both_of(
    _type_check("step, task, member, role, call …", lambda value: isinstance(value, list) and len(value) >= 5),
    _check_address,
)
trace = record_of(
    {
        "address": address,
        "role": text,
        "findings": map_of(anything),
        "metadata": map_of(anything),
        "rewards": list_of(signal),
        "token_ids": list_of(integer),
        "prompt_ids": list_of(integer),
        "logprobs": text,
        "version": integer,
        "finish": text,
    },
    {
        "failure": or_null(text),
        "parent": or_null(text),
        "turns": list_of(list_of(anything)),
        "text": text,
        "trajectory": text,
    },
)
SHAPES: dict[str, ShapeCheck] = {
    "recipe.json": record_of(
        {"name": text, "steps": count, "checkpoint_every": positive, "origin": or_null(origin), "settings": settings},
        {"description": or_null(text), "seed": integer, "keep_every": count, "async_steps": count}
        | {"moved": map_of(policy)},
    ),
    "provenance.json": record_of(
        {"threads": positive},
        {"weights": map_of(text), "packages": map_of(or_null(text)), "command": list_of(text)}
        | {"backend": or_null(record_of({}, {"world": positive, "replicas": positive}))},
    ),
    "code.json": record_of(
        {
            "versions": both_of(
                list_of(record_of({"from_step": count, "files": map_of(text)})),
                _type_check("a list with the first version", bool),
            ),
            "texts": map_of(text),
        },
    ),
    "summary.json": record_of(
        {"steps": count, "before": estimates, "after": estimates},
        {"change": estimates, "alarms": list_of(alarm), "recipe": text, "seed": integer}
        | {"tokens": number, "flops": number, "updates": map_of(count), "chosen": count},
    ),
    "before.json": estimates,
    "before_counts.json": both_of(
        record_of({
            "tables": list_of(record_of({"names": list_of(text), "tasks": map_of(list_of(number))})),
            "figures": map_of(count),
        }),
        _check_tables,
    ),
    "after_problems.json": map_of(map_of(optional_number)),
    "an episode": record_of(
        {"step": integer, "task": integer, "member": integer, "traces": list_of(trace)},
        {"task_id": or_null(text), "failure": or_null(text)},
    ),
    "seal.json": record_of({"files": map_of(record_of({"bytes": count, "sha256": text}))}),
}  # fmt: skip
