"""A prompt of 3.9 MB took 13 seconds to be refused in the engine's thread, and 900 half-sent requests were held for
25."""

import asyncio
import importlib.util
import time

import pytest

from cotrain.data.word_problems.source import study_problems
from cotrain.recipes.tango import tango
from cotrain.trainer.trainer import CoTrainer
from tests.helpers import TINY

pytestmark = pytest.mark.skipif(
    not all(map(importlib.util.find_spec, ("starlette", "uvicorn"))), reason="the server's libraries are not installed"
)
HUGE = "and then 3 more pears " * 170_000  # 3.7 MB
SECONDS = 0.4


@pytest.fixture(scope="module")
def served():
    from cotrain.serving.models import ServedRun

    found = ServedRun(CoTrainer(tango(model=TINY, steps=1, tasks=study_problems((2, 2)))))
    yield found
    found.engine.close()


@pytest.mark.whole
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("chat/completions", {"model": "solver", "messages": [{"role": "user", "content": HUGE}]}),
        ("completions", {"model": "policy/generator", "prompt": HUGE}),
        ("verify", {"problem": HUGE, "solution": "<step>1 + 2 = 3</step><answer>3</answer>"}),
    ],
)
def test_megabytes_are_refused_at_once(served, path, body):
    from starlette.testclient import TestClient

    from cotrain.serving.app import make_application

    client = TestClient(make_application(served), base_url="http://localhost")
    began = time.process_time()  # of all threads, on however busy a machine
    answer = client.post(f"/v1/{path}", json=body)
    took = time.process_time() - began
    assert answer.status_code == 400 and took < 3.0, took
    error = answer.json()["error"]
    assert error["code"] == "context_length_exceeded" and "bytes of text, more than the" in error["message"]


def test_a_prompt_of_the_longest_tokens_is_not_refused_for_its_bytes(served):
    model = served.models["policy/generator"]
    words = served.renderer_of(model).tokenizer.get_vocab()
    longest, context = max(words, key=len), served.engine.context(model.policy)
    served.check_length(model, [longest * context], "prompt")


def test_half_sent_requests_are_let_go(served):
    """Silent connections, half a head, and half a head behind a whole request; who sends a whole one slowly is
    answered."""
    from cotrain.rollout.http_server import Connections, make_server
    from cotrain.serving.app import make_application, open_listener

    async def work():
        with open_listener("127.0.0.1", 0) as listener:
            port = listener.getsockname()[1]
            server = make_server(make_application(served), Connections(100, lambda authorization: False), SECONDS)
            running = asyncio.create_task(server.serve(sockets=[listener]))
            while not server.started:
                await asyncio.sleep(0.01)
            head = f"GET /health HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n".encode()

            async def held(first: bytes, whole: bytes = b"") -> float:
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                if whole:
                    writer.write(whole)
                    assert b"200 OK" in await reader.read(4096)
                began = time.monotonic()
                writer.write(first)
                while await reader.read(4096):
                    pass
                writer.close()
                return time.monotonic() - began

            cases = [held(b""), held(head), held(head, whole=head + b"\r\n")] + [held(head[:9]) for _ in range(50)]
            for took in await asyncio.wait_for(asyncio.gather(*cases), 20):
                assert 0.5 * SECONDS < took < 20  # and not 25 as before
            server.config.http_protocol_class.seconds = 5.0  # the machine may be slow, too
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            for part in (head[:20], head[20:] + b"\r\n"):
                await asyncio.sleep(SECONDS / 4)
                writer.write(part)
            assert b"200 OK" in await reader.read(4096)
            writer.close()
            server.should_exit = True
            await running

    asyncio.run(work())


@pytest.mark.whole
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("chat/completions", {"model": "solver", "messages": [{"role": "user", "content": ""}] * 75_000}),
        ("completions", {"model": "policy/generator", "prompt": [1] * 1_000_000}),
        ("verify", {"problem": "2 + 2", "steps": ["x"] * 400_000, "answer": "4"}),
    ],
    ids=["messages", "tokens", "steps"],
)
def test_many_small_things_are_refused_before_they_are_rendered(served, path, body):
    from starlette.testclient import TestClient

    from cotrain.serving.app import make_application

    client = TestClient(make_application(served), base_url="http://localhost")
    began = time.process_time()
    answer = client.post(f"/v1/{path}", json=body)
    took = time.process_time() - began
    assert answer.status_code == 400 and took < 3.0, took
    assert answer.json()["error"]["code"] == "context_length_exceeded"
