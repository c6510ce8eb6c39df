"""Task sources by name, for the command line, and from their own description, for resuming.

A source describes itself as ``{"kind": …, "settings": {…}}``; ``settings`` are the arguments of its constructor.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from cotrain.core.errors import ConfigError, StateError, UnknownName
from cotrain.core.input_files import parse_json
from cotrain.core.registry import TASKS, ZOO, joined_places, load_named, shipped_places
from cotrain.core.types import TaskSource, take_fields
from cotrain.core.user_code import load_class
from cotrain.data.columns import SCHEMAS

PROGRAMS = ("mbpp", "humaneval")
KINDS = {  # kind → its class; the kinds of single methods and of installed packages are in the registry
    "words": "cotrain.data.word_problems.source:WordProblems",
    "jsonl": "cotrain.data.files:JsonlTasks",
    "pairs": "cotrain.data.preferences:Pairs",
    "chats": "cotrain.data.preferences:Chats",
    "gym": "cotrain.envs.reasoning_gym:GymTasks",
    "programs": "cotrain.data.programs:ProgramTasks",
    "verifiers": "cotrain.envs.verifiers.taskset:VerifiersTasks",
    "openenv": "cotrain.envs.openenv.served:OpenEnvTasks",
    "openenv_class": "cotrain.envs.openenv.tasks:OpenEnvEpisodes",
}
NAMED = {"gym": "dataset", "verifiers": "taskset", "openenv": "url"}  # kind → the argument behind its colon
NAMES = (  # forms of ``--tasks``, as errors list them
    "words",
    "words:LOW-HIGH",
    "jsonl:QUESTION,ANSWER",
    *SCHEMAS,
    *PROGRAMS,
    "pairs:FILE",
    "chats:FILE",
    "gym:NAME",
    "gym:NAME:SETTING=VALUE,...",
    "verifiers:NAME",
    "openenv:URL",
    "openenv:path/to/file.py:CLASS",
    "path/to/file.py:CLASS",
)


def with_columns(tasks: str | None, question: str | None, answer: str | None) -> str | None:
    """``--tasks`` as ``--question-column`` and ``--answer-column`` make it: "jsonl:QUESTION,ANSWER". Raises
    ConfigError for problems that are read from no columns, and a name with a comma."""
    if question is None and answer is None:
        return tasks
    columns = {"--question-column": question, "--answer-column": answer}
    if (tasks or "jsonl").partition(":")[0] != "jsonl":
        flag = next(flag for flag, name in columns.items() if name is not None)
        raise ConfigError(
            f"{flag} goes with --data FILE and --tasks jsonl, not with {tasks!r}; leave out one of them",
            code="E_FLAG_NEEDS_DATA_FILE",
        )
    for flag, name in columns.items():
        if name is not None and ("," in name or not name):
            raise ConfigError(
                f"{flag} {name!r}: a name without a comma is expected; rename the column", code="E_COLUMN_WITH_COMMA"
            )
    return f"jsonl:{question or ''},{answer or ''}"


def task_source(spec: str, data: str | None = None, *, lenient: bool = False, unanswered: bool = False) -> TaskSource:
    """The source that ``--tasks SPEC --data FILE`` means.

    ::

        words                           generated word problems
        gym:NAME, gym:NAME:a=3,b=2      a data set of reasoning-gym, with settings of its own
        verifiers:NAME                  an installed taskset
        openenv:URL                     a server of OpenEnv
        openenv:FILE.py:CLASS           an environment class of OpenEnv, in this process
        pairs:FILE, chats:FILE          preferences, conversations; or "pairs" and "chats" with data
        jsonl, jsonl:QUESTION,ANSWER    with data: a table, with columns of its own
        gsm8k, math, …                  with data: a benchmark
        mbpp, humaneval, mbpp:MODULE:FUNCTION    with data: programs, in a sandbox of one's own
        FILE.py:CLASS                   a class of the user's own, made without arguments
        halves, world, …                what a method or an installed package has registered (``core/registry.py``)

    ``data``: a file, a directory, or "owner/name" on the Hub, which says for "jsonl" which benchmark it is, if it is
    one. ``lenient``: malformed rows of it are set aside, in the source's ``quarantine``. ``unanswered``: rows without
    an answer are problems without a label.
    Raises UnknownName, and ConfigError when data is missing or is given to a source that has none.
    """
    kind, _, name = spec.partition(":")
    if kind in ("pairs", "chats"):
        if bool(name) == bool(data):
            raise ConfigError(
                f"tasks {spec!r}: expected one file, as --tasks {kind}:FILE or as --tasks {kind} --data FILE",
                code="E_TASKS_TWO_FILES",
            )
        return from_description({"kind": kind, "settings": {"path": name or data, "lenient": lenient}})
    if spec in SCHEMAS or kind in (*PROGRAMS, "jsonl"):
        if data is None:
            raise ConfigError(
                f"tasks {spec!r} are read from a local file or from the Hub; add --data FILE or owner/name",
                code="E_TASKS_NEED_DATA",
            )
        if kind in PROGRAMS:
            settings = {"kind": kind, "path": data, "sandbox": name or None, "lenient": lenient}
            return from_description({"kind": "programs", "settings": settings})
        from cotrain.data.files import JsonlTasks, benchmark_tasks

        if kind == "jsonl" and name:
            question, _, answer = name.partition(",")
            columns = (question or SCHEMAS[kind].question, answer or SCHEMAS[kind].answer)
            return JsonlTasks(data, *columns, lenient=lenient, unanswered=unanswered)
        return benchmark_tasks(*_on_the_hub(spec, data), lenient=lenient, unanswered=unanswered)

    # Everything below is generated, or brings its own problems.
    is_own_class = kind != "openenv" and spec.rpartition(":")[0].endswith(".py")
    registered = kind in shipped_places(TASKS) or kind in joined_places(TASKS) or kind in ZOO[TASKS]
    if not (spec == "words" or is_own_class or registered or (kind in NAMED and name)):
        known = [*NAMES, *shipped_places(TASKS), *joined_places(TASKS)]
        is_known_kind = kind in {one.partition(":")[0] for one in known}
        raise UnknownName("task source", spec if is_known_kind else kind, known)
    if lenient and data is None:
        raise ConfigError(
            f"tasks {spec!r} are generated and have no malformed rows; leave out --lenient",
            code="E_GENERATED_TASKS_LENIENT",
        )
    if data is not None:
        raise ConfigError(
            f"tasks {spec!r} are generated and read no file; leave out --data {data}, or use --tasks jsonl",
            code="E_GENERATED_TASKS_WITH_DATA",
        )
    if is_own_class:
        return _own_source(spec, {})
    if kind == "openenv" and names_class(name):
        return from_description({"kind": "openenv_class", "settings": {"target": name}})
    if registered:
        return _of_package(spec, kind, name)
    settings = {}
    if kind == "gym" and ":" in name:
        settings = _gym_settings(spec)
    elif name:
        settings = {NAMED[kind]: name}
    return from_description({"kind": kind, "settings": settings})


def names_class(place: str) -> bool:
    """Whether this is ``FILE.py:CLASS`` or ``PACKAGE.MODULE:CLASS``, and no address of a server."""
    module, _, name = place.partition("?")[0].rpartition(":")
    return bool(module) and name.isidentifier() and "://" not in module


def _of_package(spec: str, kind: str, name: str) -> TaskSource:
    """``KIND`` or ``KIND:ARGUMENT`` of a source that a method or an installed package has registered."""
    build = load_named(TASKS, kind, shipped_places(TASKS), "task source")
    try:
        return _check_source(build(name) if name else build(), f"task source {spec!r}")
    except TypeError as error:
        raise ConfigError(f"task source {spec!r} cannot be made: {error}", code="E_TASK_SOURCE_NOT_MADE") from error


def _gym_settings(spec: str) -> dict[str, Any]:
    """``gym:NAME:SETTING=VALUE,...``: a value is a number, true or false where it reads as one, else text."""
    dataset, _, settings_text = spec.removeprefix("gym:").partition(":")
    settings: dict[str, Any] = {}
    for part in settings_text.split(","):
        name, equals, value = part.partition("=")
        if not (name.isidentifier() and equals and value):
            raise ConfigError(
                f"tasks {spec!r}: expected SETTING=VALUE, such as 'gym:{dataset}:max_terms=3,max_digits=2', and found "
                f"{part!r}",
                code="E_TASKS_SETTING_SHAPE",
            )
        if name in settings:
            raise ConfigError(f"tasks {spec!r}: {name} is given twice; leave one out", code="E_TASKS_SETTING_TWICE")
        try:
            settings[name] = parse_json(value)
        except ValueError:
            settings[name] = value
    return {"dataset": dataset, "settings": settings}


def allows_unanswered(labelled: str | int) -> bool:
    """Whether rows may lack an answer with this ``--labelled``: where it is no number, and so says by itself which
    problems have one."""
    return not re.match(r"-?[\d.]", str(labelled).strip())


def problem_source(
    tasks: str | None,
    data: str | None,
    operations: Sequence[int] | None = None,
    lenient: bool = False,
    labelled: str | int | None = None,
) -> TaskSource:
    """The source of problems that ``--tasks``, ``--data``, ``--operations`` and ``--lenient`` name together:
    "jsonl" where there is a file, else the word problems that the shipped models are studied on; "words:2-4" are those
    of two to four steps. Rows may lack an answer where ``labelled`` (``--labelled``) is no number. Raises ConfigError
    and UnknownName as ``task_source`` does."""
    from cotrain.data.word_problems.source import WordProblems, study_problems

    spec = tasks or ("jsonl" if data else "words")
    steps = re.fullmatch(r"words:(\d)-(\d)", spec)  # fewest and most steps
    if steps and operations is not None:
        raise _operations_error(spec)
    if steps:
        spec = "words"
        operations = (int(steps[1]), int(steps[2]))
    source: TaskSource
    if spec == "words" and data is None and not lenient:
        source = study_problems()
    else:
        unanswered = labelled is not None and allows_unanswered(labelled)
        source = task_source(spec, data, lenient=lenient, unanswered=unanswered)
    if operations is None:
        return source
    if not isinstance(source, WordProblems):
        raise _operations_error(spec)
    return replace(source, operations=(operations[0], operations[1]))


def _operations_error(spec: str) -> ConfigError:
    return ConfigError(
        f"--operations goes with --tasks words, not with {spec!r}; leave it out", code="E_OPERATIONS_NEED_WORDS"
    )


def _on_the_hub(spec: str, data: str) -> tuple[str, str]:
    """The benchmark that a public repository holds, and its configuration, where they are not given."""
    for name, schema in SCHEMAS.items():
        repository, _, config = schema.hub.partition(":")
        if data == repository and config:
            data = schema.hub
        if data in (repository, schema.hub) and spec == "jsonl":
            return name, data
    return spec, data


def from_description(description: Mapping[str, Any], target: str | None = None) -> TaskSource:
    """Build a source again from what its ``describe()`` returned; ``target``: the user's own class that did, as
    ``path/to/file.py:AlgorithmName`` or ``package.module:AlgorithmName``.

    Raises StateError for a description or settings that do not fit, UnknownName for a kind that does not exist,
    ConfigError for a class that is not there.
    """
    kind, settings = take_fields("a task source", description, "kind", "settings")
    try:
        if target is not None:
            source = _own_source(target, settings)
            if source.describe() != description:
                raise StateError(
                    f"task source {target!r} describes itself as {source.describe()}, and did as {description}; the "
                    "settings must be the arguments of its class",
                    code="E_SOURCE_DESCRIPTION_DIFFERS",
                )
            return source
        build = load_named(TASKS, str(kind), shipped_places(TASKS) | KINDS, "kind of task source")
        task_source: TaskSource = build(**settings)
        return task_source
    except TypeError as error:
        raise StateError(
            f"settings of the task source {kind!r} do not fit: {error}", code="E_SOURCE_SETTINGS_MISFIT"
        ) from error


def _own_source(target: str, settings: Mapping[str, Any]) -> TaskSource:
    where = f"task source {target!r}"
    try:
        source: TaskSource = load_class(target, where)(**settings)
    except TypeError as error:
        raise ConfigError(
            f"{where} cannot be made with {dict(settings)}: {error}", code="E_TASK_SOURCE_NOT_MADE"
        ) from error
    return _check_source(source, where)


def _check_source(source: TaskSource, where: str) -> TaskSource:
    missing = [name for name in ("name", "get", "size", "describe") if name not in dir(source)]
    if missing:
        raise ConfigError(
            f"{where} has no {missing[0]!r}; a task source has name, get, size and describe", code="E_NOT_TASK_SOURCE"
        )
    return source
