"""Critique-GRPO: who joins a group and how it is learned, and that nobody ever reads the gold answer."""

from dataclasses import replace
from functools import partial

import pytest

from cotrain.algorithms.contract import Batch
from cotrain.algorithms.samples import sample_of
from cotrain.core.errors import ConfigError, UnknownName
from cotrain.core.types import Sampling
from cotrain.data.word_problems.source import study_problems
from cotrain.formats.role_replies import write_review
from cotrain.prompts.byte_tokenizer import ByteRenderer
from cotrain.recipes.critique import critique, solve_and_revise
from cotrain.rollout.common_roles import parse_review, parse_solution
from cotrain.rollout.role import Role
from cotrain.rollout.runner import Executor
from cotrain.trainer.trainer import CoTrainer
from tests.helpers import TINY, spoken

TASKS = [study_problems((2, 2)).get("train", i) for i in range(3)]
CANARY = "31337042"
SMALL = {"model": TINY, "tasks": study_problems((2, 2)), "tasks_per_step": 3, "group_size": 4, "steps": 1}


def role(policy, prompt, parse=None):
    return Role(policy=policy, prompt=prompt, parse=parse, sampling=Sampling(max_tokens=1))


def played(solve, revise, says="", **options):
    """Episodes of programs: ``solve`` (task, call) and ``revise`` (task, review) say what is written. A verifier that
    ``says`` something calls everything right, else wrong."""
    by_prompt = {task.prompt: task for task in TASKS}
    programs = {
        "s": lambda fields, rng: solve(by_prompt[fields["problem"]], rng.random()),
        "r": lambda fields, rng: revise(by_prompt[fields["problem"]], fields["review"]),
        "v": lambda fields, rng: write_review([says] * fields["count"], [bool(says)] * fields["count"], bool(says)),
    }
    roles = {
        "solver": role("s", "{problem} Solve:", parse_solution),
        "refiner": role("r", "{problem} {solution} {review} Revise:", parse_solution),
        "verifier": role("v", "{problem} {solution} Review:", parse_review),
    }
    executor = Executor(spoken(programs), dict.fromkeys(programs, ByteRenderer()), roles, 0)
    episodes = executor.play(partial(solve_and_revise, samples=3, **options), TASKS, step=0, group_size=1)
    assert all(e.failure is None for e in episodes)
    return [{name: [t for t in e.traces if t.role == name] for name in roles} for e in episodes]


def wrong(task, draw):
    return "<step> nothing</step><answer>0</answer>"


def test_the_first_right_revisions_join_the_group_under_the_prompt_of_the_problem():
    for traces in played(wrong, lambda task, review: task.solution, critic="frozen", join=2):
        outcomes = [[s.value for s in t.signals if s.name == "outcome"] for t in traces["refiner"]]
        assert outcomes == [[1.0], [1.0], []] and [t.signals[0].value for t in traces["solver"]] == [0.0] * 3
        assert traces["solver"][0].truth["rescued"] is True and "rescued" not in traces["solver"][1].truth
        for revision, solution in zip(traces["refiner"], traces["solver"], strict=True):
            assert revision.group == solution.group and revision.prompt_ids != solution.prompt_ids
            assert revision.parent == str(solution.address)
        learn = critique(critic="frozen", **SMALL).objectives["generator"].by
        samples = tuple(sample_of(t) for name in ("refiner", "solver") for t in traces[name])
        credit, _ = learn.credit(Batch(samples=samples), {})
        found = [(s.off_policy, s.prompt_ids, round(float(s.advantages[0]), 6)) for s in credit.samples]
        prompt = traces["solver"][0].prompt_ids  # of 5 answers 2 are right: 1 − 2/5, 0 − 2/5
        assert found == [(True, prompt, 0.6)] * 2 + [(False, prompt, -0.4)] * 3


def test_wrong_revisions_teach_nothing():
    for traces in played(wrong, lambda task, review: wrong(task, 0), critic="frozen"):
        assert not any(t.signals for t in traces["refiner"]) and traces["solver"][0].truth["rescued"] is False


def test_right_solutions_are_left_alone_unless_all_are_revised():
    for refine, count in (("failed", 0), ("all", 3)):
        for traces in played(lambda task, draw: task.solution, wrong, critic="frozen", refine=refine):
            assert len(traces["verifier"]) == len(traces["refiner"]) == count
    for traces in played(lambda task, draw: task.solution, wrong, critic="trained"):
        assert len(traces["verifier"]) == 3 and not traces["refiner"]  # a critic learns from right solutions too


def test_the_oracle_is_the_frozen_critic_with_the_truth_for_its_verdicts():
    said = []

    def revise(task, review):
        said.append(review)
        return task.solution

    for critic in ("oracle", "frozen"):
        played(wrong, revise, critic=critic, says="looks fine")
    assert said[:9] == ["<step>looks fine INCORRECT</step><final>INCORRECT</final>"] * 9
    assert said[9:] == ["<step>looks fine CORRECT</step><final>CORRECT</final>"] * 9


@pytest.mark.whole
@pytest.mark.parametrize("leak", [False, True])
def test_no_prompt_holds_the_gold_answer_unless_it_is_leaked(leak):
    trainer = CoTrainer(critique(refine="all", critic="self", leak=leak, **SMALL))
    tasks = [replace(task, answer=CANARY, solution=CANARY) for task in TASKS]
    protocol = trainer.recipe.schedule.phases[0].protocol
    leaks = set()
    for critic in ("self", "oracle", "none"):
        episodes = trainer.executor.play(partial(protocol, critic=critic, samples=2), tasks, step=0, group_size=1)
        for trace in (t for e in episodes for t in e.traces):
            renderer = trainer.policies.renderers[trace.policy]
            leaks |= {trace.role} if CANARY in renderer.decode(trace.prompt_ids) else set()
    assert leaks == ({"refiner"} if leak else set())


def test_nonsense_is_refused():
    with pytest.raises(UnknownName, match="critic of critique"):
        critique(critic="gpt")
    with pytest.raises(ConfigError, match="nobody reads"):
        critique(critic="none", leak=True)


def test_who_joins_a_group_is_drawn_as_its_members_are():
    recipe = critique(critic="frozen", **SMALL)
    assert recipe.objectives["generator"].roles == ("solver", "refiner")
    refiner = recipe.roles["refiner"]
    colder = replace(refiner, sampling=replace(refiner.sampling, temperature=0.5))
    for wrong, message in ((replace(refiner, policy="critic"), "'refiner' is played by"), (colder, "one temperature")):
        with pytest.raises(ConfigError, match=message):
            replace(recipe, roles={**recipe.roles, "refiner": wrong})
