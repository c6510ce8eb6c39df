"""Playing: the same episodes at any speed, in any order of arrival, and clean ends of every kind."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import signal
import threading
import time
from dataclasses import dataclass, replace
from functools import partial

import pytest

from cotrain.core.notes import CORRECT, GOLD
from cotrain.core.signals import AGREEMENT, OUTCOME, gives
from cotrain.core.types import Grade, Sampling
from cotrain.inference.local import LocalEngine
from cotrain.inference.reference import ReferenceEngine
from cotrain.rollout.event_loop import engine_paused, gather
from cotrain.rollout.role import Role
from cotrain.rollout.runner import RolloutRunner
from tests.helpers import CharRenderer, RandomLatency, letter_tasks, tiny_model
from tests.sentences import refuses

RENDERERS = {"a": CharRenderer(), "b": CharRenderer()}


@dataclass(frozen=True)
class Read:
    text: str
    problem: str
    ok: bool = True


ROLES = {
    "solver": Role(
        policy="a",
        prompt="{problem}=",
        sampling=Sampling(max_tokens=20),
        parse=lambda text, fields: Read(text=text, problem=fields["problem"]),
    ),
    "counter": Role(
        policy="a",
        prompt="{problem}#",
        sampling=Sampling(max_tokens=3),
        parse=lambda text, fields: Read(text=text, problem="", ok=fields["count"] == 7),
    ),
    "verifier": Role(policy="b", prompt="{problem}|{solution}", sampling=Sampling(max_tokens=12), system="check "),
}


@gives(OUTCOME.to("solver"), AGREEMENT.to("verifier"))
async def solve_and_review(task, roles, *, reviews=2):
    solution = await roles.solver(problem=task.prompt)
    grade = await roles.grade(task, solution.text)
    solution.reward(OUTCOME, grade.value)
    asked = {"problem": task.prompt, "solution": solution.text}
    turns = await roles.verifier.many(reviews, group=solution.id, parent=solution, **asked)
    for review in turns:
        review.reward(AGREEMENT, len(review.text))
    again = await roles.solver(problem=turns[0].text)
    again.add_metadata(GOLD, solution.text)


@pytest.fixture(scope="module")
def models():
    return {"a": tiny_model(), "b": tiny_model("qwen3", seed=1)}


@pytest.fixture(autouse=True)
def silent_asyncio(caplog):
    """No pending task, no exception that nobody looked at."""
    with caplog.at_level(logging.WARNING, logger="asyncio"):
        yield
    assert [r.getMessage() for r in caplog.records if r.name == "asyncio"] == []


def executor(models, **changes):
    return RolloutRunner(LocalEngine(models, max_rows=16), RENDERERS, ROLES, seed=3, **changes)


@pytest.mark.whole
def test_what_an_episode_holds(models):
    episodes = executor(models).collect(partial(solve_and_review, reviews=3), letter_tasks(3), step=5, group_size=2)
    assert [(e.task, e.member, e.task_id) for e in episodes] == [
        (t, m, f"letters/train/{t}") for t in range(3) for m in range(2)
    ]
    for episode in episodes:
        assert episode.failure is None and episode.step == 5
        one, two, *reviews = episode.traces
        place = f"5:{episode.task}:{episode.member}"
        names = ["solver:0", "solver:1", "verifier:0", "verifier:1", "verifier:2"]
        assert [str(t.address) for t in episode.traces] == [f"{place}:{name}" for name in names]
        assert {t.group for t in reviews} == {f"{place}:solver:0"} == {t.parent for t in reviews}
        assert {one.group, two.group} == {f"{episode.task}:solver"} and one.parent is None
        assert len({t.token_ids for t in reviews}) == 3  # one prompt, three draws
        prompt = "check " + letter_tasks(3)[episode.task].prompt + "|" + one.text
        assert {t.prompt_ids for t in reviews} == {tuple(ord(c) - 31 for c in prompt)}
        assert two.metadata == {"gold": one.text} and [s.name for s in one.rewards] == ["outcome"]
        assert (one.policy, reviews[0].policy) == ("a", "b")


def test_a_field_may_be_for_the_parser_alone(models):
    async def counts(task, roles):
        turn = await roles.counter(problem="x", count=7)
        turn.add_metadata(CORRECT, turn.parsed.ok)

    [episode] = executor(models).collect(counts, letter_tasks(1), step=0, group_size=1)
    assert episode.failure is None and episode.traces[0].metadata == {"correct": True}
    assert CharRenderer().decode(episode.traces[0].prompt_ids) == "x#"


@pytest.mark.whole
def test_members_differ_and_seeds_depend_on_every_coordinate(models):
    def texts(step=0, split="train", seed=3):
        played = RolloutRunner(LocalEngine(models), RENDERERS, ROLES, seed)
        episodes = played.collect(solve_and_review, letter_tasks(1), step=step, group_size=4, split=split)
        return tuple(e.traces[0].token_ids for e in episodes)

    once = texts()
    assert len(set(once)) == 4
    assert len({once, texts(step=1), texts(split="test"), texts(seed=4)}) == 4
    assert texts() == once


@pytest.mark.whole
def test_random_latency_changes_nothing(models):
    def play(latency):
        engine = LocalEngine(models, max_rows=6)
        speaking = engine if latency is None else RandomLatency(engine, latency)
        episodes = RolloutRunner(speaking, RENDERERS, ROLES, seed=3).collect(
            solve_and_review, letter_tasks(4), step=0, group_size=3
        )
        return episodes, {k: v for k, v in engine.counts().items() if not k.endswith("seconds")}

    quick, work = play(None)
    for latency in (1, 2):
        slow, same_work = play(latency)
        assert slow == quick  # every token and every log-probability, bit for bit
        assert same_work == work


@pytest.mark.whole
class Failing:
    """Its grades fail, at once."""

    def grade(self, task, text):
        return Grade(value=None, reason="slow")

    def grade_steps(self, task, steps):
        return None


class FailingOutside(Failing):
    """They fail after a while, in which the engine is paused."""

    async def agrade(self, task, text):
        await asyncio.sleep(0.002 * len(text) % 0.005)
        return self.grade(task, text)


def test_a_grader_outside_is_waited_for(models):
    async def protocol(task, roles):
        solution = await roles.solver(problem=task.prompt)
        grade = await roles.grade(task, solution.text)
        solution.fail(grade.reason)
        async with roles.busy():
            await asyncio.to_thread(time.sleep, 0.001)
        await roles.verifier(problem="", solution=solution.text)

    def play(grader):
        tasks = [replace(task, grader=grader) for task in letter_tasks(4)]
        return executor(models).collect(protocol, tasks, step=0, group_size=1)

    episodes = play(FailingOutside())
    assert [e.traces[0].failure for e in episodes] == ["slow"] * 4
    assert play(Failing()) == episodes


@pytest.mark.whole
def test_a_review_starts_as_soon_as_its_solution_is_finished(models):
    """The reference engine answers one request at a time, the least address first: each member's chain before the
    next member's first turn, which would not be so if reviews waited for all solutions."""
    answered = []

    class Listening(ReferenceEngine):
        async def sample(self, request):
            completion = await super().sample(request)
            answered.append(request.address)
            return completion

    RolloutRunner(Listening(models), RENDERERS, ROLES, seed=3).collect(
        solve_and_review, letter_tasks(2), step=0, group_size=2
    )
    assert len(answered) == 16
    assert [(a.task, a.member) for a in answered] == sorted((a.task, a.member) for a in answered)
    assert [(a.role, a.call) for a in answered[:4]] == [("solver", 0), ("verifier", 0), ("verifier", 1), ("solver", 1)]


@pytest.mark.whole
def test_the_embedded_engine_runs_both_policies_at_once(models):
    together_steps = executor(models)
    together_steps.collect(solve_and_review, letter_tasks(6), step=0, group_size=2)
    counts = together_steps.engine.counts()
    assert counts["a/requests"] == counts["b/requests"] == 24
    assert counts["a/decode_rows"] / counts["a/decode_steps"] > 4


@pytest.mark.whole
def test_greedy_is_the_same_at_temperature_zero(models):
    cold = executor(models).greedy_copy()
    assert {role.sampling.temperature for role in cold.roles.values()} == {0.0}
    episodes = cold.collect(solve_and_review, letter_tasks(1), step=-1, group_size=2)
    assert episodes[0].traces[0].token_ids == episodes[1].traces[0].token_ids


def test_a_protocol_that_raises_breaks_off_its_own_episode(models):
    async def shaky(task, roles):
        await roles.solver(problem=task.prompt)
        if task.id.endswith("/1"):
            raise KeyError("no such step")
        await roles.solver(problem="x")

    good, bad, last = executor(models).collect(shaky, letter_tasks(3), step=0, group_size=1)
    assert re.fullmatch(r"test_executor.py, line \d+: KeyError: 'no such step'", bad.failure)
    assert good.failure is None is last.failure
    assert [t.failure for t in bad.traces] == ["protocol failed"]
    assert [len(e.traces) for e in (good, bad, last)] == [2, 1, 2]
    assert [t.failure for t in good.traces] == [None, None]


def test_a_parser_that_raises_leaves_its_trace(models):
    roles = {"solver": replace(ROLES["solver"], parse=lambda text, fields: fields["count"])}
    played = RolloutRunner(LocalEngine(models), RENDERERS, roles, seed=0)
    [episode] = played.collect(solve_and_review, letter_tasks(1), step=0, group_size=1)
    assert episode.failure.endswith(": KeyError: 'count'")
    assert [t.failure for t in episode.traces] == ["protocol failed"]


def test_one_failing_call_of_many_ends_the_others(models):
    def parse(text, fields):
        if fields["n"] == 1:
            raise ZeroDivisionError("one")
        return Read(text=text, problem="")

    async def fan_out(task, roles):
        await gather([roles.solver(n=n) for n in range(4)])

    roles = {"solver": Role(policy="a", prompt="{n}", parse=parse, sampling=Sampling(max_tokens=9))}
    played = RolloutRunner(LocalEngine(models), RENDERERS, roles, seed=0)
    [episode] = played.collect(fan_out, letter_tasks(1), step=0, group_size=1)
    assert re.fullmatch(r"test_executor.py, line \d+: ZeroDivisionError: one", episode.failure)
    assert all(t.failure == "protocol failed" for t in episode.traces)


@pytest.mark.parametrize(
    ("call", "code"),
    [
        (lambda roles: roles.judge(problem="x"), "E_UNKNOWN_ROLE: 'judge'"),
        (lambda roles: roles.solver(question="x"), "E_ROLE_FIELDS_MISSING: 'solver' | problem | question"),
    ],
)
def test_errors_of_the_recipe_end_the_play(models, call, code):
    async def protocol(task, roles):
        await roles.solver(problem="y")
        await call(roles)

    with refuses(code):
        executor(models).collect(protocol, letter_tasks(3), step=0, group_size=2)


def test_names_are_checked_before_playing(models):
    engine = LocalEngine(models)
    with refuses("E_UNKNOWN_POLICY", names="'solver'"):
        RolloutRunner(engine, {"b": CharRenderer()}, ROLES, seed=0)
    for name in ("grade", "_x", "a:b"):
        with refuses("E_ROLE_NAME"):
            RolloutRunner(engine, RENDERERS, {name: ROLES["solver"]}, seed=0)


def test_an_engine_that_raises_ends_the_play(models):
    class Broken(ReferenceEngine):
        async def sample(self, request):
            raise OSError("gone")

    with refuses("E_ENGINE_FAILED", names=("Broken", "0:0:0:solver:0", "gone")):
        RolloutRunner(Broken(models), RENDERERS, ROLES, seed=0).collect(
            solve_and_review, letter_tasks(2), step=0, group_size=1
        )

    class Failing(ReferenceEngine):
        def advance(self):
            raise MemoryError("in the forward pass")

    with pytest.raises(MemoryError, match="forward"):
        RolloutRunner(Failing(models), RENDERERS, ROLES, seed=0).collect(
            solve_and_review, letter_tasks(2), step=0, group_size=1
        )


def test_waiting_for_nothing_is_a_deadlock(models):
    async def waits(task, roles):
        await roles.solver(problem=task.prompt)
        await asyncio.get_running_loop().create_future()

    with refuses("E_DEADLOCK", names=("3 coroutines", "task 0", "member 0")):
        executor(models).collect(waits, letter_tasks(2), step=0, group_size=1)


def test_a_timer_without_busy_is_no_deadlock(models):
    async def sleeps(task, roles):
        await asyncio.sleep(0.002)
        await roles.solver(problem=task.prompt)

    assert executor(models).collect(sleeps, letter_tasks(1), step=0, group_size=1)[0].failure is None


def test_nothing_outlives_a_play(models):
    ended = []

    kept = []

    async def leaves_background(task, roles):
        async def background():
            try:
                await asyncio.Event().wait()
            finally:
                ended.append(task.id)

        kept.append(asyncio.ensure_future(background()))
        await roles.solver(problem=task.prompt)

    executor(models).collect(leaves_background, letter_tasks(2), step=0, group_size=1)
    assert sorted(ended) == ["letters/train/0", "letters/train/1"]


@pytest.mark.whole
def test_keyboard_interrupt_in_the_engine_passes_through(models):
    """As StoppableEngine and Ctrl-C do; afterwards the same engine plays on as if nothing had been."""
    engine = LocalEngine(models, max_rows=4)

    class Interrupting:
        sample, counts = engine.sample, engine.counts
        left = 5

        def advance(self):
            self.left -= 1
            if not self.left:
                raise KeyboardInterrupt
            return engine.advance()

    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            RolloutRunner(Interrupting(), RENDERERS, ROLES, seed=3).collect(
                solve_and_review, letter_tasks(3), step=0, group_size=2
            )
    engine.publish("a", 0)  # no row is left running
    resumed = RolloutRunner(engine, RENDERERS, ROLES, seed=3).collect(
        solve_and_review, letter_tasks(3), step=0, group_size=2
    )
    fresh = RolloutRunner(LocalEngine(models, max_rows=4), RENDERERS, ROLES, seed=3)
    assert resumed == fresh.collect(solve_and_review, letter_tasks(3), step=0, group_size=2)


def test_keyboard_interrupt_in_a_protocol_passes_through(models):
    async def interrupts(task, roles):
        await roles.solver(problem=task.prompt)
        if task.id.endswith("/1"):
            raise KeyboardInterrupt
        await roles.solver(problem="x")

    with pytest.raises(KeyboardInterrupt):
        executor(models).collect(interrupts, letter_tasks(3), step=0, group_size=2)


@pytest.mark.parametrize("where", ["decoding", "busy"])
def test_ctrl_c_gets_through_at_once(models, where):
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may start background jobs without it
    timer, started = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)), time.monotonic()

    async def forever(task, roles):
        if timer.ident is None:  # it plays
            timer.start()
        if where == "busy":
            async with engine_paused():
                await asyncio.sleep(60)
        while True:
            await roles.solver(problem=task.prompt)

    try:
        with pytest.raises(KeyboardInterrupt):
            executor(models).collect(forever, letter_tasks(2), step=0, group_size=2)
    finally:
        signal.signal(signal.SIGINT, before)
    timer.join()
    assert time.monotonic() - started < 30  # and not 60
