"""Whether a Ray cluster can be joined, or one begun here, asked before Ray is: Ray itself waits for minutes where
nothing answers.

Ray speaks gRPC, so what answers at its address must speak HTTP/2 (RFC 9113, section 3.4: both sides begin with a
SETTINGS frame). Left out: names of clusters and Ray's client (``ray://…``), which are tried as they are.
"""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from cotrain.core.errors import ConfigError
from cotrain.distributed.cluster_file import Cluster
from cotrain.distributed.ray_nodes import memory_here

PATIENCE = 5.0  # seconds for whoever has the port to answer
# What a client of HTTP/2 sends first, and what comes back is a frame: 3 bytes of length, 1 of type, 5 more.
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"  # and empty settings
SETTINGS = 4  # type of a frame
HERE = "RAY_GCS_SERVER_PORT"  # the port of a Ray that begins here, where somebody has set it
SHARED = Path("/dev/shm")
# Ray's own names of environment variables.
MODE = "RAY_AUTH_MODE"
TOKEN = "RAY_AUTH_TOKEN"
TOKEN_FILE = "RAY_AUTH_TOKEN_PATH"

ASK = "import sys, ray; ray._raylet.GcsClient(address=sys.argv[1])"  # in a process of its own: Ray reads MODE once
SLOW = 10 * 10**9  # bytes of the object store, beyond which Ray refuses to take the disk for shared memory


def check_address(address: str, patience: float = PATIENCE) -> None:
    """Raise ConfigError, one line, where no Ray answers at ``host:port``."""
    host, colon, port = address.rpartition(":")
    if not colon or "/" in address or not port.isdecimal():
        return  # "auto", or a name that Ray knows
    where = f"address = {address!r} in the --cluster file"
    if not 0 < int(port) < 2**16:
        raise ConfigError(f"{where}: {port} is no port; expected one from 1 to 65535", code="E_RAY_PORT")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=patience) as line:
            line.sendall(PREFACE)
            reply = line.recv(9)  # the head of a frame
            while 0 < len(reply) < 4:
                more = line.recv(9)
                if not more:
                    break
                reply += more
    except TimeoutError:
        reply = b""
    except OSError as error:
        if error.errno == errno.ECONNRESET:
            reply = b""
        else:
            why = (error.strerror or str(error)).lower()
            raise ConfigError(
                f"{where}: no Ray answers there ({why}); begin one with `ray start --head --port {port}`, mend the "
                "address, or leave it out to begin Ray here",
                code="E_RAY_NOT_REACHED",
            ) from None
    if len(reply) < 4 or reply[3] != SETTINGS:
        raise ConfigError(
            f"{where}: another program has that port, which is no Ray; give the address that `ray start --head` "
            "printed, or another --port to it",
            code="E_RAY_PORT_TAKEN",
        )


def check_token(address: str, patience: float = 30.0) -> None:
    """Ray 2.60 asks who joins for a token if the machine that began it has one. Whoever names an address must say so
    (``RAY_AUTH_MODE=token``); where the user has set nothing and there is a token, that is set here. Raises
    ConfigError, one line, where the token is missing or another one; without this Ray tries for 20 seconds, and its
    error does not name the token."""
    if ":" not in address or "/" in address or not _asks_for_token(address, {}, patience):
        return
    where = f"address = {address!r} in the --cluster file: that Ray asks for a token"
    file = Path(os.environ.get(TOKEN_FILE) or Path.home() / ".ray" / "auth_token")
    token_source = ""
    if os.environ.get(TOKEN):
        token_source = TOKEN
    elif file.is_file():
        token_source = str(file)
    if os.environ.get(MODE, "token").lower() != "token":
        raise ConfigError(f"{where}, and {MODE} is {os.environ[MODE]!r}; unset it", code="E_RAY_TOKEN")
    if not token_source:
        raise ConfigError(
            f"{where}, and there is none here; copy ~/.ray/auth_token of the machine that began it to {file}, or set "
            f"{TOKEN}",
            code="E_RAY_TOKEN",
        )
    if _asks_for_token(address, {MODE: "token"}, patience):
        raise ConfigError(
            f"{where}, and refuses that of {token_source}; expected the ~/.ray/auth_token of the machine that began it",
            code="E_RAY_TOKEN",
        )
    os.environ[MODE] = "token"
    import ray

    ray._raylet.Config.initialize("")  # type: ignore[attr-defined]  # Ray reads the mode when it is imported


def take_token() -> None:
    """A token of this process alone for the Ray that begins here, unless the user has set one: Ray would write its own
    into the user's folder, and every Ray that begins there later would ask for it."""
    if not {MODE, TOKEN, TOKEN_FILE} & os.environ.keys():
        os.environ[TOKEN] = secrets.token_hex(32)


def _asks_for_token(address: str, environment: Mapping[str, str], patience: float) -> bool:
    command = [sys.executable, "-c", ASK, address]
    try:
        result = subprocess.run(
            command,
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            errors="replace",
            timeout=patience,
        )
    except subprocess.TimeoutExpired:
        return False  # joining it will tell
    return result.returncode != 0 and "AuthenticationError" in result.stderr


SOCKET = f"/ray/session_2026-01-01_00-00-00_000000_{os.getpid()}/sockets/plasma_store"  # of Ray, below its folder
LONGEST_FOLDER = 107 - len(SOCKET)  # bytes: the name of a socket has at most 107


def check_here(cluster: Cluster, environment: Mapping[str, str] = os.environ) -> None:
    """Raise ConfigError, one line, where Ray cannot begin on this machine: its folder has too long a name, the port it
    is told to take is in use, or there is less memory than its object store is to have."""
    folder = environment.get("RAY_TMPDIR") or environment.get("TMPDIR") or "/tmp"
    if cluster.address is None and len(os.fsencode(folder)) > LONGEST_FOLDER:
        raise ConfigError(
            f"Ray keeps sockets below {folder}, whose name has {len(os.fsencode(folder))} bytes, and the system takes "
            f"at most {LONGEST_FOLDER}; name a short folder, as in RAY_TMPDIR=/tmp",
            code="E_RAY_FOLDER_TOO_LONG",
        )
    port = environment.get(HERE, "")
    if port.isdecimal() and int(port):
        with socket.socket() as line:
            line.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                line.bind(("", int(port)))
            except (OSError, OverflowError) as error:
                why = (getattr(error, "strerror", None) or str(error)).lower()
                raise ConfigError(
                    f"{HERE} = {port}: Ray cannot begin at that port ({why}); unset it, and Ray takes a free one",
                    code="E_RAY_PORT_TAKEN",
                ) from None
    wanted = cluster.object_store_mb * 2**20
    memory_bytes = memory_here()
    if wanted > memory_bytes:
        raise ConfigError(
            f"object_store_mb = {cluster.object_store_mb} in the --cluster file: this machine has "
            f"{memory_bytes // 2**20} MB of memory in all; lower it",
            code="E_OBJECT_STORE_TOO_LARGE",
        )
    shared = shutil.disk_usage(SHARED).free if SHARED.is_dir() else wanted
    if wanted > max(shared, SLOW):
        raise ConfigError(
            f"object_store_mb = {cluster.object_store_mb} in the --cluster file: {SHARED} has {shared // 2**20} MB "
            "free; lower it, or give the container more shared memory",
            code="E_OBJECT_STORE_TOO_LARGE",
        )
