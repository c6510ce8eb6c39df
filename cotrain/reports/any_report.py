"""Write the page of whatever a directory holds: a run, a comparison, a study, or a folder of stages."""

from __future__ import annotations

from pathlib import Path

from cotrain.reports.comparison_report import rewrite_page
from cotrain.reports.run_report import write_report
from cotrain.reports.stages_report import write_stages_page
from cotrain.runs import manifest
from cotrain.runs.directory import RunDirectory


def write_any_page(directory: Path | str) -> Path:
    """Write the page of a directory anew from the files in it, and return its path.

    - a run, comparison or study: ``report.html``
    - a folder of stages, such as pretraining, tuning and a run: ``report.md``

    Raises RunDirectoryError for a run whose files are not as it wrote them.
    """
    directory = Path(directory).expanduser()
    page = rewrite_page(directory) or write_stages_page(directory)
    if page is not None:
        return page
    folder = RunDirectory.open(directory)
    # Both raise RunDirectoryError for files that somebody changed.
    manifest.verify_files(folder)
    manifest.newest_checkpoint(folder)
    return write_report(folder.path)
