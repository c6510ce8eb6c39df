"""Self-trained verification: who sees the reference, what is learned of that, and who is paid."""

from dataclasses import replace
from functools import partial

import pytest
import torch

from cotrain.core.types import Sampling
from cotrain.data.word_problems.source import study_problems
from cotrain.formats.role_replies import write_review
from cotrain.prompts.byte_tokenizer import ByteRenderer
from cotrain.recipes.stv import say_again, solve_for_the_verifier, stv, teach
from cotrain.rollout.common_roles import parse_review, parse_solution
from cotrain.rollout.role import Role
from cotrain.rollout.runner import RolloutRunner
from cotrain.trainer.trainer import CoTrainer
from tests.helpers import EASY, TINY, spoken
from tests.sentences import refuses

TASKS = [study_problems((2, 2)).get("train", i) for i in range(3)]
SMALL = {"model": TINY, "tasks": EASY, "tasks_per_step": 2, "group_size": 4, "lr": 1e-3}


def role(policy, prompt, parse=None):
    return Role(policy=policy, prompt=prompt, parse=parse, sampling=Sampling(max_tokens=1))


def played(protocol, *, solve, review, **options):
    """Traces by role of episodes in which programs speak: ``solve`` (task, draw), and ``review`` (whether the answer is
    that of the reference, None where none is shown; draw) calls a solution right or wrong."""
    by_prompt = {task.prompt: task for task in TASKS}

    def write(fields, rng):
        _, shown, reference = fields["problem"].partition("\n\nReference answer, which is right:\n")
        same = fields["solution"] == reference if shown else None
        said = review(same, rng.random())
        return write_review([""] * fields["count"], [said] * fields["count"], said)

    programs = {
        "s": lambda fields, rng: solve(by_prompt[fields["problem"]], rng.random()),
        "v": write,
        "t": write,
        "p": say_again,
    }
    roles = {
        "solver": role("s", "{problem} Solve:", parse_solution),
        "verifier": role("v", "{problem} {solution} Review:", parse_review),
        "sighted": role("t", "{problem} {solution} Review:", parse_review),
        "pupil": role("p", "{problem} {solution} Review:", parse_review),
    }
    executor = RolloutRunner(spoken(programs), dict.fromkeys(programs, ByteRenderer()), roles, 0)
    episodes = executor.collect(partial(protocol, **options), TASKS, step=0, group_size=1)
    assert all(e.failure is None for e in episodes), [e.failure for e in episodes]
    return [{name: [t for t in e.traces if t.role == name] for name in roles} for e in episodes]


def some_right(task, draw):
    return task.solution if draw < 0.5 else "<step> nothing</step><answer>0</answer>"


def signals(traces, name):
    return [s.value for t in traces for s in t.rewards if s.name == name]


LESSONS = {"group": 4, "sight": "solution", "keep": "readable"}


def test_what_is_said_in_sight_of_the_reference_is_learned_without_it():
    for traces in played(teach, solve=some_right, review=lambda same, draw: bool(same), **LESSONS):
        assert len(traces["sighted"]) == len(traces["pupil"]) == 4 and not traces["verifier"]
        for sighted, pupil in zip(traces["sighted"], traces["pupil"], strict=True):
            assert pupil.text == sighted.text and sighted.findings["final"] is sighted.metadata["correct"]
            assert len(pupil.prompt_ids) < len(sighted.prompt_ids)
            assert "correct" not in pupil.metadata
        assert signals(traces["pupil"], "lesson") == [1.0] * 4


def test_lessons_that_are_not_the_truth_can_be_left_out():
    for traces in played(teach, solve=some_right, review=lambda same, draw: True, **LESSONS | {"keep": "right"}):
        right = [float(t.metadata["correct"]) for t in traces["solver"]]
        assert signals(traces["pupil"], "lesson") == right


def test_a_blind_teacher_is_shown_no_reference():
    seen = []
    blind = LESSONS | {"sight": "nothing"}
    played(teach, solve=some_right, review=lambda same, draw: seen.append(same) or True, **blind)
    assert set(seen) == {None}


def test_the_answer_alone_can_be_what_is_in_sight():
    [found, *_] = played(teach, solve=some_right, review=lambda same, draw: True, **LESSONS | {"sight": "answer"})
    prompt = ByteRenderer().decode(found["sighted"][0].prompt_ids)
    assert prompt.startswith(f"{TASKS[0].prompt}\n\nReference answer, which is right:\n{TASKS[0].gold} <step>")


def test_the_share_that_calls_a_solution_right_is_its_pay():
    for traces in played(solve_for_the_verifier, solve=some_right, review=lambda same, draw: draw < 0.5, reviews=4):
        said = [t.findings["final"] for t in traces["verifier"]]
        truth = traces["solver"][0].metadata["correct"]
        assert signals(traces["solver"], "called_right") == [sum(said) / 4]
        assert signals(traces["verifier"], "agreement") == [float(final is truth) for final in said]
    for traces in played(solve_for_the_verifier, solve=lambda t, d: "?", review=lambda same, draw: True, reviews=4):
        assert signals(traces["solver"], "called_right") == [0.0] and not traces["verifier"]


def test_controls_differ_in_the_lessons_alone():
    made, blind, none = (stv(taught=taught, lessons=2, steps=4) for taught in ("sighted", "blind", "none"))
    assert [made.schedule.phase_at(step).name for step in range(4)] == ["lessons"] * 2 + ["generator"] * 2
    sights = [recipe.schedule.phase_at(0).options["sight"] for recipe in (made, blind)]
    assert sights == ["solution", "nothing"] and blind.roles == made.roles
    for name in ("sighted", "pupil"):  # so that a format that is chosen for the verifier is theirs too
        assert replace(made.roles[name], policy="verifier") == made.roles["verifier"]
    assert [none.schedule.phase_at(step).name for step in range(2)] == ["generator"] * 2
    assert none.policies["verifier"].kind == "frozen" and "pupil" not in none.roles
    on = stv(verifier="trained", lessons=1)
    assert on.schedule.phase_at(1).objectives == ("generator", "verifier")
    for wrong, code in (({"lessons": 0}, "E_LESSONS_WITHOUT_TAUGHT"), ({"reviews": 0}, "E_SETTING_RANGE")):
        with refuses(code):
            stv(**wrong)
    with refuses("E_SETTING_RANGE"):
        stv(reviews=1, verifier="trained")


@pytest.mark.whole
def test_the_verifier_is_taught_first_and_stays_as_it_is_while_it_pays():
    trainer = CoTrainer(stv(steps=2, lessons=1, reviews=2, verifier_lr=1e-3, **SMALL | {"model": "shipped"}))

    def weights(name):
        return {key: tensor.clone() for key, tensor in trainer.policies.tensors()[name].items()}

    def moved(before, name):
        return any(not torch.equal(before[key], tensor) for key, tensor in weights(name).items())

    generator, verifier = weights("generator"), weights("verifier")
    taught = trainer.step().row
    assert moved(verifier, "verifier") and not moved(generator, "generator")
    assert 0.0 <= taught["sighted/balanced_accuracy"] <= 1.0
    verifier = weights("verifier")
    paid = trainer.step().row
    assert not moved(verifier, "verifier") and "solver/reward/called_right" in paid
