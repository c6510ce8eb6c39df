"""``cotrain top`` and ``cotrain why``: within 80 columns and 24 lines, as JSON, and without a control character."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from fake_run import write_fake_run
from rich.console import Console
from test_view_page import poisoned_run

from cotrain.cli.top import top
from cotrain.cli.why import why
from cotrain.core.verbosity import is_hidden
from cotrain.reports.runs import RunView
from cotrain.reports.top import draw_screen, snapshot
from cotrain.reports.why import explain_rollout
from tests.sentences import refuses

POISON = ["\x1b]52;c;aGk=\x07\x1b[2J\u202etxet"] * 300


@pytest.mark.parametrize("width", [80, 40])
def test_top_fits_a_small_terminal(tmp_path: Path, width: int) -> None:
    console = Console(width=width, record=True, file=(tmp_path / "out").open("w"))
    console.print(draw_screen(snapshot(RunView(write_fake_run(tmp_path / "run", steps=40, episodes=1))), width))
    lines = console.export_text().splitlines()
    assert len(lines) <= 24 and all(len(line) <= width for line in lines)
    is_setting = [line.strip().startswith("roles.") for line in lines]  # one long word
    assert all(len(line.split()) > 1 for line, long in zip(lines, is_setting, strict=True) if not long), "broken"
    assert any(re.search(r"truth: accuracy\s+\d\.\d{3}", line) for line in lines)
    assert "tango  step 40, 100% done  ended" in lines[0] and any("truth: accuracy" in line for line in lines)


def test_top_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert top([str(write_fake_run(tmp_path, steps=10, episodes=1)), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["step"] == 10 and [role["role"] for role in found["roles"]] == ["solver", "verifier"]


def without_truth(run: Path) -> Path:
    """The run as it would be if nobody knew an answer."""
    content = (run / "metrics.jsonl").read_text()
    rows = [json.loads(line) for line in content.splitlines()]
    for row in rows:
        for name in [name for name in row if name.startswith("solver/") and name.endswith("accuracy")]:
            del row[name]
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return run


def test_top_names_no_truth_that_is_not_measured(tmp_path: Path) -> None:
    """The solver of such a run had a "balanced accuracy", without a value."""
    run = without_truth(write_fake_run(tmp_path / "run", steps=10, episodes=1))
    shown = snapshot(RunView(run))
    truths = {role["role"]: (role["truth"], bool(role["right"])) for role in shown["roles"]}
    assert truths == {"solver": (None, False), "verifier": ("balanced_accuracy", True)}
    console = Console(width=80, record=True, file=(tmp_path / "out").open("w"))
    console.print(draw_screen(shown, 80))
    assert re.search(r"solver\s+truth: not measured\s+–", console.export_text())


def test_why_names_no_truth_where_none_is_known(tmp_path: Path) -> None:
    write_fake_run(tmp_path, steps=4, episodes=2)
    rollout = RunView(tmp_path).rollout(0, 1, 0)
    assert rollout is not None
    for trace in rollout["traces"]:
        trace["metadata"] = {}
    truths = [line.strip() for line in explain_rollout(rollout) if line.strip().startswith("truth:")]
    assert set(truths) == {"truth: none is known"}


def test_why_tells_rewards_output_and_truth(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_fake_run(tmp_path, steps=4, episodes=2)
    assert why([str(tmp_path), "0:1:0"]) == 0
    said = capsys.readouterr().out
    for words in (
        "advantage of generator: -0.4 to 0.7",
        "entropy of a token: mean 0.5 nats, most 1 at sampled token 0",
        "reward outcome",
        "reward agreement",
        "learned from: yes",
        "written: <step>",
        "read: {",
        "truth: {",
    ):
        assert words in said
    assert why([str(tmp_path), "0:1:0:verifier:0", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["traces"][1]["role"] == "verifier"


def test_what_cannot_be_found_is_told_in_one_line(tmp_path: Path) -> None:
    write_fake_run(tmp_path, steps=4, episodes=2)
    with refuses("E_NO_SUCH_ROLLOUT", names="rollout 9"):
        why([str(tmp_path), "9:0:0"])
    with refuses("E_ROLLOUT_ADDRESS"):
        why([str(tmp_path), "nonsense"])
    with refuses("E_NOT_RUN_DIRECTORY"):
        top([str(tmp_path / "nothing")])


def test_no_control_character_reaches_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = poisoned_run(tmp_path, POISON)
    assert why([str(directory), "0:0:0"]) == 0 and top([str(directory), "--once"]) == 0
    said = capsys.readouterr().out
    assert "<U+001B>" in said and not any(is_hidden(char) for char in said if char != "\n")
