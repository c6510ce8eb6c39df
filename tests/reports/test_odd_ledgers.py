"""A ledger with rows of another shape: they are counted and told, and the page goes on; so with files of a run."""

import json
import socket
import struct
import threading
import time
import zlib

import pytest

from cotrain.reports import view_server
from cotrain.reports.runs import open_run
from cotrain.runs.directory import RunDirectory
from cotrain.storage import ledger
from cotrain.storage.episode_json import encode_floats
from cotrain.storage.schemas import SHAPES, fault_in
from tests.sentences import refuses


def episode(step, task):
    trace = {"address": [step, task, 0, "solver", 0], "role": "solver", "policy": "p", "version": 0, "group": None}
    trace |= {
        "text": "4",
        "finish": "stop",
        "failure": None,
        "findings": {"answer": "4"},
        "metadata": {"correct": True},
    }
    trace |= {"parent": None, "prompt_ids": [1], "token_ids": [2], "logprobs": encode_floats([-1.0]), "turns": []}
    trace |= {"rewards": [["outcome", 1.0, None]]}
    return {"step": step, "task": task, "member": 0, "task_id": "t", "failure": None, "traces": [trace]}


def member(step, lines):
    """A step of a ledger with these lines."""
    text = b"".join(line + b"\n" for line in lines)
    deflate = zlib.compressobj(6, zlib.DEFLATED, -zlib.MAX_WBITS)
    body = deflate.compress(text) + deflate.flush()
    size = ledger.HEADER_BYTES + len(body) + 8
    crc = zlib.crc32(struct.pack("<qqI", step, size, len(lines)))
    extra = ledger._EXTRA.pack(ledger._EXTRA.size - 2, b"CT", ledger._EXTRA.size - 6, step, size, len(lines), crc)
    return ledger.GZIP_START + extra + body + struct.pack("<II", zlib.crc32(text), len(text) & 0xFFFFFFFF)


def with_lines(folder, change):
    """A ledger of two steps with two episodes each; the very first one is what ``change`` makes of it."""
    (folder / "episodes").mkdir()
    (folder / "recipe.json").write_text('{"name": "odd"}')
    first = change(episode(0, 0))
    lines = [first if isinstance(first, bytes) else json.dumps(first).encode()]
    lines += [json.dumps(episode(step, task)).encode() for step, task in ((0, 1), (1, 0), (1, 1))]
    (folder / "episodes" / ledger.NAME).write_bytes(member(0, lines[:2]) + member(1, lines[2:]))


def without(episode, name):
    del episode["traces"][0][name]
    return episode


def set_to(name, value):
    return lambda e: e["traces"][0].update({name: value}) or e


ODD = {
    "a list": lambda e: [e],
    "a number": lambda e: 7,
    "nothing": lambda e: {},
    "no JSON": lambda e: b"{",
    "deep": lambda e: b"[" * 100_000 + b"]" * 100_000,
    "no address": lambda e: without(e, "address"),
    "a short address": set_to("address", [0, 1]),
    "findings are null": set_to("findings", None),
    "metadata are a list": set_to("metadata", []),
    "no triples": set_to("rewards", [["outcome", 1.0]]),
    "rewards in an object": set_to("rewards", {"outcome": 1.0}),
    "no tokens": lambda e: without(e, "token_ids"),
    "traces in an object": lambda e: e | {"traces": {}},
    "a task in words": lambda e: e | {"task": "first"},
    "steps that are a number": set_to("metadata", {"correct": True, "step_ok": 5}),
    "a version in words": set_to("version", "new"),
}


@pytest.mark.parametrize("kind", ODD)
def test_one_odd_row_is_counted_and_the_others_are_shown(tmp_path, kind):
    with_lines(tmp_path, ODD[kind])
    run = open_run(tmp_path)
    while run.rollouts.read_some():
        pass
    page = run.rollouts.rows_page(0, 1000)
    assert (page["read"], page["steps"], page["damaged"]) == (2, 2, [])
    assert run.rollouts.odd == 1
    assert run.rollouts.episodes == len(page["rows"]) == 3
    assert "ledger: left out 1 episode of another shape" in run.overview()["notes"]
    assert run.verifier_document()  # this page, too, is made


@pytest.mark.whole
@pytest.mark.parametrize("name", sorted(set(SHAPES) - {"an episode"}))
@pytest.mark.parametrize("value", [[1], 7, "x", None, True, {"files": []}, {"x": []}, [[[]]]])
def test_a_file_of_a_run_of_another_shape_is_one_line(tmp_path, name, value):
    (tmp_path / name).write_text(json.dumps(value))
    with refuses("E_RUN_DAMAGED", names=name) as error:
        RunDirectory(tmp_path).read(name)
    assert "\n" not in str(error.value)


def test_what_is_nested_too_deeply_is_odd():
    deep = {}
    for _ in range(100):
        deep = {"x": deep}
    assert "nested" in fault_in("before.json", deep)


@pytest.fixture
def page(tmp_path, monkeypatch):
    monkeypatch.setattr(view_server, "REQUEST_SECONDS", 0.3)
    viewer = view_server.Viewer([], tmp_path)
    listening = view_server.listen(viewer, 0)
    threading.Thread(target=listening.serve_forever, daemon=True).start()
    yield viewer.token, listening.server_address
    listening.shutdown()
    listening.server_close()


def status(address, line):
    with socket.create_connection(address, timeout=30) as connection:
        connection.sendall(f"{line} HTTP/1.1\r\nHost: 127.0.0.1:{address[1]}\r\n\r\n".encode())
        return connection.makefile("rb").readline().split()[1]


def test_only_the_path_of_the_token_is_answered(page):
    token, address = page
    assert status(address, f"GET /{token}/") == b"200"
    for other in (f"//{token}/", f"///{token}/", f"http://127.0.0.1/{token}/", f"/{token}//", f"/./{token}/"):
        assert status(address, f"GET {other}") == b"404", other


def test_a_request_that_drips_is_ended(page):
    _, address = page
    with socket.create_connection(address, timeout=30) as connection:
        ended = False
        for byte in b"GET / HTTP/1.1\r\n" * 100:
            try:
                connection.sendall(bytes([byte]))
            except OSError:
                ended = True
                break
            time.sleep(0.02)
        assert ended
