"""Joint actions: what each of several agents' answers is worth when only all of them together are rewarded.

At a node of a tree N agents give K answers each, at once. A joint action has one answer of every agent:

    aligned   the k-th of each: K joint actions
    crossed   every combination: K^N, in the order of ``itertools.product``

As in the code of MAGRPO (arXiv 2508.04652),

    return(answer)       = Σ return(joint action) over the joint actions that the answer took part in
    return(joint action) = reward + γ · mean of the returns of its child node's joint actions, where the game goes on

so crossed returns of answers grow with K^(N−1). Pure functions of lists; whoever compares answers does so within
(node, agent).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Literal

from cotrain.core.errors import UnknownName

Pairing = Literal["aligned", "crossed"]
PAIRINGS: tuple[Pairing, ...] = ("aligned", "crossed")


def joint_actions(pairing: str, agents: int, answers: int) -> tuple[tuple[int, ...], ...]:
    """For each joint action the index of every agent's answer, [N]. Raises UnknownName."""
    if pairing == "aligned":
        return tuple((k,) * agents for k in range(answers))
    if pairing == "crossed":
        return tuple(product(range(answers), repeat=agents))
    raise UnknownName("pairing of joint actions", pairing, PAIRINGS)


def answer_returns(
    joint: Sequence[tuple[int, ...]], returns: Sequence[float | None], agents: int, answers: int
) -> list[list[float | None]]:
    """[N][K] from the return of each joint action; None for an answer in one of unknown return."""
    sums: list[list[float | None]] = [[0.0] * answers for _ in range(agents)]
    for chosen_answers, value in zip(joint, returns, strict=True):
        for agent, k in enumerate(chosen_answers):
            so_far = sums[agent][k]
            if so_far is None or value is None:
                sums[agent][k] = None
            else:
                sums[agent][k] = so_far + value
    return sums


def backed_up_return(reward: float, child: Sequence[float], gamma: float) -> float:
    """The return of a joint action from its reward and ``child``, the returns of its child node's joint actions, which
    is empty where the game ends."""
    if not child:
        return reward
    return reward + gamma * sum(child) / len(child)
