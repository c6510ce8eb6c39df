"""A program could talk to anybody."""

from __future__ import annotations

import socket

from cotrain.core.types import Grade

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
import asyncio
async def four():
    await asyncio.sleep(0)
    return 4
def twice(x):
    return asyncio.run(four())
"""


def test_nobody_can_be_reached(cell):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert cell.ask(REACH, f"assert reached({port}) == 0") == Grade(value=True)


def test_local_sockets_work(cell):
    assert cell.ask(LOCAL, "assert twice(2) == 4") == Grade(value=True)
