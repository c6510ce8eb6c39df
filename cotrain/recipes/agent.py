"""An agent of your own is the rollout: any program that speaks OpenAI's protocol. It is given a problem, a base URL and
a key, asks the roles as often as it likes, and ends with an answer. The reward of the answer is the reward of every
turn that was sampled on the way to it.

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
    Recipe,
    Roles,
    RunConfig,
    Signal,
    Task,
    Turn,
    constant_schedule,
    gives,
    recipe,
)
from cotrain.config.team import cast_roles, team_objectives, team_roles
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
from cotrain.rollout.conversation import Conversation
from cotrain.rollout.role import LARGEST, as_reward

RewardFunction = Callable[[Task, Any], Any]  # (task, answer) → a number, or a number for each role
RESERVED = frozenset(("reference", "others"))  # names of policies that the recipe adds to those of the roles

ROLLOUT_REWARD = Signal("rollout_reward", meaning="what a role earned for the rollout of an agent")
ROLLOUT_VALUE = Metadata[float]("rollout_reward", float, "what the role earned for the rollout; 0 where that failed")
SEQUENCES = Metadata[int](
    "sequences", int, "training sequences of the role in the rollout: 1 where each prompt extends the one before"
)
NO_REWARD = "reward: no number for this role"


def make_agent_protocol(
    program: Agent | Sequence[str],
    reward: RewardFunction | None,
    models: tuple[str, ...],
    *,
    requests: int,
    seconds: float,
    max_tokens: int,
    at_once: int,
    learners: Collection[str] | None = None,
) -> RolloutFn:
    """The protocol that runs the agent, in training and in evaluation.

    Args:
        program: the function, or the words of the command.
        reward: pays the roles; None: the grader of the task does.
        models: names of the roles.
        requests: most requests of a rollout.
        seconds: most seconds of a rollout, those in which models answer not counted.
        max_tokens: most tokens of an answer.
        at_once: most programs that run at a time.
        learners: roles that need a reward. A turn of such a role fails where ``reward`` names none for it. By default
            all roles.
    """
    roles_to_reward = set(models)
    if learners is not None:
        roles_to_reward = set(learners)
    folder = os.getcwd()  # relative names in a command mean what they mean now

    # Training and evaluation may run in different event loops, and a semaphore belongs to one loop.
    program_slots: dict[asyncio.AbstractEventLoop, asyncio.Semaphore] = {}

    def program_slot() -> asyncio.Semaphore:
        loop = asyncio.get_running_loop()
        if loop not in program_slots:
            program_slots[loop] = asyncio.Semaphore(at_once)
        return program_slots[loop]

    @gives(*(ROLLOUT_REWARD.to(name) for name in models))
    async def play_agent(task: Task, roles: Roles) -> None:
        if reward is None and not task.gradable:
            raise ConfigError(
                f"agent: nothing grades {task.id}; give --reward my_file.py:function", code="E_NOTHING_GRADES"
            )
        # Imported here, because it loads starlette, which no other recipe needs.
        from cotrain.envs.agent.server import agent_server

        rollout = Rollout(roles, models, requests, max_tokens)
        rewards: dict[str, float] = {}
        failure = None
        try:
            async with program_slot():
                answer = await rollout.run(agent_server(), program, task.prompt, seconds, folder)
            rewards = await compute_rewards(task, roles, answer, reward, models)
        except AgentFailed as error:
            failure = str(error)

        if not any(chat.turns for chats in rollout.chats.values() for chat in chats):
            raise AgentFailed(failure or "agent: no request")  # ends the episode: it has no turn that could fail

        for name, chats in rollout.chats.items():
            count_sequences(chats)
            if failure is not None:
                fail_role(chats, failure)
            elif name in rewards:
                reward_role(chats, rewards[name])
            elif name in roles_to_reward:
                fail_role(chats, NO_REWARD)

    return play_agent


def all_turns(chats: Sequence[Conversation]) -> list[Turn]:
    """All turns of a role's conversations."""
    return [turn for chat in chats for turn in chat.turns]


def count_sequences(chats: Sequence[Conversation]) -> None:
    """Note how many training sequences a role's conversations have become."""
    turns = all_turns(chats)
    n_sequences = sum(turn.first is turn for turn in turns)  # ``Turn.first``: the one that begins its sequence
    for turn in turns:
        turn.add_metadata(SEQUENCES, n_sequences)


def reward_role(chats: Sequence[Conversation], value: float) -> None:
    """Give every conversation of a role the reward of the rollout."""
    for chat in chats:
        for turn in chat.turns:
            turn.add_metadata(ROLLOUT_VALUE, value)
        if chat.turns:
            chat.reward(ROLLOUT_REWARD, value)


def fail_role(chats: Sequence[Conversation], reason: str) -> None:
    """Nothing is learned from these conversations, and the reason is counted."""
    for turn in all_turns(chats):
        turn.fail(reason)
        turn.add_metadata(ROLLOUT_VALUE, 0.0)


async def compute_rewards(
    task: Task, roles: Roles, answer: Any, reward: RewardFunction | None, models: tuple[str, ...]
) -> dict[str, float]:
    """Return the reward of each role: that of ``reward``, or else 1 for a right answer and 0 for a wrong one. Raises
    AgentFailed."""
    if reward is not None:
        return call_reward(reward, task, answer, models)

    text = text_of_answer(answer)
    if not text:
        raise AgentFailed("agent: no answer")
    if not task.whole:  # graders of short answers read a solution in tags; others read the whole text
        short_answer = final_answer(text) or text
        text = write_solution((short_answer,), short_answer)
    grade = await roles.grade(task, text)
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


def call_reward(reward: RewardFunction, task: Task, answer: Any, models: tuple[str, ...]) -> dict[str, float]:
    """Return the reward that the user's function gives each role. Raises AgentFailed."""
    try:
        result: Any = reward(task, answer)
        values: dict[str, Any] = dict(result) if isinstance(result, Mapping) else dict.fromkeys(models, result)
        are_roles = values.keys() <= set(models)
        are_numbers = all(hasattr(value, "__float__") for value in values.values())
    except INTERRUPTS:
        raise
    except BaseException as error:
        raise AgentFailed(failure_reason("reward", error)) from error
    if not (are_roles and are_numbers):
        raise AgentFailed("reward: expected a number, or a number for each role")

    rewards: dict[str, float] = {}
    for name, value in values.items():
        number = as_reward(value)
        if number is None:
            raise AgentFailed(f"reward: expected finite numbers within ±{LARGEST:g}")
        rewards[name] = number
    return rewards


@recipe(kl=0.0, tasks_per_step=8)
def agent(
    run: RunConfig,
    *,
    agent: str | Agent | None = None,  # the program: my_agent.py:function of problem, base_url, api_key
    command: str | None = None,  # command that reads the problem and prints the answer: "python my_agent.py"
    reward: str | RewardFunction | None = None,  # reward instead of the grader: my_file.py:function of task, answer
    models: str = "solver",  # names that the agent may ask for, with commas between, each a policy
    shared: bool = False,  # one policy for all of them that learn
    learns: str | None = None,  # names that learn, with commas between; by default all
    requests: Positive = 32,  # requests of a rollout, at most
    seconds: float = 300.0,  # seconds that a rollout may take besides the models' answers
    at_once: Positive = 64,  # agents that run at a time
    max_tokens: Positive = 512,  # tokens of an answer, at most
) -> Recipe:
    assert not isinstance(agent, str) and not isinstance(reward, str)  # ``@recipe`` has loaded FILE.py:FUNCTION
    if reward is not None:
        check_called_with("reward of agent", reward, "task", "answer")
    names = [name.strip() for name in models.split(",")]
    learners = [name.strip() for name in learns.split(",")] if learns else names
    check_role_names(models, names, learners)
    if seconds <= 0.0:
        raise ConfigError(f"agent: seconds is {seconds:g}; expected more than 0", code="E_SETTING_RANGE")

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
    roles = team_roles(policy_of_role, max_tokens=max_tokens)
    algorithm = GRPO(reward_weights={ROLLOUT_REWARD: 1.0}, kl=run.kl_penalty())
    objectives = team_objectives(learners, algorithm, shared=shared)

    # The range of a reward gives its interval in evaluations.
    low = -float("inf")
    high = float("inf")
    if reward is None:
        low = 0.0
        high = 1.0
    return run.recipe(
        "agent-shared" if shared else "agent",
        policies=policies,
        roles=roles,
        objectives=objectives,
        schedule=constant_schedule(protocol, *objectives, name="play"),
        evaluate=protocol,
        measures=tuple(measure_metadata(name, ROLLOUT_VALUE, low=low, high=high) for name in names),
    )


def check_role_names(models: str, names: Sequence[str], learners: Sequence[str]) -> None:
    """Raise UnknownName for a learner that is no role, ConfigError for names that policies cannot have."""
    for name in learners:
        if name not in names:
            raise UnknownName("model of agent", name, names)
    has_repeats = len(set(names)) < len(names)
    if has_repeats or not RESERVED.isdisjoint(names):
        raise ConfigError(
            f"agent: models is {models!r}; expected each name once, and neither reference nor others",
            code="E_AGENT_MODELS",
        )
