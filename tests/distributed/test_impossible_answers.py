"""What a server says of itself is believed as far as it can be true; the rest is a failure with its reason."""

import asyncio
import gzip
import itertools
import json
import time
from types import SimpleNamespace

import pytest
from servers import running
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Route

from cotrain.config.remote import remote
from cotrain.core.seeding import Address
from cotrain.core.types import Sampling
from cotrain.distributed import openai_policy as remote_policy
from cotrain.distributed.local import LocalBackend
from cotrain.inference.contract import Request

MOST = 64  # tokens that are asked for
HUGE = "9" * 400


@pytest.fixture(scope="module")
def server():
    """Answers with ``said``, under ``headers``."""
    state = SimpleNamespace(said=b"", headers={})

    async def answer(request):
        await request.body()
        return Response(state.said, media_type="application/json", headers=state.headers)

    paths = ("/v1/chat/completions", "/v1/completions")
    with running(Starlette(routes=[Route(path, answer, methods=["POST"]) for path in paths])) as (url, _):
        state.url = url
        yield state


@pytest.fixture(autouse=True)
def hurried(monkeypatch):
    looks = itertools.count(1)
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + 10.0 * next(looks))
    monkeypatch.setattr(remote_policy, "time", clock)
    monkeypatch.setattr(remote_policy, "FIRST_PAUSE", 0.01)


def answer(server, said, *, ids=False, **headers):
    """The completion that comes of an answer, and the counts."""
    server.said, server.headers = said if isinstance(said, bytes) else said.encode(), headers
    settings = {"timeout": 30.0, "deadline": 15.0, "tokenizer": "shipped" if ids else None}
    handle = LocalBackend().open({"far": remote(server.url, "judge", **settings)}, seed=0)["far"]
    prompt = handle.renderer.encode("Is it right?") if ids else handle.renderer.encode('[{"role": "user"}]')
    request = Request(
        address=Address(step=0, task=0, member=0, role="far", call=0),
        policy="far",
        prompt_ids=tuple(prompt),
        sampling=Sampling(max_tokens=MOST),
        stop_ids=handle.renderer.stop_ids,
        seed=1,
    )

    async def ask():
        try:
            return await handle.sample(request)
        finally:
            await handle.close()

    return asyncio.run(ask()), handle.counts()


def body(ids="[5, 6]", logprobs="[-0.5, -1.0]", usage="{}", text='"fine"'):
    choice = f'{{"token_ids": {ids}, "logprobs": {{"token_logprobs": {logprobs}}}, "message": {{"content": {text}}}}}'
    return f'{{"choices": [{choice}], "usage": {usage}}}'


@pytest.mark.whole
def test_what_can_be_true_is_believed(server):
    found, counts = answer(server, body(usage='{"prompt_tokens": 5, "completion_tokens": null}'), ids=True)
    assert (found.token_ids, found.logprobs, found.failure) == ((5, 6), (-0.5, -1.0), None)
    assert counts["far/remote/prompt_tokens"] == 5
    found, _ = answer(server, body(logprobs="[-9999.0, 1e-7]"), ids=True)
    assert found.logprobs == (-9999.0, 0.0) and found.failure is None
    found, _ = answer(server, gzip.compress(body().encode()), **{"content-encoding": "gzip"})
    assert bytes(found.token_ids[:-1]) == b"fine"


@pytest.mark.whole
@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity", "0.5", "3", f"-{HUGE}", HUGE, "-1e300", "1e999"])
def test_a_log_probability_is_finite_and_not_positive(server, value):
    found, counts = answer(server, body(logprobs=f"[-0.5, {value}]"), ids=True)
    assert found.failure == "remote: impossible log-probabilities" and counts["far/remote/failed"] == 1


@pytest.mark.whole
@pytest.mark.parametrize("value", ["null", "true", '"-0.5"', "[-0.5]"])
def test_a_log_probability_is_a_number(server, value):
    assert answer(server, body(logprobs=f"[-0.5, {value}]"), ids=True)[0].failure == "remote: no log-probabilities"


@pytest.mark.whole
@pytest.mark.parametrize("value", [str(2**63), HUGE, "-1", "100000", str(2**31)])
def test_ids_are_of_the_vocabulary(server, value):
    found, _ = answer(server, body(ids=f"[5, {value}]"), ids=True)
    assert found.failure == "remote: token ids outside of the vocabulary"


@pytest.mark.whole
@pytest.mark.parametrize("value", ["true", "5.0", "null", "NaN"])
def test_ids_are_whole_numbers(server, value):
    assert answer(server, body(ids=f"[5, {value}]"), ids=True)[0].failure == "remote: no token ids"


@pytest.mark.whole
@pytest.mark.parametrize("value", [HUGE, "-3", "1e400", "NaN", '"many"', "[1]", "true", str(2**63)])
@pytest.mark.parametrize("name", ["prompt_tokens", "completion_tokens"])
def test_counts_are_those_of_a_request(server, name, value):
    found, counts = answer(server, body(usage=f'{{"{name}": {value}}}'))
    assert found.failure == "remote: impossible token counts"
    assert counts["far/remote/prompt_tokens"] == counts["far/remote/completion_tokens"] == 0
    json.dumps(counts, allow_nan=False)


@pytest.mark.whole
def test_an_answer_is_no_longer_than_what_was_asked_for(server):
    text = json.dumps("x" * (64 * MOST))
    assert answer(server, body(text=text))[0].failure is None
    text = json.dumps("x" * (64 * MOST + 1))
    assert answer(server, body(text=text))[0].failure == "remote: more text than max_tokens allows"
    ids = (json.dumps([5] * (MOST + 1)), json.dumps([-1.0] * (MOST + 1)))
    assert answer(server, body(*ids), ids=True)[0].failure == "remote: more tokens than max_tokens allows"
    said = body(text=json.dumps("x" * 5_000_000))
    why = "remote: a longer answer than max_tokens allows"
    assert answer(server, said)[0].failure == why
    assert answer(server, gzip.compress(said.encode()), **{"content-encoding": "gzip"})[0].failure == why
    assert answer(server, b"[" * 1_000_000)[0].failure == "remote: no JSON"
    assert answer(server, b"9" * 10_000)[0].failure == "remote: no JSON"
    assert answer(server, b"oh", **{"content-encoding": "gzip"})[0].failure == "remote: no gzip"
    assert answer(server, b"oh", **{"content-encoding": "br"})[0].failure == "remote: packed in another way than gzip"
