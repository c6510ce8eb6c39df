"""What processes did: lines of the live table, means for the report, nothing for a run in one process."""

import math

import pytest

from cotrain.reports.curves import ProcessMeans, process_cells, processes_of, size_text
from tests.reports.test_live import ROW, shown

ENGINE = "process/engine 1 of 2"
STEP = {
    "process/learners/policies": "generator verifier",
    "process/learners/published_bytes": 3_400_000,
    "process/learners/publish_seconds": 0.31,
    "process/learners/asleep_seconds": 1.25,
    f"{ENGINE}/policies": "generator",
    f"{ENGINE}/tokens_per_second": 512.4,
    f"{ENGINE}/published_bytes": 3_400_000,
    f"{ENGINE}/publish_seconds": 0.29,
    f"{ENGINE}/asleep_seconds": 0.5,
}


def test_a_terminal_shows_a_line_a_process_and_a_log_none():
    text = shown(True, [ROW | STEP], width=100)
    lines = [line for line in text.splitlines() if "MB" in line]
    assert any("learners" in line and "3.4 MB" in line and "1.2 s" in line and "verifier" in line for line in lines)
    assert any("engine 1 of 2" in line and " 512" in line and "0.29 s" in line for line in lines)
    assert "asleep" in text and "asleep" not in shown(True, [ROW], width=100)
    assert shown(False, [ROW | STEP]) == shown(False, [ROW])


def test_a_process_without_a_figure_has_none():
    assert process_cells("learners", {}) == ["learners", "", "", "", "", ""]
    told = processes_of(STEP)
    assert list(told) == ["learners", "engine 1 of 2"] and "tokens_per_second" not in told["learners"]
    assert processes_of(ROW) == {}


@pytest.mark.parametrize(
    ("count", "words"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (57_344, "57.3 kB"), (3.4e6, "3.4 MB"), (1.5e11, "150 GB")],
)
def test_sizes_in_words(count, words):
    assert size_text(count) == words


def test_means_are_over_the_steps_of_each_process():
    found = ProcessMeans()
    for row in (STEP, STEP | {f"{ENGINE}/asleep_seconds": 1.5, f"{ENGINE}/published_bytes": math.nan}, {"step": 3}):
        found.add_row(row)
    learners, engine = found.mean_rows()
    assert learners == {
        "name": "learners", "policies": "generator verifier", "steps": 2, "published_bytes": 3_400_000.0,
        "publish_seconds": 0.31, "asleep_seconds": 1.25,
    }  # fmt: skip
    assert (engine["asleep_seconds"], engine["published_bytes"], engine["steps"]) == (1.0, 1_700_000.0, 2)
    assert ProcessMeans().mean_rows() == []
