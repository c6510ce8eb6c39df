"""``cotrain serve``: what is refused, and what it survives."""

import asyncio
import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from served_asks import HERE, ask, body
from starlette.testclient import TestClient

from cotrain.cli.main import main
from cotrain.serving.app import host_of, make_application, open_listener
from cotrain.serving.models import StreamedReply
from tests.sentences import command_refuses, refuses

CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}


def called(**said):
    """A conversation in which the assistant has called a tool."""
    assistant = {"role": "assistant", "content": "4", **said}
    return {"messages": [{"role": "user", "content": "2 + 2?"}, assistant, {"role": "user", "content": "And?"}]}


@pytest.mark.whole
@pytest.mark.parametrize(
    "path, change, param, refusal",
    [
        ("chat/completions", {"model": "slover"}, "model", "E_MODEL_NOT_SERVED: 'solver'"),
        ("chat/completions", {"model": "verifier"}, "model", "E_MODEL_CANNOT_CHAT: fields problem, solution"),
        ("chat/completions", {"model": None}, "model", "E_MODEL_NOT_GIVEN"),
        ("chat/completions", {"messages": []}, "messages", "E_MESSAGES_EMPTY"),
        (
            "chat/completions",
            {"messages": [{"role": "tool", "content": ""}]},
            "messages",
            "E_MESSAGE_ROLE_UNKNOWN: 'tool'",
        ),
        ("chat/completions", {"messages": [{"role": "user", "content": 3}]}, "messages", "E_MESSAGE_CONTENT: 3"),
        ("chat/completions", called(tool_calls=[CALL]), "messages", "E_NOT_IMPLEMENTED: messages[1] | tool_calls"),
        (
            "chat/completions",
            called(content=None, tool_calls=[CALL]),
            "messages",
            "E_NOT_IMPLEMENTED: messages[1] | tool_calls",
        ),
        (
            "chat/completions",
            called(function_call=CALL["function"]),
            "messages",
            "E_NOT_IMPLEMENTED: messages[1] | function_call",
        ),
        (
            "chat/completions",
            {"tools": [{"type": "function", "function": {"name": "f"}}]},
            "tools",
            "E_NOT_IMPLEMENTED",
        ),
        (
            "chat/completions",
            {"messages": [{"role": "assistant", "content": ""}]},
            "messages",
            "E_LAST_MESSAGE_ASSISTANT",
        ),
        ("chat/completions", {"temprature": 1}, "temprature", "E_PARAMETER_UNKNOWN: 'temperature'"),
        ("chat/completions", {"temperature": -1}, "temperature", "E_PARAMETER_RANGE: from 0 to 100"),
        ("chat/completions", {"temperature": True}, "temperature", "E_PARAMETER_RANGE: from 0 to 100"),
        ("chat/completions", {"top_p": 0}, "top_p", "E_PARAMETER_RANGE: above 0"),
        ("chat/completions", {"max_tokens": 5000}, "max_tokens", "E_REQUEST_TOO_LONG: 1024"),
        ("chat/completions", {"n": 0}, "n", "E_PARAMETER_RANGE: from 1 to 128"),
        ("chat/completions", {"stop": [""]}, "stop", "E_STOP_STRINGS"),
        ("chat/completions", {"frequency_penalty": 0.5}, "frequency_penalty", "E_NOT_IMPLEMENTED"),
        ("chat/completions", {"top_logprobs": 2}, "top_logprobs", "E_LOGPROBS_NOT_ASKED"),
        ("chat/completions", {"stream": True, "logprobs": True}, "stream", "E_STREAM_WITH_OPTION"),
        ("completions", {"prompt": ""}, "prompt", "E_BODY_PROMPT"),
        ("completions", {"prompt": [1, "a"]}, "prompt", "E_BODY_PROMPT"),
        ("completions", {"prompt": [1, 10**9]}, "prompt", "E_TOKEN_OUTSIDE_VOCABULARY: token 1000000000"),
        ("completions", {"prompt": [-1, 4]}, "prompt", "E_TOKEN_OUTSIDE_VOCABULARY: token -1"),
        ("completions", {"prompt": "a", "max_tokens": 0}, "max_tokens", "E_PARAMETER_RANGE: from 1"),
        ("verify", {"solution": "x"}, "problem", "E_PROBLEM_MISSING"),
        ("verify", {"problem": "x", "solution": "x", "steps": []}, "solution", "E_SOLUTION_OR_STEPS"),
        ("verify", {"problem": "x", "solution": "x", "model": "solver"}, "model", "E_MODEL_DOES_NOT_JUDGE: verifier"),
    ],
)
def test_bad_requests_name_the_parameter(client, task, path, change, param, refusal):
    start = {"chat/completions": body(task), "completions": {"model": "policy/reference"}, "verify": {}}[path]
    answer = client.post(f"/v1/{path}", json={**start, **change})
    error = answer.json()["error"]
    code, _, names = refusal.partition(": ")
    assert answer.status_code == (404 if code == "E_MODEL_NOT_SERVED" else 400)
    assert error["cotrain_code"] == code and all(name in error["message"] for name in names.split(" | "))
    assert error["param"] == param and error["type"] == "invalid_request_error"


def test_too_long_and_too_many(client, task, monkeypatch):
    long = client.post("/v1/verify", json={"problem": "word " * 900, "solution": task.solution})
    assert long.status_code == 400 and long.json()["error"]["code"] == "context_length_exceeded"
    monkeypatch.setattr("cotrain.serving.models.MAX_OPEN", 1)
    for path, asked in (
        ("chat/completions", body(task, n=2)),
        ("verify", {"problem": task.prompt, "solution": task.solution, "n": 2}),
    ):
        answer = client.post(f"/v1/{path}", json=asked)
        error = answer.json()["error"]
        assert (
            answer.status_code == 429 and error["type"] == "rate_limit_error" and "ask again later" in error["message"]
        )


def test_bad_bodies_and_routes(client):
    head = {"content-type": "application/json"}
    for content in (b"{", b"[1]", b"\xff", b"[" * 100_000, b'{"model": "\\ud800"}'):
        assert client.post("/v1/chat/completions", content=content, headers=head).status_code == 400
    assert client.post("/v1/verify", content=b" " * (5 * 2**20), headers=head).status_code == 413
    posted = client.post("/v1/verify", content=b"{}", headers={"content-type": "text/plain"})
    assert posted.status_code == 400 and "expected application/json" in posted.json()["error"]["message"]
    assert client.get("/v1/verify").status_code == 405 and "error" in client.get("/nowhere").json()


def test_foreign_hosts_are_refused(served, client):
    refused = client.get("/v1/models", headers={"host": "evil.example:8000"})
    assert refused.status_code == 400 and "not a name of this server" in refused.json()["error"]["message"]
    for name in ("localhost:8000", "127.0.0.1", "[::1]:8000", "LOCALHOST"):
        assert client.get("/health", headers={"host": name}).status_code == 200
    for name in ("[::1].evil", "[::1]evil:80", "[::1]:80:80", "localhost:evil", "localhost:80:80", "localhost:80@evil"):
        assert client.get("/health", headers={"host": name}).status_code == 400
    wide = TestClient(make_application(served, ("0.0.0.0", "box.lan")), base_url=HERE)
    for name, status in (("10.0.0.7:80", 200), ("box.lan", 200), ("evil.example", 400), ("", 400)):
        assert wide.get("/health", headers={"host": name}).status_code == status
    assert host_of([]) == host_of(["a", "b"]) == "" and host_of(["[::1]:5"]) == "::1"


def test_a_broken_engine_fails_the_open_requests_and_goes_on(client, served, task, monkeypatch):
    scheduler = served.trainer.engine.engine._schedulers["generator"]
    monkeypatch.setattr(scheduler, "_decode_step", lambda: (_ for _ in ()).throw(FloatingPointError("not numbers")))
    answer = client.post("/v1/chat/completions", json=body(task))
    assert answer.status_code == 500 and "not numbers" in answer.json()["error"]["message"]
    streamed = client.post("/v1/chat/completions", json=body(task, stream=True)).text
    assert "server_error" in streamed and "[DONE]" not in streamed
    monkeypatch.undo()
    monkeypatch.setattr(StreamedReply, "read_new_text", lambda *_, **__: {}["odd"])
    streamed = sent_before_it_failed(client.app, "/v1/chat/completions", body(task, stream=True, max_tokens=2))
    assert "KeyError: 'odd'" in streamed and "server_error" in streamed and "[DONE]" not in streamed
    monkeypatch.undo()
    assert ask(client, "chat/completions", **body(task, max_tokens=2))["choices"][0]["finish_reason"] == "length"


def sent_before_it_failed(application, path, asked):
    """What the server sends of a stream that ends in an exception. The test client of starlette before 1.10 shows
    nothing of it, though a client over HTTP gets all that was sent."""
    sent = []
    scope = {"type": "http", "http_version": "1.1", "method": "POST", "path": path, "raw_path": path.encode()}
    scope |= {"query_string": b"", "scheme": "http", "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 8000)}
    scope["headers"] = [(b"host", b"127.0.0.1"), (b"content-type", b"application/json")]
    received = [{"type": "http.request", "body": json.dumps(asked).encode(), "more_body": False}]

    async def receive():
        if received:
            return received.pop()
        await asyncio.Event().wait()  # the client stays

    async def send(message):
        sent.append(message.get("body", b""))

    with pytest.raises(KeyError, match="odd"):
        asyncio.run(application(scope, receive, send))
    return b"".join(sent).decode()


@pytest.mark.whole
@pytest.mark.parametrize(
    "cold", [{"temperature": 1e-40}, {"temperature": 5e-324}, {"temperature": 1e-38}, {"top_p": 1e-320}]
)
def test_a_request_near_zero_is_answered_and_harms_no_other(client, task, cold):
    asked = [body(task, max_tokens=40, seed=1, n=4), body(task, max_tokens=5, **cold)]
    with ThreadPoolExecutor(2) as pool:
        both = list(pool.map(lambda one: client.post("/v1/chat/completions", json=one), asked))
    assert [answer.status_code for answer in both] == [200, 200]
    if "temperature" in cold:
        greedy = client.post("/v1/chat/completions", json=asked[1] | {"temperature": 0}).json()
        assert both[1].json()["choices"] == greedy["choices"]


def test_an_engine_that_stays_broken_waits_for_the_next_request(client, served, task, monkeypatch):
    steps = []

    def step():
        steps.append(time.perf_counter())
        raise FloatingPointError("still not numbers")

    monkeypatch.setattr(served.trainer.engine, "step", step)
    assert client.post("/v1/chat/completions", json=body(task)).status_code == 500
    until, before = time.monotonic() + 20, -1
    while before < len(steps) <= 5 and time.monotonic() < until:  # a last step may be under way
        before = len(steps)
        time.sleep(0.05)
    assert len(steps) == before <= 5
    monkeypatch.undo()
    assert ask(client, "chat/completions", **body(task, max_tokens=1))["usage"]["completion_tokens"] == 1


def test_the_command_says_in_one_line_what_is_wrong(capsys, monkeypatch, tmp_path):
    with open_listener("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        command_refuses(
            ["serve", str(tmp_path), "--port", str(port)], "E_CANNOT_LISTEN", capsys, names=f"127.0.0.1:{port}"
        )
    assert main(["serve", str(tmp_path), "--port", "0"]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
    with refuses("E_PORT"):
        open_listener("127.0.0.1", 10**6)
    monkeypatch.delitem(sys.modules, "cotrain.serving.app")
    monkeypatch.delitem(sys.modules, "cotrain.rollout.http_server")
    monkeypatch.delattr("cotrain.serving.app", raising=False)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    command_refuses(["serve", str(tmp_path)], "E_SERVE_NOT_INSTALLED: .[serve]", capsys)


@pytest.mark.whole
def test_a_message_with_no_calls_in_it_is_answered(client, task):
    """As clients send back what they were answered."""
    change = called(tool_calls=[], function_call=None, audio=None, refusal=None)
    answer = client.post("/v1/chat/completions", json={**body(task), **change, "tools": [], "tool_choice": "none"})
    assert answer.status_code == 200
