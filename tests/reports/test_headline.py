"""The sentences and the four figures above a run's page: of held-out problems alone, with which way is better, and why
a figure may have got worse."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fake_run import write, write_fake_run

from cotrain.reports.headline import is_fooled, outcome_sentences
from cotrain.reports.rollouts import FIELDS, UNSOUND
from cotrain.reports.runs import RunView, figure_rows, parse_estimates
from cotrain.reports.showcase import choose_showcase

ROLES = ("solver", "verifier")


def rows_of(before: dict[str, float], after: dict[str, float], half: float = 0.02) -> list[dict[str, Any]]:
    """Figures as a page has them, each with an interval of ``half`` to either side."""

    def estimates(values: dict[str, float]) -> dict[str, Any]:
        return {key: {"value": v, "low": v - half, "high": v + half, "n": 64} for key, v in values.items()}

    summary = {"before": estimates(before), "after": estimates(after)}
    return figure_rows(parse_estimates(summary["before"]), summary, ROLES)


def said_of(before: dict[str, float], after: dict[str, float]) -> str:
    return " ".join(outcome_sentences(rows_of(before, after))).replace("\u202f", " ")


BEFORE = {
    "solver/pass@1": 0.4, "solver/greedy": 0.5, "solver/majority@8": 0.5, "solver/best@8": 0.5,
    "solver/weighted@8": 0.6, "solver/step_accuracy": 0.5,
    "verifier/balanced_accuracy": 0.6, "verifier/fixed/balanced_accuracy": 0.6,
    "verifier/greedy_balanced_accuracy": 0.75, "verifier/fixed/greedy_balanced_accuracy": 0.8, "gap": -0.05,
}  # fmt: skip
AFTER = {
    "solver/pass@1": 0.65, "solver/greedy": 0.7, "solver/majority@8": 0.72, "solver/best@8": 0.78,
    "solver/weighted@8": 0.8, "solver/step_accuracy": 0.8,
    "verifier/balanced_accuracy": 0.8, "verifier/fixed/balanced_accuracy": 0.9,
    "verifier/greedy_balanced_accuracy": 0.55, "verifier/fixed/greedy_balanced_accuracy": 0.9, "gap": 0.08,
}  # fmt: skip


def test_each_role_is_told_in_a_sentence_and_a_verifier_on_both_kinds_of_solutions() -> None:
    said = said_of(BEFORE, AFTER)
    assert "Solver: 40.0 % → 65.0 % of its answers to held-out problems right (+" in said
    assert "on solutions that did not change 60.0 % → 90.0 % (+" in said
    assert "on those of its own generator 60.0 % → 80.0 % (+" in said
    assert "It is being fooled: it calls 8.0 points more of them right than are (+6.0 to +10.0 points)." in said
    assert (
        "Of eight answers, a vote weighted by the verifier's scores is right in 80.0 %, the answer that it scores "
        "highest in 78.0 %, the most frequent one in 72.0 %; a single greedy answer in 70.0 %." in said
    )


def test_whether_it_is_fooled_is_said_only_where_the_interval_says_so() -> None:
    assert is_fooled(rows_of(BEFORE, AFTER)) and not is_fooled(rows_of(BEFORE, AFTER | {"gap": 0.01}))
    assert "It is not shown to be fooled" in said_of(BEFORE, AFTER | {"gap": 0.01})
    assert "It is strict, not fooled: it calls 9.0 points fewer" in said_of(BEFORE, AFTER | {"gap": -0.09})


def test_few_problems_are_said_in_place_of_an_interval_that_says_nothing() -> None:
    gap = AFTER | {"gap": 0.01}
    said = " ".join(outcome_sentences(rows_of(BEFORE, gap, half=0.9)))
    assert "Too few problems (64) to say whether it is fooled." in said and "not shown to be fooled" not in said
    only_gap = " ".join(outcome_sentences(rows_of({"gap": 0.0}, {"gap": 0.01}, half=0.9)))
    assert "Too few problems to say whether it is fooled." in only_gap


def test_a_run_without_a_judge_tells_its_solver_alone() -> None:
    alone = {"solver/pass@1": 0.4, "solver/greedy": 0.5}
    assert said_of(alone, {"solver/pass@1": 0.41, "solver/greedy": 0.5}) == (
        "Solver: 40.0 % → 41.0 % of its answers to held-out problems right (no change shown, −1.8 to +3.8 points)."
    )


def test_four_figures_stand_first_each_with_the_direction_that_is_better() -> None:
    rows = rows_of(BEFORE, AFTER)
    first = sorted((row["lead"], row["key"], row["direction"]) for row in rows if row["lead"] is not None)
    assert first == [
        (0, "solver/pass@1", "better is up"),
        (1, "verifier/fixed/balanced_accuracy", "better is up"),
        (2, "verifier/balanced_accuracy", "better is up"),
        (3, "gap", "nearer to 0 is better"),
    ]
    alone = rows_of({"solver/pass@1": 0.4, "solver/greedy": 0.5}, {"solver/pass@1": 0.6, "solver/greedy": 0.5})
    assert [row["key"] for row in alone if row["lead"] is not None] == ["solver/pass@1", "solver/greedy"]


def test_a_figure_that_got_worse_says_why_it_may_have() -> None:
    because = {row["key"]: row["worse_because"].replace("\u202f", " ") for row in rows_of(BEFORE, AFTER)}
    assert because["verifier/greedy_balanced_accuracy"].startswith(
        "On solutions that did not change: 80.0 % → 90.0 %. So it did not forget how to judge."
    )
    assert because["verifier/balanced_accuracy"] == because["solver/pass@1"] == ""
    worse = AFTER | {"verifier/fixed/greedy_balanced_accuracy": 0.6, "solver/step_accuracy": 0.3}
    because = {row["key"]: row["worse_because"] for row in rows_of(BEFORE, worse)}
    assert "forget" not in because["verifier/greedy_balanced_accuracy"]
    assert because["solver/step_accuracy"]


def test_a_gap_is_better_nearer_to_zero_on_either_side() -> None:
    def gap(before: float, after: float) -> dict[str, Any]:
        return next(row for row in rows_of({"gap": before}, {"gap": after}) if row["key"] == "gap")

    assert (gap(0.2, 0.05)["better"], gap(-0.2, -0.05)["better"], gap(-0.2, 0.1)["better"]) == (-1, 1, 0)
    assert gap(0.05, 0.2)["worse_because"] and not gap(0.2, 0.05)["worse_because"]


def row_of(step: int, member: int, right: int, said: int, tokens: int = 50, flags: int = 0) -> list[Any]:
    values = {"step": step, "task": 3, "member": member, "role": 0, "right": right, "said": said, "tokens": tokens}
    values["flags"] = flags
    return [values.get(name, 0) for name in FIELDS]


def test_a_right_answer_beside_a_wrong_one_is_shown_of_the_latest_step_that_has_both() -> None:
    early, late = [row_of(1, 0, 1, 1), row_of(1, 1, 0, 1)], [row_of(5, 0, 1, 1), row_of(5, 1, 0, 0)]
    alone = [row_of(9, 0, 0, 0)]  # no right one beside it
    rows = [*early, *late, *alone]
    assert choose_showcase(rows, fooled=True) == {"kind": "fooled", "wrong": "1:3:1", "right": "1:3:0"}
    assert choose_showcase(rows, fooled=False) == {"kind": "caught", "wrong": "5:3:1", "right": "5:3:0"}
    assert choose_showcase(alone, fooled=False) is None
    assert choose_showcase(early, fooled=False) == {"kind": "fooled", "wrong": "1:3:1", "right": "1:3:0"}
    longer = [row_of(5, 2, 1, 1, tokens=90), row_of(5, 3, 0, 0, tokens=20)]
    assert choose_showcase([*rows, *longer], fooled=False) == {"kind": "caught", "wrong": "5:3:3", "right": "5:3:0"}


def test_an_answer_that_is_right_by_a_wrong_step_is_shown_last() -> None:
    rows = [row_of(5, 0, 1, 1, tokens=10, flags=UNSOUND), row_of(5, 1, 1, 1), row_of(5, 2, 0, 0)]
    assert choose_showcase(rows, fooled=False) == {"kind": "caught", "wrong": "5:3:2", "right": "5:3:1"}


def test_a_run_says_which_of_its_ends_is_being_measured(tmp_path: Path) -> None:
    directory = write_fake_run(tmp_path / "run", steps=3, episodes=1)

    def measured() -> str:
        return str(RunView(directory).overview()["run"]["measuring"])

    assert measured() == ""
    (directory / "summary.json").unlink()
    assert measured() == "end"
    (directory / "metrics.jsonl").unlink()
    assert measured() == "start"
    write(directory / "before.json", {})
    assert measured() == ""
    (directory / "before.json").unlink()
    write(directory / "stopped.json", {"steps": 0, "error": "no room"})
    assert measured() == ""
