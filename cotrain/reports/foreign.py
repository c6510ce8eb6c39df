"""Rollouts of other trainers in the place of a run: `view`, `why` and `diff` open their files as they open runs.

The files are written as a run (``runs/foreign_run.py``) into a folder that lasts as long as the command. Reference
answers that stand in them are compared by the package's grader. What needs flags, such as columns of other names, is
for `cotrain audit FILE --out DIR`, whose DIR they open too.
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

OF_ROLLOUTS = (".jsonl", ".jsonl.gz", ".ndjson", ".parquet", ".csv", ".csv.gz")  # endings that make a folder foreign


@contextmanager
def as_run_directory(path: Path) -> Iterator[Path]:
    """The path itself, or for rollouts of another trainer a directory that is read as a run's. Raises DataError and
    ConfigError for rollouts that cannot be read without more words."""
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
    if not run.columns.truth and any(rollout.gold is not None for rollout in run.rollouts):
        run = replace(run, rollouts=grade_by_reference(run.rollouts).rollouts)
    with TemporaryDirectory(prefix="cotrain-rollouts-") as folder:
        directory = Path(folder) / (path.resolve().name or "rollouts")
        write_as_run(run, directory)
        yield directory


def _with_flags_of_audit(message: str, path: Path) -> str:
    """The message, which may advise a flag that only `audit` has, for a command that has none of them."""
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
    return any(name.endswith(OF_ROLLOUTS) for name in names)
