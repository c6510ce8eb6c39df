"""What the viewer counts of rollouts, with constants worked out by hand."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from fake_run import episode, write

from cotrain.core.types import Episode, Reward
from cotrain.reports.counts import best_of_n, vote_agreement
from cotrain.reports.rollouts import FIELDS, FIRST_FOUND, FIRST_MISSED, STEP_BELIEVED, STEP_DOUBTED
from cotrain.reports.runs import RunView
from cotrain.storage.ledger import Ledger

AT = {name: place for place, name in enumerate(FIELDS)}


def test_the_best_of_n_is_an_expectation_over_subsets() -> None:
    group = [(0.9, False), (0.5, True), (0.1, False)]
    # n 1: each is drawn with 1/3
    assert best_of_n(group, 1) == pytest.approx((1.5 / 3, 1 / 3, 1 / 3))
    # n 2: {0.9, 0.5}, {0.9, 0.1}, {0.5, 0.1}: the wrong one twice, the right one once; two of three hold a right one
    assert best_of_n(group, 2) == pytest.approx(((0.9 + 0.9 + 0.5) / 3, 1 / 3, 2 / 3))
    assert best_of_n(group, 3) == pytest.approx((0.9, 0.0, 1.0))  # it chooses the wrong one: fooled
    # a tie is broken by chance
    assert best_of_n([(0.5, True), (0.5, False), (0.5, False)], 3) == pytest.approx((0.5, 1 / 3, 1.0))


def test_a_vote_needs_a_most_frequent_answer() -> None:
    assert vote_agreement(["4", "4", "5", None]) == [True, True, False, None]
    assert (
        vote_agreement(["4", "5"]) == [None, None]
        and vote_agreement([None, None]) == [None, None]
        and vote_agreement(["4"]) == [None]
    )


def made(member: int, *, right: bool, says: bool, answer: str, score: float, steps: list[bool]) -> Episode:
    """A solution with three steps, of which the second is wrong where the answer is."""
    whole = episode(0, 10, 3)
    solver, verifier = whole.traces
    truth = {
        "correct": right,
        "step_ok": [True, right, right],
        "step_reasons": ["", "" if right else "arithmetic", "premise"],
    }
    place = dataclasses.replace(solver.address, member=member)
    speech = dataclasses.replace(
        solver, address=place, metadata=truth, findings={"problem": "p", "answer": answer, "steps": [[0, 1, "a"]]}
    )
    review = dataclasses.replace(
        verifier,
        address=dataclasses.replace(verifier.address, member=member),
        parent=str(place),
        findings={"final": says, "score": score, "steps": steps},
    )
    return dataclasses.replace(whole, member=member, traces=(speech, review))


def test_a_group_is_counted_by_hand(tmp_path: Path) -> None:
    write(tmp_path / "recipe.json", {"name": "counts"})
    group = [
        made(0, right=True, says=True, answer="4", score=0.8, steps=[True, True, True]),
        made(1, right=False, says=True, answer="5", score=0.9, steps=[True, True, False]),
        made(2, right=False, says=False, answer="5", score=0.1, steps=[True, False, False]),
    ]
    with Ledger(tmp_path / "episodes") as ledger:
        ledger.append(0, group)
    run = RunView(tmp_path)
    run.rollouts.read_some()
    found = run.verifier_document()
    (window,), (more,) = found["judges"]["verifier"], found["more"]
    assert (window["first_found"], window["first_missed"]) == (1, 1)
    assert more["errors"] == {"verifier": {"arithmetic": [1, 1, 0]}}
    # the vote is 5, which is wrong: the verifier (1, 1, 0), the vote (0, 1, 1), the rule (1, 0, 0)
    assert more["pairs"]["reviews|rule"] == [1, 1, 0, 1]
    assert more["pairs"]["reviews|vote"] == [1, 1, 1, 0]
    assert more["pairs"]["vote|rule"] == [0, 2, 1, 0]
    assert more["best"]["solver"]["2"] == pytest.approx([1, (0.9 + 0.9 + 0.8) / 3, 1 / 3, 2 / 3])
    # chosen among one 1/3 are right, among two 1/3: the difference is 0, and so is its square
    assert more["apart"]["solver"]["1-2"] == pytest.approx([1, 1 / 3, 1 / 3, 0, 0])
    assert more["rates"]["solver"] == [0, 0, 1, 0, 0, 0, 0, 0, 0]  # one of three: from 2/8 to 3/8
    rows = run.rollouts.rows
    assert [row[AT["vote"]] for row in rows] == [0, 1, 1] and [row[AT["score"]] for row in rows] == [0.8, 0.9, 0.1]
    flags = [row[AT["flags"]] & (STEP_BELIEVED | STEP_DOUBTED | FIRST_FOUND | FIRST_MISSED) for row in rows]
    assert flags == [0, STEP_BELIEVED | FIRST_MISSED, FIRST_FOUND]
    assert [None if row[AT["error"]] is None else run.rollouts.errors[row[AT["error"]]] for row in rows] == [
        None,
        "arithmetic",
        "arithmetic",
    ]


def test_a_rollout_of_several_sequences_is_one_row(tmp_path: Path) -> None:
    """Its reward counts once, its answer stands in the last part, and the review of that part is its review."""
    write(tmp_path / "recipe.json", {"name": "counts"})
    whole = made(0, right=True, says=True, answer="4", score=0.8, steps=[True, True, True])
    last, review = whole.traces
    place = dataclasses.replace(last.address, path=(1,))
    name, paid = str(last.address), (Reward(name="outcome", value=1.0),)
    first = dataclasses.replace(last, trajectory=name, rewards=paid, findings={"problem": "p"}, metadata={})
    last = dataclasses.replace(last, address=place, trajectory=name, rewards=paid)
    review = dataclasses.replace(review, parent=str(place))
    with Ledger(tmp_path / "episodes") as ledger:
        ledger.append(0, [dataclasses.replace(whole, traces=(first, last, review))])
    view = RunView(tmp_path)
    while view.rollouts.read_some():
        pass
    (row,) = view.rollouts.known_rows()[0]
    values = {field: row[AT[field]] for field in ("right", "said", "reviews", "reward", "answer", "tokens")}
    tokens = len(first.token_ids) + len(last.token_ids)
    assert values == {"right": 1, "said": 1, "reviews": 1, "reward": 1.0, "answer": "4", "tokens": tokens}
