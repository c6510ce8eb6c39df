"""The core of this package's HTTP servers, ``cotrain serve`` and the one that agents ask: what a client may cost.

A client that nobody knows must not stop anybody. So

- a connection that is not being answered has ``HEAD_S`` to bring the whole head of a request, and a known one
  ``THINKING_S``: an agent may think for long between two requests of one connection;
- a body has at most ``MAX_BODY`` bytes, and ``BODY_S`` to come;
- connections take turns: ``MOST_READ`` bytes of one, then the next; and a request whose bytes take more than
  ``PARSING_S`` of the processor to be taken apart, such as a body in chunks of one byte, is given up;
- an answer that nobody reads is given up after ``READING_S``;
- there are at most ``connections`` open. Where one more comes, the oldest that waits for its client is closed, those of
  unknown clients first: for the rest of a request, or until it reads its answer. Where none waits, the new one is;
- a client that leaves, one that does not speak HTTP, and a system that has no more descriptors, are one line at
  ``--log-level debug`` each.

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

HEAD_S = 10.0  # for the head of a request, from the connection or from its first byte on
THINKING_S = 3600.0  # between two requests of a client that is known
MAX_BODY = 4 * 2**20  # bytes
BODY_S = 30.0  # for all of it to come
MOST_READ = 1 << 14  # bytes of one connection that are read in one go
PARSING_S = 1.0  # of the processor, for all bytes of a request
READING_S = 60.0  # that a client may leave an answer unread, once the system holds no more of it
MOST_CONNECTIONS = 512
ACCEPTED = 128  # connections that are accepted in one go, before any of them is looked at
WAITING = 1024  # that the system holds meanwhile
GONE = Response(status_code=499)  # nobody is there to read it

KnowsClient = Callable[[str], bool]  # the value of a request's Authorization header → is its client known


def connection_limit() -> int:
    """How many connections a server may hold: a quarter of what the process may open, so that the rest stays for its
    own files and processes."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MOST_CONNECTIONS if soft == resource.RLIM_INFINITY else max(16, min(MOST_CONNECTIONS, soft // 4))


class Connections:
    """The open connections of one server, in the order in which they came."""

    def __init__(self, limit: int, knows: KnowsClient) -> None:
        self.limit = limit
        self.knows = knows
        self._open: dict[PatientProtocol, None] = {}

    def add(self, connection: PatientProtocol) -> None:
        """A new connection; makes room for it, or closes it."""
        self._open[connection] = None
        if len(self._open) > self.limit:
            victim = self._oldest_waiting(known=False) or self._oldest_waiting(known=True) or connection
            victim.close()

    def remove(self, connection: PatientProtocol) -> None:
        self._open.pop(connection, None)

    def _oldest_waiting(self, *, known: bool) -> PatientProtocol | None:
        waiting = (one for one in self._open if one.is_known is known and one.waits_for_client())
        return next(waiting, None)


class PatientProtocol(H11Protocol):
    """HTTP/1.1 with deadlines for heads and for unread answers, and a limit of connections."""

    places: Connections  # of the server, set by ``protocol_of``
    seconds = HEAD_S
    is_known = False
    _deadline: asyncio.TimerHandle | None = None
    _reading_deadline: asyncio.TimerHandle | None = None  # while an answer is not read
    _parsing_s = 0.0  # of the processor, that the bytes of this request took so far

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        transport.max_size = MOST_READ  # type: ignore[attr-defined]  # of asyncio's own transports of sockets
        self._start_deadline()
        self.places.add(self)

    def data_received(self, data: bytes) -> None:
        if not self.is_answering():
            self._start_deadline()
            self._parsing_s = 0.0
        begun = time.thread_time()
        super().data_received(data)
        self._parsing_s += time.thread_time() - begun
        if self._parsing_s > PARSING_S:
            LOGGER.debug("server: a request took more than %g s to be taken apart", PARSING_S)
            self.close()
        elif self.is_answering():
            self._stop_deadline()
            self._look_at_client()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stop_reading_deadline()
        self._reading_deadline = self.loop.call_later(READING_S, self.close)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop_reading_deadline()

    def send_400_response(self, msg: str) -> None:
        LOGGER.debug("server: %s", msg)
        super().send_400_response(msg)

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget()
        super().connection_lost(exc)

    def is_answering(self) -> bool:
        """Has a whole head come that is not answered yet?"""
        return self.cycle is not None and not self.cycle.response_complete

    def waits_for_client(self) -> bool:
        """Is it the client's turn: to send a request or the rest of one, or to read its answer? One that has sent the
        next request meanwhile counts too: else a client who always does would keep its place for ever."""
        if not self.is_answering() or self.cycle.more_body or self._reading_deadline is not None:
            return True
        next_request, _ = self.conn.trailing_data
        return bool(next_request)

    def close(self) -> None:
        """End it at once; whoever counts connections does so from now on."""
        self._forget()
        if not self.transport.is_closing():
            self.transport.abort()

    def _forget(self) -> None:
        self._stop_deadline()
        self._stop_reading_deadline()
        self.places.remove(self)

    def _look_at_client(self) -> None:
        """A client that is known may take longer for its next request."""
        authorization = dict(self.headers).get(b"authorization", b"")
        self.is_known = self.places.knows(authorization.decode("latin-1"))
        self.timeout_keep_alive = math.ceil(THINKING_S if self.is_known else self.seconds)

    def _start_deadline(self) -> None:
        if self._deadline is None:
            self._deadline = self.loop.call_later(self.seconds, self._give_up)

    def _stop_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _stop_reading_deadline(self) -> None:
        if self._reading_deadline is not None:
            self._reading_deadline.cancel()
            self._reading_deadline = None

    def _give_up(self) -> None:
        self._deadline = None
        if not self.is_answering() and not self.transport.is_closing():
            self.transport.close()


def protocol_of(connections: Connections, seconds: float = HEAD_S) -> type[PatientProtocol]:
    """The protocol of one server."""
    return type("ServerProtocol", (PatientProtocol,), {"places": connections, "seconds": seconds})


def make_server(app: ASGIApp, connections: Connections, seconds: float = HEAD_S) -> uvicorn.Server:
    """A server of this application. ``seconds``: for the head of a request."""
    config = uvicorn.Config(
        app,
        http=protocol_of(connections, seconds),
        ws="none",
        loop="asyncio",
        lifespan="off",
        log_config=None,
        log_level="error",  # what is no HTTP would be a line in the terminal each time
        access_log=False,
        timeout_keep_alive=math.ceil(seconds),
        timeout_graceful_shutdown=5,
        backlog=ACCEPTED,
        server_header=False,
    )
    return _Server(config)


class _Server(uvicorn.Server):
    """Accepts a few connections at a time, while more of them may wait."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for listener in sockets or ():
            listener.listen(WAITING)


def serve_application(
    app: ASGIApp, listener: socket.socket, *, knows: KnowsClient = lambda authorization: False
) -> None:
    """Serve until a signal comes, or for ever in a thread that is not the main one. ``knows``: which clients may hold a
    connection for long."""
    asyncio.run(run_server(make_server(app, Connections(connection_limit(), knows)), listener))


async def run_server(server: uvicorn.Server, listener: socket.socket) -> None:
    """Serve until the server is told to end."""
    asyncio.get_running_loop().set_exception_handler(_log_loop_error)
    await server.serve(sockets=[listener])


def _log_loop_error(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Return what asyncio would print with a traceback for each connection, such as that there are no descriptors
    left."""
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
    """For Starlette: a client left in the middle of its request."""
    assert isinstance(error, ClientDisconnect)
    LOGGER.debug("server: a client left in the middle of its request for %s", request.url.path)
    return GONE
