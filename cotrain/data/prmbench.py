"""PRMBench (arXiv 2501.03124): solutions into which errors of nine kinds were put, with every wrong step marked.

Rows, of which these columns are read: ``modified_question``, ``modified_process`` (list of text), ``error_steps``
(numbers of the wrong steps, from 1; may be empty), ``classification`` (the kind of error) and ``idx``. A row becomes a
``FixedSolution`` whose split is its kind. As in the published evaluation, a second row with the same kind and ``idx``
is passed over, and so are numbers behind the last step.

Left out: the unharmed solutions (``original_process``) and the similarity score made with them; ``reason``, which tells
the error; the prompts of the published evaluation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cotrain.core.errors import DataError
from cotrain.data.malformed_rows import Quarantine
from cotrain.data.processbench import FixedSolution, read_all_rows, steps_of
from cotrain.data.row_files import kind_of, text_of
from cotrain.data.unread_columns import check_lost_parts, unread_columns

HUB = "hitsmy/PRMBench_Preview"
COLUMNS = ("modified_question", "modified_process", "error_steps", "classification", "idx")


def read_samples(paths: Sequence[str], aside: Quarantine | None = None) -> list[FixedSolution]:
    """The samples of files, of all files of directories, or of a data set of the Hub.

    Raises DataError with file, row and field, or sets such a row ``aside``.
    """
    samples: dict[str, FixedSolution] = {}
    for sample in read_all_rows(paths, "PRMBench", lambda row, where, _: solution_of_row(row, where), aside):
        samples.setdefault(sample.id, sample)
    if not samples:
        raise DataError(
            f"{', '.join(paths)}: no rows; expected JSON lines with 'modified_process' and 'error_steps'",
            code="E_DATA_EMPTY",
        )
    return list(samples.values())


def solution_of_row(row: dict[str, Any], where: str) -> FixedSolution:
    """One row, checked. Raises DataError that begins with ``where``."""
    for column in COLUMNS:
        if column not in row:
            raise DataError(
                f"{where}: no field {column!r} (there are: {', '.join(map(repr, row)) or 'none'})",
                code="E_FIELD_MISSING",
            )
    steps = steps_of(row, "modified_process", where)
    wrong = row["error_steps"]
    if not isinstance(wrong, list):
        raise DataError(
            f"{where}, field 'error_steps': expected a list of numbers, found {kind_of(wrong)}", code="E_STEP_LABELS"
        )
    for number in wrong:
        if not isinstance(number, int) or isinstance(number, bool) or number < 1:
            raise DataError(
                f"{where}, field 'error_steps': expected numbers from 1, found {number!r}", code="E_STEP_LABELS"
            )
    check_lost_parts(row, COLUMNS, where)
    indices = tuple(sorted({number - 1 for number in wrong if number <= len(steps)}))
    kind = text_of(row["classification"], f"{where}, field 'classification'", numbers=False)
    idx = text_of(row["idx"], f"{where}, field 'idx'", numbers=True)
    return FixedSolution(
        id=f"{kind}/{idx}",
        split=kind,
        problem=text_of(row["modified_question"], f"{where}, field 'modified_question'", numbers=False),
        steps=steps,
        label=indices[0] if indices else -1,
        final_answer_correct=None,
        wrong=indices,
        unread=unread_columns(row, COLUMNS),
    )
