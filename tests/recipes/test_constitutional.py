"""Constitutional AI: what a principle is, who says that it is kept, and what is learned from that."""

from functools import partial

import pytest
import torch

from bases.gaming import mend_solution
from cotrain.core.types import Sampling
from cotrain.data.word_problems.source import study_problems
from cotrain.formats.solutions import write_solution
from cotrain.prompts.byte_tokenizer import ByteRenderer
from cotrain.recipes.constitutional.principles import (
    PRINCIPLES,
    WRITERS,
    keeps_principle,
    principle_of,
    question_of,
    revise_oneself,
    say,
    share_kept,
)
from cotrain.recipes.constitutional.recipe import constitutional, prefer
from cotrain.rollout.common_roles import parse_meta, parse_solution
from cotrain.rollout.role import Role
from cotrain.rollout.runner import RolloutRunner
from cotrain.trainer.trainer import CoTrainer
from tests.helpers import EASY, TINY, spoken
from tests.sentences import refuses

TASK = study_problems((2, 2)).get("train", 0)
SMALL = {"model": TINY, "tasks": EASY, "tasks_per_step": 3, "group_size": 3, "evaluation_tasks": 2}
GAMES = "shipped-games"
ASKED = "How many pears are there?"
PROBLEM = f"There are 12 apples. There are 4 more pears than apples. {ASKED}"
PLAIN = write_solution(["12+4=16"], "16")
YES, NO = "<final>CORRECT</final>", "<final>INCORRECT</final>"


def played(protocol, drafts, critic, revise, **options):
    """The solver writes ``drafts`` in turn; ``critic`` and ``revise`` are texts or functions of fields: traces."""
    left = iter(drafts)
    solving = ("{problem} Solve:", parse_solution)
    criticising = ("{problem} {solution} {principle} Kept:", parse_meta)
    revising = ("{problem} {solution} {review} {principle} Revise:", parse_solution)
    prompts = {"solver": solving, "critic": criticising, "student": solving}
    prompts |= dict(zip(WRITERS, (solving, criticising, revising), strict=True))
    programs = dict.fromkeys(("solver", "writer"), lambda fields, rng: next(left)) | {"student": say}
    programs |= dict.fromkeys(("critic", "writer_critic"), critic) | {"writer_reviser": revise}
    roles = {
        name: Role(policy=name, prompt=prompt, parse=parse, sampling=Sampling(max_tokens=9))
        for name, (prompt, parse) in prompts.items()
    }
    executor = RolloutRunner(spoken(programs), dict.fromkeys(programs, ByteRenderer()), roles, 0)
    [episode] = executor.collect(partial(protocol, **options), [TASK], step=0, group_size=1)
    assert episode.failure is None, episode.failure
    return episode.traces


def by_words(fields, rng):
    """A revision that always keeps its principle."""
    [name] = [name for name, principle in PRINCIPLES.items() if principle.words == fields["principle"]]
    return mend_solution(name, fields["problem"], fields["solution"])


def test_principles_by_hand():
    assert question_of(PROBLEM) == ASKED
    assert [keeps_principle(name, PROBLEM, PLAIN) for name in ("asks", "concludes", "once")] == [False, False, True]
    assert mend_solution("asks", PROBLEM, PLAIN) == write_solution([f" {ASKED}", "12+4=16"], "16")
    assert mend_solution("concludes", PROBLEM, PLAIN) == write_solution(["12+4=16", " So 16."], "16")
    twice = write_solution(["12+4=16", "12+4=16"], "16")
    assert not keeps_principle("once", PROBLEM, twice) and mend_solution("once", PROBLEM, twice) == PLAIN
    assert keeps_principle("concludes", PROBLEM, write_solution(["12+4=17", " So 17."], "17"))  # kept, and wrong
    assert share_kept(PROBLEM, PLAIN) == pytest.approx(1 / 3)


def test_what_cannot_be_read_keeps_nothing_and_is_not_mended():
    assert share_kept(PROBLEM, "nonsense") == 0.0 and mend_solution("asks", PROBLEM, "nonsense") == "nonsense"


@pytest.mark.parametrize("name", PRINCIPLES)
def test_what_is_mended_is_kept_and_stays(name):
    for steps in (["12+4=16"], ["a", "b", "a"], [f" {ASKED}", "a", " So 16."]):
        once = mend_solution(name, PROBLEM, write_solution(steps, "16"))
        assert keeps_principle(name, PROBLEM, once) and mend_solution(name, PROBLEM, once) == once


def test_the_revision_is_learned_as_an_answer_to_the_problem_alone():
    traces = {t.role: t for t in played(revise_oneself, [TASK.solution], lambda f, rng: NO, by_words)}
    draft, revision = traces["writer"], traces["writer_reviser"]
    assert traces["student"].text == revision.text
    assert ByteRenderer().decode(traces["student"].prompt_ids) == ByteRenderer().decode(draft.prompt_ids)
    assert revision.metadata["kept"] >= draft.metadata["kept"] and revision.metadata.get("mended", True) is True
    assert NO in ByteRenderer().decode(revision.prompt_ids)  # the critique is read
    traces = {t.role: t for t in played(revise_oneself, [TASK.solution], lambda f, rng: NO, by_words, sft_on="drafts")}
    assert traces["student"].text == TASK.solution
    roles = [t.role for t in played(revise_oneself, ["nonsense"], lambda f, rng: NO, by_words)]
    assert roles == ["writer"]


def test_an_answer_is_worth_the_share_of_votes_and_the_truth_pays_in_the_control_alone():
    """Four votes on each of two readable answers: all and half of them say that the principle is kept."""
    votes = iter([YES] * 4 + [YES, NO, YES, NO])
    wrong = write_solution(["x"], "1")
    traces = played(prefer, [TASK.solution, wrong, "nonsense"], lambda f, rng: next(votes), by_words, samples=3)
    assert [t.rewards[0].value for t in traces if t.role == "solver"] == [1.0, 0.5, 0.0]
    assert not any(t.rewards for t in traces if t.role == "critic")
    all_kept = TASK.solution
    for name in PRINCIPLES:
        all_kept = mend_solution(name, TASK.prompt, all_kept)
    broken = write_solution(["x", "x"], "1")
    traces = played(prefer, [all_kept, broken], lambda f, rng: NO, by_words, samples=2, checked=True)
    assert [t.rewards[0].value for t in traces] == [1.0, 0.0]  # no critic is asked


def test_votes_that_cannot_be_read_do_not_count():
    votes = iter([YES, "hm", "hm", "hm"])
    solutions = [TASK.solution, write_solution(["x"], "1")]
    traces = played(prefer, solutions, lambda f, rng: next(votes), by_words, samples=2, votes=2)
    assert [[one.value for one in t.rewards] for t in traces if t.role == "solver"] == [[1.0], []]


def test_all_answers_of_a_problem_are_seen_under_one_principle_and_all_principles_are_drawn():
    traces = played(prefer, [TASK.solution] * 3, lambda f, rng: YES, by_words, samples=3, votes=1)
    shown = {ByteRenderer().decode(t.prompt_ids).split("</answer>")[1] for t in traces if t.role == "critic"}
    assert len(shown) == 1
    names = {principle_of(type("T", (), {"id": f"0:{i}:0:solver:0"})()) for i in range(40)}
    assert names == set(PRINCIPLES)


def test_the_stages_follow_each_other():
    made = constitutional(revising=3, steps=7, **SMALL)
    assert [made.schedule.phase_at(i).name for i in range(5)] == ["revise"] * 3 + ["prefer"] * 2
    assert made.policies["before"].first == 3
    assert made.leading_objective == "prefer" and made.objectives["prefer"].algorithm.reference == "before"
    made = constitutional(stages="revise", sft_on="drafts", **SMALL)
    assert made.leading_objective == "revise" and "before" not in made.policies
    made = constitutional(stages="prefer", feedback="program", **SMALL)
    assert "revise" not in made.objectives and made.schedule.phases[-1].options["checked"] is True


@pytest.mark.whole
def test_the_writer_stays_as_it_was_when_its_stage_began():
    trainer = CoTrainer(constitutional(revising=3, steps=3, stages="revise", lr=1e-3, **SMALL | {"model": GAMES}))

    def weights(name):
        return {key: tensor.clone() for key, tensor in dict(trainer.policies[name].weights()).items()}

    start = weights("generator")
    for _ in range(2):
        assert all(torch.equal(start[key], held) for key, held in weights("writer").items())
        assert trainer.step().row["phase"] == "revise"
    assert not all(torch.equal(start[key], now) for key, now in weights("generator").items())


@pytest.mark.whole
def test_a_step_of_each_stage_learns():
    trainer = CoTrainer(constitutional(revising=1, steps=2, feedback="program", **SMALL | {"model": GAMES}))
    rows = [trainer.step().row for _ in range(2)]
    assert [row["phase"] for row in rows] == ["revise", "prefer"]
    assert rows[0]["revise/credit/samples"] >= 1


def test_what_is_refused():
    with refuses("E_MODEL_NOT_TAUGHT_FORMAT", names=("constitutional", "'shipped'")):
        constitutional(model="shipped")
    with refuses("E_SETTING_RANGE", names="votes 0"):
        constitutional(votes=0)
