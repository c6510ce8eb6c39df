"""Rows of a local parquet file, read by pyarrow (comes with ``pip install -e '.[hub]'``), in batches.

A null is a field that the row does not have: parquet has every column in every row. Left out: row filters, and columns
that JSON could not hold (times, bytes), which are refused where they are read as a question or an answer.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cotrain.core.errors import DataError, UserError, install_extra

PARQUET = ".parquet"
BATCH = 1024  # rows that are in memory at a time


def parquet_rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """The rows of a file, each with its number from 1.

    Raises UserError where pyarrow is not installed, DataError for a file that it cannot read.
    """
    try:
        from pyarrow import ArrowException
        from pyarrow.parquet import ParquetFile
    except ImportError as error:
        raise UserError(
            f"{path}: parquet needs pyarrow; run: {install_extra('hub')}", code="E_PYARROW_NOT_INSTALLED"
        ) from error
    number = 0
    try:
        with ParquetFile(path) as file:
            names = Counter(file.schema_arrow.names)
            if twice := next((name for name, count in names.items() if count > 1), None):
                raise DataError(f"{path}: two columns are called {twice!r}; rename one", code="E_TWO_COLUMNS_ALIKE")
            for batch in file.iter_batches(BATCH):
                narrow = {field.name for field in batch.schema if str(field.type) == "float"}
                for row in batch.to_pylist():
                    number += 1
                    row |= {name: _shortest_decimal(row[name]) for name in narrow if row[name] is not None}
                    yield number, {name: value for name, value in row.items() if value is not None}
    except DataError:  # which is a ValueError too
        raise
    except (ArrowException, OSError, ValueError) as error:
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        where = f"{path}, after row {number}" if number else str(path)
        raise DataError(
            f"{where}: cannot be read ({first}); expected a parquet file", code="E_PARQUET_UNREADABLE"
        ) from error


def _shortest_decimal(value: float) -> float:
    """A number of 32 bits as it was written, 0.1, and not as 64 bits have it, 0.10000000149011612."""
    tries = (float(f"{value:.{digits}g}") for digits in range(6, 10))
    return next((one for one in tries if struct.pack("f", one) == struct.pack("f", value)), value)
