"""``cotrain diff``: two runs side by side, within 80 columns, as JSON, and without a control character."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from fake_run import write_fake_run
from test_view_page import poisoned_run

from cotrain.cli.diff import diff
from cotrain.core.verbosity import is_hidden
from cotrain.reports.diff import compare_runs, lines_of, unequal_settings
from cotrain.reports.runs import open_run
from cotrain.reports.settings import value_text
from tests.sentences import refuses


def changed(directory: Path, name: str, change) -> Path:
    file = directory / name
    saved = json.loads(file.read_text())
    change(saved)
    file.write_text(json.dumps(saved))
    return directory


@pytest.fixture
def runs(tmp_path):
    one = write_fake_run(tmp_path / "one", steps=8, episodes=2)
    other = write_fake_run(tmp_path / "other", steps=12, episodes=2)
    changed(other, "recipe.json", lambda saved: saved["settings"].update(group_size=16, lr=1e-4))
    changed(
        other,
        "summary.json",
        lambda saved: saved["after"].update({"solver/pass@1": {"value": 0.99, "low": 0.98, "high": 1.0, "n": 9}}),
    )
    return one, other


def test_settings_by_hand():
    a = {"lr": 1, "roles": {"solver": {"prompt": "x", "words": []}}, "steps": 3}
    b = {"lr": 2, "roles": {"solver": {"prompt": "x", "words": ["Y"]}, "judge": 1}, "steps": 3}
    assert list(unequal_settings(a, b)) == [("lr", 1, 2), ("roles.solver.words", [], ["Y"]), ("roles.judge", None, 1)]
    phases = [[{"is": "Phase", "name": "both", "on": on}, {"name": "alone", "on": ["a"]}] for on in (["a"], ["a", "b"])]
    first, second = ({"schedule": {"phases": phase, "warmup": []}} for phase in phases)
    assert list(unequal_settings(first, second)) == [("schedule.phases.both.on", ["a"], ["a", "b"])]
    assert [value_text(value) for value in (None, True, ["a", "b"], [], 0.5)] == ["none", "true", "a, b", "none", "0.5"]


def test_what_differs_is_told(runs):
    found = compare_runs(*map(open_run, runs))
    assert {one["setting"]: (one["a"], one["b"]) for one in found["settings"]} == {
        "group_size": (8, 16),
        "lr": (None, 1e-4),
    }
    figures = {one["figure"]: one for one in found["figures"]}
    assert figures["solver/pass@1"]["apart"] and figures["solver/pass@1"]["b"]["value"] == 0.99
    assert not any(one["apart"] for name, one in figures.items() if name != "solver/pass@1")
    rollout = found["rollout"]
    assert rollout["step"] == 4 and rollout["problem"][0] == rollout["problem"][1]
    assert [turn["role"] for turn in rollout["a"]] == [turn["role"] for turn in rollout["b"]]


def test_it_fits_80_columns_and_json_holds_the_same(runs, capsys):
    one, other = map(str, runs)
    assert diff([one, other]) == 0
    said = capsys.readouterr().out.splitlines()
    assert all(len(line) <= 80 for line in said)
    assert "group_size" in said and any(line.startswith("8 ") and line.endswith("│ 16") for line in said)
    assert any(line.startswith("solver/pass@1") and line.endswith("*") for line in said)
    assert any("<step>" in line and "│" in line for line in said)
    assert diff([one, other, "--json"]) == 0
    assert lines_of(json.loads(capsys.readouterr().out)) == said


def test_one_rollout_may_be_named(runs):
    found = compare_runs(*map(open_run, runs), "0:1:0")
    assert (found["rollout"]["step"], found["rollout"]["task"]) == (0, 1)
    with refuses("E_NO_SUCH_ROLLOUT", names=("one", "99:0:0")):
        compare_runs(*map(open_run, runs), "99:0:0")
    with refuses("E_ROLLOUT_ADDRESS"):
        compare_runs(*map(open_run, runs), "nonsense")


def test_a_run_that_goes_on_is_compared_too(runs, tmp_path):
    young = write_fake_run(tmp_path / "young", steps=4, episodes=2, summary=False)
    text = "\n".join(lines_of(compare_runs(open_run(young), open_run(young))))
    assert "none" in text and "nothing: neither run is finished" in text and "rollout 0:0:0" in text
    with refuses("E_NOT_RUN_DIRECTORY"):
        diff([str(young), str(tmp_path / "nowhere")])


def test_no_control_character_reaches_the_terminal(tmp_path, capsys):
    run = poisoned_run(tmp_path, ["\x1b]52;c;aGk=\x07\x1b[2J\u202etxet"] * 300)
    assert diff([str(run), str(run), "--rollout", "0:0:0"]) == 0
    said = capsys.readouterr().out
    assert "<U+001B>" in said and not any(is_hidden(char) for char in said if char != "\n")


def test_long_names_are_shown_whole(runs):
    name = "verifier/fixed/step_true_negative_rate_of_solutions_that_were_there_at_the_start_of_the_run"
    setting = "a_setting_whose_name_goes_on_and_on_" * 3
    for run in runs:
        changed(run, "summary.json", lambda saved: saved["after"].update({name: saved["after"]["solver/pass@1"]}))
    changed(runs[1], "recipe.json", lambda saved: saved["settings"].update({setting: 1}))
    lines = lines_of(compare_runs(*map(open_run, runs)))
    assert all(len(line) <= 80 for line in lines)
    assert name in "".join(lines) and setting in "".join(lines)
    (at,) = (i for i, line in enumerate(lines) if name.endswith(line) and line)
    assert "[" in lines[at + 1]
