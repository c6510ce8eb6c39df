"""The core of this package's HTTP servers (``cotrain serve``, and the one that agents ask): limits for each client.

An unknown client must not be able to stop the server for others. So

- Head of a request: it has to arrive within ``HEAD_S``. A known client has ``THINKING_S`` between two requests of one
  connection, since an agent may think for long.
- Body: at most ``MAX_BODY`` bytes, within ``BODY_S``.
- Turns: at most ``MOST_READ`` bytes of one connection are read, then the next has its turn. A request is given up if
  parsing it takes more than ``PARSING_S`` of processor time, such as a body in chunks of one byte.
- Answers: one that the client does not read is given up after ``READING_S``.
- Connections: at most ``Connections.limit``. If one more comes, the oldest connection is closed that waits for its
  client, be it to send or to read; those of unknown clients go first. If none waits, the new one is closed.
- Log: a client that leaves or does not speak HTTP, and a system without free descriptors, give one line each, at
  ``--log-level debug``.

Left out: TLS and users, which belong to a proxy in front of it.
"""

from __future__ import annotations

import asyncio
import math
import resource
import socket
import time
from collections.abc import Callable
from typing import Any

import uvicorn
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from cotrain.core.verbosity import LOGGER
from cotrain.formats.openai_requests import BadRequest

HEAD_S = 10.0  # seconds for the head of a request, from the connection or from its first byte on
THINKING_S = 3600.0  # seconds between two requests of a known client
MAX_BODY = 4 * 2**20  # bytes of a body
BODY_S = 30.0  # seconds for the whole body to arrive
MOST_READ = 1 << 14  # bytes of one connection that are read at once
PARSING_S = 1.0  # seconds of processor time for parsing one request
READING_S = 60.0  # seconds in which a client may leave an answer unread, once the system's buffer for it is full
MOST_CONNECTIONS = 512
ACCEPTED_AT_ONCE = 128  # connections that are accepted in one turn of the event loop
WAITING = 1024  # connections that the system holds until they are accepted
GONE = Response(status_code=499)  # answer to a client that has left

KnowsClient = Callable[[str], bool]  # value of a request's Authorization header → is the client known?


def connection_limit() -> int:
    """How many connections a server may hold: at most a quarter of the descriptors that the process may open. The rest
    is for its own files and processes."""
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if descriptors == resource.RLIM_INFINITY:
        return MOST_CONNECTIONS
    return max(16, min(MOST_CONNECTIONS, descriptors // 4))


class Connections:
    """The open connections of one server, in the order in which they came."""

    def __init__(self, limit: int, knows: KnowsClient) -> None:
        self.limit = limit
        self.knows = knows
        self._open: dict[LimitedProtocol, None] = {}  # used as an ordered set

    def add(self, connection: LimitedProtocol) -> None:
        """A new connection. If there are too many, an old one is closed for it, or the new one."""
        self._open[connection] = None
        if len(self._open) > self.limit:
            surplus = self._oldest_waiting(known=False) or self._oldest_waiting(known=True) or connection
            surplus.close()

    def remove(self, connection: LimitedProtocol) -> None:
        self._open.pop(connection, None)

    def _oldest_waiting(self, *, known: bool) -> LimitedProtocol | None:
        """The oldest connection that waits for its client, of known or of unknown clients; None where none does."""
        for connection in self._open:
            if connection.is_known is known and connection.waits_for_client():
                return connection
        return None


class LimitedProtocol(H11Protocol):
    """One connection: uvicorn's HTTP/1.1, with the limits above."""

    server_connections: Connections  # set by ``protocol_of``
    head_s = HEAD_S
    is_known = False  # whether its last request was a known client's
    _head_deadline: asyncio.TimerHandle | None = None  # while the head of a request is awaited
    _reading_deadline: asyncio.TimerHandle | None = None  # while the client leaves an answer unread
    _parsing_s = 0.0  # processor time that parsing this request took so far

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        transport.max_size = MOST_READ  # type: ignore[attr-defined]  # a field of asyncio's transports of sockets
        self._start_head_deadline()
        self.server_connections.add(self)

    def data_received(self, data: bytes) -> None:
        if not self.is_answering():
            self._start_head_deadline()
            self._parsing_s = 0.0
        begun = time.thread_time()
        super().data_received(data)
        self._parsing_s += time.thread_time() - begun

        if self._parsing_s > PARSING_S:
            LOGGER.debug("server: a request took more than %g s to be taken apart", PARSING_S)
            self.close()
        elif self.is_answering():  # the head has arrived
            self._stop_head_deadline()
            self._look_at_client()

    def pause_writing(self) -> None:
        """asyncio calls it where the system takes no more of an answer, since the client does not read."""
        super().pause_writing()
        self._stop_reading_deadline()
        self._reading_deadline = self.loop.call_later(READING_S, self.close)

    def resume_writing(self) -> None:
        """asyncio calls it where the client reads on."""
        super().resume_writing()
        self._stop_reading_deadline()

    def send_400_response(self, msg: str) -> None:
        LOGGER.debug("server: %s", msg)
        super().send_400_response(msg)

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget()
        super().connection_lost(exc)

    def is_answering(self) -> bool:
        """Whether the whole head of a request has arrived and its answer is not complete."""
        return self.cycle is not None and not self.cycle.response_complete

    def waits_for_client(self) -> bool:
        """Whether the client has to send a request or the rest of one, or to read its answer.

        True also where it has sent its next request before the answer: else a client who always does would keep its
        connection for ever.
        """
        if not self.is_answering() or self.cycle.more_body or self._reading_deadline is not None:
            return True
        next_request, _ = self.conn.trailing_data
        return bool(next_request)

    def close(self) -> None:
        """End the connection at once. It no longer counts, even if the transport takes a while to end."""
        self._forget()
        if not self.transport.is_closing():
            self.transport.abort()

    def _forget(self) -> None:
        self._stop_head_deadline()
        self._stop_reading_deadline()
        self.server_connections.remove(self)

    def _look_at_client(self) -> None:
        """Note whether the client is known: then it may take longer for its next request."""
        authorization = dict(self.headers).get(b"authorization", b"")
        self.is_known = self.server_connections.knows(authorization.decode("latin-1"))
        self.timeout_keep_alive = math.ceil(THINKING_S if self.is_known else self.head_s)

    def _start_head_deadline(self) -> None:
        if self._head_deadline is None:
            self._head_deadline = self.loop.call_later(self.head_s, self._end_without_head)

    def _stop_head_deadline(self) -> None:
        if self._head_deadline is not None:
            self._head_deadline.cancel()
            self._head_deadline = None

    def _stop_reading_deadline(self) -> None:
        if self._reading_deadline is not None:
            self._reading_deadline.cancel()
            self._reading_deadline = None

    def _end_without_head(self) -> None:
        self._head_deadline = None
        if not self.is_answering() and not self.transport.is_closing():
            self.transport.close()


def protocol_of(connections: Connections, head_s: float = HEAD_S) -> type[LimitedProtocol]:
    """The class of one server's connections: uvicorn makes an instance for each, without arguments of ours."""
    return type("ServerProtocol", (LimitedProtocol,), {"server_connections": connections, "head_s": head_s})


def make_server(app: ASGIApp, connections: Connections, head_s: float = HEAD_S) -> uvicorn.Server:
    """A server of this application. ``head_s``: seconds for the head of a request."""
    config = uvicorn.Config(
        app,
        http=protocol_of(connections, head_s),
        ws="none",
        loop="asyncio",
        lifespan="off",
        log_config=None,
        log_level="error",  # at "warning", every client that does not speak HTTP would print a line
        access_log=False,
        timeout_keep_alive=math.ceil(head_s),
        timeout_graceful_shutdown=5,
        backlog=ACCEPTED_AT_ONCE,
        server_header=False,
    )
    return _Server(config)


class _Server(uvicorn.Server):
    """asyncio takes the ``backlog`` both for how many connections it accepts at once and for how many may wait for it;
    here more may wait."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for listener in sockets or ():
            listener.listen(WAITING)


def serve_application(
    app: ASGIApp, listener: socket.socket, *, knows: KnowsClient = lambda authorization: False
) -> None:
    """Serve until a signal comes; in a thread that is not the main one, for ever. ``knows``: says whether a client may
    hold a connection for long."""
    asyncio.run(run_server(make_server(app, Connections(connection_limit(), knows)), listener))


async def run_server(server: uvicorn.Server, listener: socket.socket) -> None:
    """Serve until ``server.should_exit`` is set."""
    asyncio.get_running_loop().set_exception_handler(_log_loop_error)
    await server.serve(sockets=[listener])


def _log_loop_error(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log what asyncio would print with a traceback for each connection, such as that no descriptor is free."""
    LOGGER.debug("server: %s: %s", context.get("message"), context.get("exception"))


async def receive_body(request: Request) -> bytes:
    """The body of a request. Raises BadRequest for one that is too large or too slow, ClientDisconnect."""
    declared_length = request.headers.get("content-length", "")
    content = bytearray()
    try:
        async with asyncio.timeout(BODY_S):
            if declared_length.isdecimal() and int(declared_length) > MAX_BODY:
                raise _too_large()
            async for piece in request.stream():
                content += piece
                if len(content) > MAX_BODY:
                    raise _too_large()
    except TimeoutError:
        raise BadRequest(f"the body did not come within {BODY_S:g} s", status=408, code="E_BODY_TOO_SLOW") from None
    return bytes(content)


def _too_large() -> BadRequest:
    return BadRequest(f"the body has more than {MAX_BODY} bytes; send less", status=413, code="E_BODY_TOO_LARGE")


async def note_departure(request: Request, error: Exception) -> Response:
    """Starlette's handler of ``ClientDisconnect``: a client left in the middle of its request."""
    assert isinstance(error, ClientDisconnect)
    LOGGER.debug("server: a client left in the middle of its request for %s", request.url.path)
    return GONE
