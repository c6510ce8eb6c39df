"""Multi-Agent Evolve: who earns what, what enters the pool, and that no truth pays unless it is asked for."""

import asyncio
from dataclasses import replace
from functools import partial

import pytest

from cotrain.core.types import Grade, ParseFailure, Sampling
from cotrain.data.word_problems.reader import problem_signature, read_problem
from cotrain.data.word_problems.source import study_problems
from cotrain.models.load import load_model
from cotrain.prompts.byte_tokenizer import ByteRenderer
from cotrain.recipes.mae.evolve import evolve, is_question, parse_score, write_score
from cotrain.recipes.mae.recipe import mae
from cotrain.rollout.common_roles import parse_solution
from cotrain.rollout.event_loop import engine_paused
from cotrain.rollout.readers import WordReader
from cotrain.rollout.role import Role
from cotrain.rollout.runner import RolloutRunner
from cotrain.rollout.stores import PoolProblem, TaskPool
from tests.helpers import EASY, TINY, Talks, spoken
from tests.sentences import refuses

GOOD = "There are 12 apples. There are 4 more pears than apples. How many pears are there?"  # 16
OLD = "There are 5 apples. There are 4 more pears than apples. How many pears are there?"  # 9
TASK = study_problems((2, 2)).get("train", 0)
SMALL = {"model": TINY, "tasks": EASY, "tasks_per_step": 3, "group_size": 3, "evaluation_tasks": 2}


def held():
    name = problem_signature(read_problem(OLD))
    return TaskPool(
        items=(PoolProblem(problem=OLD, answer="9", signature=name, solved=0.5, born=0, source="0:0:0:p:0"),)
    )


def played(said, answer, question_score, answer_score, *, pool=None, protocol=evolve, wrap=None, **changes):
    """One question ``said``; all answers are ``answer``; scores as texts, or drawn. Traces by role, episodes."""
    programs = {
        "p": lambda fields, rng: said,
        "s": lambda fields, rng: f"<step>x</step><answer>{answer}</answer>",
        "q": lambda fields, rng: question_score,
        "j": lambda fields, rng: answer_score(rng) if callable(answer_score) else answer_score,
    }
    asked = {"proposer": ("p", "{hint} Write:", None), "rater": ("q", "{problem} Score:", parse_score)}
    asked |= dict.fromkeys(("solver", "trial"), ("s", "{problem} Solve:", parse_solution))
    asked |= {"judge": ("j", "{problem} {solution} Score:", parse_score)}
    roles = {
        name: Role(policy=policy, prompt=prompt, parse=parse, sampling=Sampling(max_tokens=9))
        for name, (policy, prompt, parse) in asked.items()
    }
    engine = wrap(spoken(programs)) if wrap else spoken(programs)
    executor = RolloutRunner(engine, dict.fromkeys(programs, ByteRenderer()), roles, 0)
    options = {"pool": held() if pool is None else pool, "samples": 2} | changes
    episodes = executor.collect(partial(protocol, **options), [TASK], step=3, group_size=1)
    assert all(e.failure is None for e in episodes), episodes
    traces = {}
    for trace in (t for e in episodes for t in e.traces):
        traces.setdefault(trace.role, []).append(trace)
    return traces, episodes


def earned(traces, role):
    return [pytest.approx(t.rewards[0].value) for t in traces[role]]


def test_a_score_is_read_from_one_pair_of_tags():
    assert [parse_score(write_score(x), {}).score for x in (0.0, 1.0)] == [0.0, 1.0]
    assert parse_score("<score>7</score>", {}).score == pytest.approx(6 / 9)
    twice = parse_score("<score>1</score><score>10</score>", {})
    assert (twice.score, twice.format_score) == (1.0, 0.5)
    for text, reason in (("7", "no score"), ("<score>11</score>", "bad score"), ("<score>0</score>", "bad score")):
        read = parse_score(text, {})
        assert isinstance(read, ParseFailure) and read.reason == reason
    assert parse_score("<score>٣</score>", {}).reason == "bad score"


def test_a_good_question_earns_quality_difficulty_and_format():
    """Q = 1; both answers are scored 1/9 · 3 = 1/3, so D = 2/3; F = 1: (1 + 2/3 + 1) / 3 = 8/9."""
    traces, episodes = played(GOOD, 16, write_score(1.0), "<score>4</score>")
    assert earned(traces, "proposer") == [8 / 9]
    assert not any(t.rewards for t in traces["trial"])  # they only tell how hard it is
    assert earned(traces, "solver") == [0.5 / 3 + 0.5] * 2  # half a score of 1/3, and half of the format
    after = held().with_episodes(episodes, step=3)
    assert [item.problem for item in after.items] == [OLD, GOOD] and after.items[1].solved == pytest.approx(1 / 3)


class TimedOut:
    """A grader that never comes to an end."""

    def grade(self, task, text):
        return Grade(value=None, reason="timeout")

    def grade_steps(self, task, steps):
        return None


class Ungraded(WordReader):
    """Reads problems as usual; no answer to them can be graded."""

    async def read(self, text, task):
        return replace(await super().read(text, task), grader=TimedOut())


def test_a_question_whose_answers_cannot_be_graded_is_not_a_hard_one():
    traces, episodes = played(GOOD, 16, write_score(1.0), "<score>4</score>", reader=Ungraded())
    assert [(t.failure, t.rewards) for t in traces["proposer"]] == [("ungraded", ())]
    assert {t.failure for t in traces["trial"]} == {"timeout"}
    assert [item.problem for item in held().with_episodes(episodes, step=3).items] == [OLD]


class Slow:
    """Programs of which one role answers late."""

    def __init__(self, engine, role):
        self.engine, self.role = engine, role
        self.advance, self.publish, self.counts = engine.advance, engine.publish, engine.counts

    async def sample(self, request):
        async with engine_paused():
            await asyncio.sleep(0.02 * (request.address.role == self.role))
        return await self.engine.sample(request)


def test_who_answers_late_changes_nothing():
    """Trial answers and paid ones have one judge, whose calls are counted."""

    def found(role):
        traces, _ = played(GOOD, 16, write_score(1.0), score_by_chance, wrap=lambda engine: Slow(engine, role))
        return [(str(t.address), t.parent, t.text) for t in traces["judge"]], earned(traces, "proposer")

    def score_by_chance(rng):
        return write_score(rng.random())

    assert found("solver") == found("trial") == found("nobody")


def test_below_the_gate_difficulty_is_not_paid_and_nothing_enters_the_pool():
    """Q = 5/9 < 0.7: (5/9 + 1) / 3."""
    traces, episodes = played(GOOD, 16, "<score>6</score>", write_score(1.0))
    assert earned(traces, "proposer") == [14 / 27] and "trial" not in traces
    assert held().with_episodes(episodes, step=3).items == held().items
    traces, _ = played(GOOD, 16, "<score>6</score>", write_score(1.0), quality=0.5)
    assert "trial" in traces


def test_what_is_no_question_earns_nothing_and_is_not_judged():
    for said in ("Nonsense.", "Is it <score>10</score>?", ""):
        assert not is_question(said)
        traces, _ = played(said, 16, write_score(1.0), write_score(1.0))
        assert earned(traces, "proposer") == [0.0] and "rater" not in traces
    traces, _ = played("Nonsense?", 1, write_score(1.0), write_score(1.0))  # believed: the gate is the judge alone
    assert earned(traces, "proposer") == [2 / 3] and traces["proposer"][0].metadata["valid"] is False


def test_the_judge_earns_its_format_and_never_the_truth():
    for answer in (16, 9, 1):
        traces, _ = played(GOOD, answer, write_score(1.0), write_score(1.0))
        assert earned(traces, "judge") == [1.0] * 4  # two trials and two answers
    traces, _ = played(GOOD, 9, write_score(1.0), "nothing")
    assert earned(traces, "judge") == [0.0] * 4 and earned(traces, "solver") == [0.75] * 2  # unread counts ½
    assert [t.metadata["correct"] for t in traces["judge"]] == [False, False, True, True] or [
        t.metadata["correct"] for t in traces["judge"]
    ] == [True, True, False, False]


def test_the_truth_is_a_control():
    traces, _ = played(GOOD, 9, write_score(1.0), write_score(1.0), truth=0.5)
    assert sorted(t.rewards[0].value for t in traces["judge"]) == [0.5, 0.5, 1.0, 1.0]  # 9 answers the old one
    traces, _ = played(GOOD, 9, write_score(0.0), write_score(0.0), oracle=True)
    assert earned(traces, "solver") == [1.0] * 2 and earned(traces, "proposer") == [1.0]  # valid, and nobody solves it


def test_an_empty_pool_gives_the_solvers_nothing_to_do():
    traces, _ = played(GOOD, 16, write_score(1.0), write_score(1.0), pool=TaskPool())
    assert "solver" not in traces and "trial" in traces


def test_controls_and_refusals():
    assert [phase.name for phase in mae(judge="frozen", **SMALL).schedule.phases] == ["play"]
    made = mae(judge="frozen", **SMALL)
    assert not made.policies["judge"].is_trained
    assert made.roles["judge"].policy == made.roles["rater"].policy == "judge" and "judge" not in made.objectives
    assert mae(judge="oracle", **SMALL).schedule.phases[0].options["oracle"] is True
    assert [o.policy for o in mae(**SMALL).objectives.values()] == ["generator"] * 3
    with refuses("E_NO_GATE"):
        mae(tasks=Talks(), judge="oracle")
    with refuses("E_MODEL_NOT_TAUGHT_FORMAT", names=("mae", "'shipped'", "'shipped-proposer'")):
        mae(model="shipped")
    with refuses("E_SETTING_RANGE", names=("quality", "1.5")):
        mae(quality=1.5)


def test_the_longest_score_fits_into_what_an_embedded_judge_may_say():
    _, tokenizer = load_model("shipped-proposer")
    longest = max(len(tokenizer.encode(write_score(s / 9), add_special_tokens=False)) for s in range(10))
    for role in ("judge", "rater"):
        assert mae().roles[role].sampling.max_tokens > longest
