"""Who is paid by whom where labels are few, and that no reward reads a truth that nobody is told."""

import json
from dataclasses import dataclass, replace
from functools import partial

import pytest
import torch

from cotrain.core.notes import CORRECT
from cotrain.core.types import Grade
from cotrain.data.sources import problem_source
from cotrain.data.word_problems.source import WordProblems
from cotrain.recipes.distill import distill
from cotrain.recipes.self_rewarding import self_rewarding
from cotrain.recipes.semi_supervised import PAY, heaviest_answer, semi_supervised, solve_with_few_labels
from cotrain.recipes.votes import co_rewarding, ttrl
from cotrain.rollout.runner import RolloutRunner
from cotrain.trainer.trainer import CoTrainer
from tests.helpers import EASY, TINY, CharRenderer
from tests.recipes.test_label_free import RIGHT, ROLES, WRONG, Dictated, Exact, solved
from tests.sentences import refuses

SMALL = {"model": TINY, "tasks_per_step": 4, "group_size": 4, "evaluation_tasks": 1, "lr": 1e-3}


def pay(rest, answers, *, labelled=False, reviews=()):
    """What four answers to a problem earn whose gold answer is 3."""
    engine = Dictated({"solver": solved(*answers), "verifier": list(reviews)})
    player = RolloutRunner(engine, {"a": CharRenderer()}, {n: ROLES[n] for n in ("solver", "verifier")}, 0)
    task = replace(WordProblems().get("train", 0), gold="3", grader=Exact(), labelled=labelled)
    options = {"group": len(answers), "rest": rest, "reviews": 2}
    (episode,) = player.collect(partial(solve_with_few_labels, **options), [task], step=0, group_size=1)
    solver = [trace for trace in episode.traces if trace.role == "solver"]
    return [next((s.value for s in t.rewards if s.name == PAY.name), None) for t in solver]


def test_a_labelled_problem_pays_the_truth_whoever_pays_the_others():
    for rest in ("none", "vote", "frozen", "learning", "both", "class_label"):
        assert pay(rest, ["3", "4", "4", ""], labelled=True) == [1.0, 0.0, 0.0, 0.0]


def test_the_majority_pays_where_there_is_no_label():
    assert pay("vote", ["3", "4", "4", ""]) == [0.0, 1.0, 1.0, 0.0]


def test_the_verifier_pays_its_share_of_readable_reviews():
    reviews = [RIGHT, WRONG, RIGHT, RIGHT, "mumble", "mumble"]
    assert pay("learning", ["3", "4", "5", ""], reviews=reviews) == [0.5, 1.0, None, 0.0]
    assert pay("frozen", ["3", "4", "5", ""], reviews=reviews) == [0.5, 1.0, None, 0.0]


def test_a_vote_that_the_verifier_weighs():
    # "4" is said twice and believed half as much as "3" is once
    reviews = [RIGHT, RIGHT, WRONG, RIGHT, WRONG, WRONG, WRONG, WRONG]
    assert pay("both", ["3", "4", "4", "5"], reviews=reviews) == [1.0, 0.0, 0.0, 0.0]
    assert pay("both", ["3", "4", "4", "5"], reviews=[WRONG] * 8) == [0.0] * 4  # nothing is believed, nothing elected
    assert heaviest_answer([], []) is None


@dataclass(frozen=True)
class Inverted:
    """Word problems whose grader says the opposite of the truth."""

    source: WordProblems
    name: str = "inverted"

    def get(self, split, index):
        return replace(self.source.get(split, index), grader=self)

    def grade(self, task, text):
        return Grade(value=not self.source.get(*task.id.split("/")[1:2], int(task.id.split("/")[2])).grade(text).value)

    def grade_steps(self, task, steps):
        return None

    def size(self, split):
        return self.source.size(split)

    def describe(self):
        return {"kind": self.name, "settings": {}}


def weights(rest, tasks):
    made = semi_supervised(rest=rest, labelled="words:2-2", tasks=tasks, steps=4, warmup=1, **SMALL)
    trainer = CoTrainer(made)
    torch.manual_seed(0)
    noted = [e for _ in range(4) for e in trainer.step().episodes]
    tensors = trainer.policies.checkpoint_parts()
    trainer.close()
    return {f"{p}/{k}": t for p, of in tensors.items() for k, t in of.items()}, noted


@pytest.mark.whole
@pytest.mark.parametrize("rest", ["none", "vote", "frozen", "learning", "both"])
def test_no_reward_reads_the_truth_of_a_problem_without_a_label(rest):
    torch.set_num_threads(1)
    true, _ = weights(rest, EASY)
    false, _ = weights(rest, Inverted(EASY))
    assert true.keys() == false.keys() and all(torch.equal(true[k], false[k]) for k in true)


@pytest.mark.whole
def test_the_ceiling_reads_it():
    true, _ = weights("truth", EASY)
    false, _ = weights("truth", Inverted(EASY))
    assert not all(torch.equal(true[k], false[k]) for k in true)


WEIGHTED_VOTE = partial(semi_supervised, rest="both", warmup=0, unlabelled=1.0)
TAUGHT = partial(distill, teacher=TINY)


@pytest.mark.whole
@pytest.mark.parametrize("recipe", [ttrl, co_rewarding, WEIGHTED_VOTE, TAUGHT, self_rewarding])
def test_a_file_without_answers_is_learned_from(recipe, tmp_path):
    rows = [{"question": EASY.get("train", i).prompt} for i in range(12)]
    rows += [{"question": EASY.get("test", i).prompt, "answer": EASY.get("test", i).gold} for i in range(40)]
    path = tmp_path / "few.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    tasks = problem_source(None, str(path), labelled="answers")
    trainer = CoTrainer(recipe(tasks=tasks, labelled="answers", steps=1, **SMALL))
    done = trainer.step()
    trainer.close()
    tasks.close()
    solver = [trace for episode in done.episodes for trace in episode.traces if trace.role == "solver"]
    assert len(solver) >= 16 and not any(trace.metadata or trace.failure for trace in solver)
    assert any(trace.rewards for trace in solver) == (recipe is not TAUGHT) and "solver/accuracy" not in done.row
    assert done.row["generator/credit/samples"] > 0 and "gap" not in done.row


def test_a_truth_that_nobody_knows_cannot_be_paid(tmp_path):
    path = tmp_path / "bare.jsonl"
    path.write_text("".join(json.dumps({"question": f"How much is {i}?"}) + "\n" for i in range(30)))
    tasks = problem_source(None, str(path), labelled="answers")
    for recipe in (partial(ttrl, labels="truth"), partial(semi_supervised, rest="truth")):
        with refuses("E_TRUTH_PAID_UNLABELLED"):
            recipe(tasks=tasks, labelled="answers", **SMALL)


@pytest.mark.whole
def test_half_of_a_batch_has_no_label_and_the_control_has_none_such():
    for rest, counts in (("vote", 2), ("none", 0)):
        made = semi_supervised(rest=rest, labelled="3", **SMALL)
        trainer = CoTrainer(made)
        tasks = trainer.draw_tasks(made.schedule.phase_at(0), 0)
        trainer.close()
        assert [task.labelled for task in tasks].count(False) == counts


def test_it_wants_labels_and_two_reviews():
    with refuses("E_NO_UNLABELLED_PROBLEMS"):
        semi_supervised(rest="vote", labelled=None, **SMALL)
    with refuses("E_SETTING_RANGE"):
        semi_supervised(labelled="3", reviews=1, **SMALL)


def test_the_truth_of_so_many_problems_without_labels_is_looked_up_and_pays_nothing():
    """Two of the six problems without labels, other ones at each step; rewards are those of a run without a limit."""
    runs = {}
    for audits in (None, 2, 0):
        options = {"rest": "vote", "labelled": "3", "tasks_per_step": 8, "unlabelled": 0.75, "audits": audits}
        trainer = CoTrainer(semi_supervised(**SMALL | options, steps=2))
        runs[audits] = [trainer.step() for _ in range(2)]
        trainer.close()
    pays = [[(str(t.address), t.rewards) for d in runs[a] for e in d.episodes for t in e.traces] for a in runs]
    assert pays[0] == pays[1] == pays[2]
    for audits in (2, 0):
        assert [len(graded_places(done)) for done in runs[audits]] == [audits, audits]
        assert [done.row["audited"] for done in runs[audits]] == [audits * SMALL["group_size"]] * 2
    assert "audited" not in runs[None][0].row and graded_places(runs[2][0]) != graded_places(runs[2][1])


def graded_places(done):
    """Of the problems without labels."""
    return {e.task for e in done.episodes if e.task >= 2 and any(CORRECT.of(t) is not None for t in e.traces)}


def test_a_limit_of_audits_wants_problems_without_labels_and_pays_no_truth():
    with refuses("E_AUDITS_WITHOUT_UNLABELLED"):
        ttrl(audits=2, **SMALL)
    with refuses("E_RECIPE_SETTING_RANGE", names=("audits", "-1")):
        semi_supervised(audits=-1, rest="vote", labelled="3", **SMALL)
    with refuses("E_TRUTH_PAID_WITH_AUDITS"):
        semi_supervised(audits=2, rest="truth", labelled="3", **SMALL)
