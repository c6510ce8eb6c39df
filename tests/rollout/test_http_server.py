"""What clients that nobody knows may cost a server of this package."""

from __future__ import annotations

import asyncio
import importlib.util
import logging
import socket
from contextlib import asynccontextmanager

import pytest

pytestmark = pytest.mark.skipif(
    not all(map(importlib.util.find_spec, ("starlette", "uvicorn"))), reason="the server's libraries are not installed"
)
KEY = "Bearer secret"
SECONDS = 0.3


def application():
    from starlette.applications import Starlette
    from starlette.requests import ClientDisconnect
    from starlette.responses import PlainTextResponse, StreamingResponse
    from starlette.routing import Route

    from cotrain.core.errors import UserError
    from cotrain.rollout.http_server import note_departure, receive_body

    async def echo(request):
        return PlainTextResponse(str(len(await receive_body(request))))

    async def refuse(request, error):
        return PlainTextResponse(str(error), status_code=error.status)

    async def say_much(request):
        return StreamingResponse("x" * 2**20 for _ in range(32))

    routes = [Route("/", echo, methods=["GET", "POST"]), Route("/much", say_much)]
    return Starlette(routes=routes, exception_handlers={UserError: refuse, ClientDisconnect: note_departure})


@asynccontextmanager
async def served(limit=4):
    """A server on a free port, and its connections."""
    from cotrain.rollout.http_server import Connections, make_server, run_server

    connections = Connections(limit, lambda authorization: authorization == KEY)
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listener:
        server = make_server(application(), connections, SECONDS)
        running = asyncio.create_task(run_server(server, listener))
        while not server.started:
            await asyncio.sleep(0.01)
        try:
            yield listener.getsockname()[1], connections
        finally:
            server.should_exit = True
            await running


def request(key="", body=b"", length=None):
    authorization = f"Authorization: {key}\r\n" if key else ""
    size = len(body) if length is None else length
    return f"POST / HTTP/1.1\r\nHost: x\r\n{authorization}Content-Length: {size}\r\n\r\n".encode() + body


async def status_of(reader):
    line = await asyncio.wait_for(reader.readline(), 30)
    return line.split()[1:2]


async def read_answer(reader):
    head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 30)
    length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
    return head.split()[1], await reader.readexactly(length)


def test_idle_connections_make_room_for_others():
    async def work():
        async with served(limit=4) as (port, connections):
            idle = [await asyncio.open_connection("127.0.0.1", port) for _ in range(20)]
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(request(KEY, b"abc"))
            assert await read_answer(reader) == (b"200", b"3")
            assert len(connections._open) <= 4
            for other, _ in idle:
                assert await asyncio.wait_for(other.read(), 30) == b""  # closed

    asyncio.run(work())


def test_a_client_that_is_known_keeps_its_connection_while_it_thinks():
    async def work():
        async with served(limit=4) as (port, _):
            known, stranger = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
            for key, (reader, writer) in ((KEY, known), ("", stranger)):
                writer.write(request(key, b"abc"))
                assert await read_answer(reader) == (b"200", b"3")
            assert await asyncio.wait_for(stranger[0].read(), 30) == b""
            floods = [await asyncio.open_connection("127.0.0.1", port) for _ in range(20)]
            known[1].write(request(KEY, b"abcd"))
            assert await read_answer(known[0]) == (b"200", b"4")
            del floods

    asyncio.run(work())


def test_a_body_has_a_size_and_a_time(monkeypatch):
    from cotrain.rollout import http_server

    monkeypatch.setattr(http_server, "MAX_BODY", 10)
    monkeypatch.setattr(http_server, "BODY_S", SECONDS)

    async def work():
        async with served() as (port, _):
            for sent, expected in ((request(KEY, b"x" * 11), b"413"), (request(KEY, b"x", length=9), b"408")):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(sent)
                assert await status_of(reader) == [expected]

    asyncio.run(work())


def test_a_client_that_leaves_is_one_line_for_who_debugs(caplog, capfd):
    async def work():
        async with served() as (port, _):
            with caplog.at_level(logging.DEBUG, logger="cotrain"):
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(request(KEY, b"x", length=1000))
                await writer.drain()
                await asyncio.sleep(0.05)
                writer.close()
                for _ in range(300):
                    if caplog.records:
                        break
                    await asyncio.sleep(0.1)

    asyncio.run(work())
    assert [record.message for record in caplog.records] == ["server: a client left in the middle of its request for /"]
    assert "Traceback" not in capfd.readouterr().err


UNREAD = b"GET /much HTTP/1.1\r\nHost: x\r\n\r\n"
HALF = request("", b"x", length=9)
AHEAD = b"GET /nowhere HTTP/1.1\r\nHost: x\r\n\r\n" * 2000


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(UNREAD, id="unread", marks=pytest.mark.whole),  # five seconds each until they are given up
        pytest.param(HALF, id="half", marks=pytest.mark.whole),
        pytest.param(AHEAD, id="ahead"),
    ],
)
def test_clients_that_are_waited_for_make_room_for_others(sent):
    """An answer that nobody reads, a body that does not come, requests that are sent before their answers are read."""

    async def work():
        async with served(limit=4) as (port, connections):
            strangers = [await asyncio.open_connection("127.0.0.1", port, limit=1) for _ in range(4)]
            for _, writer in strangers:
                writer.write(sent)
            await asyncio.sleep(0.1)
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(request(KEY, b"abc"))
            assert await read_answer(reader) == (b"200", b"3")
            assert len(connections._open) <= 4

    asyncio.run(work())


def test_an_answer_that_nobody_reads_is_given_up(monkeypatch):
    from cotrain.rollout import http_server

    monkeypatch.setattr(http_server, "READING_S", SECONDS)

    async def work():
        async with served() as (port, connections):
            _, writer = await asyncio.open_connection("127.0.0.1", port, limit=1)
            writer.write(UNREAD)
            for _ in range(300):
                await asyncio.sleep(0.1)
                if not connections._open:
                    break
            assert not connections._open

    asyncio.run(work())


def test_a_body_in_chunks_of_a_byte_is_given_up(monkeypatch):
    from cotrain.rollout import http_server

    monkeypatch.setattr(http_server, "PARSING_S", 0.05)
    head = b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"

    async def work():
        async with served() as (port, _):
            for chunks, expected in ((3, b"200"), (200_000, None)):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(head + b"1\r\nx\r\n" * chunks + b"0\r\n\r\n")
                try:
                    status = (await status_of(reader) or [None])[0]
                except ConnectionError:
                    status = None
                assert status == expected

    asyncio.run(work())


def test_what_is_no_http_is_a_line_for_who_debugs(caplog, capfd):
    async def work():
        async with served() as (port, connections):
            with caplog.at_level(logging.DEBUG, logger="cotrain"):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(b"\0 nothing\r\n\r\n")
                assert await status_of(reader) == [b"400"]
                upgrade = b"GET / HTTP/1.1\r\nHost: x\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n"
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(upgrade)
                assert await read_answer(reader) == (b"200", b"0")  # no web socket: its connection would not be counted
                assert len(connections._open) == 1

    asyncio.run(work())
    assert [record.message for record in caplog.records] == ["server: Invalid HTTP request received."]
    assert capfd.readouterr().err == ""
