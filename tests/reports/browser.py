"""A headless Chromium that tests drive: over its debugging pipe, so that nothing but the browser is needed."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)
needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")
QUIET = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--hide-scrollbars",
)  # fmt: skip


def drawn(path: Path, profile: Path, budget: int = 8000, address: str = "") -> str:
    """The page's elements after its modules have run."""
    assert CHROMIUM is not None
    command = [
        CHROMIUM, *QUIET, f"--user-data-dir={profile}", "--window-size=1200,900",
        f"--virtual-time-budget={budget}", "--dump-dom", f"{path.as_uri()}{address}",
    ]  # fmt: skip
    found = subprocess.run(command, capture_output=True, timeout=900, check=True).stdout
    return found.decode("utf-8", errors="replace")


class Browser:
    """One window. ``errors``: what its page threw or logged as an error."""

    def __init__(self, profile: Path, width: int = 1440, height: int = 900) -> None:
        assert CHROMIUM is not None
        (hear, self._write), (self._read, tell) = os.pipe(), os.pipe()
        high = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 20) for end in (hear, tell)]  # out of the way of 3 and 4
        sink = os.open(os.devnull, os.O_RDWR)
        ends = [(os.POSIX_SPAWN_DUP2, sink, 1), (os.POSIX_SPAWN_DUP2, sink, 2)]
        ends += [(os.POSIX_SPAWN_DUP2, high[0], 3), (os.POSIX_SPAWN_DUP2, high[1], 4)]
        flags = (*QUIET, "--remote-debugging-pipe", f"--window-size={width},{height}", f"--user-data-dir={profile}")
        self._pid = os.posix_spawn(CHROMIUM, [CHROMIUM, *flags, "about:blank"], os.environ, file_actions=ends)
        for end in (hear, tell, *high, sink):
            os.close(end)
        self._rest, self._count, self._session = b"", 0, ""
        self.errors: list[str] = []
        (page,) = [t for t in self._ask("Target.getTargets")["targetInfos"] if t["type"] == "page"]
        self._session = self._ask("Target.attachToTarget", targetId=page["targetId"], flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self._ask(f"{domain}.enable")
        self.size(width, height)

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *error: object) -> None:
        os.kill(self._pid, signal.SIGTERM)
        os.waitpid(self._pid, 0)
        os.close(self._write)
        os.close(self._read)

    def _ask(self, method: str, **parameters: Any) -> Any:
        self._count += 1
        asked = {"id": self._count, "method": method, "params": parameters}
        asked |= {"sessionId": self._session} if self._session else {}
        os.write(self._write, json.dumps(asked).encode() + b"\0")
        while True:
            while b"\0" not in self._rest:
                more = os.read(self._read, 1 << 20)
                assert more, "the browser has ended"
                self._rest += more
            line, _, self._rest = self._rest.partition(b"\0")
            told = json.loads(line)
            if told.get("method") == "Runtime.exceptionThrown":
                self.errors.append(json.dumps(told["params"]["exceptionDetails"])[:500])
            if told.get("method") == "Log.entryAdded" and told["params"]["entry"]["level"] == "error":
                self.errors.append(told["params"]["entry"]["text"])
            if told.get("id") == self._count:
                assert "error" not in told, told
                return told["result"]

    def open(self, address: str) -> None:
        self._ask("Page.navigate", url=address)

    def reload(self) -> None:
        self._ask("Page.reload")

    def size(self, width: int, height: int, *, dark: bool = False) -> None:
        self._ask(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._ask("Emulation.setEmulatedMedia", features=[scheme])

    def run(self, script: str) -> Any:
        """The value of an expression in the page."""
        found = self._ask("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def wait(self, script: str, seconds: float = 300.0) -> Any:
        """Until an expression is true."""
        end = time.monotonic() + seconds
        tried = f"(() => {{ try {{ return {script}; }} catch {{ return false; }} }})()"  # what is not there yet
        while (value := self._tried(tried)) in (None, False, "", 0):
            assert time.monotonic() < end, f"never true: {script}\n{self.text()[:2000]}"
            time.sleep(0.05)
        return value

    def _tried(self, script: str) -> Any:
        try:
            return self.run(script)
        except AssertionError as error:
            if "navigated" not in str(error):
                raise
            return None  # the page was left while it was asked

    def click(self, selector: str, words: str = "") -> None:
        """Click the first element of a selector that holds these words, as soon as it is there."""
        found = f"[...document.querySelectorAll({json.dumps(selector)})]"
        one = f"{found}.find((e) => e.textContent.includes({json.dumps(words)}))"
        self.wait(f"(() => {{ const one = {one}; one?.click(); return !!one; }})()")  # at once: a page is drawn anew

    def key(self, name: str) -> None:
        for kind in ("keyDown", "keyUp"):
            self._ask("Input.dispatchKeyEvent", type=kind, key=name, text=name if kind == "keyDown" else "")

    def text(self) -> str:
        return str(self.run("document.body.innerText"))

    def picture(self, path: Path) -> None:
        found = self._ask("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(found["data"]))
