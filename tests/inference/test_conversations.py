"""Stop strings, and turns that go on from what is kept: the same answers as from the slow reference and a full
prefill."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
import torch

from cotrain.core.types import Sampling, Trace, TurnRange
from cotrain.inference import prefix_cache
from cotrain.inference.local import LocalEngine
from cotrain.inference.reference import complete_request
from cotrain.inference.replay import ReplayEngine
from cotrain.prompts.decoding import StopMatcher, stop_in
from cotrain.rollout.event_loop import EngineEventLoop, engine_paused, gather
from tests.helpers import VOCABULARY, CharRenderer, RandomLatency, answers, request, tiny_model
from tests.sentences import refuses

DECODE = CharRenderer().decode


def asked(i, *, stop=("a", "b", "c", "d", "zz", "0<"), tokens=60):
    prompt = tuple((7 * i + j) % VOCABULARY for j in range(1 + 5 * i % 23))
    sampling = Sampling(max_tokens=tokens, stop=stop)
    return replace(request(prompt_ids=prompt, sampling=sampling, stop_ids=(5,), task=i), decode=DECODE)


@pytest.fixture(scope="module")
def with_reference():
    """Requests with stop strings and without, and what the slow engine says to them."""
    model = tiny_model()
    requests = [asked(i) for i in range(24)] + [asked(i, stop=()) for i in range(24, 30)]
    return [(one, complete_request(model, one)) for one in requests]


@pytest.mark.whole
@pytest.mark.parametrize("static", [False, True])
def test_stop_strings_equal_reference(static, with_reference):
    engine = LocalEngine({"a": tiny_model()}, max_rows=7, static=static)
    found = answers(engine, [one for one, _ in with_reference])
    stopped = 0
    for (one, slow), completion in zip(with_reference, found, strict=True):
        assert (completion.token_ids, completion.finish) == (slow.token_ids, slow.finish)
        assert completion.logprobs == pytest.approx(slow.logprobs, abs=1e-4)
        ends = stop_in(DECODE(completion.token_ids), one.sampling.stop)
        stopped += ends is not None
        assert stop_in(DECODE(completion.token_ids[:-1]), one.sampling.stop) is None
        assert ends is None or completion.finish == "stop"
    assert 8 < stopped < 30


def test_a_stop_string_is_found_in_any_long_text_where_it_ends():
    text = "é<cal" * 300 + "</call> and </call>"
    ids = list(text.encode())

    def decode(ids):
        return bytes(ids).decode(errors="replace")

    watch = StopMatcher(("</call>",), decode)
    growing = next(n for n in range(len(ids)) if watch.read(ids[n : n + 1]) is not None) + 1
    assert (
        growing
        == watch.count
        == StopMatcher(("</call>",), decode).read(ids)
        == len(text[: text.index("/call>") + 6].encode())
    )
    assert StopMatcher(("</cool>",), decode).read(ids) is None
    assert stop_in("a<b>c", ("b>", "<b>", "c")) == (1, 4)  # complete first; of equals the longest


def test_stop_strings_that_cannot_be_looked_for_are_refused():
    engine = LocalEngine({"a": tiny_model()})
    with refuses("E_STOP_WITHOUT_DECODE"):
        engine.check(replace(asked(0), decode=None))
    with refuses("E_STOP_STRINGS_EMPTY"):
        engine.check(asked(0, stop=("",)))


def chain(engine, i, *, turns=3, keep=True, given=4):
    """A conversation: each turn's prompt is all before it and some given tokens."""

    async def talk():
        one, found = asked(i, stop=("a", "b", "c"), tokens=12), []
        one = replace(one, keep=keep)
        for turn in range(turns):
            async with engine_paused():
                await asyncio.sleep(0)
            found.append((one, await engine.sample(one)))
            ids = (*one.prompt_ids, *found[-1][1].token_ids, *((9 + i + turn,) * (given + i % 3)))
            past = one.address if keep else None
            one = replace(one, prompt_ids=ids, address=one.address.later_turn(1), seed=one.seed + 1, continues=past)
        return found

    return talk()


def talks(engine, count, **options):
    return EngineEventLoop().run_to_end(gather([chain(engine, i, **options) for i in range(count)]), engine.advance)


@pytest.mark.whole
@pytest.mark.parametrize(("kind", "static"), [("llama", False), ("qwen3", False), ("llama", True)])
def test_what_is_kept_gives_what_a_full_prefill_gives(kind, static):
    model = tiny_model(kind)
    engine, full = (LocalEngine({"a": model}, max_rows=5, static=static) for _ in range(2))
    for mine, theirs in zip(talks(engine, 9), talks(full, 9, keep=False), strict=True):
        for (one, completion), (_, expected) in zip(mine, theirs, strict=True):
            assert completion.token_ids == expected.token_ids == complete_request(model, one).token_ids
            assert completion.logprobs == pytest.approx(expected.logprobs, abs=1e-4)
    counts, whole = engine.counts(), full.counts()
    assert counts["a/reused_tokens"] > 0 == whole["a/reused_tokens"]
    assert counts["a/prefill_tokens"] < whole["a/prefill_tokens"]
    assert counts["a/prompt_tokens"] == counts["a/prefill_tokens"] + counts["a/reused_tokens"]


def test_a_kept_turn_goes_on_under_autocast():
    engine = LocalEngine({"a": tiny_model()}, autocast=torch.bfloat16)
    full = LocalEngine({"a": tiny_model()}, autocast=torch.bfloat16)
    [[_, mine]], [[_, theirs]] = talks(engine, 1, turns=2), talks(full, 1, turns=2, keep=False)
    assert mine[1].logprobs[0] == pytest.approx(theirs[1].logprobs[0], abs=0.1)
    assert engine.counts()["a/reused_tokens"] > 0


@pytest.mark.whole
def test_batches_of_conversations_do_not_depend_on_the_clock():
    def played(seed):
        engine = LocalEngine({"a": tiny_model()}, max_rows=5)
        found = talks(engine if seed is None else RandomLatency(engine, seed), 9)
        return found, {name: count for name, count in engine.counts().items() if not name.endswith("seconds")}

    expected = played(None)
    assert all(played(seed) == expected for seed in (1, 2))  # bit for bit


@pytest.mark.whole
def test_what_an_earlier_play_left_behind_changes_nothing(monkeypatch):
    monkeypatch.setattr(prefix_cache, "TOKENS", 150)  # too few for all: the oldest go
    engine, fresh = (LocalEngine({"a": tiny_model()}, max_rows=5) for _ in range(2))
    talks(engine, 12, turns=1)
    before = engine.counts()["a/reused_tokens"]
    assert talks(engine, 9) == talks(fresh, 9)
    assert engine.counts()["a/reused_tokens"] - before == fresh.counts()["a/reused_tokens"] > 0


def test_new_weights_empty_what_is_kept():
    model = tiny_model()
    engine = LocalEngine({"a": model})
    [[(first, said)]] = talks(engine, 1, turns=1)
    more = replace(
        first,
        prompt_ids=(*first.prompt_ids, *said.token_ids, 3),
        address=first.address.later_turn(1),
        continues=first.address,
    )
    with torch.no_grad():
        for parameter in model.parameters():
            parameter *= 1.1
    engine.publish("a", 1)
    [completion] = answers(engine, [more])
    assert engine.counts()["a/reused_tokens"] == 0
    assert completion.logprobs == pytest.approx(complete_request(model, more).logprobs, abs=1e-4)


def test_a_prompt_that_does_not_go_on_so_is_computed_in_full():
    model = tiny_model()
    engine = LocalEngine({"a": model})
    [[(first, said)]] = talks(engine, 1, turns=1)
    other = replace(
        first, prompt_ids=(8, *said.token_ids, 3), address=first.address.later_turn(1), continues=first.address
    )
    [completion] = answers(engine, [other])
    assert completion.token_ids == complete_request(model, other).token_ids and engine.counts()["a/reused_tokens"] == 0


def test_every_turn_of_a_recorded_trace_is_replayed():
    engine = LocalEngine({"a": tiny_model()})
    [turns] = talks(engine, 1)
    first, last = turns[0][0], turns[-1]
    start, everything = len(first.prompt_ids), (*last[0].prompt_ids, *last[1].token_ids)
    logprobs, parts = [0.0] * (len(everything) - start), []
    levels = bytearray(len(logprobs))
    for one, completion in turns:
        at = len(one.prompt_ids) - start
        parts.append(TurnRange(start=at, end=at + len(completion.token_ids), finish=completion.finish))
        logprobs[at : parts[-1].end] = completion.logprobs
        levels[at : parts[-1].end] = completion.entropies
    trace = Trace(
        address=first.address,
        role="solver",
        policy="a",
        version=0,
        group="",
        prompt_ids=first.prompt_ids,
        token_ids=everything[start:],
        logprobs=tuple(logprobs),
        entropies=bytes(levels),
        text="",
        finish=parts[-1].finish,
        rewards=(),
        turns=tuple(parts),
    )
    assert [answers(ReplayEngine([trace]), [one])[0] for one, _ in turns] == [completion for _, completion in turns]
