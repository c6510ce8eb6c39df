"""What a protocol gives without having declared it ends the play; it is no failure of one episode."""

import pytest

from cotrain.core.signals import AGREEMENT, OUTCOME, gives
from cotrain.core.types import Sampling
from cotrain.prompts.byte_tokenizer import ByteRenderer
from cotrain.rollout.role import Role
from cotrain.rollout.runner import RolloutRunner
from tests.helpers import letter_tasks, spoken
from tests.sentences import refuses


async def inner(task, roles):
    turn = await roles.solver(problem=task.prompt)
    turn.reward(OUTCOME, 1.0)


@gives(OUTCOME.to("verifier"), AGREEMENT)
async def to_another_role(task, roles):
    await inner(task, roles)


@gives(OUTCOME.to("solver"))
async def outer(task, roles):
    await inner(task, roles)


def play(protocol):
    roles = {"solver": Role(policy="echo", prompt="{problem}", sampling=Sampling(max_tokens=1))}
    programs = {"echo": lambda fields, rng: "said"}
    executor = RolloutRunner(spoken(programs), {"echo": ByteRenderer()}, roles, 0)
    return executor.collect(protocol, letter_tasks(2), step=0, group_size=1)


@pytest.mark.parametrize(("protocol", "declared"), [(inner, "nothing"), (to_another_role, "agreement")])
def test_a_reward_that_is_not_declared_ends_the_play(protocol, declared):
    names = (f"'{protocol.__name__}'", "'solver'", "'outcome'", f"declares {declared}")
    with refuses("E_SIGNAL_NOT_DECLARED", names=names):
        play(protocol)


def test_the_protocol_that_is_played_declares_what_those_give_that_it_awaits():
    assert [[s.name for s in trace.rewards] for e in play(outer) for trace in e.traces] == [["outcome"]] * 2
