"""Hosts in this process, for tests of what is said between processes: all of it passes through pickle, as on its way to
others.

``Here`` counts what is asked, and loses a process at chosen questions as a kill would: what it held is gone.
"""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from cotrain.core.errors import ProcessLost


class Here:
    """Implements ``several.Launcher``. ``losses``: (what, method, which of such questions) with which it is lost, the
    answer too."""

    def __init__(self, losses: Iterable[tuple[str, str, int]] = ()) -> None:
        self.losses, self.asked, self.begun, self.lost = set(losses), Counter(), Counter(), 0

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def begin(self, what: str, host: type, settings: tuple[Any, ...]) -> One:
        self.begun[what] += 1
        return One(self, what, host(*carried(settings)))

    def describe(self) -> dict[str, Any]:
        return {"kind": "here"}


class One:
    """Implements ``hosted.Process``."""

    def __init__(self, launcher: Here, what: str, host: Any) -> None:
        self._launcher, self.what, self._host = launcher, what, host
        self._thread = ThreadPoolExecutor(1)  # an event loop runs in the caller's

    def ask(self, method: str, *arguments: Any) -> Any:
        return self.wait(self.send(method, *arguments), method)

    def send(self, method: str, *arguments: Any) -> Any:
        """The answer itself, or its error."""
        arguments = tuple(self.wait(a, method) if isinstance(a, Lost) else a for a in arguments)
        if self._host is None:
            return Lost(self.what)
        self._launcher.asked[self.what, method] += 1
        found = self._thread.submit(getattr(self._host, method), *carried(arguments)).result()
        if (self.what, method, self._launcher.asked[self.what, method]) in self._launcher.losses:
            self._launcher.lost += 1
            self._host = None
            return Lost(self.what)
        return carried(found)

    def wait(self, reference: Any, method: str) -> Any:
        if isinstance(reference, Lost):
            raise ProcessLost(f"{reference.what} is lost during {method}")
        return reference

    def kill(self) -> None:
        self._host = None
        self._thread.shutdown()


class Lost:
    """In place of an answer that does not come."""

    def __init__(self, what: str) -> None:
        self.what = what


def carried(value: Any) -> Any:
    from ray import cloudpickle  # here: ``on_ray.Ray`` sets what Ray reads when it is imported

    return pickle.loads(cloudpickle.dumps(value))  # noqa: S301  made here
