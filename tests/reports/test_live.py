"""The live display: a table on a terminal, plain lines elsewhere, and no control code that a model wrote."""

from __future__ import annotations

import io
import re
from dataclasses import replace
from pathlib import Path

from fake_run import trace, write_fake_run
from rich.console import Console

from cotrain.core.seeding import Address
from cotrain.core.types import Episode
from cotrain.reports.glimpse import choose_glimpse, glimpse_lines
from cotrain.reports.live import LiveTable, spark_line, speaking_roles, step_line, time_text

ROW = {
    "step": 11, "phase": "generator", "seconds": 2.0, "solver/reward/outcome": 0.42, "solver/accuracy": 0.41,
    "solver/tokens": 20_000, "solver/length": 81.2, "verifier/reward/agreement": 0.6,
    "verifier/reward/class_label": 0.4,
    "verifier/balanced_accuracy": 0.66, "verifier/tokens_per_second": 512.3, "verifier/length": 60.0, "gap": 0.3,
}  # fmt: skip


def shown(terminal: bool, rows: list[dict], messages: tuple[str, ...] = (), width: int = 80) -> str:
    out = io.StringIO()
    console = Console(file=out, force_terminal=terminal, width=width, legacy_windows=False, _environ={"TERM": "xterm"})
    with LiveTable({"steps": 40}, console=console) as live:
        for row in rows:
            live.update(row)
        for message in messages:
            live.message(message)
    return out.getvalue()


def test_one_plain_line_a_step_away_from_a_terminal() -> None:
    text = shown(False, [ROW, {**ROW, "step": 12}], ("saved",))
    lines = text.splitlines()
    assert lines[0] == (
        "step 12/40 | generator | solver: right 41.0\u202f% | verifier: bal. acc. 66.0\u202f% | gap 0.30 | 2.0 s | "
        "0:56 left"
    )
    assert lines[1].startswith("step 13/40") and lines[2] == "saved" and len(lines) == 3
    assert "\x1b" not in text


def test_a_line_tells_of_the_format_where_it_fails() -> None:
    assert "solver: right 41.0\u202f%, format 44.0\u202f% |" in step_line(
        ROW | {"solver/reward/format": 0.44}, 40, 2.0, 1.0
    )
    assert "format" not in step_line(ROW | {"solver/reward/format": 0.99}, 40, 2.0, 1.0)


def test_a_run_that_ends_by_what_it_spends_tells_the_time_left_by_that() -> None:
    rows = [{**ROW, "tokens": 300, "generator/flops/learning": 50}, {**ROW, "step": 12, "tokens": 325}]
    for ends, left in (({"tokens": 650}, "0:26"), ({"flops": 200}, "1:18"), ({"seconds": 8.0}, "0:26")):
        out = io.StringIO()
        with LiveTable({"steps": 1_000_000, **ends}, console=Console(file=out, width=80)) as live:
            for row in rows:
                live.update(row)
        line = out.getvalue().splitlines()[-1]
        assert line.startswith("step 13 | ") and line.endswith(f"{left} left"), line


def test_rewards_apart_by_truth_stay_out_of_the_line() -> None:
    apart = {"solver/reward/outcome/right": 1.0, "solver/reward/outcome/at_max": 0.4}
    assert shown(False, [ROW | apart]) == shown(False, [ROW])


def test_evaluations_are_one_line_too() -> None:
    row = {"step": 19, "kind": "evaluation", "eval/solver/pass@1": 0.5, "eval/verifier/balanced_accuracy": 0.625}
    line = "held-out problems after step 20: solver pass@1 50.0\u202f%; verifier balanced accuracy 62.5\u202f%\n"
    assert shown(False, [row]) == line


def test_the_headlines_stand_side_by_side_in_the_order_of_the_table() -> None:
    figures = {
        "verifier/greedy_balanced_accuracy": 0.7, "verifier/balanced_accuracy": 0.6,
        "verifier/fixed/balanced_accuracy": 0.1,
        "solver/majority@8": 0.4, "solver/best@8": 0.9, "solver/greedy": 0.3, "solver/pass@8": 0.5,
        "solver/pass@1": 0.2,
    }  # fmt: skip
    row = {"step": 0, "kind": "evaluation", **{f"eval/{name}": value for name, value in figures.items()}}
    line = (
        "held-out problems after step 1: solver pass@1 20.0 %, greedy accuracy 30.0 %, pass@8 50.0 %, maj@8 40.0 %;"
        " verifier balanced accuracy 60.0 %, greedy balanced accuracy 70.0 %\n"
    )
    assert shown(False, [row]) == line.replace(" %", "\u202f%")
    assert "maj@8" in shown(True, [row, ROW])  # and stay below the table


def test_a_terminal_gets_a_table_and_is_restored() -> None:
    text = shown(True, [ROW, {**ROW, "step": 12, "verifier/balanced_accuracy": 0.7}])
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)
    assert "step 13/40" in plain and "bal. acc." in plain and "70.0" in plain and "▁█" in plain
    assert "\x1b[?25l" in text and text.rindex("\x1b[?25h") > text.rindex("\x1b[?25l")  # the cursor comes back
    assert max(len(line) for line in plain.replace("\r", "\n").split("\n")) <= 80


def test_the_terminal_is_restored_after_an_error() -> None:
    out = io.StringIO()
    try:
        with LiveTable(
            {"steps": 3}, console=Console(file=out, force_terminal=True, _environ={"TERM": "xterm"})
        ) as live:
            live.update(ROW)
            raise KeyboardInterrupt
    except KeyboardInterrupt:
        pass
    assert out.getvalue().rindex("\x1b[?25h") > out.getvalue().rindex("\x1b[?25l")


def test_control_characters_of_others_never_reach_the_terminal() -> None:
    evil = "\x1b]52;c;aGk=\x07\x1b[2J\x9b\u202e\r\n[bold]"
    row = {**ROW, "phase": evil, f"solver{evil}/length": 3, f"solver/reward/{evil}": 0.5}
    evaluation = {"step": 1, "kind": "evaluation", f"eval/{evil}/pass@1": 0.5}
    for terminal in (False, True):
        text = shown(terminal, [row, evaluation], (evil,), width=300)
        for code in ("\x1b]52", "\x1b[2J", "\x07", "\x9b", "\u202e"):
            assert code not in text
        assert "<U+001B>" in text
    assert len(shown(False, [row, evaluation], (evil,)).splitlines()) == 3


def test_a_terminal_shows_a_rollout_with_its_verdicts_and_a_pipe_does_not(tmp_path: Path) -> None:
    run = write_fake_run(tmp_path / "run", steps=2, episodes=4)

    def shown_beside(directory: Path, terminal: bool) -> str:
        out = io.StringIO()
        console = Console(file=out, force_terminal=terminal, width=100, _environ={"TERM": "xterm"})
        with LiveTable({"steps": 2}, console=console, directory=directory) as live:
            live.update(ROW | {"step": 0})
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", out.getvalue())

    text = shown_beside(run, True)
    assert "step 1: " in text and "says " in text and ("✓  " in text or "✗  " in text)
    assert "says " not in shown_beside(run, False)
    assert "step 1/2" in shown_beside(tmp_path / "nothing here", True)


def test_a_glimpse_is_of_what_fooled_a_verifier_first_and_has_no_control_character() -> None:
    right, wrong = (judged_episode(member, right=member == 0, said=True) for member in (0, 1))
    chosen = choose_glimpse([right, wrong])
    assert chosen is not None and chosen.kind == "the verifier was fooled"
    lines = glimpse_lines(7, chosen, 60)
    assert lines[0] == "step 7: How many?<U+001B>[2J" and max(map(len, lines)) <= 60
    assert lines[1].startswith("✗  a = 1") and lines[1].endswith("says right ≠")
    assert lines[2].startswith("✗  answer 5, gold 4") and lines[-1] == "   the verifier was fooled"
    assert choose_glimpse([replace(right, traces=right.traces[:1])]) is None  # without a review


def judged_episode(member: int, *, right: bool, said: bool) -> Episode:
    """A solution of one step and one review of it."""
    answer = "4" if right else "5"
    speaker, reviewer = (Address(step=0, task=0, member=member, role=role, call=0) for role in ("solver", "verifier"))
    said_of_problem = {"problem": "How many?\x1b[2J", "steps": [[0, 5, "a = 1"]], "answer": answer}
    truth = {"correct": right, "gold": "4", "step_ok": [right]}
    solution = trace(speaker, "solver", "generator", 0, "a = 1", None, said_of_problem, truth, [])
    verdict = {"steps": [said], "final": said}
    review = trace(reviewer, "verifier", "verifier", 0, "CORRECT", str(speaker), verdict, {"correct": right}, [])
    return Episode(step=0, task=0, member=member, task_id="one", traces=(solution, review))


def test_odd_rows_are_shown_as_far_as_they_go() -> None:
    assert step_line({}, 5, 1.0, None) == "step 1/5 | 1.0 s"
    nan = {"step": 0, "solver/length": 1.0, "solver/accuracy": float("nan"), "solver/reward/x": None}
    assert "undefined" in step_line(nan, 5, 1.0, 3.0)
    assert shown(True, [{}]) and shown(False, [{}]).startswith("step 1/40")


def test_clock_and_spark_lines() -> None:
    assert (time_text(5), time_text(75), time_text(7390), time_text(None)) == ("0:05", "1:15", "2:03:10", "?")
    assert spark_line((0.0, 0.5, 1.0)) == "▁▅█" and spark_line((2.0, 2.0)) == "▁▁" and spark_line(()) == ""


def test_what_learns_to_pay_others_stands_in_the_line() -> None:
    row = {
        "step": 0, "generator/process/pair_accuracy": 0.7, "prm/prm/accuracy": 0.6, "prm/updates": 1,
        "critic/explained_variance": 0.25, "spin/margin": -0.5, "spin/pair_accuracy": 0.5,
    }  # fmt: skip
    line = step_line(row, 5, 1.0, None).replace("\u202f", " ")
    assert "generator: answers in order by process rewards 70.0 %" in line and "critic: explained variance 0.25" in line
    assert "prm: right by its own scores 60.0 %" in line and "spin: margin -0.50, pairs in order 50.0 %" in line
    assert "explained variance 0.25" in shown(True, [ROW | row], width=200)


def test_a_reward_that_some_were_not_given_says_for_how_many_it_is() -> None:
    row = {"step": 0, "refiner/length": 9.0, "refiner/reward/outcome": 1.0, "refiner/reward/outcome/given": 0.25}
    assert "refiner: outcome 1.00 for 25.0 % of them" in step_line(row, 5, 1.0, None).replace("\u202f", " ")


def test_a_scorer_has_no_speed_of_speech() -> None:
    row = {"step": 0, "rater/length": 1.0, "rater/tokens": 8, "rater/score": 0.2}
    assert "tokens/s" not in step_line(row, 5, 1.0, None)


def test_a_solver_whose_reward_is_the_truth_is_no_role_of_given_pairs():
    """Where the truth paid it stood in no step line: its reward and its accuracy are equal, as those of given pairs."""
    given = {"teacher/accuracy": 0.5, "teacher/length": 3.0, "teacher/reward/label": 0.5}
    answers = {"solver/accuracy": 0.5, "solver/length": 3.0, "solver/reward/label": 0.5}
    assert speaking_roles(given | answers | {"solver/majority_accuracy": 1.0}) == ["solver"]
    quarter = {"solver/accuracy": 0.25, "solver/length": 3.0, "solver/reward/label": 0.25}
    assert speaking_roles(quarter) == ["solver"]
