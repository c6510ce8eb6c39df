"""SPIN and self-rewarding: who is preferred to whom, and under which weights."""

import json
from dataclasses import replace
from functools import partial

import pytest
import torch

from cotrain.algorithms.contract import Batch
from cotrain.algorithms.samples import sample_of
from cotrain.config.recipe import check_problems
from cotrain.core.types import Sampling
from cotrain.data.files import JsonlTasks
from cotrain.data.preferences import Chats
from cotrain.data.word_problems.source import study_problems
from cotrain.formats.role_replies import write_review
from cotrain.prompts.byte_tokenizer import ByteRenderer
from cotrain.recipes.self_rewarding import judge_oneself, self_rewarding
from cotrain.recipes.spin import against_the_solution, spin
from cotrain.rollout.common_roles import parse_review, parse_solution
from cotrain.rollout.role import Role
from cotrain.rollout.runner import RolloutRunner
from cotrain.trainer.trainer import CoTrainer
from tests.helpers import EASY, TINY, Talks, spoken
from tests.sentences import refuses

TASK = study_problems((2, 2)).get("train", 0)
SMALL = {"model": TINY, "tasks": EASY, "tasks_per_step": 2}


def played(protocol, programs, parses, **options):
    roles = {
        name: Role(policy=name, prompt="{problem} Solve:", parse=parses.get(name), sampling=Sampling(max_tokens=9))
        for name in programs
    }
    executor = RolloutRunner(spoken(programs), dict.fromkeys(programs, ByteRenderer()), roles, 0)
    [episode] = executor.collect(partial(protocol, **options), [TASK], step=0, group_size=1)
    assert episode.failure is None, episode.failure
    return episode.traces


def test_the_worked_solution_is_preferred_to_the_rivals():
    says = {"teacher": lambda f, rng: f["solution"], "opponent": lambda f, rng: "<step>x</step><answer>1</answer>"}
    parse = dict.fromkeys(says, parse_solution)
    traces = {t.role: t for t in played(against_the_solution, says, parse, rival="opponent")}
    assert traces["teacher"].text == TASK.solution and traces["teacher"].group == traces["opponent"].group
    assert [traces[n].rewards[0].value for n in ("teacher", "opponent")] == [1.0, 0.0]
    assert traces["opponent"].metadata["correct"] is False
    assert [t.role for t in played(against_the_solution, says, parse, rival=None)] == ["teacher"]


@pytest.mark.whole
def test_a_problem_that_is_drawn_twice_is_two_pairs():
    row = CoTrainer(spin(labelled="1", steps=1, **SMALL)).step().row
    assert row["generator/pairs"] == 2 and row["generator/credit/samples"] == 4


def test_iterations_of_spin_mix_the_data_of_the_one_before():
    made = spin(iteration=3, steps=9, **SMALL)
    names = [made.schedule.phase_at(step).name for step in range(7)]
    assert names == ["opponent"] * 3 + ["opponent", "former"] * 2
    assert (made.policies["opponent"].keep, made.policies["former"].keep, made.policies["former"].pick) == (
        1,
        2,
        "oldest",
    )
    assert made.objectives["generator"].algorithm.reference == "opponent"
    assert [p.name for p in spin(mixed=False, **SMALL).schedule.phases] == ["opponent"]
    assert set(spin(control="sft", **SMALL).policies) == {"generator", "teacher"}


@pytest.mark.whole
def test_the_opponent_is_the_model_at_the_start_of_the_iteration():
    trainer = CoTrainer(spin(iteration=2, steps=5, lr=1e-3, **SMALL))
    rows = [trainer.step().row for _ in range(5)]
    assert [row["generator/margin"] == 0.0 for row in rows[:3]] == [True, False, True]  # both are the same weights then
    assert [row["generator/beta"] for row in rows] == [0.1, 0.1, 0.1, 0.1, 0.1]
    pools = {name: trainer.policies[name].state()["pool"] for name in ("opponent", "former")}
    assert pools == {"opponent": [4], "former": [2, 4]}


def test_a_solution_is_worth_the_share_of_its_own_verdicts():
    """Three solutions, two verdicts on each that can be read: both, one and none of them say CORRECT."""
    texts = iter([TASK.solution, "<step>x</step><answer>1</answer>", "nonsense", "<step>y</step><answer>2</answer>"])
    said = iter([True, True, True, False, False, False])
    says = {
        "solver": lambda f, rng: next(texts),
        "verifier": lambda f, rng: write_review(["s"] * f["count"], [True] * f["count"], next(said)),
    }
    traces = played(judge_oneself, says, {"solver": parse_solution, "verifier": parse_review}, samples=4, votes=2)
    solvers = [t for t in traces if t.role == "solver"]
    assert [t.rewards[0].value for t in solvers] == [1.0, 0.5, 0.0, 0.0]
    assert [t.metadata.get("chosen_right") for t in solvers] == [True, None, None, None]
    assert not any(t.rewards for t in traces if t.role == "verifier")


def test_verdicts_that_cannot_be_read_do_not_count_and_a_solution_without_one_is_left_out():
    texts = iter([TASK.solution, "<step>x</step><answer>1</answer>", "<step>y</step><answer>2</answer>"])
    said = iter([True, None, None, None, False, False])

    def judge(fields, rng):
        verdict = next(said)
        return "hm" if verdict is None else write_review(["s"] * fields["count"], [True] * fields["count"], verdict)

    says = {"solver": lambda f, rng: next(texts), "verifier": judge}
    traces = played(judge_oneself, says, {"solver": parse_solution, "verifier": parse_review}, samples=3, votes=2)
    solvers = [t for t in traces if t.role == "solver"]
    assert [[one.value for one in t.rewards] for t in solvers] == [[1.0], [], [0.0]]
    assert [t.metadata.get("chosen_right") for t in solvers] == [True, None, None]


def test_the_pair_that_is_noted_is_the_one_that_is_learned():
    """Of equals DPO takes the first: the best are right and wrong, the worst wrong and right."""
    texts = iter([TASK.solution, "<step>x</step><answer>1</answer>", "<step>y</step><answer>2</answer>", TASK.solution])
    said = iter([True, True, False, False])
    says = {
        "solver": lambda f, rng: next(texts),
        "verifier": lambda f, rng: write_review(["s"] * f["count"], [True] * f["count"], next(said)),
    }
    traces = played(judge_oneself, says, {"solver": parse_solution, "verifier": parse_review}, samples=4, votes=1)
    solvers = [t for t in traces if t.role == "solver"]
    assert [t.metadata.get("chosen_right") for t in solvers] == [True, None, None, None]
    by = self_rewarding(**SMALL).objectives["generator"].algorithm
    scores = {"generator": torch.zeros(99), "before": torch.zeros(99)}
    samples = [sample_of(t) for t in solvers]
    samples = [replace(s, scores={k: v[: len(s.token_ids)] for k, v in scores.items()}) for s in samples]
    learned = by.credit(Batch(samples=tuple(samples)), {})[0].samples
    assert [s.key for s in learned] == [str(solvers[0].address), str(solvers[2].address)]


@pytest.mark.whole
def test_a_pair_is_learned_at_temperature_1_whatever_it_was_sampled_at():
    made = self_rewarding(**SMALL)
    assert made.roles["solver"].sampling.temperature == 0.7
    trainer = CoTrainer(made)
    traces = [t for e in trainer.step().episodes for t in e.traces if t.role == "solver"]
    for sample in trainer._make_samples("generator", traces):
        [expected] = trainer.policies["generator"].logprobs([(sample.prompt_ids, sample.token_ids)], temperature=1.0)
        assert sample.temperature == 1.0 and torch.allclose(sample.scores["generator"], expected, atol=1e-5)


def test_the_oracle_pays_for_the_truth():
    says = {"solver": lambda f, rng: TASK.solution if rng.random() < 0.5 else "nonsense"}
    traces = played(judge_oneself, says, {"solver": parse_solution}, samples=6, oracle=True)
    assert [t.rewards[0].value for t in traces] == [float(t.metadata["correct"]) for t in traces]


def test_what_they_refuse():
    with refuses("E_TASKS_WITHOUT_SOLUTIONS"):
        spin(tasks=Talks())
    with refuses("E_SETTING_RANGE", names="group_size 1"):
        self_rewarding(group_size=1)
    assert self_rewarding(judge="frozen", **SMALL).roles["verifier"].policy == "judge"


def test_no_training_problem_is_none_without_a_solution():
    with refuses("E_SPLIT_EMPTY", names=("'labelled'", "train")):
        check_problems(spin(labelled="test:4", **SMALL))


def test_spin_learns_the_solutions_of_a_file_and_refuses_rows_without_one(tmp_path):
    path = tmp_path / "data.jsonl"
    rows = [{"question": f"{n} + 1?", "answer": n + 1, "solution": f"{n} + 1 = {n + 1}"} for n in range(40)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    tasks = JsonlTasks(path)
    assert spin(**{**SMALL, "tasks": tasks}).tasks is tasks

    first = tasks.get("train", 0).prompt
    for row in rows:
        if row["question"] == first or row["answer"] > 20:
            del row["solution"]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    halved = JsonlTasks(path)
    without = sum(halved.get("train", place).solution is None for place in range(halved.size("train")))
    with refuses("E_TASKS_WITHOUT_SOLUTIONS", names=(f"{without} of the {halved.size('train')}", "'jsonl'")):
        spin(**{**SMALL, "tasks": halved})


@pytest.mark.whole
def test_spin_of_conversations_sends_them_as_they_stand(tmp_path):
    rows = [
        {"messages": [{"role": "user", "content": f"{n}?"}, {"role": "assistant", "content": f"yes {n}"}]}
        for n in range(40)
    ]
    path = tmp_path / "chat.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    few = {**SMALL, "tasks": Chats(path), "evaluation_tasks": 4, "lr": 1e-3}
    trainer = CoTrainer(spin(iteration=1, steps=3, **few))
    renderer = trainer.policies.renderers["generator"]
    start = trainer.evaluate("test", 4)[0]["generator/surprisal"]
    for rival in ("opponent", "opponent", "former"):
        episode = trainer.step().episodes[0]
        written, gold = sorted(episode.traces, key=lambda trace: trace.role == "teacher")
        number = gold.findings["problem"].rstrip("?")
        assert (gold.text, gold.role, written.role) == (f"yes {number}", "teacher", rival)
        assert gold.prompt_ids == written.prompt_ids
        assert f"{number}?" in renderer.decode(gold.prompt_ids) and "Solve:" not in renderer.decode(gold.prompt_ids)
        assert [s.value for t in (gold, written) for s in t.rewards] == [1.0, 0.0]
    end = trainer.evaluate("test", 4)[0]["generator/surprisal"]
    assert end.value < start.value and start.low < start.value < start.high
    assert spin(control="sft", **few).evaluation.measures == ()
