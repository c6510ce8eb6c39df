"""The data files of a benchmark suite: where they are, what they hold, and which problems are asked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from cotrain.core.errors import ConfigError, DataError, UnknownName
from cotrain.core.input_files import absolute_path
from cotrain.core.seeding import seed_of
from cotrain.core.types import Task
from cotrain.data import prmbench, processbench, programs
from cotrain.data.columns import SCHEMAS
from cotrain.data.files import read_splits, task_of
from cotrain.data.hub import is_hub_name
from cotrain.data.malformed_rows import Quarantine
from cotrain.data.processbench import FixedSolution
from cotrain.data.programs import KINDS as PROGRAMS
from cotrain.data.read_rows import read_rows, row_reader
from cotrain.data.row_files import DATA_ENDINGS, files_by_split
from cotrain.data.unread_columns import columns_note, count_columns
from cotrain.grading.pool import AnswerGrader

JUDGED = {"processbench": processbench, "prmbench": prmbench}  # a verifier judges the solutions that are given
SUITES = (*SCHEMAS, *PROGRAMS, *JUDGED)
OF_BASES = ("core",)  # measured by log-probabilities, without an answer: ``pretraining/core_tasks.py``


def suite_data(suites: Sequence[str], data: Sequence[str]) -> dict[str, list[str]]:
    """Where the data of each suite is. ``data`` entries: ``NAME=PATH`` for one suite; a directory with a folder or file
    of a suite's name in it; a path or Hub name where only one suite is asked for. Without any, the public release on
    the Hub."""
    paths_by_suite: dict[str, list[str]] = {}
    for name in suites:
        if name not in SUITES:
            raise UnknownName("suite", name, (*SUITES, *OF_BASES))
        paths_by_suite[name] = []

    for entry in data:
        name, equals, path = entry.partition("=")
        inside = {}  # suite → its file or directory in the directory ``entry``
        for suite in paths_by_suite:
            candidates = [Path(entry) / f"{suite}{ending}" for ending in ("", *DATA_ENDINGS)]
            existing = [candidate for candidate in candidates if candidate.exists()]
            if existing:
                inside[suite] = existing[0]

        if equals and not Path(entry).exists():
            if name not in paths_by_suite:
                raise UnknownName(f"suite in --data {entry}:", name, paths_by_suite)
            paths_by_suite[name].append(path)
        elif inside:
            for s, p in inside.items():
                paths_by_suite[s].append(str(p))
        elif len(paths_by_suite) == 1:
            paths_by_suite[suites[0]].append(entry)
        else:
            raise ConfigError(
                f"--data {entry}: which of {', '.join(paths_by_suite)} is it? Write it as NAME={entry}",
                code="E_SUITE_DATA_AMBIGUOUS",
            )
    for name, paths in paths_by_suite.items():
        hub = JUDGED[name].HUB if name in JUDGED else PROGRAMS.get(name) or SCHEMAS[name].hub
        if not paths and data:
            raise ConfigError(
                f"suite {name!r} has no data in --data {' '.join(data)}; add {name}=PATH", code="E_SUITE_WITHOUT_DATA"
            )
        if not paths and not hub:
            raise ConfigError(f"suite {name!r} needs --data FILE", code="E_SUITE_WITHOUT_DATA")
        paths_by_suite[name] = paths or [hub]
    return paths_by_suite


def load_suite(
    name: str,
    paths: Sequence[str],
    grader: AnswerGrader,
    aside: Quarantine | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> list[Task] | list[FixedSolution]:
    """Everything in the files of a suite; of a directory or a data set its test split. Malformed rows go
    ``aside``; else raises DataError. ``say`` hears which columns are not read."""
    if name in JUDGED:
        samples: list[FixedSolution] = JUDGED[name].read_samples(paths, aside)
        _say_columns(name, [sample.unread for sample in samples], say)
        return samples
    if name in PROGRAMS:
        return programs.suite_tasks(name, paths, aside, say=say)
    tasks: list[Task] = []
    unread: list[tuple[str, ...]] = []
    for path in paths:
        reader = row_reader(SCHEMAS[name].question, SCHEMAS[name].answer)
        if is_hub_name(path):
            rows_by_split = read_splits(path, reader, aside)
            rows = rows_by_split["test"] if "test" in rows_by_split else next(iter(rows_by_split.values()))
        else:
            rows = [row for file in _files_of_test(absolute_path(path)) for row in read_rows(file, reader, aside)]
        if aside is not None:
            aside.check_share(path)
        unread += [tuple(filter(None, (row.solution_column, *row.unread))) for row in rows]  # nobody learns from it
        tasks += [task_of(row, f"{name}/{len(tasks) + i}", grader) for i, row in enumerate(rows)]

    _say_columns(name, unread, say)
    return tasks


def _say_columns(name: str, unread: Sequence[tuple[str, ...]], say: Callable[[str], None]) -> None:
    """Say which columns of a suite's rows were not read; ``unread``: those of each row."""
    if note := columns_note(count_columns(unread)):
        say(f"note: suite {name}: {note}")


def _files_of_test(path: Path) -> list[Path]:
    """The files of a suite's problems: a file itself, of a directory those of its test split, or of its only one."""
    if not path.is_dir():
        return [path]
    parts = files_by_split(path)
    if "test" not in parts and len(parts) != 1:
        raise DataError(
            f"{path}: a suite's directory needs test.jsonl; it has {', '.join(parts) or 'no data'}",
            code="E_SPLITS_MISSING",
        )
    return parts["test"] if "test" in parts else next(iter(parts.values()))


def draw_items(items: list[Task] | list[FixedSolution], count: int | None) -> list[Task] | list[FixedSolution]:
    """``count`` of them, in their order: those whose questions have the smallest hashes, as files may be sorted by
    template; of ProcessBench, whose files may be sorted by label, so many at equal distances in each split."""
    splits: dict[str, list[FixedSolution]] = {}
    for item in items:
        if not isinstance(item, FixedSolution):
            return draw_tasks([one for one in items if isinstance(one, Task)], count)
        splits.setdefault(item.split, []).append(item)
    chosen = [(mine, min(count or len(mine), len(mine))) for mine in splits.values()]
    return [mine[i * len(mine) // n] for mine, n in chosen for i in range(n)]


def draw_tasks(tasks: list[Task], count: int | None) -> list[Task]:
    """``count`` tasks by the hash of their questions: the same whatever else is in the file, and however it is
    sorted."""
    if count is None or count >= len(tasks):
        return tasks
    order = sorted(range(len(tasks)), key=lambda i: (seed_of("suite", tasks[i].prompt), i))
    return [tasks[i] for i in sorted(order[:count])]
