"""A game of several agents who act at once, turn by turn, and are rewarded together: the tree of MAGRPO (arXiv
2508.04652).

::

    node 0     every agent answers ``samples`` times
    joint      one answer of each agent: the k-th of all (aligned), or every combination (crossed)
    node j     of each joint action: every agent answers ``samples`` times, knowing what was said in it, and so on
    reward     of a joint action, at every turn

Returns go up the tree (``recipes/magrpo/joint.py``); the signal ``joint`` of an answer is its return, and answers of
one agent at one node are one group. A branch ends after the last turn, where the mean reward of its node is above
``threshold``, and where a joint action has no reward: then its answers fail.

What is said and rewarded is a ``Team``: with a function of the user's own in ``recipes/magrpo/rewarded.py``, with
halves of numbers in ``recipes/magrpo/teams.py``. With N agents and K samples, turn t has K^t answers of each agent
where joint actions are aligned, and K^(N (t − 1) + 1) where they are crossed.
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
Path = tuple[tuple[Turn, ...], ...]  # [turns so far][N] what was said: the name of a node


class Team(Protocol):
    """Who plays at one problem."""

    def ask_agent(self, agent: int, said: Path, node: str | None) -> Coroutine[Any, Any, list[Turn]]:
        """[K] answers at a node, which names their group; None: at the first one."""
        ...

    async def reward_actions(self, answers: list[list[Turn]], joint: JointActions, turn: int) -> list[float | None]:
        """[J] of the answers [N][K] at a turn, from 0; None, and the answers in it fail, where there is no reward."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A place in the tree, and what was said there."""

    path: Path
    answers: list[list[Turn]]  # [N][K]
    rewards: list[float | None]  # [J]
    after: list[Path | None]  # [J] the node after a joint action, None where its reward is unknown


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
    """Every answer with its return; one whose return is unknown fails instead. All answers of a turn are asked for
    before any of the next, so that addresses do not depend on who is faster."""
    joint = joint_actions(pairing, agents, samples)

    # Down the tree, a level a turn.
    nodes: list[Node] = []
    paths: list[Path] = [()]
    for turn in range(turns):
        answers_by_node = await gather([_ask_team(team, path, agents) for path in paths])
        rewards_by_node = await gather([team.reward_actions(answers, joint, turn) for answers in answers_by_node])
        next_paths: list[Path] = []
        for path, answers, rewards in zip(paths, answers_by_node, rewards_by_node, strict=True):
            node = _node_of(path, answers, rewards, joint)
            nodes.append(node)
            if _goes_on(node, threshold):
                next_paths += [path_after for path_after in node.after if path_after]
        paths = next_paths
        if not paths:
            break

    # Up again: a node's returns need those of the nodes below it.
    returns_by_path: dict[Path | None, list[float | None]] = {}  # [J] of each node
    paid_answers: list[tuple[Turn, float]] = []
    for node in reversed(nodes):
        returns = []
        for reward, path_after in zip(node.rewards, node.after, strict=True):
            returns.append(_return_of(reward, returns_by_path.get(path_after, []), gamma))
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
    """All agents' answers at one node, asked at once; the node has the name of what was said last."""
    node = "+".join(turn.id for turn in path[-1]) if path else None
    return gather([team.ask_agent(agent, path, node) for agent in range(agents)])


def _node_of(path: Path, answers: list[list[Turn]], rewards: list[float | None], joint: JointActions) -> Node:
    after: list[Path | None] = []
    for places, reward in zip(joint, rewards, strict=True):
        if reward is None:
            after.append(None)
            continue
        action = tuple(answers_of_agent[k] for answers_of_agent, k in zip(answers, places, strict=True))
        after.append((*path, action))
    return Node(path=path, answers=answers, rewards=rewards, after=after)


def _goes_on(node: Node, threshold: float | None) -> bool:
    """Whether the game goes on after a node: not where its mean reward is above the threshold, or unknown."""
    if threshold is None:
        return True
    known_rewards = [reward for reward in node.rewards if reward is not None]
    if not known_rewards:
        return False
    return not sum(known_rewards) / len(known_rewards) > threshold


def _return_of(reward: float | None, child_returns: Sequence[float | None], gamma: float) -> float | None:
    """The return of a joint action. ``child_returns``: what the joint actions after it return; () where it is the
    end."""
    if reward is None:
        return None
    known_returns = [value for value in child_returns if value is not None]
    if child_returns and not known_returns:
        return None
    return backed_up_return(reward, known_returns, gamma)
