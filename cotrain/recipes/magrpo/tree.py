"""The tree of rollouts of MAGRPO (arXiv 2508.04652): several agents answer at once, turn by turn, for one reward.

::

    first node      each of N agents answers ``samples`` = K times
    joint actions   one answer of each agent: the k-th of all (aligned), or every combination (crossed)
    reward          one for each joint action, at every turn
    child nodes     one for each joint action: each agent answers K times again, knowing what was said in it

Returns go up the tree (``recipes/magrpo/joint.py``). The signal ``joint`` of an answer is its return, and the answers
of one agent at one node are one group. A branch ends after the last turn. It ends earlier below a node whose mean
reward is above ``threshold``, and below a joint action whose reward is unknown; the answers in this one fail.

A ``Team`` says what the agents are asked and how they are rewarded: with a function of the user's in
``recipes/magrpo/rewarded.py``, with halves of numbers in ``recipes/magrpo/teams.py``. At turn t an agent gives K^t
answers if joint actions are aligned, and K^(N (t − 1) + 1) if they are crossed.
"""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from cotrain.core.signals import Signal
from cotrain.recipes.magrpo.joint import Pairing, answer_returns, backed_up_return, joint_actions
from cotrain.rollout.event_loop import gather
from cotrain.rollout.role import Turn

JOINT = Signal("joint", meaning="return of the joint actions that an answer took part in")
JointActions = Sequence[tuple[int, ...]]  # [J][N] the index of every agent's answer in each joint action
Path = tuple[tuple[Turn, ...], ...]  # [turns so far][N] the joint actions that lead to a node, which it identifies


class Team(Protocol):
    """The agents at one problem: what they are asked, and what they are rewarded for."""

    def ask_agent(self, agent: int, history: Path, node: str | None) -> Coroutine[Any, Any, list[Turn]]:
        """[K] answers of an agent at a node, after the joint actions ``history``. ``node``: the name of the node, for
        the group of the answers; None at the first node."""
        ...

    async def reward_actions(self, answers: list[list[Turn]], joint: JointActions, turn: int) -> list[float | None]:
        """[J] rewards of the joint actions of ``answers`` [N][K] at a turn, counted from 0. None where a reward is
        unknown; then the answers in that action fail."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A node of the tree, with its answers and their rewards."""

    path: Path
    answers: list[list[Turn]]  # [N][K]
    rewards: list[float | None]  # [J]
    child_paths: list[Path | None]  # [J] the node below each joint action, None where its reward is unknown


async def play_tree(
    team: Team,
    *,
    agents: int,
    turns: int,
    samples: int,
    pairing: Pairing = "aligned",
    gamma: float = 1.0,
    threshold: float | None = None,
) -> list[tuple[Turn, float]]:
    """Sample the tree; returns every answer with its return. An answer whose return is unknown fails instead.

    All answers of a turn are asked for before any of the next, so that addresses do not depend on who is faster.
    """
    joint = joint_actions(pairing, agents, samples)

    # Down the tree, one level for each turn.
    nodes: list[Node] = []
    paths: list[Path] = [()]
    for turn in range(turns):
        answers_by_node = await gather([_ask_team(team, path, agents) for path in paths])
        rewards_by_node = await gather([team.reward_actions(answers, joint, turn) for answers in answers_by_node])
        next_paths: list[Path] = []
        for path, answers, rewards in zip(paths, answers_by_node, rewards_by_node, strict=True):
            node = _make_node(path, answers, rewards, joint)
            nodes.append(node)
            if _goes_on(node, threshold):
                next_paths += [child_path for child_path in node.child_paths if child_path is not None]
        paths = next_paths
        if not paths:
            break

    # Up again: the returns of a node need those of its child nodes.
    returns_by_path: dict[Path, list[float | None]] = {}  # [J] of each node
    paid_answers: list[tuple[Turn, float]] = []
    for node in reversed(nodes):
        returns = []
        for reward, child_path in zip(node.rewards, node.child_paths, strict=True):
            child_returns: list[float | None] = []  # stays so where the game ends
            if child_path is not None:
                child_returns = returns_by_path.get(child_path, [])
            returns.append(_return_of_action(reward, child_returns, gamma))
        returns_by_path[node.path] = returns

        values_by_agent = answer_returns(joint, returns, agents, samples)
        for answers_of_agent, values in zip(node.answers, values_by_agent, strict=True):
            for answer, value in zip(answers_of_agent, values, strict=True):
                if value is None:
                    answer.fail("joint reward: unknown")
                else:
                    paid_answers.append((answer, value))
    return paid_answers


def _ask_team(team: Team, path: Path, agents: int) -> Coroutine[Any, Any, list[list[Turn]]]:
    """[N][K] answers of all agents at one node, asked at once."""
    node = None
    if path:
        node = "+".join(turn.id for turn in path[-1])  # named after the joint action above it
    return gather([team.ask_agent(agent, path, node) for agent in range(agents)])


def _make_node(path: Path, answers: list[list[Turn]], rewards: list[float | None], joint: JointActions) -> Node:
    child_paths: list[Path | None] = []
    for indices, reward in zip(joint, rewards, strict=True):
        if reward is None:
            child_paths.append(None)
            continue
        action = tuple(answers_of_agent[k] for answers_of_agent, k in zip(answers, indices, strict=True))
        child_paths.append((*path, action))
    return Node(path=path, answers=answers, rewards=rewards, child_paths=child_paths)


def _goes_on(node: Node, threshold: float | None) -> bool:
    """Whether the game goes on below a node: not where its mean reward is above the threshold, or unknown."""
    if threshold is None:
        return True
    known_rewards = [reward for reward in node.rewards if reward is not None]
    if not known_rewards:
        return False
    mean_reward = sum(known_rewards) / len(known_rewards)
    return mean_reward <= threshold


def _return_of_action(reward: float | None, child_returns: Sequence[float | None], gamma: float) -> float | None:
    """The return of a joint action. ``child_returns``: those of the joint actions at its child node; [] where the game
    ends."""
    if reward is None:
        return None
    known_returns = [value for value in child_returns if value is not None]
    if child_returns and not known_returns:
        return None
    return backed_up_return(reward, known_returns, gamma)
