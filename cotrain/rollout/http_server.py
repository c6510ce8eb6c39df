"""The core of this package's HTTP servers, ``cotrain serve`` and the one that agents ask: what a client may cost.

A client that nobody knows must not stop anybody. So

- a connection that is not being answered has ``HEAD_S`` to bring the whole head of a request, and a known one
  ``THINKING_S``: an agent may think for long between two requests of one connection;
- a body has at most ``MAX_BODY`` bytes, and ``BODY_S`` to come;
- there are at most ``connections`` open. Where one more comes, the oldest that is not being answered is closed, those
  of unknown clients first; where all are being answered, the new one is;
- a client that leaves, and a system that has no more descriptors, are one line at ``--log-level debug`` each.

Left out: TLS and users, which belong to a proxy in front of it.
"""

from __future__ import annotations

import asyncio
import math
import resource
import socket
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
        self.limit, self.knows = limit, knows
        self._open: dict[PatientProtocol, None] = {}

    def add(self, connection: PatientProtocol) -> None:
        """A new connection; makes room for it, or closes it."""
        self._open[connection] = None
        if len(self._open) > self.limit:
            victim = self._oldest_idle(known=False) or self._oldest_idle(known=True) or connection
            victim.close()

    def remove(self, connection: PatientProtocol) -> None:
        self._open.pop(connection, None)

    def _oldest_idle(self, *, known: bool) -> PatientProtocol | None:
        idle = (one for one in self._open if one.is_known is known and not one.is_answering())
        return next(idle, None)


class PatientProtocol(H11Protocol):
    """HTTP/1.1 with deadlines for heads and a limit of connections."""

    places: Connections  # of the server, set by ``protocol_of``
    seconds = HEAD_S
    is_known = False
    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._start_deadline()
        self.places.add(self)

    def data_received(self, data: bytes) -> None:
        if not self.is_answering():
            self._start_deadline()
        super().data_received(data)
        if self.is_answering():
            self._stop_deadline()
            self._look_at_client()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_deadline()
        self.places.remove(self)
        super().connection_lost(exc)

    def is_answering(self) -> bool:
        """Has a whole head come that is not answered yet?"""
        return self.cycle is not None and not self.cycle.response_complete

    def close(self) -> None:
        """End it at once; whoever counts connections does so from now on."""
        self._stop_deadline()
        self.places.remove(self)
        if not self.transport.is_closing():
            self.transport.abort()

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
        loop="asyncio",
        lifespan="off",
        log_config=None,
        log_level="warning",
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
    """What asyncio would print with a traceback for each connection, such as that there are no descriptors left."""
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
        raise BadRequest(f"the body did not come within {BODY_S:g} s", status=408) from None
    return bytes(content)


def _too_large() -> BadRequest:
    return BadRequest(f"the body has more than {MAX_BODY} bytes; send less", status=413)


async def note_departure(request: Request, error: Exception) -> Response:
    """For Starlette: a client left in the middle of its request."""
    assert isinstance(error, ClientDisconnect)
    LOGGER.debug("server: a client left in the middle of its request for %s", request.url.path)
    return GONE
