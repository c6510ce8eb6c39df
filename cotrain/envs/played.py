"""The interface between the recipe ``environment`` and an environment that somebody else wrote, for whichever package:
its seats, a protocol that plays it, and the reward of a seat.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol, runtime_checkable

from cotrain.core.notes import Metadata
from cotrain.core.signals import Signal
from cotrain.core.types import RolloutFn, TaskSource
from cotrain.rollout.conversation import Conversation
from cotrain.rollout.role import as_reward

SEAT_REWARD = Signal("earned", meaning="sum of the rewards that the environment gives a seat")
SEAT_REWARD_VALUE = Metadata[float]("earnings", float, "sum of the rewards that the environment gives a seat")
MAX_MESSAGE = 1_000_000  # characters of one message of an environment
Compare = Literal["seat", "prompt"]  # with whom a conversation is compared; ``recipes/environment.py`` says how


@runtime_checkable
class PlayedTasks(TaskSource, Protocol):
    """Tasks that begin the episodes of an environment."""

    def seats(self) -> Mapping[str, bool]:
        """Name of a seat → may it learn."""
        ...

    def make_protocol(self, seats: Sequence[str], turns: int, compare: Compare) -> RolloutFn:
        """The protocol that plays an episode, to learn from and to measure. ``seats``: the names from ``seats()``;
        ``turns``: most turns of a conversation of a seat."""
        ...


def pay_seat(conversations: Sequence[tuple[Conversation, Any]]) -> None:
    """Give a seat its reward in an episode. Its conversations are one trajectory, so each of them has the mean of their
    rewards. ``conversations``: each with its own reward."""
    rewards = [as_reward(reward) for _, reward in conversations]
    numbers = [reward for reward in rewards if reward is not None]
    mean = math.nan  # no usable number: all conversations fail
    if numbers and len(numbers) == len(rewards):
        mean = sum(numbers) / len(numbers)
    for chat, _ in conversations:
        first_chat, _ = conversations[0]
        chat.join(first_chat)
        pay_conversation(chat, mean)


def pay_conversation(chat: Conversation, reward: Any) -> None:
    """Give a conversation its reward. It fails if the reward is no usable number, which metadata shows as 0."""
    chat.reward(SEAT_REWARD, reward)
    for turn in chat.turns:
        turn.add_metadata(SEAT_REWARD_VALUE, as_reward(reward) or 0.0)
