"""A vLLM engine in a process of another Python, for tests: one engine a process, asked over a socket.

``python -m tests.vllm.worker SOCKET`` is the other end. What crosses is what tests pass.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import Any

PYTHON = os.environ.get("COTRAIN_VLLM_PYTHON", "")  # of an environment with vLLM; `make test-vllm` makes one
_KEY = b"cotrain tests"
_ROOT = Path(__file__).parents[2]


class Other:
    """An engine elsewhere. ``cures``: names of the engine's methods that are left out, to see what they are for."""

    def __init__(self, model: Any, policies: dict[str, int | None], *, without: tuple[str, ...] = (), **settings: Any):
        folder = tempfile.mkdtemp(prefix="cotrain-vllm-")
        address = str(Path(folder) / "socket")
        with Listener(address, authkey=_KEY) as listener:
            environment = {**os.environ, "PYTHONPATH": str(_ROOT), "OMP_NUM_THREADS": "1"}
            command = [PYTHON, "-m", "tests.vllm.worker", address]
            self._process = subprocess.Popen(command, cwd=_ROOT, env=environment, stdout=subprocess.DEVNULL)
            self._connection: Connection = listener.accept()
        self.made = self._ask("make", str(model), policies, without, settings)

    def answers(self, requests: list[Any]) -> list[Any]:
        """Of requests that are made at once, in that order."""
        return list(self._ask("answers", requests))

    def take(self, policy: str, weights: dict[str, Any], version: int, config: Any = None) -> None:
        """``weights``: name → tensor."""
        self._ask("take", policy, {name: tensor.numpy() for name, tensor in weights.items()}, version, config)

    def call(self, function: Any, *arguments: Any) -> Any:
        """A function of a module of tests, called there with the engine."""
        return self._ask("call", function, arguments)

    def close(self) -> None:
        """The other end leaves when nobody listens; a busy machine may take long over that."""
        self._connection.close()
        try:
            self._process.wait(120)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _ask(self, *question: Any) -> Any:
        self._connection.send(question)
        try:
            kind, found = self._connection.recv()
        except EOFError:
            raise RuntimeError(f"the process of vLLM ended with {self._process.wait(30)}") from None
        if kind == "raised":
            raise found
        return found


def main(address: str) -> None:
    import torch

    torch.set_num_threads(1)
    engine: Any = None
    with Client(address, authkey=_KEY) as connection:
        while True:
            try:
                question, *arguments = connection.recv()
            except EOFError:
                return
            try:
                if question == "make":
                    engine, found = _made(*arguments)
                elif question == "answers":
                    from tests.helpers import answers

                    found = answers(engine, *arguments)
                elif question == "take":
                    policy, arrays, version, config = arguments
                    engine.load_weights(
                        policy, [(name, torch.from_numpy(array)) for name, array in arrays.items()], config
                    )
                    engine.publish(policy, version)
                    found = None
                else:
                    found = arguments[0](engine, *arguments[1])
                connection.send(("found", found))
            except Exception as error:  # noqa: BLE001  told to the test
                connection.send(("raised", error))


def _plain(engine: Any, policy: str, directory: Path) -> Any:
    """As vLLM's own users ask for an adapter."""
    from vllm.lora.request import LoRARequest

    return LoRARequest(policy, 1 + list(engine._ranks).index(policy), os.fspath(directory))


LEFT_OUT = {  # method of the engine, each the cure of one fault → what vLLM does without it
    "_repack_output": lambda engine: None,
    "_clear_prefix_cache": lambda engine: None,
    "_adapter_request": _plain,
    "_slot_count": lambda engine, ranks: len(ranks),
}


def _made(model: str, policies: dict[str, int | None], without: tuple[str, ...], settings: dict[str, Any]) -> Any:
    from cotrain.inference.vllm import VllmEngine, VllmSettings

    kind: Any = type("Maimed", (VllmEngine,), {name: LEFT_OUT[name] for name in without}) if without else VllmEngine
    own = VllmSettings(cache_mb=settings.pop("cache_mb", 256), rows=settings.pop("rows", 64), context=1024)
    return (engine := kind(model, policies, settings=own, **settings)), engine.context(next(iter(policies)))


if __name__ == "__main__":
    main(sys.argv[1])
