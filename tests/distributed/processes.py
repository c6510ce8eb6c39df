"""Hosts in this process, for tests of what is said between processes: all of it passes through pickle, as on its way to
others.

``Here`` counts what is asked, and loses a process at chosen questions as a kill would: what it held is gone.
"""

from __future__ import annotations

import multiprocessing
import pickle
import time
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from cotrain.core.errors import ProcessLost
from cotrain.distributed.engine_host import BaseEngineHost
from cotrain.distributed.multi_process import MultiProcessBackend
from cotrain.runs import run as loop


class Here:
    """A ``Launcher``. ``losses``: (what, method, which of such questions) with which it is lost, the
    answer too."""

    def __init__(self, losses: Iterable[tuple[str, str, int]] = ()) -> None:
        self.losses, self.asked, self.begun, self.lost = set(losses), Counter(), Counter(), 0

    here, deadline = True, 600.0

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def begin(self, what: str, host: type, settings: tuple[Any, ...]) -> One:
        self.begun[what] += 1
        return One(self, what, host(*carried(settings)))

    def describe(self) -> dict[str, Any]:
        return {"kind": "here"}


class One:
    """Implements ``contract.Process``."""

    def __init__(self, launcher: Here, what: str, host: Any) -> None:
        self._launcher, self.what, self._host = launcher, what, host
        self._thread = ThreadPoolExecutor(1)  # an event loop runs in the caller's

    def ask(self, method: str, *arguments: Any) -> Any:
        return self.wait(self.send(method, *arguments), method)

    def send(self, method: str, *arguments: Any) -> Any:
        """The answer itself, or its error."""
        arguments = tuple(self.wait(a, method) if isinstance(a, Lost) else a for a in fetched(arguments, method))
        if self._host is None:
            return Lost(self.what)
        self._launcher.asked[self.what, method] += 1
        found = self._thread.submit(getattr(self._host, method), *carried(arguments)).result()
        if (self.what, method, self._launcher.asked[self.what, method]) in self._launcher.losses:
            self._launcher.lost += 1
            self._drop()
            return Lost(self.what)
        return carried(found)

    def wait(self, reference: Any, method: str) -> Any:
        if isinstance(reference, Lost):
            raise ProcessLost(f"{reference.what} is lost during {method}")
        return reference

    def kill(self) -> None:
        self._drop()
        self._thread.shutdown()

    def _drop(self) -> None:
        host, self._host = self._host, None
        if isinstance(host, BaseEngineHost):
            self._thread.submit(host.close).result()


class Lost:
    """In place of an answer that does not come."""

    def __init__(self, what: str) -> None:
        self.what = what


def carried(value: Any) -> Any:
    from ray import cloudpickle  # here: ``on_ray.RayLauncher`` sets what Ray reads when it is imported

    return pickle.loads(cloudpickle.dumps(value))  # noqa: S301  made here


class Apart:
    """Hosts in processes of their own, begun by a server that has torch loaded already. A
    ``Launcher`` for hosts that wait for each other. ``kills``: (which rank, or what, method, which of such
    questions), which it no longer hears; -1 is who is no rank. ``amid``: likewise, killed when it has been asked."""

    here, deadline = True, 600.0

    def __init__(
        self, kills: Iterable[tuple[int | str, str, int]] = (), amid: Iterable[tuple[int | str, str, int]] = ()
    ) -> None:
        self.kills, self.amid, self.asked, self.begun, self.killed = set(kills), set(amid), Counter(), 0, 0
        self.processes: list[Other] = []

    def start(self) -> None: ...

    def stop(self) -> None:
        for process in self.processes:
            process.kill()

    def begin(self, what: str, host: type, settings: tuple[Any, ...]) -> Other:
        self.begun += 1
        self.processes.append(Other(self, what, host, settings))
        return self.processes[-1]

    def describe(self) -> dict[str, Any]:
        return {"kind": "apart"}


class Other:
    """Implements ``contract.WatchedProcess``."""

    def __init__(self, launcher: Apart, what: str, host: type, settings: tuple[Any, ...]) -> None:
        from ray import cloudpickle

        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["tests.distributed.preloaded"])
        self._launcher, self.what = launcher, what
        self._pipe, theirs = context.Pipe()
        self.process = context.Process(target=served, args=(theirs, host, cloudpickle.dumps(settings)), daemon=True)
        self.process.start()
        theirs.close()
        self._number, self._answers = 0, {}

    def send(self, method: str, *arguments: Any) -> Any:
        from ray import cloudpickle

        arguments = fetched(arguments, method)
        self._number += 1
        name = str(arguments[0]) if method == "call" else method
        rank = int(self.what.partition("(rank ")[2].partition(" ")[0] or -1)
        questions = set()
        for who in (rank, self.what):
            self._launcher.asked[who, name] += 1
            questions.add((who, name, self._launcher.asked[who, name]))
        if questions & self._launcher.kills:
            self.kill()
        with suppress(OSError):  # it is gone, as ``wait`` will tell
            self._pipe.send_bytes(cloudpickle.dumps((method, arguments)))
        if questions & self._launcher.amid:
            self.kill()
        self._launcher.killed += bool(questions & (self._launcher.kills | self._launcher.amid))
        return Reference(self, self._number)

    def ask(self, method: str, *arguments: Any) -> Any:
        return self.wait(self.send(method, *arguments), method)

    def is_done(self, reference: Reference, seconds: float) -> bool:
        """Also where it is gone."""
        until = time.monotonic() + seconds
        while reference.number not in self._answers and self._pipe.poll(max(0.0, until - time.monotonic())):
            try:
                self._answers[len(self._answers) + 1] = pickle.loads(self._pipe.recv_bytes())  # noqa: S301  made here
            except (EOFError, OSError):
                return True
        return reference.number in self._answers

    def wait(self, reference: Reference, method: str) -> Any:
        if not self.is_done(reference, Apart.deadline) or reference.number not in self._answers:
            raise ProcessLost(f"{self.what} is lost during {method}")
        answer, error = self._answers[reference.number]
        if error is not None:
            raise error
        return answer

    def kill(self) -> None:
        self.process.kill()
        self.process.join()


@dataclass(frozen=True)
class Reference:
    """An answer that is to come."""

    process: Other
    number: int


def fetched(arguments: tuple[Any, ...], method: str) -> tuple[Any, ...]:
    """With answers in the place of what stands for them."""
    return tuple(a.process.wait(a, method) if isinstance(a, Reference) else a for a in arguments)


def served(pipe: Any, host: type, settings: bytes) -> None:
    """What the other process does."""
    from ray import cloudpickle

    torch.set_num_threads(1)
    made = host(*pickle.loads(settings))  # noqa: S301  made here
    while True:
        try:
            method, arguments = pickle.loads(pipe.recv_bytes())  # noqa: S301  made here
        except EOFError:
            return
        try:
            told = getattr(made, method)(*arguments), None
        except Exception as error:  # noqa: BLE001  told to whoever asked
            told = None, error
        pipe.send_bytes(cloudpickle.dumps(told))


def killed(recipe: Any, out: Path, kills: Any, amid: Any, world: int = 1) -> None:
    """Make a run of processes ``Apart`` in which each of these is killed."""
    torch.set_num_threads(1)
    launcher = Apart(kills, amid)
    try:
        loop.start_run(recipe, out, checkpoint_every=1, backend=MultiProcessBackend(launcher, world=world))
    finally:
        launcher.stop()
    assert launcher.killed == len(kills) + len(amid), launcher.asked
    assert not any(process.process.is_alive() for process in launcher.processes)
