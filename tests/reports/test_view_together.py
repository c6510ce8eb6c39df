"""Several runs on one page: what a folder holds, costs as axes, bands over seeds, one problem in every arm."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from fake_run import write, write_fake_run

from cotrain.reports.compare_overview import about_sentences
from cotrain.reports.compared_runs import ComparedRuns
from cotrain.reports.comparison_report import rewrite_page
from cotrain.reports.curves import Curves
from cotrain.reports.places import find_places
from cotrain.reports.runs import RunView
from cotrain.reports.view_server import Viewer


def seeds(folder: Path, count: int, **settings: object) -> None:
    for seed in range(count):
        run = write_fake_run(folder / f"seed-{seed}", steps=8, episodes=3)
        recipe = json.loads((run / "recipe.json").read_text())
        recipe["settings"] |= settings
        write(run / "recipe.json", recipe | {"seed": seed})


def test_costs_are_summed_over_the_steps(tmp_path: Path) -> None:
    rows = [
        {"step": step, "tokens": 10 * (step + 1), "a/flops/sampling": 2, "a/flops/learning": 3, "a/updates": 1}
        for step in range(3)
    ]
    rows.insert(2, {"step": 1, "kind": "evaluation", "eval/solver/pass@1": 0.5})
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    times = [{"step": step, "rollout": 1.0, "update": 0.5, "solver/seconds": 9.0} for step in range(3)]
    (tmp_path / "timings.jsonl").write_text("".join(json.dumps(row) + "\n" for row in times))
    curves = Curves(tmp_path)
    curves.read_new()
    axes = curves.chart_columns()["axes"]
    assert axes == {
        "step": [1, 2, 3], "tokens": [10, 20, 30], "flops": [5, 10, 15], "seconds": [1.5, 3.0, 4.5],
        "updates/a": [1, 1, 1],
    }  # fmt: skip
    held_out = curves.evaluation_columns()  # after two steps
    assert held_out["axes"] == {"step": [2], "tokens": [20], "flops": [10], "seconds": [3.0], "updates/a": [1]}
    assert held_out["series"] == {"solver/pass@1": [0.5]}


def test_a_folder_tells_comparisons_seeds_and_runs_apart(tmp_path: Path) -> None:
    seeds(tmp_path / "compare" / "grpo", 2)
    seeds(tmp_path / "compare" / "tango-a-1", 2)
    write(tmp_path / "compare" / "settings.json", {"equal": "batches", "arms": ["grpo", "tango:a=1"]})
    seeds(tmp_path / "again", 3, lr=1.0)
    write_fake_run(tmp_path / "alone", steps=2, episodes=1)
    found = find_places(tmp_path)
    assert [(place.kind, place.title) for place in found if place.kind != "run"] == [
        ("comparison", "tango:a=1 against grpo"),
        ("seeds", "tango, 3 seeds"),
    ]
    assert list(found[0].arms) == ["grpo", "tango:a=1"] and list(found[0].arms["grpo"]) == [0, 1]
    assert sum(place.kind == "run" for place in found) == 8
    (only, *_) = find_places(tmp_path / "compare")
    assert only.kind == "comparison" and only.path == tmp_path / "compare"


@pytest.mark.parametrize("labels", [["..", "."], ["a" * 400], [3, None], "grpo", {}])
def test_a_strange_list_of_arms_opens_nothing_outside(tmp_path: Path, labels: object) -> None:
    seeds(tmp_path / "outside", 1)
    write_fake_run(tmp_path / "compare" / "run", steps=2, episodes=1)
    write(tmp_path / "compare" / "settings.json", {"equal": "batches", "arms": labels})
    for place in find_places(tmp_path / "compare"):
        assert all(not seeds for seeds in place.arms.values())


@pytest.mark.whole
def test_one_problem_stands_beside_itself_and_unlike_settings_are_told(tmp_path: Path) -> None:
    seeds(tmp_path / "a", 3, lr=1.0)
    seeds(tmp_path / "b", 3, lr=2.0)
    write(tmp_path / "settings.json", {"equal": "batches", "arms": ["a", "b"]})
    (place, *_) = find_places(tmp_path)
    arms = {arm: {seed: RunView(path) for seed, path in paths.items()} for arm, paths in place.arms.items()}
    together = ComparedRuns(place, arms, {arms["a"][0].directory: 7})
    for runs in arms.values():
        runs[0].rollouts.load_steps([0, 4])
    sides = together.shared_problems(0)
    assert sides["all"] == 6 and sides["reading"] == 0  # three problems of two recorded steps, the same in both arms
    one = sides["problems"][0]["arms"]
    assert one["a"]["run"] == 7 and one["b"]["run"] is None and one["a"]["members"] == one["b"]["members"]
    document = together.document()
    assert document["settings"] == (["setting", "a", "b"], [["lr", "1.0", "2.0"]])
    bands = document["held_out"]
    line = bands["curves"]["batches"]["solver/pass@1"]["a"]
    assert line["x"] == [0, 8] and line["low"] == line["mean"] == line["high"]  # three equal seeds
    assert document["figures"] == [] and [run["ended"] for arm in document["arms"] for run in arm["runs"]] == [True] * 6
    path = rewrite_page(tmp_path)
    assert path is not None and path.stat().st_size < 5_000_000 and rewrite_page(tmp_path / "a" / "seed-0") is None


def test_a_comparison_is_drawn_again_when_a_run_ends(tmp_path: Path) -> None:
    seeds(tmp_path, 2)
    summary = tmp_path / "seed-0" / "summary.json"
    content = summary.read_bytes()
    summary.unlink()
    viewer = Viewer(find_places(tmp_path), tmp_path)
    before = viewer.answer(["0", "stamp"], {})
    summary.write_bytes(content)
    assert viewer.answer(["0", "stamp"], {}) != before


@pytest.mark.parametrize("batches", ["many", None, [1], 2.5], ids=["text", "none", "list", "half"])
def test_a_comparison_whose_number_of_batches_is_none_is_still_drawn(batches: object) -> None:
    first = about_sentences({"equal": "batches", "batches": batches})[0]
    assert first == "Every run lasts ? batches."
