"""The notebook runs from its first cell to its last, in a kernel, as a reader runs it."""

from pathlib import Path

import pytest

NOTEBOOK = Path(__file__).parents[1] / "notebooks" / "first-hour.ipynb"


@pytest.mark.whole
def test_the_first_hour_runs(tmp_path, monkeypatch):
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    book = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(book)
    assert not any(cell.get("outputs") for cell in book.cells)  # committed without
    nbclient.NotebookClient(book, timeout=900, resources={"metadata": {"path": str(tmp_path)}}).execute()
    said = "".join(output.get("text", "") for cell in book.cells for output in cell.get("outputs", ()))
    drawn = str([output for cell in book.cells for output in cell.get("outputs", ())])
    assert "a review says:" in said and "right:" in said and "the whole report:" in said
    assert "<polyline" in drawn and "2 seeds" in said
