"""Recorded episodes played again without a model."""

from __future__ import annotations

from dataclasses import replace

from cotrain.core.signals import Signal, gives
from cotrain.core.types import Sampling
from cotrain.inference.reference import ReferenceEngine
from cotrain.inference.replay import ReplayEngine
from cotrain.rollout.role import Role
from cotrain.rollout.runner import Roles, RolloutRunner
from tests.helpers import CharRenderer, answers, letter_tasks, request, tiny_model
from tests.sentences import refuses

LENGTH = Signal("length")


@gives(LENGTH)
async def ask_twice(task, roles: Roles):
    first = await roles.solver(problem=task.prompt)
    second = await roles.solver(problem=first.text + "?")
    second.reward(LENGTH, len(second.text))


ROLES = {"solver": Role(policy="a", prompt="{problem}:", sampling=Sampling(max_tokens=6))}


def play(engine, roles=ROLES, tasks=3):
    executor = RolloutRunner(engine, {"a": CharRenderer()}, roles, seed=1)
    return executor.collect(ask_twice, letter_tasks(tasks), step=4, group_size=2)


def recorded():
    engine = ReferenceEngine({"a": tiny_model()})
    engine.publish("a", 7)
    return play(engine)


def test_a_replay_is_the_recorded_play():
    episodes = recorded()
    engine = ReplayEngine(trace for episode in episodes for trace in episode.traces)
    assert play(engine) == episodes
    assert episodes[0].traces[0].version == 7
    sampled = sum(len(trace.token_ids) for episode in episodes for trace in episode.traces)
    assert engine.counts() == {"a/sampled_tokens": sampled}
    assert engine.advance() is False


def test_another_prompt_is_refused():
    engine = ReplayEngine(trace for episode in recorded() for trace in episode.traces)
    changed = {"solver": replace(ROLES["solver"], prompt="{problem}!")}
    with refuses("E_REPLAY_PROMPT", names=("4:0:0:solver:0", "token 1", "2 tokens", "recorded 2")):
        play(engine, changed)


def test_what_was_not_recorded_is_refused():
    traces = [trace for episode in recorded() for trace in episode.traces]
    with refuses("E_REPLAY_MISSING", names="4:3:0:solver:0"):
        play(ReplayEngine(traces), tasks=4)
    with refuses("E_UNKNOWN_RECORDED_POLICY", names="'b'"):
        answers(ReplayEngine(traces), [request(policy="b")])
    with refuses("E_REPLAY_TWICE"):
        ReplayEngine([*traces, traces[0]])
    other = replace(traces[0], policy="b", address=replace(traces[0].address, step=9))
    with refuses("E_REPLAY_POLICY", names=("'b'", "9:0:0:solver:0", "'a'")):
        answers(ReplayEngine([*traces, other]), [replace(request(), address=other.address)])
