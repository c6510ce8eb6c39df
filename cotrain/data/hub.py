"""Rows of a data set on the Hub, read by ``datasets`` (``pip install -e '.[hub]'``): ``owner/name`` or
``owner/name:config``.

Code of a data set is never run: ``trust_remote_code`` is not passed, and versions from 4 on have none. Left out:
streaming (the benchmarks are small) and revisions (``describe()`` of the source holds a digest of the rows instead).
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from cotrain.core.errors import DataError, UserError, install_extra

_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*(:[\w.-]+)?")
_FILES = (".jsonl", ".json", ".gz", ".txt", ".csv", ".parquet")


def is_hub_name(text: str) -> bool:
    """Whether a text names a data set and no file: ``owner/name``, no ending of a data file, nothing of that name
    here."""
    return _NAME.fullmatch(text) is not None and not text.endswith(_FILES) and not Path(text).exists()


def hub_rows(name: str) -> dict[str, list[dict[str, Any]]]:
    """All splits of a data set, each a list of rows.

    Raises UserError where ``datasets`` is not installed, DataError with its first line for whatever it cannot load.
    """
    try:
        from datasets import load_dataset
    except ImportError as error:
        raise UserError(
            f"{name}: no such file here, and data of the Hub needs datasets; run: {install_extra('hub')}",
            code="E_DATASETS_NOT_INSTALLED",
        ) from error
    repository, _, config = name.partition(":")
    try:
        rows_by_split = {}
        for split, rows in load_dataset(repository, config or None).items():
            rows_by_split[str(split)] = [dict(row) for row in rows]
        return rows_by_split
    except Exception as error:  # its errors are of many libraries; all mean that there is no data
        first = (str(error).strip().splitlines() or [""])[0]
        raise DataError(
            f"{name}: datasets cannot load it ({type(error).__name__}: {first}); expected owner/name or "
            "owner/name:config",
            code="E_HUB_DATA_UNREADABLE",
        ) from error
