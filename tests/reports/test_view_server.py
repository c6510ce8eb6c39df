"""The server answers its own page and nobody else."""

from __future__ import annotations

import http.client
import json
import random
import re
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from fake_run import write_fake_run

from cotrain.cli.view import split_address
from cotrain.reports import view_server as server_module
from cotrain.reports.places import find_places
from cotrain.reports.view_server import HOST, Viewer, listen
from tests.sentences import refuses


@dataclass(frozen=True)
class Server:
    port: int
    token: str

    def ask(self, path: str, method: str = "GET", **headers: str) -> tuple[int, bytes, http.client.HTTPMessage]:
        connection = http.client.HTTPConnection(HOST, self.port, timeout=60)
        try:
            connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
            for name, value in {"Host": f"{HOST}:{self.port}", **headers}.items():
                connection.putheader(name.replace("_", "-"), value)
            connection.endheaders()
            answer = connection.getresponse()
            return answer.status, answer.read(), answer.headers
        finally:
            connection.close()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    place = tmp_path_factory.mktemp("runs")
    write_fake_run(place / "one", steps=6, episodes=3)
    write_fake_run(place / "two", steps=6, episodes=3)
    (place / "secret.txt").write_text("do not show this")
    with Viewer(find_places(place), place) as viewer, listen(viewer, 0) as made:
        thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        yield Server(made.server_address[1], viewer.token)
        made.shutdown()
        thread.join()


def test_it_listens_on_this_machine_alone(server: Server) -> None:
    with listen(Viewer([], Path()), 0) as other:
        assert other.server_address[0] == "127.0.0.1"
    with refuses("E_CANNOT_LISTEN"):
        listen(Viewer([], Path()), server.port)


def test_the_page_has_a_strict_policy_and_a_nonce_of_its_own(server: Server) -> None:
    pages = [server.ask(f"/{server.token}/") for _ in range(2)]
    nonces = []
    for status, content, headers in pages:
        assert status == 200
        policy = headers["Content-Security-Policy"]
        assert policy.startswith("default-src 'none'; script-src 'nonce-") and "unsafe" not in policy
        (nonce,) = set(re.findall(r"'nonce-([^']+)'", policy))
        scripts = re.findall(rb"<script[^>]*>", content)
        assert scripts and all(f'nonce="{nonce}"'.encode() in tag for tag in scripts)
        assert headers["X-Content-Type-Options"] == "nosniff" and headers["Referrer-Policy"] == "no-referrer"
        nonces.append(nonce)
    assert nonces[0] != nonces[1]


def test_documents_are_answered(server: Server) -> None:
    found = json.loads(server.ask(f"/{server.token}/api/runs")[1])["places"]
    assert [one["name"] for one in found] == ["one", "two"]
    for part in ("stamp", "overview", "verifier", "rows?from=0", "rollout?at=0:1:0"):
        status, content, headers = server.ask(f"/{server.token}/api/1/{part}")
        assert status == 200 and json.loads(content) is not None, part
        assert headers["Content-Type"] == "application/json"


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.example"},
        {"Host": "evil.example:80"},
        {"Host": "127.0.0.1.evil.example"},
        {"Host": ""},
        {"Host": "0.0.0.0:1"},
        {"Host": "localhost@evil.example"},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:1"},
        {"Sec_Fetch_Site": "cross-site"},
        {"Sec_Fetch_Site": "same-site"},
    ],
)
def test_who_comes_from_elsewhere_gets_nothing(server: Server, headers: dict[str, str]) -> None:
    for path in ("", "api/runs", "api/0/overview"):
        status, content, _ = server.ask(f"/{server.token}/{path}", **headers)
        assert (status, content) == (403, b"")


def test_own_names_and_forwarded_ports_are_answered(server: Server) -> None:
    for host in ("localhost", "LOCALHOST:9", f"127.0.0.1:{server.port}", "[::1]:5"):
        assert server.ask(f"/{server.token}/api/runs", Host=host)[0] == 200
        assert server.ask(f"/{server.token}/api/runs", Host=host, Origin=f"http://{host.lower()}")[0] == 200


@pytest.mark.parametrize("method", ["HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "BREW"])
def test_nothing_but_get_is_answered(server: Server, method: str) -> None:
    status, content, _ = server.ask(f"/{server.token}/api/runs", method)
    assert status in (405, 501) and content == b""


def test_without_the_token_there_is_nothing(server: Server) -> None:
    wrong = server.token[:-1] + ("a" if server.token[-1] != "a" else "b")
    for path in ("/", "/api/runs", f"/{wrong}/", f"/{wrong}/api/runs", f"/{server.token}", "/%C3%A9/"):
        assert server.ask(path)[1] == b"", path


@pytest.mark.parametrize(
    "path",
    [
        "../secret.txt", "api/../../secret.txt", "api/0/../../secret.txt", "%2e%2e/secret.txt",
        "api/0/rollout?at=../secret.txt",
        "api/-1/overview", "api/2/overview", "api/0/rows?from=-1", "api/0/rows", "api/0/rollout?at=1:2",
        "api/0/rollout?at=9:9:9",
        "api/0/overview/x", "assets/main.js", "secret.txt", "api/%E0%A5%A6/overview",
        "api/0/rollout?at=1:2:99999999999999999999",
    ],
)  # fmt: skip
def test_no_address_opens_a_file(server: Server, path: str) -> None:
    status, content, _ = server.ask(f"/{server.token}/{path}")
    assert status in (400, 404) and content == b""


@pytest.mark.whole
def test_random_requests_never_break_it(server: Server) -> None:
    draw = random.Random(7)
    pieces = [
        "api",
        "0",
        "1",
        "rows",
        "rollout",
        "overview",
        "..",
        "%00",
        "?at=",
        "0:0:0",
        "&",
        "=",
        "/",
        "//",
        "\\",
        "a" * 300,
        "[",
        "]",
    ]
    for _ in range(300):
        path = f"/{server.token}/" + "/".join(draw.choices(pieces, k=draw.randint(0, 5)))
        status, content, _ = server.ask(path)
        assert status in (200, 400, 404) and (status == 200 or content == b""), path
    assert server.ask(f"/{server.token}/api/runs")[0] == 200


def test_a_directory_with_a_place_in_it_opens_there(tmp_path: Path) -> None:
    assert split_address("runs/mine") == (Path("runs/mine"), "")
    assert split_address("runs/mine#r:120:7:3") == (Path("runs/mine"), "#r:120:7:3")
    assert split_address("runs/mine#rollouts:all;said=1;right=0") == (Path("runs/mine"), "#rollouts:all;said=1;right=0")
    assert split_address('runs/mine#"<b>') == (Path("runs/mine"), "#%22%3Cb%3E")
    (tmp_path / "a#b").mkdir()
    assert split_address(str(tmp_path / "a#b")) == (tmp_path / "a#b", "")


def test_strangers_that_hold_connections_leave_room_for_the_page_and_for_files(tmp_path: Path, monkeypatch) -> None:
    """The viewer may run beside a run, in its process."""
    monkeypatch.setattr(server_module, "MOST_CONNECTIONS", 8)
    write_fake_run(tmp_path / "one", steps=2, episodes=1)
    descriptors = Path("/dev/fd")
    with Viewer(find_places(tmp_path), tmp_path) as viewer, listen(viewer, 0) as made:
        thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        address = (HOST, made.server_address[1])
        before = len(list(descriptors.iterdir()))
        strangers = [socket.create_connection(address, timeout=60) for _ in range(40)]
        assert Server(address[1], viewer.token).ask(f"/{viewer.token}/api/runs")[0] == 200
        assert len(list(descriptors.iterdir())) < before + len(strangers) + 8 + 4
        assert strangers[0].recv(1) == b""  # the oldest was closed
        made.shutdown()
        thread.join()


def test_a_folder_of_more_runs_than_are_shown_says_so(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(server_module, "MOST_PLACES", 2)
    for name in ("a", "b", "c"):
        write_fake_run(tmp_path / name, steps=2, episodes=1)
        (tmp_path / name / "recipe.json").write_text(json.dumps({"name": name}))
    found = Viewer(find_places(tmp_path), tmp_path).answer(["folder"], {})
    assert len(found["places"]) == 2 and found["left_out"] == 1
