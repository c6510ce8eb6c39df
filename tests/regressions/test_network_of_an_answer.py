"""A program could talk to anybody: over the network, and through the Unix sockets of other processes.

With the session bus of its user it could have any command run outside of its sandbox.
"""

from __future__ import annotations

import os
import platform
import shutil
import socket
import subprocess
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from cotrain.core.types import Grade
from cotrain.grading import isolation
from cotrain.grading.isolation import KINDS, sandbox_fault, ways_out

REACH = """
import socket
def reached(port):
    n = 0
    for address in ("127.0.0.1", "192.0.2.1"):
        try:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
                one.connect((address, port))
            n += 1
            with socket.create_connection((address, port), timeout=0.1):
                n += 1
        except OSError:
            pass
    return n
"""
LOCAL = """
import asyncio, socket
async def four():
    await asyncio.sleep(0)
    return 4
def twice(x):
    for kind in (socket.SOCK_STREAM, socket.SOCK_STREAM | socket.SOCK_NONBLOCK):
        one, other = socket.socketpair(socket.AF_UNIX, kind)
        one.send(b"x")
        assert other.recv(1) == b"x"
    return asyncio.run(four())
"""
UNIX = """
import ctypes, mmap, os, socket
LIBC = ctypes.CDLL(None, use_errno=True)
def address(name):
    return chr(0) + name[1:] if name[0] == "@" else name
def connected(name, kind):
    try:
        with socket.socket(socket.AF_UNIX, kind) as one:
            one.connect(address(name))
    except OSError:
        return False
    return True
def reached(stream, datagrams):
    found = [name for name in stream if connected(name, socket.SOCK_STREAM)]
    return found + [name for name in datagrams if connected(name, socket.SOCK_DGRAM) or sent(name)]
def sent(name):
    for kind in (socket.SOCK_DGRAM, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK):
        try:
            pair = socket.socketpair(socket.AF_UNIX, kind)
            pair[0].sendto(b"x", address(name))
            return True
        except OSError:
            pass
    return False
def greeted(path):
    try:
        with socket.socket(socket.AF_UNIX) as bus:
            bus.settimeout(1)
            bus.connect(path)
            bus.sendall(b"\\0AUTH EXTERNAL " + str(os.geteuid()).encode().hex().encode() + b"\\r\\n")
            return bus.recv(100).split()[0].decode()
    except OSError as error:
        return type(error).__name__
def called(number, *arguments):
    return LIBC.syscall(ctypes.c_long(number), *map(ctypes.c_long, arguments))
def made_in_32_bits():
    # mov eax, 359 (socket); mov ebx, 1; mov ecx, 1; xor edx, edx; int 0x80
    code = bytes.fromhex("53" "b867010000" "bb01000000" "b901000000" "31d2" "cd80" "5b" "c3")
    page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    page.write(code)
    return ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))()
"""
SOCKET, CONNECT, IO_URING_SETUP, X32 = 41, 42, 425, 0x40000000


def test_nobody_can_be_reached(sandbox):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert sandbox.ask(REACH, f"assert reached({port}) == 0") == Grade(value=True)


def test_pairs_of_connected_streams_work(sandbox):
    assert sandbox.ask(LOCAL, "assert twice(2) == 4") == Grade(value=True)


@pytest.fixture
def sockets():
    """Sockets that anybody may connect to, as a container engine's or a journal's are: with a path, and abstract."""
    with tempfile.TemporaryDirectory(prefix="cotrain-") as folder, ExitStack() as opened:
        os.chmod(folder, 0o755)
        made = {}
        for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
            made[kind] = [f"{folder}/{kind.name}", f"@{Path(folder).name}-{kind.name}"]
            for name in made[kind]:
                server = opened.enter_context(socket.socket(socket.AF_UNIX, kind))
                server.bind("\0" + name[1:] if name[0] == "@" else name)
                if kind == socket.SOCK_STREAM:
                    server.listen()
            os.chmod(made[kind][0], 0o777)
        yield made[socket.SOCK_STREAM], made[socket.SOCK_DGRAM]


def test_no_unix_socket_can_be_reached(sandbox, sockets):
    stream, datagrams = sockets
    assert sandbox.ask(UNIX, f"assert reached({stream!r}, {datagrams!r}) == []") == Grade(value=True)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="numbers of system calls of x86-64")
def test_no_socket_comes_by_another_way_into_the_kernel(sandbox):
    for tests in (
        f"assert called({SOCKET | X32}, 1, 1, 0) == -1",
        f"assert called({SOCKET}, 1, 1, 0) == -1 and called({SOCKET + (1 << 32)}, 1, 1, 0) == -1",
        f"assert called({IO_URING_SETUP}, 1, 0) == -1",
        "assert made_in_32_bits() < 0",
    ):
        grade = sandbox.ask(UNIX, tests)
        assert grade == Grade(value=True) or grade.reason == "program died", (tests, grade)


@pytest.mark.skipif(shutil.which("dbus-daemon") is None, reason="dbus-daemon is not on the PATH")
def test_a_session_bus_cannot_be_reached(sandbox):
    with tempfile.TemporaryDirectory(prefix="cotrain-") as folder:
        os.chmod(folder, 0o755)
        command = ["dbus-daemon", "--session", "--nofork", f"--address=unix:path={folder}/bus"]
        with subprocess.Popen(command, stderr=subprocess.DEVNULL) as bus:
            until = time.monotonic() + 30
            while not os.path.exists(f"{folder}/bus"):
                if bus.poll() is not None or time.monotonic() > until:
                    pytest.skip("dbus-daemon does not start here")
                time.sleep(0.05)
            try:
                grade = sandbox.ask(UNIX, f"assert greeted({folder + '/bus'!r}) not in ('OK', 'REJECTED')")
            finally:
                bus.kill()
        assert grade == Grade(value=True)


@pytest.mark.whole
def test_doctor_tries_unix_sockets(sockets):
    outside: dict[str, Any] = {}
    exec(isolation._PROGRAM, outside)  # noqa: S102  the probe, where no sandbox is around it
    assert all(outside["can_send"]([name.replace("@", "\0")]) for name in sockets[1])
    kind = next(kind for kind in KINDS if sandbox_fault(kind) is None)
    assert "Unix sockets" not in ways_out(kind)
