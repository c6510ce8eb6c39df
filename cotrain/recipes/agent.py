"""An agent of your own is the rollout: any program that speaks OpenAI's protocol is given a problem, a base URL and a
key, asks the roles as often as it likes, and ends with an answer. What it is worth is the reward of all that was
sampled for it.

The agent is a function, ``--agent my_agent.py:solve``, or a command, ``--command "python my_agent.py"``. The role is
the ``model`` of a request: ``--models planner,coder`` has two, each with a policy of its own. The policies learn by
GRPO from the tokens as they were sampled; nothing is tokenised again. Rewards are what the grader of the problem says
of the answer, or a function of yours, which may pay each role differently.

Control: ``learns`` names the roles that learn, and the others stay frozen. Left out: judge models, agents on other
machines.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from cotrain import (
    GRPO,
    ConfigError,
    Phase,
    Recipe,
    Role,
    Roles,
    RunConfig,
    Sampling,
    Signal,
    Task,
    Turn,
    alternate,
    gives,
    recipe,
)
from cotrain.config.team import cast_roles, team_objectives
from cotrain.core.arguments import Positive, check_called_with
from cotrain.core.errors import UnknownName
from cotrain.core.notes import Metadata
from cotrain.core.types import RolloutFn
from cotrain.core.user_code import INTERRUPTS, failure_reason
from cotrain.envs.agent.program import Agent, AgentFailed, find_program
from cotrain.envs.agent.rollout import Rollout
from cotrain.formats.answers import final_answer
from cotrain.formats.solutions import write_solution
from cotrain.metrics.heldout import measure_metadata
from cotrain.rollout.role import LARGEST, as_reward

Reward = Callable[[Task, Any], Any]  # (task, answer) → a number, or a number for each role
EARNED = Signal("rollout_reward", meaning="what a role earned for the rollout of an agent")
EARNINGS = Metadata[float]("rollout_reward", float, "what the role earned for the rollout; 0 where that failed")
UNPAID = "reward: no number for this role"
SEQUENCES = Metadata[int](
    "sequences", int, "training sequences of the role in the rollout: 1 where each prompt extends"
)


def make_agent_protocol(
    program: Agent | Sequence[str],
    reward: Reward | None,
    models: tuple[str, ...],
    *,
    requests: int,
    seconds: float,
    max_tokens: int,
    at_once: int,
    learners: Collection[str] | None = None,
) -> RolloutFn:
    """The protocol that runs the agent, to learn from and to measure. ``learners``: the roles that a reward has to
    pay, by default all."""
    to_be_paid = set(models if learners is None else learners)
    folder = os.getcwd()  # relative names in a command mean what they mean now
    slots: dict[asyncio.AbstractEventLoop, asyncio.Semaphore] = {}

    @gives(*(EARNED.to(name) for name in models))
    async def play_agent(task: Task, roles: Roles) -> None:
        if reward is None and not task.gradable:
            raise ConfigError(
                f"agent: nothing grades {task.id}; give --reward my_file.py:function", code="E_NOTHING_GRADES"
            )
        rollout = Rollout(roles, models, requests, max_tokens)
        earned = dict[str, float]()
        failure = None
        from cotrain.envs.agent.server import agent_server  # starlette is for those who serve

        try:
            async with slots.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(at_once)):
                answer = await rollout.run(agent_server(), program, task.prompt, seconds, folder)
            earned = await compute_rewards(task, roles, answer, reward, models)
        except AgentFailed as error:
            failure = str(error)

        turns_by_role: dict[str, list[Turn]] = {}
        for name, chats in rollout.chats.items():
            turns_by_role[name] = []
            for chat in chats:
                turns_by_role[name] += chat.turns
        if not any(turns_by_role.values()):
            raise AgentFailed(failure or "agent: no request")

        for name, chats in rollout.chats.items():
            turns = turns_by_role[name]
            is_unpaid = name in to_be_paid and name not in earned
            reason = failure or (UNPAID if is_unpaid else None)
            n_sequences = sum(turn.first is turn for turn in turns)
            for turn in turns:
                turn.add_metadata(SEQUENCES, n_sequences)
                if reason is not None:
                    turn.fail(reason)
                    turn.add_metadata(EARNINGS, 0.0)
                elif name in earned:
                    turn.add_metadata(EARNINGS, earned[name])
            if name in earned:
                for chat in chats:
                    if chat.turns:
                        chat.reward(EARNED, earned[name])

    return play_agent


async def compute_rewards(
    task: Task, roles: Roles, answer: Any, reward: Reward | None, models: tuple[str, ...]
) -> dict[str, float]:
    """Return the reward of each role: that of ``reward``, or else 1 for a right answer and 0 for a wrong one. Raises
    AgentFailed."""
    if reward is not None:
        return ask_reward(reward, task, answer, models)
    text = text_of_answer(answer)
    if not text:
        raise AgentFailed("agent: no answer")
    said = final_answer(text) or text
    grade = await roles.grade(task, text if task.whole else write_solution((said,), said))
    if grade.value is None:
        raise AgentFailed(grade.reason or "ungraded")
    return dict.fromkeys(models, float(grade.value))


def text_of_answer(answer: Any) -> str:
    """Return an agent's answer as a text; "" for None. Raises AgentFailed for an object that has no text."""
    try:
        return "" if answer is None else str(answer).strip()
    except INTERRUPTS:
        raise
    except BaseException as error:
        raise AgentFailed(failure_reason("agent", error)) from error


def ask_reward(reward: Reward, task: Task, answer: Any, models: tuple[str, ...]) -> dict[str, float]:
    """Return the reward that the user's function gives each role. Raises AgentFailed."""
    try:
        value: Any = reward(task, answer)
        values: dict[str, Any] = dict(value) if isinstance(value, Mapping) else dict.fromkeys(models, value)
        are_numbers = values.keys() <= set(models) and all(hasattr(one, "__float__") for one in values.values())
    except INTERRUPTS:
        raise
    except BaseException as error:
        raise AgentFailed(failure_reason("reward", error)) from error
    if not are_numbers:
        raise AgentFailed("reward: expected a number, or a number for each role")
    earned = {name: as_reward(one) for name, one in values.items()}
    if None in earned.values():
        raise AgentFailed(f"reward: expected finite numbers within ±{LARGEST:g}")
    return {name: number for name, number in earned.items() if number is not None}


@recipe(kl=0.0, tasks_per_step=8)
def agent(
    run: RunConfig,
    *,
    agent: str | Agent | None = None,  # the program: my_agent.py:function of problem, base_url, api_key
    command: str | None = None,  # command that reads the problem and prints the answer: "python my_agent.py"
    reward: str | Reward | None = None,  # reward instead of the grader: my_file.py:function of task, answer
    models: str = "solver",  # names that the agent may ask for, with commas between, each a policy
    shared: bool = False,  # one policy for all of them that learn
    learns: str | None = None,  # names that learn, with commas between; by default all
    requests: Positive = 32,  # requests of a rollout, at most
    seconds: float = 300.0,  # seconds that a rollout may take besides the models' answers
    at_once: Positive = 64,  # agents that run at a time
    max_tokens: Positive = 512,  # tokens of an answer, at most
) -> Recipe:
    assert not isinstance(agent, str) and not isinstance(reward, str)  # the recipe has loaded them
    if reward is not None:
        check_called_with("reward of agent", reward, "task", "answer")
    names = [name.strip() for name in models.split(",")]
    learners = [name.strip() for name in learns.split(",")] if learns else names
    for name in learners:
        if name not in names:
            raise UnknownName("model of agent", name, names)
    if seconds <= 0.0:
        raise ConfigError(f"agent: seconds is {seconds:g}; expected more than 0", code="E_SETTING_RANGE")
    if len(set(names) - {"reference", "others"}) < len(names):  # these are policies of the recipe
        raise ConfigError(
            f"agent: models is {models!r}; expected each name once, and neither reference nor others",
            code="E_AGENT_MODELS",
        )
    protocol = make_agent_protocol(
        find_program(agent, command),
        reward,
        tuple(names),
        requests=requests,
        seconds=seconds,
        max_tokens=max_tokens,
        at_once=at_once,
        learners=learners,
    )

    policies, policy_of_role = cast_roles(run, names, learners, shared=shared)
    algorithm = GRPO(reward_weights={EARNED: 1.0}, kl=run.kl_penalty())
    objectives = team_objectives(learners, algorithm, shared=shared)
    low, high = (0.0, 1.0) if reward is None else (-float("inf"), float("inf"))
    return run.recipe(
        "agent-shared" if shared else "agent",
        policies=policies,
        roles={
            name: Role(policy=policy, prompt="{problem}", sampling=Sampling(max_tokens=max_tokens))
            for name, policy in policy_of_role.items()
        },
        objectives=objectives,
        schedule=alternate(Phase(name="play", protocol=protocol, objectives=tuple(objectives)), ratio=(1,)),
        evaluate=protocol,
        measures=tuple(measure_metadata(name, EARNINGS, low=low, high=high) for name in names),
    )
