"""Messages between a program and its tests: what is no message ends the conversation."""

import socket

import pytest

from cotrain.grading.channel import LONGEST_MESSAGE, Channel, ChannelClosed


@pytest.fixture
def ends():
    program, tests = socket.socketpair()
    with program, tests:
        yield program, Channel(tests.fileno())


@pytest.mark.parametrize(
    "body",
    [b"{", b"[1]", b"\xff", b'{"gives": ' + b"[" * 100_000],
    ids=["no JSON", "a list", "no UTF-8", "nested too deeply"],
)
def test_what_is_no_message_ends_the_conversation(ends, body):
    """With no exception that a test of the program could take for the program's own."""
    program, channel = ends
    program.sendall(len(body).to_bytes(4, "big") + body)
    with pytest.raises(ChannelClosed):
        channel.receive()


def test_a_message_that_is_too_long_is_not_read(ends):
    program, channel = ends
    program.sendall((LONGEST_MESSAGE + 1).to_bytes(4, "big"))
    with pytest.raises(ChannelClosed):
        channel.receive()


def test_a_message_arrives_as_it_was_sent(ends):
    program, channel = ends
    other = Channel(program.fileno())
    other.send({"gives": ["x", None, 1.5]})
    assert channel.receive() == {"gives": ["x", None, 1.5]}
    program.close()
    with pytest.raises(ChannelClosed):
        channel.receive()
