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
JointActions = Sequence[tuple[int, ...]]  # [J][N] of each the index of every agent's answer
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
    nodes: list[Node] = []
    paths: list[Path] = [()]
    for turn in range(turns):
        answers = await gather([_ask_team(team, path, agents) for path in paths])
        rewards = await gather([team.reward_actions(answer, joint, turn) for answer in answers])
        level = [_node_of(*one, joint) for one in zip(paths, answers, rewards, strict=True)]
        nodes, paths = (
            nodes + level,
            [path for node in level if _goes_on(node, threshold) for path in node.after if path],
        )
        if not paths:
            break
    returns: dict[Path | None, list[float | None]] = {}  # [J] of each node
    found = []
    for node in reversed(nodes):
        below = [returns.get(path, []) for path in node.after]
        returns[node.path] = [_return_of(*one, gamma) for one in zip(node.rewards, below, strict=True)]
        for turns_of_agent, values in zip(
            node.answers, answer_returns(joint, returns[node.path], agents, samples), strict=True
        ):
            for one, value in zip(turns_of_agent, values, strict=True):
                if value is None:
                    one.fail("joint reward: unknown")
                else:
                    found.append((one, value))
    return found


def _ask_team(team: Team, path: Path, agents: int) -> Coroutine[Any, Any, list[list[Turn]]]:
    """All agents' answers at one node, asked at once; the node has the name of what was said last."""
    node = "+".join(turn.id for turn in path[-1]) if path else None
    return gather([team.ask_agent(agent, path, node) for agent in range(agents)])


def _node_of(path: Path, answers: list[list[Turn]], rewards: list[float | None], joint: JointActions) -> Node:
    after = [
        None if reward is None else (*path, tuple(mine[k] for mine, k in zip(answers, places, strict=True)))
        for places, reward in zip(joint, rewards, strict=True)
    ]
    return Node(path=path, answers=answers, rewards=rewards, after=after)


def _goes_on(node: Node, threshold: float | None) -> bool:
    known = [reward for reward in node.rewards if reward is not None]
    return threshold is None or (bool(known) and not sum(known) / len(known) > threshold)


def _return_of(reward: float | None, below: Sequence[float | None], gamma: float) -> float | None:
    """Of a joint action; ``below``: what those of its node return, () where it is the end."""
    known = [value for value in below if value is not None]
    return None if reward is None or (below and not known) else backed_up_return(reward, known, gamma)
