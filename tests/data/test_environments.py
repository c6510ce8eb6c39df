"""Sources of other people's environments: against fakes with the interface that is used, and against the packages if
installed."""

from __future__ import annotations

import json
import random
import sys
import threading
import time
import types
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from cotrain.core.types import Grade
from cotrain.data.files import split_of
from cotrain.data.sources import from_description, task_source
from cotrain.envs.openenv.served import OpenEnvTasks
from cotrain.envs.verifiers.taskset import VerifiersTasks
from tests.fakes import on_the_path
from tests.sentences import refuses

RIGHT, WRONG = Grade(value=True), Grade(value=False)


def ungraded(reason: str) -> Grade:
    return Grade(value=None, reason=reason)


def test_without_the_packages_the_error_says_what_to_install(monkeypatch):
    for module in (
        "openenv",
        "openenv.core",
        "openenv.core.env_server.interfaces",
        "verifiers",
        "verifiers.v1",
        "verifiers.v1.utils.loaders",
    ):
        monkeypatch.setitem(sys.modules, module, None)
    with refuses("E_VERIFIERS_NOT_INSTALLED", names=".[verifiers]"):
        task_source("verifiers:sums")
    for address in ("http://127.0.0.1:1", "mine.py:Guessing"):
        with refuses("E_OPENENV_NOT_INSTALLED", names=".[openenv]"):
            task_source(f"openenv:{address}")


# -- OpenEnv


@dataclass
class Result:
    observation: dict
    reward: float | None = None
    done: bool = False


class FakeClient:
    """The part of ``GenericEnvClient`` that is used; the environment asks for a sum."""

    mode = "plain"

    def __init__(self, base_url, connect_timeout_s, message_timeout_s):
        assert base_url == "http://here" and message_timeout_s == connect_timeout_s == 30.0

    def sync(self):
        return self

    def __enter__(self):
        return self

    def __exit__(self, *error):
        return None

    def reset(self, seed):
        rng = random.Random(None if self.mode == "unseeded" else seed)
        self.a, self.b = rng.randrange(100), rng.randrange(100)
        return Result({"question": f"{self.a} + {self.b}?", "hint": "", "turn": 0})

    def step(self, action):
        if self.mode == "broken":
            raise RuntimeError("no")
        if self.mode == "late":
            raise TimeoutError
        reward = float(action["answer"] == str(self.a + self.b))
        paid = {"unpaid": None, "endless": float("nan"), "much": "much"}.get(self.mode, reward)
        return Result({}, paid, self.mode != "long")


@pytest.fixture
def fake_openenv(monkeypatch):
    core = types.ModuleType("openenv.core")
    core.GenericEnvClient = FakeClient
    monkeypatch.setitem(sys.modules, "openenv", types.ModuleType("openenv"))
    monkeypatch.setitem(sys.modules, "openenv.core", core)
    monkeypatch.setattr(FakeClient, "mode", "plain")


def sum_of(prompt: str) -> int:
    a, b = prompt.removesuffix("?").split(" + ")
    return int(a) + int(b)


def test_an_openenv_server_is_a_task_source(fake_openenv, monkeypatch):
    source = task_source("openenv:http://here?action=answer")
    tasks = {split: [source.get(split, i) for i in range(5)] for split in ("train", "validation", "test")}
    for split, mine in tasks.items():
        assert all(split_of(task.prompt) == split for task in mine)
        assert [source.get(split, i) for i in range(5)] == mine
    task = tasks["train"][0]
    assert task.grade(f"<answer>{sum_of(task.prompt)}</answer>") == RIGHT
    assert task.grade("0") == WRONG
    again = from_description(json.loads(json.dumps(source.describe())))
    assert again.describe() == source.describe() and again.get("train", 0) == task
    modes = {
        "broken": "environment failed",
        "late": "timeout",
        "unpaid": "no reward",
        "endless": "reward not finite",
        "much": "environment failed",
        "long": "not done after one answer",
    }
    for mode, reason in modes.items():
        monkeypatch.setattr(FakeClient, "mode", mode)
        assert task.grade("0") == ungraded(reason)


def test_openenv_servers_that_do_not_fit(fake_openenv, monkeypatch):
    with refuses("E_ENVIRONMENT_ADDRESS"):
        OpenEnvTasks("here:80")
    with refuses("E_ENVIRONMENT_ADDRESS", names=("'answer=x'", "prompt=FIELD&action=FIELD")):
        OpenEnvTasks("http://here?answer=x")
    with refuses("E_ENVIRONMENT_FIELD", names="'hint'"):
        OpenEnvTasks("http://here?prompt=hint&action=answer")
    monkeypatch.setattr(FakeClient, "mode", "unseeded")
    with refuses("E_SOURCE_NOT_REPEATABLE"):
        OpenEnvTasks("http://here?action=answer")


class Schema(BaseHTTPRequestHandler):
    """Describes an environment whose actions are calls of tools, as OpenEnv's server does."""

    description: object = {
        "action": {"properties": {"tool_name": {"type": "string"}, "arguments": {"type": "object"}}},
    }

    def do_GET(self):
        body = json.dumps(self.description).encode()
        self.send_response(200)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *words): ...


def test_tools_of_a_server_are_refused_by_name(fake_openenv):
    with HTTPServer(("127.0.0.1", 0), Schema) as server:
        threading.Thread(target=server.handle_request, daemon=True).start()
        with refuses("E_ENVIRONMENT_TOOLS_ELSEWHERE", names="openenv:FILE.py:CLASS"):
            task_source(f"openenv:http://127.0.0.1:{server.server_port}")


@pytest.mark.parametrize(
    "description",
    [[], "text", {"action": []}, {"action": None}, {"action": {"properties": 3}}, {"action": {"properties": {"a": 1}}}],
    ids=["list", "text", "action list", "no action", "number", "field"],
)
def test_a_server_that_describes_itself_in_another_shape_is_refused(fake_openenv, monkeypatch, description):
    monkeypatch.setattr(Schema, "description", description)
    with HTTPServer(("127.0.0.1", 0), Schema) as server:
        threading.Thread(target=server.handle_request, daemon=True).start()
        with refuses("E_ENVIRONMENT_SILENT", names=str(server.server_port)):
            task_source(f"openenv:http://127.0.0.1:{server.server_port}")


def test_a_real_openenv_server():
    pytest.importorskip("openenv.core")
    import socket

    import uvicorn
    from openenv.core.env_server.http_server import create_fastapi_app
    from openenv.core.env_server.interfaces import Environment
    from openenv.core.env_server.types import Action, Observation, State

    class Said(Action):
        answer: str

    class Asked(Observation):
        question: str = ""

    class Sums(Environment):
        SUPPORTS_CONCURRENT_SESSIONS = True

        def reset(self, seed=None, episode_id=None, **rest):
            rng = random.Random(seed)
            self.a, self.b = rng.randrange(100), rng.randrange(100)
            return Asked(question=f"{self.a} + {self.b}?")

        def step(self, action, timeout_s=None, **rest):
            return Asked(done=True, reward=float(action.answer == str(self.a + self.b)))

        @property
        def state(self):
            return State()

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    app = create_fastapi_app(Sums, Said, Asked, max_concurrent_envs=4)
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=port, log_level="error"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    for _ in range(600):
        if server.started:
            break
        time.sleep(0.1)
    try:
        source = task_source(f"openenv:http://127.0.0.1:{port}")  # both fields are found
        task = source.get("train", 3)
        assert task.grade(f"<answer>{sum_of(task.prompt)}</answer>") == RIGHT
        assert task.grade("<answer>x</answer>") == WRONG
        assert source.describe()["settings"]["fields"] == {"prompt": "question", "action": "answer"}
    finally:
        server.should_exit = True
        thread.join(60)
    assert task.grade("0") == ungraded("environment failed")
    with refuses("E_ENVIRONMENT_SILENT", names=str(port)):
        OpenEnvTasks(f"http://127.0.0.1:{port}")


# -- verifiers

TASKSET = """
import verifiers.v1 as vf

__all__ = ["Sums"]


class Asked(vf.TaskData):
    answer: int


class Sum(vf.Task[Asked]):
    @vf.reward(weight=1.0)
    async def right(self, trace) -> float:
        said = trace.assistant_messages[-1].content
        while "for ever" in said:
            pass
        if "raise" in said:
            raise ValueError(said)
        return float(said.strip() == str(self.data.answer))


class SumsConfig(vf.TasksetConfig):
    count: int = 40


class Sums(vf.Taskset[Sum, SumsConfig]):
    def load(self):
        for n in range(self.config.count):
            yield Sum(Asked(prompt=f"{n} + 1?", answer=n + 1), self.config.task)
"""


@pytest.fixture(scope="module", params=["fake", "real"])
def sums(request, tmp_path_factory):
    """The taskset ``cotrain_sums``, of the package or of its fake."""
    with on_the_path(tmp_path_factory.mktemp("packages"), request.param, cotrain_sums=TASKSET):
        source = task_source("verifiers:cotrain_sums")
        yield source
        source.close()


@pytest.mark.whole
def test_a_taskset_is_a_task_source(sums):
    tasks = [sums.get(split, i) for split in ("train", "validation", "test") for i in range(sums.size(split))]
    assert sorted(task.prompt for task in tasks) == sorted(f"{n} + 1?" for n in range(40))
    assert [sums.size(split) for split in ("train", "validation", "test")] == [32, 4, 4]
    task = sums.get("train", 2)
    answer = int(task.prompt.split()[0]) + 1
    assert task.grade(str(answer)) == RIGHT
    assert task.grade(f"The answer is {answer}") == WRONG
    assert task.grade("raise") == ungraded("reward failed")


@pytest.mark.whole
def test_a_reward_that_never_ends_is_no_grade_and_the_next_one_is_right(sums):
    settings = {**sums.describe()["settings"], "deadline_s": 0.5, "answer_as": "{answer}"}
    again = from_description({"kind": "verifiers", "settings": json.loads(json.dumps(settings))})
    task = again.get("train", 2)
    answer = int(task.prompt.split()[0]) + 1
    assert task.grade("<answer>for ever</answer>") == ungraded("timeout")
    assert task.grade(f"It is <answer>{answer}</answer>") == RIGHT
    again.close()


def test_tasksets_that_cannot_be_played(sums, monkeypatch):
    with refuses("E_ENVIRONMENT_NOT_LOADED"):
        VerifiersTasks("cotrain_no_such_taskset")
    with refuses("E_DATA_CHANGED"):
        VerifiersTasks("cotrain_sums", {"count": 30}, digest=sums.describe()["settings"]["digest"])
    monkeypatch.setattr(sys.modules["cotrain_sums"].Sum, "NEEDS_CONTAINER", True)
    with refuses("E_TASKSET_NOT_PLAIN", names="task 0"):
        VerifiersTasks("cotrain_sums")
