"""Critique-GRPO: who joins a group and how it is learned, and that nobody ever reads the gold answer."""

from dataclasses import replace
from functools import partial

import pytest

from cotrain.algorithms.contract import Batch
from cotrain.algorithms.samples import sample_of
from cotrain.core.types import Sampling
from cotrain.data.word_problems.source import study_problems
from cotrain.formats.role_replies import write_review
from cotrain.prompts.byte_tokenizer import ByteRenderer
from cotrain.recipes.critique import critique, solve_and_revise
from cotrain.rollout.common_roles import parse_review, parse_solution
from cotrain.rollout.role import Role
from cotrain.rollout.runner import RolloutRunner
from cotrain.trainer.trainer import CoTrainer
from tests.helpers import TINY, spoken
from tests.sentences import refuses

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
    executor = RolloutRunner(spoken(programs), dict.fromkeys(programs, ByteRenderer()), roles, 0)
    episodes = executor.collect(partial(solve_and_revise, samples=3, **options), TASKS, step=0, group_size=1)
    assert all(e.failure is None for e in episodes)
    return [{name: [t for t in e.traces if t.role == name] for name in roles} for e in episodes]


def wrong(task, draw):
    return "<step> nothing</step><answer>0</answer>"


def test_the_first_right_revisions_join_the_group_under_the_prompt_of_the_problem():
    for traces in played(wrong, lambda task, review: task.solution, critic="frozen", join=2):
        outcomes = [[s.value for s in t.rewards if s.name == "outcome"] for t in traces["refiner"]]
        assert outcomes == [[1.0], [1.0], []] and [t.rewards[0].value for t in traces["solver"]] == [0.0] * 3
        assert traces["solver"][0].metadata["rescued"] is True and "rescued" not in traces["solver"][1].metadata
        for revision, solution in zip(traces["refiner"], traces["solver"], strict=True):
            assert revision.group == solution.group and revision.prompt_ids != solution.prompt_ids
            assert revision.parent == str(solution.address)
        learn = critique(critic="frozen", **SMALL).objectives["generator"].algorithm
        samples = tuple(sample_of(t) for name in ("refiner", "solver") for t in traces[name])
        credit, _ = learn.credit(Batch(samples=samples), {})
        found = [(s.off_policy, s.prompt_ids, round(float(s.advantages[0]), 6)) for s in credit.samples]
        prompt = traces["solver"][0].prompt_ids  # of 5 answers 2 are right: 1 − 2/5, 0 − 2/5
        assert found == [(True, prompt, 0.6)] * 2 + [(False, prompt, -0.4)] * 3


def test_wrong_revisions_teach_nothing():
    for traces in played(wrong, lambda task, review: wrong(task, 0), critic="frozen"):
        assert not any(t.rewards for t in traces["refiner"]) and traces["solver"][0].metadata["rescued"] is False


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


def half(task, draw):
    """Right in every second draw or so."""
    return task.solution if draw < 0.5 else wrong(task, draw)


def gains(traces):
    return [[s.value for s in t.rewards if s.name == "gain"] for t in traces["verifier"]]


@pytest.mark.parametrize(
    ("refine", "revise", "after"),
    [
        ("all", lambda task, review: task.solution, 1.0),  # what was wrong gains 1, what was right nothing
        ("all", lambda task, review: "<answer>0</answer>", 0.0),  # what was right loses 1
        ("failed", lambda task, review: task.solution, 1.0),
    ],
    ids=["mended", "spoilt", "failed"],
)
def test_a_critique_is_paid_for_what_the_revision_gains(refine, revise, after):
    seen = set()
    for traces in played(half, revise, critic="trained", paid_by="gain", refine=refine):
        before = [float(t.metadata["correct"]) for t in traces["solver"]]
        revised = [right for right in before if refine == "all" or right == 0.0]
        assert gains(traces) == [[after - right] for right in revised]
        seen.update(before)
    assert seen == {0.0, 1.0}


def test_a_critic_paid_by_gain_learns_which_critique_helped():
    """Of three critiques of one problem one gains 1: z-scores of (1, 0, 0) with the format's 0.8 in each of them."""
    recipe = critique(critic="trained", paid_by="gain", **SMALL)
    assert {s.name: w for s, w in recipe.objectives["critic"].algorithm.reward_weights.items()} == {
        "gain": 1.0,
        "format": 0.8,
    }
    calls = iter([True, False, False] * 3)
    for traces in played(wrong, lambda t, review: t.solution if next(calls) else wrong(t, 0), critic="trained",
                         paid_by="gain"):  # fmt: skip
        assert gains(traces) == [[1.0], [0.0], [0.0]]
        samples = tuple(sample_of(t) for t in traces["verifier"])
        credit, _ = recipe.objectives["critic"].algorithm.credit(Batch(samples=samples), {})
        found = [float(s.advantages[0]) for s in credit.samples]
        assert found == pytest.approx([2 / 3**0.5, -1 / 3**0.5, -1 / 3**0.5], rel=1e-3)  # sample deviation √(1/3)


@pytest.mark.whole
@pytest.mark.parametrize("leak", [False, True])
def test_no_prompt_holds_the_gold_answer_unless_it_is_leaked(leak):
    trainer = CoTrainer(critique(refine="all", critic="self", leak=leak, **SMALL))
    tasks = [replace(task, gold=CANARY, solution=CANARY) for task in TASKS]
    protocol = trainer.recipe.schedule.phases[0].protocol
    leaks = set()
    for critic in ("self", "oracle", "none"):
        episodes = trainer.runner.collect(partial(protocol, critic=critic, samples=2), tasks, step=0, group_size=1)
        for trace in (t for e in episodes for t in e.traces):
            renderer = trainer.policies.renderers[trace.policy]
            leaks |= {trace.role} if CANARY in renderer.decode(trace.prompt_ids) else set()
    assert leaks == ({"refiner"} if leak else set())


def test_nonsense_is_refused():
    with refuses("E_UNKNOWN_CHOICE"):
        critique(critic="gpt")
    with refuses("E_LEAK_WITHOUT_CRITIC"):
        critique(critic="none", leak=True)
    with refuses("E_GAIN_WITHOUT_LEARNER"):
        critique(critic="frozen", paid_by="gain")


def test_who_joins_a_group_is_drawn_as_its_members_are():
    recipe = critique(critic="frozen", **SMALL)
    assert recipe.objectives["generator"].roles == ("solver", "refiner")
    refiner = recipe.roles["refiner"]
    colder = replace(refiner, sampling=replace(refiner.sampling, temperature=0.5))
    for wrong, code in (
        (replace(refiner, policy="critic"), "E_OFF_POLICY_ROLE: 'refiner'"),
        (colder, "E_TEMPERATURES_DIFFER"),
    ):
        with refuses(code):
            replace(recipe, roles={**recipe.roles, "refiner": wrong})
