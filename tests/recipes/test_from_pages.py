"""Methods that were written from the pages alone (``examples/own``): each is built by its path, plays two steps at tiny
size, pays what its first line says, and every policy that was paid with spread is updated."""

from pathlib import Path

import pytest

from cotrain.config.registry import find_recipe
from cotrain.core.notes import CORRECT, FINAL, SCORE
from cotrain.trainer.trainer import CoTrainer
from tests.helpers import EASY, TINY

OWN = Path(__file__).resolve().parents[2] / "examples" / "own"
SIZES = {"steps": 2, "tasks": EASY, "tasks_per_step": 3, "group_size": 4, "evaluation_tasks": 2, "lr": 1e-3}


def played(name, **changes):
    """The trainer after two steps of the example, and the episodes and rows of these."""
    made = find_recipe(f"{OWN / name}.py:{name}")(**SIZES | changes)
    trainer = CoTrainer(made)
    steps = [trainer.step() for _ in range(2)]
    assert not [key for step in steps for key in step.row if key.startswith("failures/")]
    return trainer, [episode for step in steps for episode in step.episodes], [step.row for step in steps]


def by_role(episode, role):
    return [trace for trace in episode.traces if trace.role == role]


def earned(trace):
    (reward,) = trace.rewards
    return reward.value


@pytest.mark.whole
def test_a_short_right_answer_earns_most():
    trainer, episodes, _ = played("short_answers", model=TINY, price=0.01)
    traces = [trace for episode in episodes for trace in by_role(episode, "solver")]
    assert [earned(t) for t in traces] == pytest.approx([CORRECT.of(t) - 0.01 * len(t.token_ids) for t in traces])
    assert len({earned(t) for t in traces}) > 2 and trainer.policies.update_counts == {"generator": 2}


@pytest.mark.whole
def test_the_generator_earns_the_share_of_both_verifiers_that_believe_it():
    trainer, episodes, _ = played("two_verifiers", model=TINY, reviews=2)
    reviewed = 0
    for episode in episodes:
        (solution,) = by_role(episode, "solver")
        verdicts = [*by_role(episode, "first"), *by_role(episode, "second")]
        believed = [FINAL.is_in(v) and bool(FINAL.of(v)) for v in verdicts]
        assert len(verdicts) in (0, 4) and earned(solution) == sum(believed) / 4
        for verdict in verdicts:
            assert earned(verdict) == float(FINAL.is_in(verdict) and FINAL.of(verdict) == CORRECT.of(solution))
        reviewed += bool(verdicts)
    assert reviewed > 4 and set(trainer.policies.update_counts) == {"generator", "first", "second"}
    assert all(trainer.policies.update_counts.values())
    figures, _ = trainer.evaluate("test", 4, group_size=4)
    assert {"first/true_negative_rate", "second/true_negative_rate"} & set(figures)


@pytest.mark.whole
def test_problems_that_are_solved_sometimes_pay_and_are_kept_and_played_again():
    trainer, episodes, rows = played("proposer_pool", tasks_per_step=2)
    kept = trainer.stores["pool"].items
    assert kept and rows[0]["pool/size"] > 0
    for episode in episodes:
        (proposal,) = by_role(episode, "proposer")
        right = [earned(t) for t in by_role(episode, "solver") if t.group == str(proposal.address)]
        assert earned(proposal) == float(0 < sum(right) < len(right))
    paid = {str(t.address) for e in episodes for t in by_role(e, "proposer") if earned(t)}
    assert {item.source for item in kept} <= paid and any(item.played > 1 for item in kept)
    assert len(trainer.state()["stores"]["pool"]["items"]) == len(kept)  # part of a checkpoint
    assert trainer.policies.update_counts["generator"] == 2 and trainer.policies.update_counts["proposer"] >= 1


@pytest.mark.whole
def test_a_review_earns_what_its_revision_puts_right():
    trainer, episodes, _ = played("revise_once", model="shipped-roles", reviews=2)
    rescued = 0.0
    for episode in episodes:
        (solution,) = by_role(episode, "solver")
        reviews, revisions = by_role(episode, "reviewer"), by_role(episode, "refiner")
        assert not solution.rewards and [earned(r) for r in revisions] == [float(CORRECT.of(r)) for r in revisions]
        changed = [float(CORRECT.of(r) and not CORRECT.of(solution)) for r in revisions]
        assert [earned(r) for r in reviews] == changed
        rescued += sum(changed)
    assert rescued > 0 and trainer.policies.update_counts == {"model": 2}


@pytest.mark.whole
def test_a_verifier_learns_pairs_of_what_the_generator_wrote_and_old_ones_again():
    trainer, episodes, rows = played("v_star", tasks_per_step=4)
    for episode in episodes:
        assert [earned(t) for t in by_role(episode, "solver")] == [
            float(CORRECT.of(t)) for t in by_role(episode, "solver")
        ]
    archive = trainer.stores["archive"]
    recalled = [by_role(episode, "archivist") for episode in episodes if by_role(episode, "archivist")]
    assert archive.pairs and recalled and rows[0]["archive/size"] > 0
    for right, wrong in recalled:
        assert (earned(right), earned(wrong)) == (1.0, 0.0) and right.group == wrong.group
        assert any((right.text, wrong.text) == pair[1:] for pair in archive.pairs)
    assert archive.restore_state(trainer.state()["stores"]["archive"]) == archive
    assert rows[0]["verifier/pairs"] > 0 and trainer.policies.update_counts == {"generator": 2, "verifier": 2}
    figures, _ = trainer.evaluate("test", 2, group_size=4)
    assert "solver/pass@1" in figures


@pytest.mark.whole
def test_two_provers_are_paid_for_opposite_kinds_of_solutions():
    trainer, episodes, rows = played("two_provers", turns=(1, 1))
    assert [row["phase"] for row in rows] == ["verifier", "provers"]
    paid = {"solver": 0, "sneaky": 0}
    for episode in episodes:
        score_of = {rating.parent: SCORE.of(rating) for rating in by_role(episode, "verifier")}
        for role, is_to_be_right in (("solver", True), ("sneaky", False)):
            for solution in by_role(episode, role):
                is_as_wanted = CORRECT.of(solution) == is_to_be_right and "steps" in solution.findings
                assert earned(solution) == (score_of[str(solution.address)] if is_as_wanted else 0.0)
                paid[role] += is_as_wanted
        assert all(not trace.rewards for trace in by_role(episode, "past"))
    assert all(paid.values())
    assert trainer.policies.update_counts["verifier"] == 1  # in its own step alone
    figures, _ = trainer.evaluate("test", 2, group_size=2)
    assert {"solver/pass@1", "sneaky/pass@1", "verifier/true_negative_rate"} <= set(figures)
