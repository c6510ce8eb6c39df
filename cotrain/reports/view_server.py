"""The server behind ``cotrain view``: it answers GET requests of this machine, from whoever knows its address.

::

    GET /TOKEN/                               the page
    GET /TOKEN/api/runs                       what the folder holds: runs, comparisons, studies
    GET /TOKEN/api/folder                     the same, with how far each is
    GET /TOKEN/api/N/stamp                    changes when place N has something new
    GET /TOKEN/api/N/together, sides?seed=S   of a comparison, a study or the seeds of a recipe
    GET /TOKEN/api/N/overview, verifier       documents
    GET /TOKEN/api/N/rows?from=K              rows of rollouts from the K-th on
    GET /TOKEN/api/N/rollout?at=S:T:M         one rollout

What keeps others out:

- The address has a random token, so that another user of the machine, or a page that guesses the port, gets nothing.
- A Host header with another name than this machine's is refused: the name of a hostile page may point here.
- A request that another page sends is refused (Origin, Sec-Fetch-Site).
- No part of an address is opened as a file: runs are found when the server starts, and requests give their number.

Python's own server is enough for one reader on one machine. It holds at most ``MOST_CONNECTIONS``: it may share the
process of a run, whose files need descriptors too. Left out: listening anywhere else; forward the port by ssh.
"""

from __future__ import annotations

import hmac
import io
import secrets
import socket
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from cotrain.core.errors import ConfigError, CotrainError
from cotrain.reports.compared_runs import ComparedRuns, folder_row, open_study
from cotrain.reports.detail import dump_json
from cotrain.reports.page import render_page, security_policy
from cotrain.reports.places import MOST_PLACES, ViewPlace
from cotrain.reports.runs import RunView, open_run
from cotrain.storage.ledger import ODD

HOST = "127.0.0.1"
HOST_NAMES = ("localhost", "127.0.0.1", "[::1]")
ROWS = 20_000  # most rows in one answer
ANSWERS_SECONDS = 5.0  # seconds that reading in the background waits for answers, at most
FIRST_ROWS_SECONDS = 0.4  # seconds that an answer with rollouts waits for the first ones
REQUEST_SECONDS = 10.0  # seconds in which a whole request has to come
MOST_CONNECTIONS = 64
CLOSING_SECONDS = 1.0  # seconds that a new connection waits for the place of one that is being closed
PAUSE = 0.5  # seconds between looks at a ledger that has nothing new
SAFE_HEADERS = {
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}


class RequestRefused(Exception):
    """A request that gets no data."""

    def __init__(self, status: HTTPStatus) -> None:
        super().__init__(status.phrase)
        self.status = status


class Viewer:
    """The runs of a folder; those that a page asked for are read on in the background."""

    def __init__(self, places: Sequence[ViewPlace], root: Path) -> None:
        self.token = secrets.token_urlsafe(24)
        self._places = list(places[:MOST_PLACES])
        self.left_out = len(places) - len(self._places)
        self._root = root
        self._numbers = {place.path: number for number, place in enumerate(self._places) if place.kind == "run"}
        self._open: dict[Path, RunView] = {}  # the runs that were asked for
        self._together: dict[int, ComparedRuns] = {}  # comparisons that were asked for, by number
        self._lock = threading.RLock()
        self._opening: dict[object, threading.Lock] = {}  # held while something is read for the first time
        self._stop = threading.Event()
        self._answering = 0  # requests that are being answered
        self._quiet = threading.Condition()  # notified when ``_answering`` falls
        self._reader = threading.Thread(target=self._read_loop, daemon=True)

    def __enter__(self) -> Viewer:
        self._reader.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._reader.join(timeout=5)

    def find_place(self, number: str) -> ViewPlace:
        """The place with this number. Raises RequestRefused for any other number."""
        if not (number.isascii() and number.isdigit() and len(number) < 6 and int(number) < len(self._places)):
            raise RequestRefused(HTTPStatus.NOT_FOUND)
        return self._places[int(number)]

    def find_run(self, number: str) -> RunView:
        """The run with this number. Raises RequestRefused for any other number."""
        place = self.find_place(number)
        if place.kind != "run":
            raise RequestRefused(HTTPStatus.NOT_FOUND)
        return self._open_run(place.path)

    def _open_run(self, path: Path) -> RunView:
        """The run in a directory. It is read under a lock of its own, so that a slow one does not delay others."""
        with self._lock_of(path):
            if path not in self._open:
                run = open_run(path)
                with self._lock:
                    self._open[path] = run
            return self._open[path]

    def _lock_of(self, what: object) -> threading.Lock:
        """The lock of a run, by its path, or of runs that are shown together, by their number."""
        with self._lock:
            return self._opening.setdefault(what, threading.Lock())

    def find_compared_runs(self, number: str) -> ComparedRuns:
        """The runs of a comparison, or of the seeds of a recipe. Raises RequestRefused for any other number."""
        place = self.find_place(number)
        if place.kind not in ("comparison", "seeds"):
            raise RequestRefused(HTTPStatus.NOT_FOUND)
        with self._lock_of(int(number)):
            if int(number) not in self._together:
                self._together[int(number)] = self._compared_runs(place)
            return self._together[int(number)]

    def _compared_runs(self, place: ViewPlace) -> ComparedRuns:
        arms = {}
        for arm, seeds in place.arms.items():
            arms[arm] = {seed: self._open_run(path) for seed, path in seeds.items()}
        return ComparedRuns(place, arms, self._numbers)

    def answer(self, path: Sequence[str], query: dict[str, list[str]]) -> Any:
        """Return the JSON value at an address below ``api/``. Raises RequestRefused."""
        match list(path):
            case ["runs"]:
                entries = [{"name": place.name, "kind": place.kind, "title": place.title} for place in self._places]
                return {
                    "places": entries,
                    "folder": all(place.path != self._root or place.kind == "seeds" for place in self._places),
                }
            case ["folder"]:
                return {"places": [folder_row(place) for place in self._places], "left_out": self.left_out}
            case [number, "stamp"] if self.find_place(number).kind == "study":
                return [self.find_place(number).path.joinpath("study.json").stat().st_mtime]
            case [number, "stamp"] if self.find_place(number).kind != "run":
                return self.find_compared_runs(number).stamp()
            case [number, "together"] if self.find_place(number).kind == "study":
                return open_study(self.find_place(number), self._compared_runs)
            case [number, "together"]:
                return self.find_compared_runs(number).document()
            case [number, "sides"]:
                (seed,) = _parse_integers(query, "seed", 1)
                return self.find_compared_runs(number).shared_problems(seed)
            case [number, "stamp"]:
                return self.find_run(number).stamp()
            case [number, "overview"]:
                return self.find_run(number).overview()
            case [number, "verifier"]:
                return self.find_run(number).verifier_document()
            case [number, "rows"]:
                (start,) = _parse_integers(query, "from", 1)
                self._let_read(self.find_run(number))
                return self.find_run(number).rollouts.rows_page(start, ROWS)
            case [number, "rollout"]:
                rollout = self.find_run(number).rollout(*_parse_integers(query, "at", 3))
                if rollout is not None:
                    return rollout
        raise RequestRefused(HTTPStatus.NOT_FOUND)

    @contextmanager
    def pause_reading(self) -> Iterator[None]:
        """While a request is answered nothing is read in the background: both would share one core."""
        with self._quiet:
            self._answering += 1
        try:
            yield
        finally:
            with self._quiet:
                self._answering -= 1
                self._quiet.notify_all()

    def _let_read(self, run: RunView) -> None:
        """Let the background read for a moment: then the first list of a small run is whole."""
        with self._quiet:
            self._answering -= 1
            self._quiet.notify_all()
        try:
            end = time.monotonic() + FIRST_ROWS_SECONDS
            while run.rollouts.read_step_count() < run.rollouts.step_count() and time.monotonic() < end:
                time.sleep(0.02)
        finally:
            with self._quiet:
                self._answering += 1

    def _read_loop(self) -> None:
        while not self._stop.is_set():
            with self._quiet:
                self._quiet.wait_for(lambda: not self._answering, timeout=ANSWERS_SECONDS)
            with self._lock:
                runs = list(self._open.values())
            progress = [self._read_some(run) for run in runs if not run.stopped]
            if not any(progress):
                self._stop.wait(PAUSE)
            time.sleep(0.001)  # lets the thread of a new request run first

    def _read_some(self, run: RunView) -> bool:
        """Read on in one run; False when there is nothing new. Data that cannot be read are reported on its page: other
        runs go on, and so does the page."""
        try:
            return any([run.watch_rows(), run.rollouts.read_some()])
        except Exception as error:  # noqa: BLE001 - else the thread dies, and nobody sees why
            run.stopped = f"{type(error).__name__}: {error}"[:200]
            return False


def _parse_integers(query: dict[str, list[str]], name: str, count: int) -> list[int]:
    """Whole numbers from ``name=1:2:3``. Raises RequestRefused."""
    parts = query.get(name, [""])[0].split(":")
    if len(parts) != count or not all(part.isascii() and part.isdigit() and len(part) < 12 for part in parts):
        raise RequestRefused(HTTPStatus.BAD_REQUEST)
    return [int(part) for part in parts]


class _Server(ThreadingHTTPServer):
    """A thread for each connection, at most ``MOST_CONNECTIONS``. If one more comes, the oldest of those that have not
    sent the token yet is closed; if all have sent it, the new one is."""

    request_queue_size = 128

    def __init__(self, address: tuple[str, int], handler: type[_Handler]) -> None:
        self._places = threading.Semaphore(MOST_CONNECTIONS)
        self._strangers: dict[socket.socket, None] = {}  # connections without a token so far, the oldest first
        self._lock = threading.Lock()
        super().__init__(address, handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._places.acquire(blocking=False):
            self._close_oldest_stranger()
            if not self._places.acquire(timeout=CLOSING_SECONDS):
                super().shutdown_request(request)
                return
        with self._lock:
            self._strangers[request] = None
        super().process_request(request, client_address)

    def welcome(self, connection: socket.socket) -> None:
        """Called when a connection has sent the token: it then keeps its place until it is answered."""
        with self._lock:
            self._strangers.pop(connection, None)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.welcome(request)
            self._places.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Nothing for a client that leaves; else what Python prints."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)

    def _close_oldest_stranger(self) -> None:
        with self._lock:
            oldest = next(iter(self._strangers), None)
            if oldest is not None:
                del self._strangers[oldest]
                with suppress(OSError):  # it is closed already
                    oldest.shutdown(socket.SHUT_RDWR)  # its thread reads the end, and ends


def listen(viewer: Viewer, port: int) -> ThreadingHTTPServer:
    """A server on this machine's own address; port 0 takes a free one. Raises ConfigError."""

    class Handler(_Handler):
        pass

    Handler.viewer = viewer
    try:
        return _Server((HOST, port), Handler)
    except (OSError, OverflowError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise ConfigError(
            f"cannot listen on {HOST}:{port}: {why}; choose another --port (0: a free one)", code="E_CANNOT_LISTEN"
        ) from None


class _TimedReader(io.RawIOBase):
    """Reads from a connection until a deadline for all of it: a byte now and then does not keep it open."""

    def __init__(self, connection: socket.socket, seconds: float) -> None:
        self._connection = connection
        self._deadline = time.monotonic() + seconds

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self._connection.settimeout(left)
        return self._connection.recv_into(buffer)


class _Handler(BaseHTTPRequestHandler):
    viewer: Viewer
    server: _Server
    timeout = 30  # seconds in which an answer is taken
    server_version = "cotrain"
    sys_version = ""

    def setup(self) -> None:
        super().setup()
        self.rfile = io.BufferedReader(_TimedReader(self.connection, REQUEST_SECONDS))

    def do_GET(self) -> None:
        try:
            self._check_origin()
            if self.requestline.split()[1] != self.path or not self.path.startswith("/"):
                raise RequestRefused(HTTPStatus.NOT_FOUND)  # ``//TOKEN/``, which Python shortens; a whole URL
            url = urlsplit(self.path)
            first, token, *path = url.path.split("/")
            if first or not hmac.compare_digest(token.encode(), self.viewer.token.encode()):
                raise RequestRefused(HTTPStatus.NOT_FOUND)
            self.server.welcome(self.connection)
            if path == [""]:
                nonce = secrets.token_urlsafe(18)
                security = f"{security_policy(nonce, live=True)}; frame-ancestors 'none'"
                self._send_answer(
                    render_page("cotrain", nonce), "text/html; charset=utf-8", {"Content-Security-Policy": security}
                )
            elif path[:1] == ["api"]:
                cpu_start = time.thread_time()
                with self.viewer.pause_reading():
                    content = dump_json(self.viewer.answer(path[1:], parse_qs(url.query, max_num_fields=8)))
                extra_headers = {
                    "Content-Security-Policy": "default-src 'none'",
                    # from which the page decides how often to ask
                    "Server-Timing": f"cpu;dur={1000 * (time.thread_time() - cpu_start):.1f}",
                }
                self._send_answer(content, "application/json", extra_headers)
            else:
                raise RequestRefused(HTTPStatus.NOT_FOUND)
        except RequestRefused as refused:
            self.send_error(refused.status)
        except (ValueError, OSError, CotrainError, *ODD):  # an address that is none, or a file that is gone or odd
            self.send_error(HTTPStatus.BAD_REQUEST)

    def _check_origin(self) -> None:
        """Raise RequestRefused for a request that comes neither from our own page nor from a typed address."""
        host_headers = self.headers.get_all("Host", [])
        origin = self.headers.get("Origin")
        name = host_headers[0].strip().lower() if len(host_headers) == 1 else ""
        host, _, port = name.rpartition(":")
        if not port.isdigit():  # the header has no port
            host = name
        if host not in HOST_NAMES:
            raise RequestRefused(HTTPStatus.FORBIDDEN)
        if origin is not None and origin.lower() != f"http://{name}":
            raise RequestRefused(HTTPStatus.FORBIDDEN)
        if self.headers.get("Sec-Fetch-Site", "none") not in ("none", "same-origin"):
            raise RequestRefused(HTTPStatus.FORBIDDEN)

    def _reject_method(self) -> None:
        self.send_error(HTTPStatus.METHOD_NOT_ALLOWED)

    do_HEAD = do_POST = do_PUT = do_DELETE = do_PATCH = do_OPTIONS = do_TRACE = do_CONNECT = _reject_method

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """A status and nothing else."""
        self.close_connection = True
        self._send_answer(b"", "text/plain", {}, status=code)

    def _send_answer(self, content: bytes, kind: str, more: dict[str, str], status: int = 200) -> None:
        try:
            self.connection.settimeout(self.timeout)
            self.send_response(status)
            for name, value in {
                **SAFE_HEADERS,
                **more,
                "Content-Type": kind,
                "Content-Length": str(len(content)),
            }.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)
        except (BrokenPipeError, ConnectionResetError, TimeoutError):  # nobody is there to read it
            self.close_connection = True

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing is logged: addresses hold the token."""
