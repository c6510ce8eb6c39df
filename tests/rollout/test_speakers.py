"""Who else may speak: programs; answers with a given beginning."""

from __future__ import annotations

import re

import pytest

from cotrain.core.signals import OUTCOME, gives
from cotrain.core.types import Sampling
from cotrain.inference.local import LocalEngine
from cotrain.prompts.byte_tokenizer import ByteRenderer
from cotrain.rollout.protocols import continue_from
from cotrain.rollout.role import Role
from cotrain.rollout.runner import RolloutRunner
from cotrain.storage.episode_json import trace_from_json, trace_to_json
from tests.helpers import CharRenderer, RandomLatency, letter_tasks, spoken, tiny_model

RENDERERS = {"a": CharRenderer(), "echo": ByteRenderer()}
ROLES = {
    "solver": Role(policy="a", prompt="{problem}=", sampling=Sampling(max_tokens=6)),
    "echo": Role(policy="echo", prompt="{problem}", sampling=Sampling(max_tokens=1)),
}


def shout(fields, rng):
    """Sees fields that the prompt does not show, and draws from its address."""
    return f"{fields['hidden']}é{rng.randrange(1000)}"


def executor(latency=None, programs=None):
    engine = spoken(programs or {"echo": shout}, LocalEngine({"a": tiny_model()}))
    engine = RandomLatency(engine, latency) if latency is not None else engine
    return RolloutRunner(engine, RENDERERS, ROLES, seed=1)


@gives(OUTCOME.to("solver"))
async def talk(task, roles):
    first, second = await roles.echo.many(2, problem=task.prompt, hidden="secret")
    solution = await continue_from(roles.solver.begin(problem=task.prompt), "ab")
    again = await roles.solver(problem=first.text[:3], parent=solution)
    again.reward(OUTCOME, 1.0)
    assert first.text != second.text
    assert roles.nonce(solution) != roles.nonce(again)


@pytest.mark.whole
def test_a_program_speaks_like_any_policy_and_costs_no_engine():
    tasks = letter_tasks(3)
    plain = executor().collect(talk, tasks, step=0, group_size=2)
    assert all(e.failure is None for e in plain)
    assert executor(latency=5).collect(talk, tasks, step=0, group_size=2) == plain
    said = plain[0].traces[0]
    assert (said.role, said.policy, said.version, said.finish) == ("echo", "echo", 0, "stop")
    assert said.text.startswith("secreté") and bytes(said.token_ids[:-1]).decode() == said.text
    other = executor().collect(talk, tasks, step=1, group_size=2)
    assert other[0].traces[0].text != said.text  # drawn at another address


def test_an_answer_begins_as_it_is_told_and_the_turn_holds_the_rest():
    (episode,) = executor().collect(talk, letter_tasks(1), step=0, group_size=1)
    solution, again = (t for t in episode.traces if t.role == "solver")
    renderer = CharRenderer()
    assert solution.prompt_ids[-2:] == renderer.encode("ab")
    assert renderer.decode(solution.prompt_ids).endswith("=ab") and solution.text == renderer.decode(solution.token_ids)
    assert again.prompt_ids != solution.prompt_ids
    assert trace_from_json(trace_to_json(again)) == again


def test_a_ledger_from_before_is_still_read():
    (episode,) = executor().collect(talk, letter_tasks(1), step=0, group_size=1)
    old = trace_to_json(episode.traces[0])
    del old["score"], old["turns"]
    old["learn_ids"] = [1, 2]
    assert trace_from_json(old) == episode.traces[0]


def test_a_program_that_fails_breaks_off_its_episode_alone():
    def fail(fields, rng):
        raise ValueError("no words")

    episodes = executor(programs={"echo": fail}).collect(talk, letter_tasks(2), step=0, group_size=1)
    assert all(re.fullmatch(r"test_speakers.py, line \d+: ValueError: no words", e.failure) for e in episodes)


def test_a_turn_of_a_speaker_has_no_score():
    async def ask(task, roles):
        with pytest.raises(ValueError, match="speaks"):
            (await roles.solver(problem=task.prompt)).score  # noqa: B018

    (episode,) = executor().collect(ask, letter_tasks(1), step=0, group_size=1)
    assert episode.failure is None
