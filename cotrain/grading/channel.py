"""Messages between a program and its tests in another process: either side may call the other, also in the middle of a
call.

::

    tests  → {"do": "call", "with": [{"answer": 0}, 2], "names": {}}     twice(2)
    answer → {"gives": 4}  or  {"raises": ["ValueError", "ValueError", "a text"]}

A message is its length in four bytes and JSON. What a program sends may be anything: a message that is too long or not
readable ends the conversation (``ChannelClosed``), and so does the other side's end.
"""

from __future__ import annotations

import builtins
import json
import os
from collections.abc import Callable
from typing import Any

LONGEST = 1 << 25  # bytes of a message


class ChannelClosed(BaseException):
    """The other side has ended, or speaks no more as it should. No exception that a test could expect."""


class Channel:
    """Messages over a pair of sockets."""

    def __init__(self, number: int) -> None:
        self._number = number

    def send(self, message: Any) -> None:
        text = json.dumps(message, ensure_ascii=True, separators=(",", ":")).encode("ascii")
        if len(text) > LONGEST:
            raise MemoryError("a value is too large")
        left = memoryview(len(text).to_bytes(4, "big") + text)
        try:
            while left:
                left = left[os.write(self._number, left) :]
        except OSError as error:
            raise ChannelClosed from error

    def receive(self) -> dict[str, Any]:
        size = int.from_bytes(self._read_bytes(4), "big")
        if size > LONGEST:
            raise ChannelClosed
        try:
            message = json.loads(self._read_bytes(size))
        except ValueError as error:
            raise ChannelClosed from error
        if not isinstance(message, dict):
            raise ChannelClosed
        return message

    def _read_bytes(self, size: int) -> bytes:
        parts = []
        while size:
            try:
                part = os.read(self._number, min(size, 1 << 16))
            except OSError as error:
                raise ChannelClosed from error
            if not part:
                raise ChannelClosed
            parts.append(part)
            size -= len(part)
        return b"".join(parts)


Perform = Callable[[dict[str, Any]], dict[str, Any]]  # the reply to a request of the other side


def request_reply(channel: Channel, request: dict[str, Any], perform: Perform) -> dict[str, Any]:
    """The other side's reply, with what it "gives"; meanwhile its own requests are performed. Raises what it raises,
    and Gone."""
    channel.send(request)
    while "do" in (reply := channel.receive()):
        channel.send(perform(reply))
    if "raises" in reply:
        raise decode_exception(reply["raises"])
    if "gives" not in reply:
        raise ChannelClosed
    return reply


def encode_exception(error: BaseException) -> list[str]:
    """An exception as it is sent: the phrase that it is counted under, the built-in exception nearest to it, its
    message."""
    near = next(kind for kind in type(error).__mro__ if getattr(builtins, kind.__name__, None) is kind)
    return [kind_of_failure(error), near.__name__, str(error)]


def decode_exception(sent: object) -> BaseException:
    """The exception that ``encode_exception`` sent, made anew."""
    if not (isinstance(sent, list) and len(sent) == 3 and all(isinstance(text, str) for text in sent)):
        return ChannelClosed()
    phrase, name, message = sent
    kind = getattr(builtins, name, Exception)
    error: BaseException = Exception(message)
    if isinstance(kind, type) and issubclass(kind, BaseException):
        try:
            error = kind(message)
        except TypeError:  # it takes more than a message
            kind = Exception
    error.counted = phrase if _is_builtin_error(phrase) else "error"  # type: ignore[attr-defined]
    return error


def _is_builtin_error(name: str) -> bool:
    kind = getattr(builtins, name, None)
    return isinstance(kind, type) and issubclass(kind, BaseException)


def kind_of_failure(error: BaseException) -> str:
    """A short phrase of a fixed set: metrics are counted under it, and a program may call its exceptions anything."""
    kind = type(error)
    own = kind.__name__ if getattr(builtins, kind.__name__, None) is kind else "error"
    return str(getattr(error, "counted", own))
