"""DeepSeekMath-V2 played by programs: what each of the three earns, against numbers worked out by hand."""

from functools import partial

import pytest
from cotrain_zoo.dsm import analysis_score, dsm, proof_reward, prove

from cotrain.core.types import Sampling
from cotrain.data.word_problems.source import study_problems
from cotrain.formats.role_replies import write_review
from cotrain.prompts.byte_tokenizer import ByteRenderer
from cotrain.rollout.common_roles import parse_meta, parse_review, parse_self_check, parse_solution
from cotrain.rollout.role import Role
from cotrain.rollout.runner import RolloutRunner
from tests.helpers import spoken
from tests.sentences import refuses

TASK = study_problems((2, 2)).get("train", 0)  # two steps
GOOD, BAD = write_review(["", ""], [True, True], True), write_review(["", ""], [True, False], False)
HALF = write_review(["", ""], [True, False], True)
SOUND, UNSOUND = "<final>CORRECT</final>", "<final>INCORRECT</final>"


def rewards(*, check=GOOD, review=GOOD, meta=SOUND, own=GOOD, solution=TASK.solution, **options):
    """By role, what its turns earned; ``meta`` may be a function of the review it is shown."""
    inline = options.get("analysis", "inline") == "inline"
    said = {
        "solver": lambda f, r: solution + (check if inline else ""),
        "verifier": lambda f, r: review,
        "analyst": lambda f, r: own,
        "meta": lambda f, r: meta(f["review"]) if callable(meta) else meta,
    }
    parse = {
        "solver": parse_self_check if inline else parse_solution,
        "verifier": parse_review,
        "analyst": parse_review,
        "meta": parse_meta,
    }
    prompts = {"solver": "{problem}", "verifier": "{solution}", "analyst": "{solution}", "meta": "{solution} {review}"}
    one = Sampling(max_tokens=1)
    roles = {name: Role(policy=name, prompt=prompts[name], parse=parse[name], sampling=one) for name in said}
    executor = RolloutRunner(spoken(said), dict.fromkeys(said, ByteRenderer()), roles, 0)
    [episode] = executor.collect(partial(prove, **options), [TASK], step=0, group_size=1)
    assert episode.failure is None, episode.failure
    for trace in episode.traces:
        if trace.role in ("verifier", "analyst"):  # who are shown the solution without its check
            assert ByteRenderer().decode(trace.prompt_ids) == solution
    return {
        name: [s.value for t in episode.traces if t.role == name for s in t.rewards if s.name != "class_label"]
        for name in said
    }


def test_scores_and_the_generators_reward_by_hand():
    assert [analysis_score(True, (True, True), "steps"), analysis_score(True, (True, False), "steps")] == [1.0, 0.5]
    assert [
        analysis_score(False, (False,), "steps"),
        analysis_score(False, (True,), "answer"),
        analysis_score(True, None, "steps"),
    ] == [
        0.0,
        0.0,
        1.0,
    ]
    assert proof_reward(1.0, 1.0, 1.0) == pytest.approx(1.0)
    assert proof_reward(0.0, 0.5, 1.0) == pytest.approx(0.76 * 0.5 + 0.24 * 0.5)
    assert proof_reward(1.0, 1.0, 0.0) == pytest.approx(0.76)


def test_everybody_is_right():
    got = rewards(reviews=2, votes=2)
    assert got["solver"] == [pytest.approx(1.0)] and got["verifier"] == [1.0, 1.0]
    assert got["meta"] == [1.0] * 6  # two votes on each of two reviews and on the self-analysis


def test_a_verifier_that_is_half_right_earns_half_of_what_the_meta_verifier_leaves():
    got = rewards(review=HALF, meta=lambda review: SOUND if review == GOOD else UNSOUND)
    assert got["verifier"] == [0.0] and got["meta"] == [1.0, 1.0]  # the meta-verifier saw through it
    assert got["solver"] == [pytest.approx(0.76 * 0.5 + 0.24 * 0.5)]
    fooled = rewards(review=HALF, meta="I cannot say")
    assert fooled["verifier"] == [0.25] and fooled["meta"] == [0.0, 0.0]  # an unreadable vote counts one half
    assert fooled["solver"] == [pytest.approx(0.76 * 0.5 + 0.24 * 0.5 * 0.5)]


def test_without_a_meta_verifier_its_factor_is_one():
    got = rewards(review=HALF, votes=0)
    assert got["verifier"] == [0.5] and got["meta"] == [] and got["solver"] == [pytest.approx(0.76 * 0.5 + 0.24 * 0.5)]
    recipe = dsm(model="shipped", meta=False)
    assert "meta" not in recipe.roles and list(recipe.objectives) == ["generator", "verifier"]


def test_what_cannot_be_read_earns_nothing():
    assert rewards(check="")["solver"] == [0.0]  # no self-analysis
    got = rewards(review="no review")
    assert got["verifier"] == [0.0] and got["solver"] == []  # that is not the generator's fault
    wrong = rewards(solution=TASK.solution.replace(f"<answer>{TASK.gold}", "<answer>-1"), check=BAD, review=BAD)
    # steps right, answer wrong: s = 1/2; the review says 0, which the meta-verifier believes though a verdict is wrong
    assert wrong["verifier"] == [0.5] and wrong["meta"] == [0.0, 0.0]
    assert wrong["solver"] == [pytest.approx(0.24)]  # no quality, honest about it


def test_self_analysis_in_a_second_call():
    got = rewards(analysis="asked", own=BAD, votes=1)
    assert got["solver"] == got["analyst"] == [pytest.approx(0.76)]  # says 0 where the verifier says 1
    assert rewards(analysis="asked", own="nothing")["analyst"] == [0.0]


def test_a_recipe_and_its_controls():
    recipe = dsm(model="shipped")
    assert {n: o.policy for n, o in recipe.objectives.items()} == {
        "generator": "generator", "verifier": "verifier", "meta": "verifier",
    }  # fmt: skip
    assert list(dsm(model="shipped", verifier="frozen").objectives) == ["generator"]
    assert dsm(model="shipped", analysis="asked").objectives["generator"].roles == ("solver", "analyst")
    with refuses("E_UNKNOWN_CHOICE"):
        dsm(labels="x")
