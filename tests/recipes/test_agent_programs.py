"""Commands that are agents end with all that they started, print no more than is read, and speak for themselves."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from cotrain.envs.agent import peers, program
from cotrain.envs.agent.program import MAX_ERROR_BYTES, AgentFailed, ProgramRun
from cotrain.recipes.agent import agent, make_agent_protocol
from cotrain.trainer.trainer import CoTrainer
from tests.helpers import EASY, TINY

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")
pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="a system without /proc")
PATIENCE_S = 60.0
HIDDEN = "env -i setsid sh -c 'echo $$ >> PIDS; exec sleep 600'"  # without the key, in a session of its own


def started(words, **options):
    """A command that runs, and the event of its end."""
    ended = threading.Event()
    return ProgramRun(words, "2 + 2", "http://127.0.0.1:9/v1", "a-key", ended.set, **options), ended


def result_of(words):
    run, ended = started(words)
    assert ended.wait(PATIENCE_S)
    try:
        return run.answer()
    except AgentFailed as error:
        return str(error)


def pids_in(file, count):
    """The process ids that are written there, once there are so many."""
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until:
        pids = file.read_text().split() if file.exists() else []
        if len(pids) == count:
            return [int(pid) for pid in pids]
        time.sleep(0.02)
    raise AssertionError(f"{count} were not started")


def alive(pids):
    return [
        pid for pid in pids if Path(f"/proc/{pid}").exists() and b") Z" not in Path(f"/proc/{pid}/stat").read_bytes()
    ]


def daemons(file, count):
    return f"{HIDDEN.replace('PIDS', str(file))} & " * count


def test_daemons_without_a_mark_end_with_the_answer(tmp_path):
    script = f"{daemons(tmp_path / 'pids', 5)} while [ $(wc -l < {tmp_path / 'pids'}) -lt 5 ]; do :; done; echo 4"
    assert result_of(["sh", "-c", f"touch {tmp_path / 'pids'}; {script}"]) == "4"
    assert alive(pids_in(tmp_path / "pids", 5)) == []


def test_they_end_when_the_rollout_is_given_up(tmp_path):
    run, _ = started(["sh", "-c", f"{daemons(tmp_path / 'pids', 3)} exec sleep 600"])
    pids = pids_in(tmp_path / "pids", 3)
    run.stop()
    assert alive(pids) == []


@pytest.mark.whole
def test_they_end_when_the_run_is_killed(tmp_path):
    code = (
        "import sys, threading\n"
        "from cotrain.envs.agent.program import ProgramRun\n"
        "ended = threading.Event()\n"
        "ProgramRun(['sh', '-c', sys.argv[1]], '', 'http://127.0.0.1:9/v1', 'key', ended.set)\n"
        "ended.wait()\n"
    )
    run = subprocess.Popen([sys.executable, "-c", code, f"{daemons(tmp_path / 'pids', 3)} exec sleep 600"])
    pids = pids_in(tmp_path / "pids", 3)
    run.send_signal(signal.SIGKILL)
    run.wait()
    until = time.monotonic() + PATIENCE_S
    while alive(pids) and time.monotonic() < until:
        time.sleep(0.05)
    assert alive(pids) == []


def test_a_marked_process_ends_though_the_keeper_was_killed(tmp_path):
    script = f"setsid sh -c 'echo $$ > {tmp_path / 'pids'}; exec sleep 600' & sleep 600"
    run, _ = started(["sh", "-c", script])
    pids = pids_in(tmp_path / "pids", 1)
    os.kill(run.pid, signal.SIGKILL)
    run.stop()
    until = time.monotonic() + PATIENCE_S
    while alive(pids) and time.monotonic() < until:
        time.sleep(0.02)
    assert alive(pids) == []


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["yes"], "agent: too much output"),
        ([sys.executable, "-c", "print('x' * 200_000)"], "agent: answer too long"),
        (["sh", "-c", "cat >/dev/null; exit 3"], "agent: exit code 3"),
        (["cat"], "2 + 2"),
        (["/no/such/program"], "agent: exit code 127"),
    ],
    ids=["flood", "long", "code", "problem", "none"],
)
def test_what_a_command_comes_to(words, expected):
    assert result_of(words) == expected


def test_a_function_too_has_a_longest_answer():
    assert result_of(lambda problem, url, key: r"\boxed{" * 20_000) == "agent: answer too long"


THIEF = """
import json, os, sys, time, urllib.error, urllib.request

def ask(key):
    messages = [{"role": "user", "content": "2 hats"}]
    body = json.dumps({"model": "solver", "messages": messages, "max_tokens": 4}).encode()
    headers = {"content-type": "application/json", "authorization": f"Bearer {key}"}
    request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body, headers)
    try:
        return urllib.request.urlopen(request, timeout=60).status
    except urllib.error.HTTPError as error:
        return error.code

def keys():
    found = set()
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            words = open(f"/proc/{pid}/environ", "rb").read().split(b"\\0")
        except OSError:
            continue
        found |= {word.partition(b"=")[2].decode() for word in words if word.startswith(b"OPENAI_API_KEY=")}
    return found - {os.environ["OPENAI_API_KEY"]}

own = ask(os.environ["OPENAI_API_KEY"])
until = time.time() + 30
while not keys() and time.time() < until:
    time.sleep(0.02)
print(own, *sorted({ask(key) for key in keys()}))
time.sleep(1)
"""


def test_whose_a_connection_is():
    """By both of its ends; and nobody's, once its program has left."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        client = socket.create_connection(("127.0.0.1", port))
        own_port = client.getsockname()[1]
        held, *others = (peers.sockets_between(own_port, other) for other in (port, port - 1))
        assert len(held) == 1 and others == [frozenset()]
        assert peers.is_held_by(held, [os.getpid()]) and not peers.is_held_by(held, [])
        client.close()
        assert peers.sockets_between(own_port, port) == frozenset()


@pytest.mark.whole
def test_a_key_that_another_rollout_s_program_uses_is_refused(tmp_path):
    (tmp_path / "thief.py").write_text(THIEF)
    trainer = CoTrainer(
        agent(model=TINY, tasks=EASY, tasks_per_step=2, group_size=2, evaluation_tasks=1, command="true", steps=1)
    )
    said = []

    def note(task, answer):
        said.append(answer)
        return 0.0

    protocol = make_agent_protocol(
        [sys.executable, str(tmp_path / "thief.py")],
        note,
        ("solver",),
        requests=9,
        seconds=90.0,
        max_tokens=8,
        at_once=4,
    )
    trainer.runner.collect(protocol, [EASY.get("train", k) for k in range(2)], step=0, group_size=1)
    trainer.close()
    assert said == ["200 401", "200 401"]


def test_standard_error_is_shown_without_control_characters(capfd):
    assert result_of(["sh", "-c", r"printf 'one\n\033[2J\033]0;mine\007two\r\nthree' >&2; echo 4"]) == "4"
    shown = capfd.readouterr().err
    assert shown == "agent: one\nagent: <U+001B>[2J<U+001B>]0;mine<U+0007>two\nagent: three\n"


@pytest.mark.parametrize("flood", ["yes", "cat /dev/zero"], ids=["lines", "zeros"])
def test_a_flood_on_standard_error_is_cut_and_stops_nobody(flood, capfd):
    assert result_of(["sh", "-c", f"{flood} | head -c 3000000 >&2; echo 4"]) == "4"
    shown = capfd.readouterr().err
    assert len(shown) < 20 * MAX_ERROR_BYTES and "the rest of its standard error is not shown" in shown
    assert "\0" not in shown


def test_all_rollouts_together_show_no_more(capfd, monkeypatch):
    monkeypatch.setattr(program._ERROR_BUDGET, "_total", program.MAX_ERROR_BYTES_OF_ALL - 3)
    assert result_of(["sh", "-c", "echo first >&2; echo 4"]) == "4"
    assert capfd.readouterr().err == "agent: fir\nagent: the rest of its standard error is not shown\n"
