"""Time limits for slow clients of the server: connections that send nothing, or half of a request, are closed.

uvicorn waits without end for the first byte and for the end of the headers. Here a connection that is not being
answered has ``SECONDS`` to bring a whole head. The body has a time of its own (``app.py``).
"""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.h11_impl import H11Protocol

SECONDS = 10.0  # for the head of a request, from the connection or from its first byte on


class PatientProtocol(H11Protocol):
    """HTTP/1.1 with a deadline for heads."""

    seconds = SECONDS
    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._start_deadline()

    def data_received(self, data: bytes) -> None:
        if not self._is_answering():
            self._start_deadline()
        super().data_received(data)
        if self._is_answering():
            self._stop_deadline()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_deadline()
        super().connection_lost(exc)

    def _is_answering(self) -> bool:
        """Has a whole head come that is not answered yet?"""
        return self.cycle is not None and not self.cycle.response_complete

    def _start_deadline(self) -> None:
        if self._deadline is None:
            self._deadline = self.loop.call_later(self.seconds, self._give_up)

    def _stop_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _give_up(self) -> None:
        self._deadline = None
        if not self._is_answering() and not self.transport.is_closing():
            self.transport.close()
