"""Rollouts of other trainers in the place of a run: `view`, `why` and `diff` open their files as they open runs.

The files are converted to a run (``runs/foreign_run.py``) in a temporary folder, which lasts as long as the command. If
they have reference answers, the package's grader says which answers are right. A file that cannot be read without
flags, such as the names of its columns, is converted by `cotrain audit FILE --out DIR`; then DIR is opened.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from cotrain.core.errors import ConfigError, DataError
from cotrain.reports.follow import RECIPE

ROLLOUT_SUFFIXES = (".jsonl", ".jsonl.gz", ".ndjson", ".parquet", ".csv", ".csv.gz")


@contextmanager
def as_run_directory(path: Path) -> Iterator[Path]:
    """The path of a run itself. Rollouts of another trainer are converted: the path of the converted run. Raises
    DataError and ConfigError for rollouts that cannot be read without flags."""
    if not is_foreign(path):
        yield path
        return
    from cotrain.runs.foreign_files import read_foreign_run
    from cotrain.runs.foreign_run import write_as_run
    from cotrain.runs.foreign_truth import grade_by_reference

    try:
        run = read_foreign_run([path])
    except (ConfigError, DataError) as error:
        raise DataError(_with_flags_of_audit(str(error), path), code=error.code) from error
    has_reference = any(rollout.gold is not None for rollout in run.rollouts)
    if has_reference and not run.columns.truth:
        run = replace(run, rollouts=grade_by_reference(run.rollouts).rollouts)
    with TemporaryDirectory(prefix="cotrain-rollouts-") as folder:
        directory = Path(folder) / (path.resolve().name or "rollouts")
        write_as_run(run, directory)
        yield directory


def _with_flags_of_audit(message: str, path: Path) -> str:
    """The message of an error, for commands without the flags that it may advise: only `audit` has them.

    ``no column of answers; give --response-column`` becomes
    ``no column of answers; `cotrain audit FILE --out DIR` takes --response-column; then open DIR``.
    """
    command = f"`cotrain audit {path} --out DIR`"
    reason, _, advice = message.rpartition("; ")
    flags = dict.fromkeys(re.findall(r"--[a-z][a-z-]*", advice))
    if not (reason and flags):
        return f"{message}; or give more with {command}, and open DIR"
    return f"{reason}; {command} takes {', '.join(flags)}; then open DIR"


def is_foreign(path: Path) -> bool:
    """Whether this is a file, or a folder of files, of rollouts that no run of ours wrote."""
    if path.is_file():
        return True
    if not path.is_dir() or (path / RECIPE).exists():
        return False
    if (path / "completions").is_dir():
        return True
    names = [file.name.lower() for file in path.iterdir() if file.is_file()]
    return any(name.endswith(ROLLOUT_SUFFIXES) for name in names)
