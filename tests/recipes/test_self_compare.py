"""What self_compare pairs, what a comparison earns, and what its tournament chooses."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import defaultdict

import pytest

from benchmarks.self_compare import lessons_of
from cotrain.core.notes import CORRECT, FINAL, JUDGED
from cotrain.formats.preferences import Preference, Ratings
from cotrain.formats.solutions import parse_solution
from cotrain.pretraining.corpora import from_items
from cotrain.pretraining.sft import sft
from cotrain.recipes.self_compare import comparison_reward, self_compare
from cotrain.rollout.tournament import RATING
from cotrain.rollout.verifier_roles import parse_thinkrm
from cotrain.trainer.trainer import CoTrainer
from tests.helpers import EASY, TINY
from tests.sentences import refuses

SMALL = {"model": TINY, "tasks": EASY, "tasks_per_step": 8, "group_size": 4, "steps": 1}


class Said:
    def __init__(self, parsed):
        self.parsed = parsed


def by_role(episode, role):
    return [trace for trace in episode.traces if trace.role == role]


def paid(trace):
    return {signal.name: signal.value for signal in trace.rewards}


@pytest.mark.parametrize(
    ("points", "truths", "earned"),
    [
        ((10, 1), (True, False), 1.0),
        ((10, 1), (False, True), 0.0),
        ((9, 3), (True, False), 0.5),  # 8/9 is near 1, and 2/9 is not near 0
        ((9, 9), (True, True), 1.0),
        ((5, 6), (True, False), 0.0),  # a safe bet
    ],
)
def test_points_earn_where_each_is_near_its_truth(points, truths, earned):
    assert comparison_reward(Said(Ratings(points=points, principles=())), truths) == earned


def test_a_letter_earns_where_it_names_the_right_one():
    first, tie = Said(Preference(margin=1)), Said(Preference(margin=0))
    assert comparison_reward(first, (True, False)) == 1.0 and comparison_reward(first, (False, True)) == 0.0
    assert comparison_reward(tie, (True, False)) == 0.0 == comparison_reward(tie, (False, True))


@pytest.mark.whole
def test_a_pair_is_a_right_and_a_wrong_solution_asked_in_both_orders_and_one_group():
    compared = 0
    for episode in CoTrainer(self_compare(**SMALL, comparisons=3)).step().episodes:
        solutions = {str(t.address): t for t in by_role(episode, "solver")}
        groups = defaultdict(list)
        for trace in by_role(episode, "comparer"):
            groups[trace.group].append(trace)
        truths = {CORRECT.of(t) for t in solutions.values() if "answer" in t.findings}
        n_pairs = 1 if truths == {True, False} else 0
        assert len(groups) == n_pairs
        for traces in groups.values():
            assert len(traces) == 2 * 3 and {CORRECT.of(t) for t in traces} == {True, False}
            assert all(CORRECT.of(solutions[t.parent]) == CORRECT.of(t) for t in traces)
            assert [paid(t)["agreement"] for t in traces] == [float(FINAL.of(t) == CORRECT.of(t)) for t in traces]
            shown = {t.parent for t in traces}
            assert len(shown) == 2 and shown == {name for name, t in solutions.items() if JUDGED.of(t)}
            compared += 1
    assert compared


@pytest.mark.whole
def test_the_controls_change_who_compares_and_what_is_learned():
    trained, unpaid, frozen = (self_compare(**SMALL, comparer=c) for c in ("trained", "unpaid", "frozen"))
    assert set(trained.objectives) == {"generator", "comparer"} and trained.roles["comparer"].policy == "model"
    assert set(unpaid.objectives) == {"generator"} and unpaid.roles["comparer"].policy == "model"
    assert set(frozen.objectives) == {"generator"} and frozen.roles["comparer"].policy == "reference"
    assert not [t for e in CoTrainer(unpaid).step().episodes for t in by_role(e, "comparer")]


def test_models_that_know_no_short_formats_give_points():
    assert "{nonce}" in self_compare(model="somebody/some-model", tasks=EASY).roles["comparer"].prompt


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ({"pairs": 0}, "E_SETTING_RANGE: pairs 0"),
        ({"group_size": 1}, "E_SETTING_RANGE"),
        ({"weight": 0.0}, "E_SETTING_RANGE"),
        ({"form": "rmr1", "model": "shipped"}, "E_JUDGE_NEEDS_CHAT_MODEL"),
    ],
)
def test_what_it_refuses(arguments, code):
    with refuses(code):
        self_compare(**SMALL | arguments)


def test_lessons_are_read_and_name_the_right_one():
    seen = set()
    for index in range(20):
        for asked, said in lessons_of(EASY, index)[:2]:
            first, _, second = asked["content"].partition("\nA:\n")[2].removesuffix("\nBetter:").partition("\nB:\n")
            assert all(parse_solution(text, {}).ok for text in (first, second))
            told = parse_thinkrm(said["content"], {})
            worked = said["content"].partition("|")[0].rpartition("=")[2]
            claims = said["content"].partition("</step>")[0].split("|")[1:]
            assert claims[0 if told.final else 1] == worked
            seen.add(told.final)
    assert seen == {True, False}


@pytest.mark.whole
def test_a_tiny_model_is_taught_to_compare_and_its_tournament_is_played(tmp_path):
    """The lessons as the script writes them, a run, and ``cotrain eval`` on a file of problems."""
    lessons = [row for index in range(600) for row in lessons_of(EASY, index)]
    taught = tmp_path / "taught"
    corpora = [(from_items("comparisons", lessons), 1)]
    sft(TINY, taught, conversations=corpora, tokens=300_000, batch_tokens=2048, length=256, lr=0.02, optimizer="muon")
    subprocess.run([sys.executable, "-m", "benchmarks.self_compare", "--mark", str(taught)], check=True)
    made = self_compare(**{**SMALL, "model": str(taught), "tasks_per_step": 12})
    trainer = CoTrainer(made)
    row = trainer.step().row
    assert row["comparer/parse_failures"] < 0.2 and row["comparer/zero_spread_groups"] < 1.0
    figures, played = trainer.evaluate("test", 24)
    assert 0.0 < figures["solver/tournament@8"].value <= figures["solver/pass@8"].value
    assert figures["comparer/parsed"].value > 0.8
    rated = [RATING.of(t) for e in played for t in by_role(e, "solver") if "answer" in t.findings]
    assert all(0.0 <= rating <= 1.0 for rating in rated) and len(set(rated)) > 2
    run, data = tmp_path / "run", tmp_path / "data.jsonl"
    tasks = [EASY.get("test", i) for i in range(6)]
    data.write_text("".join(json.dumps({"question": t.prompt, "answer": t.gold}) + "\n" for t in tasks))
    command = [sys.executable, "-m", "cotrain"]
    sizes = ["--steps", "1", "--tasks-per-step", "2", "--evaluation-tasks", "2", "--set", "evaluation.splits=[]"]
    subprocess.run([*command, "run", "self_compare", "--model", str(taught), *sizes, "--out", str(run)], check=True)
    asked = [*command, "eval", str(run), "--suite", "gsm8k", "--data", str(data), "--samples", "4", "--json"]
    [said] = json.loads(subprocess.run(asked, check=True, capture_output=True, text=True).stdout)
    assert {"maj@4", "pass@4", "tournament@4"} <= set(said["figures"]) and "comparer" in said["settings"]["roles"]
