"""The rewards of gar by hand, and what it refuses."""

import json
from dataclasses import dataclass, replace

import pytest
from cotrain_zoo.gar import gan_reward, gar

from cotrain.data.files import JsonlTasks
from cotrain.data.word_problems.source import WordProblems
from cotrain.trainer.trainer import CoTrainer
from tests.recipes.test_step_judges import SMALL, signals
from tests.sentences import refuses


def test_the_gan_part_asks_only_of_steps_that_differ():
    said = (True, False, True)
    assert gan_reward(said, [True, True, True], real=True) == pytest.approx(2 / 3)
    assert gan_reward(said, [True, True, True], real=False) == pytest.approx(1 / 3)
    assert gan_reward(said, [False, True, False], real=False) == 1.0
    assert gan_reward(said, [False, False, False], real=False) == 0.5  # a copy: nothing to tell apart


@pytest.mark.whole
def test_gar_pays_what_its_page_says():
    for episode in CoTrainer(gar(**SMALL)).step().episodes:
        traces = {str(t.address): t for t in episode.traces}
        reference = next(t for t in episode.traces if t.role == "reference")
        known = {text for _, _, text in reference.findings["steps"]}
        differing = 0
        for trace in (t for t in traces.values() if t.role == "solver"):
            mine = [t for t in traces.values() if t.role == "verifier" and t.parent == str(trace.address)]
            readable = [t.findings["steps"] for t in mine if "steps" in t.findings]
            paid = signals(trace)
            assert paid["match"] == trace.metadata["correct"]
            if "answer" not in trace.findings:
                assert paid["slices"] == 0.0 and not mine
                continue
            assert paid.get("slices") == (
                pytest.approx(sum(sum(s) / len(s) for s in readable) / len(readable)) if readable else None
            )
            new = [text not in known for _, _, text in trace.findings["steps"]]
            differing += any(new)
            for review in (t for t in mine if "steps" in t.findings):
                wrong = [not said for said, counts in zip(review.findings["steps"], new, strict=True) if counts]
                outcome = [
                    v == trace.metadata["correct"] for v in (*review.findings["steps"], review.findings["final"])
                ]
                assert signals(review)["gan"] == pytest.approx(sum(wrong) / len(wrong) if wrong else 0.5)
                assert signals(review)["agreement"] == pytest.approx(sum(outcome) / len(outcome))
        real = [t for t in traces.values() if t.parent == str(reference.address)]
        assert len(real) == 4 * differing
        for review in (t for t in real if "steps" in t.findings):
            said = review.findings["steps"]
            assert signals(review)["gan"] == pytest.approx(sum(said) / len(said))


@dataclass(frozen=True, slots=True, kw_only=True)
class Unworked(WordProblems):
    def get(self, split, index):
        return replace(WordProblems.get(self, split, index), solution=None)


def test_gar_refuses_tasks_without_worked_solutions():
    with refuses("E_TASKS_WITHOUT_SOLUTIONS", names=("gar", "'words'")):
        gar(tasks=Unworked())
    assert gar(tasks=Unworked(), critic="frozen").name == "gar-frozen"


def test_gar_refuses_a_file_of_which_a_later_row_has_no_solution(tmp_path):
    rows = [{"question": f"{n} + 1?", "answer": n + 1, "solution": f"{n} + 1 = {n + 1}"} for n in range(40)]
    path = tmp_path / "sums.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    tasks = JsonlTasks(path)
    last = tasks.get("train", tasks.size("train") - 1)
    del rows[int(last.gold) - 1]["solution"]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    with refuses("E_TASKS_WITHOUT_SOLUTIONS", names=("gar", "1 of the 32 training tasks")):
        gar(tasks=JsonlTasks(path))


@pytest.mark.parametrize("arguments", [{"group_size": 1}, {"reviews": 1}])
def test_sizes_are_checked(arguments):
    with refuses("E_OPTION_RANGE", names=f"{next(iter(arguments))} is 1"):
        gar(**arguments)


def test_names_are_checked():
    with refuses("E_UNKNOWN_CHOICE"):
        gar(critic="online")
