"""Messages between a program and its tests in another process. Either side may call the other, also while it performs a
call itself: a test passes a function, and the program calls it.

::

    tests  → {"do": "call", "with": [{"answer": 0}, 2], "names": {}}     twice(2): a function, its arguments by position
                                                                         ("with") and by name ("names")
    answer → {"gives": 4}  or  {"raises": ["ValueError", "ValueError", "a text"]}

A message is its length in four bytes, and JSON. What a program sends may be anything: a message that is too long or not
readable ends the conversation (``ChannelClosed``), and so does the end of the other process.
"""

from __future__ import annotations

import builtins
import contextlib
import json
import os
from collections.abc import Callable
from typing import Any

LONGEST_MESSAGE = 1 << 25  # bytes


class ChannelClosed(BaseException):
    """The other side has ended, or sends what is no message. A ``BaseException``, so that a test which expects an
    exception does not take this one for it."""


class Channel:
    """One end of a pair of sockets, by its file descriptor."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def send(self, message: Any) -> None:
        text = json.dumps(message, ensure_ascii=True, separators=(",", ":")).encode("ascii")
        if len(text) > LONGEST_MESSAGE:
            raise MemoryError("a value is too large")
        unsent = memoryview(len(text).to_bytes(4, "big") + text)
        try:
            while unsent:
                n_sent = os.write(self._fd, unsent)
                unsent = unsent[n_sent:]
        except OSError as error:
            raise ChannelClosed from error

    def receive(self) -> dict[str, Any]:
        size = int.from_bytes(self._read_bytes(4), "big")
        if size > LONGEST_MESSAGE:
            raise ChannelClosed
        try:
            message = json.loads(self._read_bytes(size))
        except (ValueError, RecursionError) as error:  # nested too deeply is not readable either
            raise ChannelClosed from error
        if not isinstance(message, dict):
            raise ChannelClosed
        return message

    def _read_bytes(self, size: int) -> bytes:
        parts = []
        while size:
            try:
                part = os.read(self._fd, min(size, 1 << 16))
            except OSError as error:
                raise ChannelClosed from error
            if not part:
                raise ChannelClosed
            parts.append(part)
            size -= len(part)
        return b"".join(parts)


Perform = Callable[[dict[str, Any]], dict[str, Any]]  # the reply to a request of the other side


def request_reply(channel: Channel, request: dict[str, Any], perform: Perform) -> dict[str, Any]:
    """The other side's reply, a message with "gives". Requests that the other side sends before it are performed.
    Raises the exception that the reply holds, and ChannelClosed."""
    channel.send(request)
    message = channel.receive()
    while "do" in message:  # a request in the middle of ours, such as the call of a function that we gave
        channel.send(perform(message))
        message = channel.receive()
    if "raises" in message:
        raise decode_exception(message["raises"])
    if "gives" not in message:
        raise ChannelClosed
    return message


def encode_exception(error: BaseException) -> list[str]:
    """An exception as it is sent: the phrase that it is counted under, the name of its nearest built-in class, and its
    message."""
    nearest_builtin = next(kind for kind in type(error).__mro__ if _is_builtin(kind))
    return [kind_of_failure(error), nearest_builtin.__name__, str(error)]


def decode_exception(sent: object) -> BaseException:
    """The exception that ``encode_exception`` sent, as an object of this process; ``ChannelClosed`` where what was sent
    is none."""
    if not (isinstance(sent, list) and len(sent) == 3 and all(isinstance(text, str) for text in sent)):
        return ChannelClosed()
    phrase, class_name, message = sent
    error: BaseException = Exception(message)
    if _is_builtin_error(class_name):
        with contextlib.suppress(TypeError):  # a class that takes more than a message, such as UnicodeDecodeError
            error = getattr(builtins, class_name)(message)
    error.counted = phrase if _is_builtin_error(phrase) else "error"  # type: ignore[attr-defined]
    return error


def _is_builtin(kind: type) -> bool:
    return getattr(builtins, kind.__name__, None) is kind


def _is_builtin_error(name: str) -> bool:
    kind = getattr(builtins, name, None)
    return isinstance(kind, type) and issubclass(kind, BaseException)


def kind_of_failure(error: BaseException) -> str:
    """The phrase that an exception is counted under in metrics: the name of a built-in exception, "error" for any
    other, as a program may call its own anything. One that came over the channel has its phrase with it."""
    kind = type(error)
    phrase = kind.__name__ if _is_builtin(kind) else "error"
    return str(getattr(error, "counted", phrase))
