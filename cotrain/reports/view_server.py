"""The server behind ``cotrain view``. It answers GET requests of this machine alone, from those who know its address.

::

    GET /TOKEN/                          the page
    GET /TOKEN/api/runs                  what the folder holds: runs, comparisons, studies
    GET /TOKEN/api/folder                the same, with how far each is
    GET /TOKEN/api/N/stamp               changes when place N has something new
    GET /TOKEN/api/N/together            of a comparison, a study or the seeds of a recipe: its tables
    GET /TOKEN/api/N/sides?seed=S        of a comparison or seeds: what the arms wrote to the same problems
    GET /TOKEN/api/N/overview, verifier  of a run: documents of its screens
    GET /TOKEN/api/N/rows?from=K         of a run: rows of rollouts from the K-th on
    GET /TOKEN/api/N/rollout?at=S:T:M    of a run: one rollout, by step, task and member

A random token stands in the address, so that another user of the machine, or a page that guesses the port, gets
nothing. A Host header that is not this machine's name is refused (a page whose own name was made to point here), and so
is a request that another page sends (Origin, Sec-Fetch-Site). No part of an address is ever opened as a file: runs are
found when the server starts and go by number.

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
from cotrain.storage.ledger import WRONG_SHAPE_ERRORS

HOST = "127.0.0.1"
HOST_NAMES = ("localhost", "127.0.0.1", "[::1]")
MAX_ROWS = 20_000  # in one answer
FIRST_ROWS_SECONDS = 0.4  # seconds that an answer with rollouts waits for the first ones
REQUEST_SECONDS = 10.0  # seconds in which a whole request has to come
MOST_CONNECTIONS = 64
CLOSING_SECONDS = 1.0  # seconds that a new connection waits for the place of one that is being closed
ANSWERING_SECONDS = 5.0  # seconds that reading in the background waits for requests to be answered, at most
IDLE_SECONDS = 0.5  # seconds between looks at a ledger that has nothing new
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
    """The runs of a folder, and what is answered about them. A run that a page has asked for is read on in the
    background."""

    def __init__(self, places: Sequence[ViewPlace], root: Path) -> None:
        self.token = secrets.token_urlsafe(24)
        self._places = list(places[:MOST_PLACES])
        self.left_out = len(places) - len(self._places)
        self._root = root
        self._numbers = {place.path: number for number, place in enumerate(self._places) if place.kind == "run"}
        # What was opened so far, and locks that are held while one of these is opened.
        self._runs: dict[Path, RunView] = {}
        self._compared_runs: dict[int, ComparedRuns] = {}  # by the number of the place
        self._lock = threading.RLock()  # of these dictionaries
        self._opening: dict[object, threading.Lock] = {}
        # The background, which reads while no request is being answered.
        self._stop = threading.Event()
        self._n_answering = 0
        self._answering_changed = threading.Condition()
        self._reader = threading.Thread(target=self._read_loop, daemon=True)

    def __enter__(self) -> Viewer:
        self._reader.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._reader.join(timeout=5)

    # -- What is answered.

    def answer(self, path: Sequence[str], query: dict[str, list[str]]) -> Any:
        """The JSON value at an address below ``api/``. Raises RequestRefused."""
        match list(path):
            case ["runs"]:
                return self._list_places()
            case ["folder"]:
                return {"places": [folder_row(place) for place in self._places], "left_out": self.left_out}
            case [number, what]:
                place = self.find_place(number)
                if place.kind == "study":
                    return self._answer_of_study(place, what)
                if place.kind == "run":
                    return self._answer_of_run(self.find_run(number), what, query)
                return self._answer_of_comparison(self.find_compared_runs(number), what, query)
        raise RequestRefused(HTTPStatus.NOT_FOUND)

    def _list_places(self) -> dict[str, Any]:
        entries = [{"name": place.name, "kind": place.kind, "title": place.title} for place in self._places]
        # Whether the folder that was named is one of many things, and not a run or a comparison itself.
        is_folder = all(place.path != self._root or place.kind == "seeds" for place in self._places)
        return {"places": entries, "folder": is_folder}

    def _answer_of_study(self, place: ViewPlace, what: str) -> Any:
        match what:
            case "stamp":
                return [place.path.joinpath("study.json").stat().st_mtime]
            case "together":
                return open_study(place, self._open_compared_runs)
        raise RequestRefused(HTTPStatus.NOT_FOUND)

    def _answer_of_comparison(self, compared: ComparedRuns, what: str, query: dict[str, list[str]]) -> Any:
        match what:
            case "stamp":
                return compared.stamp()
            case "together":
                return compared.document()
            case "sides":
                (seed,) = _parse_integers(query, "seed", 1)
                return compared.shared_problems(seed)
        raise RequestRefused(HTTPStatus.NOT_FOUND)

    def _answer_of_run(self, run: RunView, what: str, query: dict[str, list[str]]) -> Any:
        match what:
            case "stamp":
                return run.stamp()
            case "overview":
                return run.overview()
            case "verifier":
                return run.verifier_document()
            case "rows":
                (start,) = _parse_integers(query, "from", 1)
                self._wait_for_first_rows(run)
                return run.rollouts.rows_page(start, MAX_ROWS)
            case "rollout":
                rollout = run.rollout(*_parse_integers(query, "at", 3))
                if rollout is not None:
                    return rollout
        raise RequestRefused(HTTPStatus.NOT_FOUND)

    # -- What is opened, when it is first asked for.

    def find_place(self, number: str) -> ViewPlace:
        """Raises RequestRefused for a number that nothing has."""
        is_number = number.isascii() and number.isdigit() and len(number) < 6
        if not is_number or int(number) >= len(self._places):
            raise RequestRefused(HTTPStatus.NOT_FOUND)
        return self._places[int(number)]

    def find_run(self, number: str) -> RunView:
        """Raises RequestRefused for a number that no run has."""
        place = self.find_place(number)
        if place.kind != "run":
            raise RequestRefused(HTTPStatus.NOT_FOUND)
        return self._open_run(place.path)

    def find_compared_runs(self, number: str) -> ComparedRuns:
        """The runs of a comparison, or of a recipe over seeds. Raises RequestRefused for a number that neither has."""
        place = self.find_place(number)
        if place.kind not in ("comparison", "seeds"):
            raise RequestRefused(HTTPStatus.NOT_FOUND)
        key = int(number)
        with self._opening_lock(key):
            if key not in self._compared_runs:
                self._compared_runs[key] = self._open_compared_runs(place)
            return self._compared_runs[key]

    def _open_compared_runs(self, place: ViewPlace) -> ComparedRuns:
        arms = {}
        for arm, seeds in place.arms.items():
            arms[arm] = {seed: self._open_run(path) for seed, path in seeds.items()}
        return ComparedRuns(place, arms, self._numbers)

    def _open_run(self, path: Path) -> RunView:
        with self._opening_lock(path):  # of this run alone: one that is slow to read does not keep others
            if path not in self._runs:
                run = open_run(path)
                with self._lock:
                    self._runs[path] = run
            return self._runs[path]

    def _opening_lock(self, key: object) -> threading.Lock:
        """The lock of a run, by its path, or of runs that are shown together, by the number of their place."""
        with self._lock:
            return self._opening.setdefault(key, threading.Lock())

    # -- Reading in the background. It stops while a request is answered: both would share one core.

    @contextmanager
    def pause_reading(self) -> Iterator[None]:
        """For the time of one answer."""
        self._count_answering(1)
        try:
            yield
        finally:
            self._count_answering(-1)

    def _wait_for_first_rows(self, run: RunView) -> None:
        """Within an answer, let the background read for a moment: then the first list of a small run is whole."""
        self._count_answering(-1)
        try:
            end = time.monotonic() + FIRST_ROWS_SECONDS
            while run.rollouts.read_step_count() < run.rollouts.step_count() and time.monotonic() < end:
                time.sleep(0.02)
        finally:
            self._count_answering(1)

    def _count_answering(self, change: int) -> None:
        with self._answering_changed:
            self._n_answering += change
            self._answering_changed.notify_all()

    def _read_loop(self) -> None:
        while not self._stop.is_set():
            with self._answering_changed:
                self._answering_changed.wait_for(lambda: self._n_answering == 0, timeout=ANSWERING_SECONDS)
            with self._lock:
                runs = list(self._runs.values())
            has_news = [self._read_some(run) for run in runs if not run.stopped]
            if not any(has_news):
                self._stop.wait(IDLE_SECONDS)
            time.sleep(0.001)  # a request that waits for the processor goes first

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
    """A thread for each connection, at most ``MOST_CONNECTIONS`` of them. When one more comes, the oldest that has not
    shown the token yet is closed; when all have, the new one is."""

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
        """This connection has shown the token, and keeps its place until it is answered."""
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

    class Handler(_Handler):  # http.server makes one of it for each connection, without arguments of ours
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
    """Answers the requests of one connection."""

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
            url = urlsplit(self.path)
            path = self._path_behind_token(url.path)
            self.server.welcome(self.connection)
            if path == [""]:
                self._send_page()
            elif path[0] == "api":
                self._send_json(path[1:], parse_qs(url.query, max_num_fields=8))
            else:
                raise RequestRefused(HTTPStatus.NOT_FOUND)
        except RequestRefused as refused:
            self.send_error(refused.status)
        except (ValueError, OSError, CotrainError, *WRONG_SHAPE_ERRORS):  # a wrong address, or an odd file
            self.send_error(HTTPStatus.BAD_REQUEST)

    def _check_origin(self) -> None:
        """Raises RequestRefused unless a request comes from our own page, or from somebody who typed the address."""
        hosts = self.headers.get_all("Host", [])
        host = hosts[0].strip().lower() if len(hosts) == 1 else ""
        if _without_port(host) not in HOST_NAMES:
            raise RequestRefused(HTTPStatus.FORBIDDEN)
        origin = self.headers.get("Origin")
        if origin is not None and origin.lower() != f"http://{host}":
            raise RequestRefused(HTTPStatus.FORBIDDEN)
        if self.headers.get("Sec-Fetch-Site", "none") not in ("none", "same-origin"):
            raise RequestRefused(HTTPStatus.FORBIDDEN)

    def _path_behind_token(self, url_path: str) -> list[str]:
        """The parts of an address behind ``/TOKEN/``. Raises RequestRefused without the token."""
        asked_for = self.requestline.split()[1]
        if asked_for != self.path or not self.path.startswith("/"):  # ``//TOKEN/``, which Python shortens; a whole URL
            raise RequestRefused(HTTPStatus.NOT_FOUND)
        first, token, *path = url_path.split("/")
        is_known = hmac.compare_digest(token.encode(), self.viewer.token.encode())
        if first or not is_known or not path:
            raise RequestRefused(HTTPStatus.NOT_FOUND)
        return path

    def _send_page(self) -> None:
        nonce = secrets.token_urlsafe(18)
        security = f"{security_policy(nonce, live=True)}; frame-ancestors 'none'"
        page = render_page("cotrain", nonce)
        self._send_answer(page, "text/html; charset=utf-8", {"Content-Security-Policy": security})

    def _send_json(self, path: list[str], query: dict[str, list[str]]) -> None:
        cpu_start = time.thread_time()
        with self.viewer.pause_reading():
            content = dump_json(self.viewer.answer(path, query))
        cpu_milliseconds = 1000 * (time.thread_time() - cpu_start)
        headers = {
            "Content-Security-Policy": "default-src 'none'",
            "Server-Timing": f"cpu;dur={cpu_milliseconds:.1f}",  # by which the page decides how often it asks
        }
        self._send_answer(content, "application/json", headers)

    def _reject_method(self) -> None:
        self.send_error(HTTPStatus.METHOD_NOT_ALLOWED)

    do_HEAD = do_POST = do_PUT = do_DELETE = do_PATCH = do_OPTIONS = do_TRACE = do_CONNECT = _reject_method

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """A status and nothing else."""
        self.close_connection = True
        self._send_answer(b"", "text/plain", {}, status=code)

    def _send_answer(self, content: bytes, kind: str, extra_headers: dict[str, str], status: int = 200) -> None:
        headers = SAFE_HEADERS | extra_headers | {"Content-Type": kind, "Content-Length": str(len(content))}
        try:
            self.connection.settimeout(self.timeout)
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)
        except (BrokenPipeError, ConnectionResetError, TimeoutError):  # nobody is there to read it
            self.close_connection = True

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing is logged: addresses hold the token."""


def _without_port(host: str) -> str:
    name, _, port = host.rpartition(":")
    return name if port.isdigit() else host
