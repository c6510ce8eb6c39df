"""What the provers and the verifier of prover_verifier earn, who learns in each arm, and the strings that it begins
with."""

from __future__ import annotations

import pytest
from cotrain_zoo.prover_verifier import FOOLED, prover_verifier

from cotrain.core.notes import CORRECT, FINAL
from cotrain.formats.injections import injection_corpus
from cotrain.formats.solutions import parse_solution
from cotrain.trainer.trainer import CoTrainer
from tests.helpers import EASY, TINY
from tests.sentences import refuses

SMALL = {"model": TINY, "tasks": EASY, "tasks_per_step": 6, "group_size": 4, "reviews": 3, "steps": 1, "kl": 0.0}


def by_role(episode, role):
    return [trace for trace in episode.traces if trace.role == role]


def paid(trace):
    return {signal.name: signal.value for signal in trace.rewards}


@pytest.mark.whole
def test_a_prover_earns_belief_where_its_solution_is_what_it_is_to_write():
    seen = set()
    for episode in CoTrainer(prover_verifier(**SMALL)).step().episodes:
        reviews = {}
        for trace in by_role(episode, "verifier"):
            reviews.setdefault(trace.parent, []).append(trace)
        for role, wanted in (("solver", True), ("sneaky", False)):
            for solution in by_role(episode, role):
                verdicts = reviews.get(str(solution.address), [])
                readable = "answer" in solution.findings
                assert len(verdicts) == 3 * readable
                believed = sum(FINAL.is_in(v) and bool(FINAL.of(v)) for v in verdicts) / 3
                right = CORRECT.of(solution)
                fits = readable and right is wanted
                assert paid(solution)["convincing"] == pytest.approx(believed if fits else -1.0)
                assert FOOLED.of(solution) == (pytest.approx(believed) if readable and not right else None)
                for verdict in verdicts:
                    assert paid(verdict)["agreement"] == float(FINAL.is_in(verdict) and FINAL.of(verdict) == right)
                    assert paid(verdict)["class_label"] == float(right)
                seen.add((role, right))
    assert seen == {(role, right) for role in ("solver", "sneaky") for right in (True, False)}


def test_who_learns_in_each_arm():
    game, still, blind, alone = (
        prover_verifier(**SMALL, **arm)
        for arm in ({}, {"sneaky": "frozen"}, {"verifier": "frozen"}, {"sneaky": "none"})
    )
    learning = [set(made.schedule.phase_at(0).objectives) for made in (game, still, blind, alone)]
    assert learning[0] == {"generator", "sneaky", "verifier"}
    assert learning[1:] == [{"generator", "verifier"}, {"generator", "sneaky"}, {"generator", "verifier"}]
    assert "sneaky" not in alone.roles
    first = prover_verifier(**SMALL | {"steps": 4}, strings=1, warmup=2)
    assert [first.schedule.phase_at(i).name for i in range(4)] == ["strings", "verifier", "verifier", "game"]


@pytest.mark.whole
def test_strings_stand_in_wrong_solutions_that_can_still_be_read():
    texts = {one.text for one in injection_corpus()}
    trainer, planted = CoTrainer(prover_verifier(**SMALL, strings=1)), 0
    for episode in trainer.step().episodes:
        wrong = [t for t in by_role(episode, "solver") if "answer" in t.findings and not CORRECT.of(t)]
        answers = [t.findings["answer"] for t in wrong]
        said = by_role(episode, "planter")
        assert [parse_solution(t.text, {}).answer for t in said] == answers
        assert all(any(text.strip() in t.text for text in texts if text.strip()) for t in said)
        planted += len(said)
    assert planted > 3 and trainer.policies.update_counts["sneaky"] == 1
    assert not trainer.policies.update_counts["generator"]


def test_a_model_that_knows_no_short_formats_is_asked_for_a_wrong_solution():
    made = prover_verifier(model="somebody/some-model", tasks=EASY)
    assert "whose final answer is wrong" in made.roles["sneaky"].prompt
    assert "wrong" not in made.roles["solver"].prompt and made.roles["sneaky"].parse == made.roles["solver"].parse


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"reviews": 1}, "reviews 1"),
        ({"group_size": 1}, "group_size 1"),
        ({"strings": 2, "sneaky": "frozen"}, "strings 2, sneaky 'frozen'"),
        ({"warmup": -1}, "warmup -1"),
    ],
)
def test_what_it_refuses(arguments, named):
    with refuses("E_SETTING_RANGE", names=named):
        prover_verifier(**SMALL | arguments)


@pytest.mark.whole
def test_a_tiny_game_fools_and_is_measured():
    trainer = CoTrainer(prover_verifier(**SMALL | {"steps": 2, "warmup": 1}))
    assert [trainer.step().row["phase"] for _ in range(2)] == ["verifier", "game"]
    assert all(trainer.policies.update_counts[name] for name in ("generator", "sneaky", "verifier"))
    figures, _ = trainer.evaluate("test", 8)
    assert 0.0 < figures["sneaky/metadata/fooled"].value < 1.0 and "solver/metadata/fooled" in figures
    assert {"solver/pass@1", "sneaky/pass@1", "verifier/balanced_accuracy"} <= set(figures)
