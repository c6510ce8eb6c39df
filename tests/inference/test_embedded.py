"""The local engine gives what the slow reference gives, whatever shares a batch with what."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, MambaConfig, MambaForCausalLM, MistralConfig, MistralForCausalLM

from cotrain.core.entropy import nats_of
from cotrain.core.errors import UnknownName
from cotrain.core.types import Sampling
from cotrain.inference.kv_cache import SharedPrefixCache
from cotrain.inference.local import LocalEngine
from cotrain.inference.reference import ReferenceEngine, complete_request
from tests.helpers import CONTEXT, VOCABULARY, answers, mixed_requests, request, tiny_model
from tests.sentences import refuses


def assert_same(completion, expected, tolerance=1e-4):
    assert completion.token_ids == expected.token_ids
    assert completion.finish == expected.finish
    assert completion.logprobs == pytest.approx(expected.logprobs, abs=tolerance)
    assert len(completion.entropies) == len(completion.token_ids)
    if tolerance <= 1e-4:  # rounding may move a level by one
        assert all(abs(a - b) <= 1 for a, b in zip(completion.entropies, expected.entropies, strict=True))


@pytest.mark.whole
def test_engine_equals_reference():
    """Two architectures, three policies on two modules, mixed lengths and settings."""
    llama, qwen = tiny_model("llama"), tiny_model("qwen3", seed=1)
    models = {"solver": llama, "verifier": qwen, "same": llama}
    requests = mixed_requests(sorted(models), 40)
    expected = [complete_request(models[asked.policy], asked) for asked in requests]
    steps = {}
    for max_rows in (3, 64):
        engine = LocalEngine(models, max_rows=max_rows)
        for completion, slow in zip(answers(engine, requests), expected, strict=True):
            assert_same(completion, slow)
        steps[max_rows] = engine.counts()["solver/decode_steps"]
    assert steps[3] > 60 and steps[64] < 45


@pytest.mark.whole
def test_staggered_entry_equals_reference():
    """New requests come while others run: prompts longer than the cursor's column, and shared ones."""
    model = tiny_model()
    engine = LocalEngine({"a": model}, max_rows=8)
    requests = [
        request(prompt_ids=tuple((7 * i + j) % VOCABULARY for j in range(n)), sampling=Sampling(max_tokens=m), task=i)
        for i, (n, m) in enumerate(
            [(3, 4), (3, 30), (2, 9), (5, 12), (40, 5), (41, 20), (41, 3), (1, 60), (60, 50)] * 2
        )
    ]
    chains = [requests[i::6] for i in range(6)]

    async def one_after_another(chain):
        return [await engine.sample(asked) for asked in chain]

    async def everything():
        tasks = [asyncio.ensure_future(one_after_another(chain)) for chain in chains]
        while not all(task.done() for task in tasks):
            await asyncio.sleep(0)
            engine.advance()
        return [task.result() for task in tasks]

    for chain, completions in zip(chains, asyncio.run(everything()), strict=True):
        for asked, completion in zip(chain, completions, strict=True):
            assert_same(completion, complete_request(model, asked))


def test_logprobs_agree_with_a_teacher_forced_forward():
    model = tiny_model("qwen3")
    requests = [request(prompt_ids=tuple(range(1, 4 + i)), sampling=Sampling(max_tokens=20), task=i) for i in range(8)]
    for asked, completion in zip(requests, answers(LocalEngine({"a": model}), requests), strict=True):
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([asked.prompt_ids + completion.token_ids])).logits[0]
        logp = torch.log_softmax(logits[len(asked.prompt_ids) - 1 : -1], -1)
        forced = logp.gather(1, torch.tensor(completion.token_ids)[:, None])[:, 0]
        assert completion.logprobs == pytest.approx(forced.tolist(), abs=1e-4)
        exact = -(logp.exp() * logp).sum(-1)
        assert [nats_of(level) for level in completion.entropies] == pytest.approx(exact.tolist(), rel=0.05, abs=0.01)


@pytest.mark.whole
def test_order_of_arrival_does_not_matter():
    models = {"a": tiny_model(), "b": tiny_model("qwen3")}
    requests = mixed_requests(["a", "b"], 40)
    shuffled = random.Random(0).sample(requests, len(requests))
    first, second = LocalEngine(models, max_rows=6), LocalEngine(models, max_rows=6)
    expected = dict(zip((r.address for r in requests), answers(first, requests), strict=True))
    found = dict(zip((r.address for r in shuffled), answers(second, shuffled), strict=True))
    assert found == expected  # bit for bit

    def work(engine):
        return {name: count for name, count in engine.counts().items() if not name.endswith("seconds")}

    assert work(first) == work(second)


@pytest.mark.whole
def test_the_window_moves(monkeypatch):
    moves = []
    move_left = SharedPrefixCache.move_left
    monkeypatch.setattr(
        SharedPrefixCache, "move_left", lambda cache: moves.append(min(cache.starts)) or move_left(cache)
    )
    model = tiny_model()
    settings = [(2, 3), (1, 50), (30, 4), (2, 40), (45, 9), (3, 30), (3, 30), (2, 50), (2, 40), (50, 5)] * 2
    requests = [
        request(prompt_ids=tuple((5 * i + j) % VOCABULARY for j in range(n)), sampling=Sampling(max_tokens=m), task=i)
        for i, (n, m) in enumerate(settings)
    ]
    found = answers(LocalEngine({"a": model}, max_rows=2), requests)
    for asked, completion in zip(requests, found, strict=True):
        assert_same(completion, complete_request(model, asked))
    assert len(moves) > 2 and min(moves) > 1


def test_answers_come_in_the_order_of_addresses():
    """Prompts of falling length, asked in reverse: rows stand in the order of length, and all end at once."""
    engine = LocalEngine({name: tiny_model() for name in "ba"}, max_rows=10)
    requests = [request(policy="ab"[i % 2], prompt_ids=(3,) * (22 - i), task=i) for i in range(20)]
    order = []

    async def ask(asked):
        await engine.sample(asked)
        order.append(asked.address)

    async def everything():
        tasks = [asyncio.ensure_future(ask(asked)) for asked in reversed(requests)]
        while not all(task.done() for task in tasks):
            await asyncio.sleep(0)
            engine.advance()

    asyncio.run(everything())
    assert order == [asked.address for asked in requests]


def test_a_lane_waits_for_a_full_batch_while_another_runs():
    engine = LocalEngine({name: tiny_model() for name in "ab"}, max_rows=4)
    started = []

    async def ask(policy, task, tokens):
        found = await engine.sample(request(policy=policy, task=task, sampling=Sampling(max_tokens=tokens)))
        started.append((policy, engine.counts()["b/decode_steps"]))
        return found

    async def everything():
        tasks = [asyncio.ensure_future(ask("a", i, 2 + 3 * i)) for i in range(4)]
        tasks += [asyncio.ensure_future(ask("b", i, 5)) for i in range(3)]
        while not all(task.done() for task in tasks):
            await asyncio.sleep(0)
            engine.advance()

    asyncio.run(everything())
    assert [policy for policy, _ in started] == ["a"] * 4 + ["b"] * 3
    assert engine.counts()["b/decode_steps"] == 4  # all three side by side


def test_what_the_last_rows_of_another_lane_lead_to_enters_with_the_rest():
    """As reviews of solutions: those of the solutions that end last are asked for once the round is over."""
    engine = LocalEngine({"solver": tiny_model(), "verifier": tiny_model()})

    async def solve_and_review(task, tokens):
        await engine.sample(request(policy="solver", task=task, sampling=Sampling(max_tokens=tokens)))
        await engine.sample(request(policy="verifier", task=task, sampling=Sampling(max_tokens=5)))

    async def everything():
        tasks = [asyncio.ensure_future(solve_and_review(i, n)) for i, n in enumerate((2, 6, 9, 9))]
        while not all(task.done() for task in tasks):
            await asyncio.sleep(0)
            engine.advance()

    asyncio.run(everything())
    assert engine.counts()["verifier/decode_steps"] == 4  # all four side by side


def test_rows_that_have_drawn_the_same_tokens_are_computed_once():
    """Groups of up to a tile with different temperatures and lengths, so that some part early, late or never."""
    model = tiny_model()
    engine = LocalEngine({"a": model})
    temperatures, groups = (0.0, 0.05, 0.1, 0.5), (8, 8, 5, 1)
    requests = [
        request(
            prompt_ids=(7 + group, 8, 9),
            sampling=Sampling(max_tokens=12 + 3 * (i % 3), temperature=temperatures[(i + group) % 4]),
            task=100 * group + i,
        )
        for group, size in enumerate(groups)
        for i in range(size)
    ]
    found = answers(engine, requests)
    for asked, completion in zip(requests, found, strict=True):
        assert_same(completion, complete_request(model, asked))
    fed = [  # what the model has seen when it was asked for the next token
        (asked.prompt_ids, completion.token_ids[:count])
        for asked, completion in zip(requests, found, strict=True)
        for count in range(1, len(completion.token_ids))
    ]
    counts = engine.counts()
    assert counts["a/decode_rows"] == len(fed)
    assert counts["a/computed_rows"] == len(set(fed)) < 0.8 * len(fed)


def test_identical_prompts_are_prefilled_once_and_so_are_like_beginnings():
    engine = LocalEngine({"a": tiny_model()})
    requests = [request(prompt_ids=tuple(range(10 + i // 4)), task=i) for i in range(8)]
    answers(engine, requests)
    counts = engine.counts()
    assert (counts["a/prompt_tokens"], counts["a/prefill_tokens"]) == (4 * 10 + 4 * 11, 11)
    assert (counts["a/sampled_tokens"], counts["a/decode_steps"], counts["a/decode_rows"]) == (64, 7, 56)
    assert counts["a/requests"] == 8


@pytest.mark.whole
def test_groups_of_any_size_equal_reference():
    """More rows than a tile, fewer, one; they end at different times, and a group comes again while the first runs."""
    model = tiny_model("qwen3")
    engine = LocalEngine({"a": model}, max_rows=32)
    rng = random.Random(3)
    sizes = [
        (12, 30),
        (1, 3),
        (3, 70),
        (8, 30),
        (1, 50),
        (9, 11),
        (12, 30),
    ]  # rows, prompt tokens; first and last alike
    prompts = [tuple(random.Random(length).choices(range(VOCABULARY), k=length)) for _, length in sizes]
    requests = [
        request(prompt_ids=prompt, sampling=Sampling(max_tokens=rng.randrange(1, 40)), stop_ids=(5,), task=100 * i + j)
        for i, ((size, _), prompt) in enumerate(zip(sizes, prompts, strict=True))
        for j in range(size)
    ]
    for asked, completion in zip(requests, answers(engine, requests), strict=True):
        assert_same(completion, complete_request(model, asked))


def test_companions_change_a_completion_by_rounding_only():
    model = tiny_model()
    asked = request(prompt_ids=(4, 3, 2), sampling=Sampling(max_tokens=30))
    sharing = [replace(asked, address=replace(asked.address, member=i), seed=asked.seed + i) for i in range(12)]
    others = mixed_requests(["a"], 20)
    [alone] = answers(LocalEngine({"a": model}), [asked])
    for companions in (sharing[1:], others, [*sharing[1:], *others]):
        assert_same(answers(LocalEngine({"a": model}), [asked, *companions])[0], alone, tolerance=1e-5)


@pytest.mark.whole
def test_the_same_requests_give_the_same_bits_again():
    engine, fresh = (LocalEngine({"a": tiny_model()}, max_rows=16) for _ in range(2))
    requests = mixed_requests(["a"], 30)
    answers(engine, mixed_requests(["a"], 20, seed=9))  # its storage has another size and other numbers
    assert answers(engine, requests) == answers(fresh, requests)


def test_sampled_tokens_follow_the_model():
    model, count, prompt = tiny_model(), 4000, (7, 8, 9)
    engine = LocalEngine({"a": model})
    requests = [request(prompt_ids=prompt, sampling=Sampling(max_tokens=2), task=i) for i in range(count)]
    seconds = torch.tensor([completion.token_ids[1] for completion in answers(engine, requests)])
    with torch.no_grad():
        first = model(input_ids=torch.tensor([prompt])).logits[0, -1].softmax(-1)
        pairs = model(input_ids=torch.tensor([[*prompt, a] for a in range(VOCABULARY)])).logits[:, -1].softmax(-1)
    expected, observed = count * first @ pairs, torch.bincount(seconds, minlength=VOCABULARY)
    assert float(expected.min()) > 5
    chi_square = float(((observed - expected) ** 2 / expected).sum())
    assert chi_square < 142.1  # 95 degrees of freedom, p = 0.001


def test_rows_that_end_with_their_first_token():
    engine = LocalEngine({"a": tiny_model()})
    stop = tuple(range(VOCABULARY))
    found = answers(engine, [request(sampling=Sampling(max_tokens=1)), request(stop_ids=stop, task=1)])
    assert [(len(c.token_ids), c.finish) for c in found] == [(1, "length"), (1, "stop")]
    assert engine.counts()["a/decode_steps"] == 0
    assert engine.advance() is False


def test_weights_are_shared_in_place_and_versions_answer():
    model = tiny_model()
    engine = LocalEngine({"a": model})
    asked = request(sampling=Sampling(max_tokens=12))
    [before] = answers(engine, [asked])
    with torch.no_grad():
        model.get_input_embeddings().weight.add_(torch.linspace(-1, 1, 32))
    engine.publish("a", 5)
    [after] = answers(engine, [asked])
    assert before.version == 0 and after.version == 5 and before.token_ids != after.token_ids
    assert_same(after, complete_request(model, asked))


def test_the_learners_module_is_found_as_it_was_left():
    model = tiny_model().train()
    model.model.layers[0].eval()
    before = [module.training for module in model.modules()]
    answers(LocalEngine({"a": model}), [request()])
    assert [module.training for module in model.modules()] == before
    assert model.config._attn_implementation == "sdpa"
    model(input_ids=torch.tensor([[1, 2, 3]]), labels=torch.tensor([[1, 2, 3]])).loss.backward()
    assert model.get_input_embeddings().weight.grad is not None


def test_dropout_is_off():
    model = tiny_model()
    asked = request(sampling=Sampling(max_tokens=12))
    expected = complete_request(model, asked)
    for layer in model.model.layers:
        layer.self_attn.attention_dropout = 0.5
    assert_same(answers(LocalEngine({"a": model.train()}), [asked])[0], expected)


def test_half_precision_is_near():
    model = tiny_model()
    requests = [request(prompt_ids=(i, 3, 4), sampling=Sampling(max_tokens=1), task=i) for i in range(32)]
    full = answers(LocalEngine({"a": model}), requests)
    half = answers(LocalEngine({"a": model}, autocast=torch.bfloat16), requests)
    pairs = [(a, b) for a, b in zip(full, half, strict=True) if a.token_ids == b.token_ids]
    assert len(pairs) > 24
    assert all(a.logprobs == pytest.approx(b.logprobs, abs=0.5) for a, b in pairs)
    assert any(a.logprobs != b.logprobs for a, b in pairs)


def test_a_cancelled_request_is_forgotten_and_the_others_are_not_changed():
    model = tiny_model()
    engine = LocalEngine({"a": model}, max_rows=4)
    requests = [request(sampling=Sampling(max_tokens=4 + 6 * i), task=i) for i in range(6)]

    async def cancel_two():
        tasks = [asyncio.ensure_future(engine.sample(asked)) for asked in requests]
        await asyncio.sleep(0)
        assert engine.advance()
        tasks[1].cancel()  # runs
        tasks[5].cancel()  # waits
        await asyncio.sleep(0)
        with pytest.raises(RuntimeError, match="while 2 of its rows were running"):
            engine.publish("a", 1)
        while engine.advance():
            await asyncio.sleep(0)
        return [None if task.cancelled() else task.result() for task in tasks]

    found = asyncio.run(cancel_two())
    assert [completion is None for completion in found] == [False, True, False, False, False, True]
    for asked, completion in zip(requests, found, strict=True):
        if completion is not None:
            assert_same(completion, complete_request(model, asked))
    engine.publish("a", 1)


def test_a_row_whose_logits_are_not_numbers_fails_alone():
    model = tiny_model()
    engine = LocalEngine({"a": model})
    with torch.no_grad():
        model.get_input_embeddings().weight[7].fill_(torch.inf)
        model.get_output_embeddings().weight = torch.nn.Parameter(tiny_model().get_input_embeddings().weight.clone())
    wanted = [request(prompt_ids=(1, 2, i), task=i, stop_ids=(7,)) for i in (3, 4, 7, 5)]

    async def ask():
        tasks = [asyncio.ensure_future(engine.sample(one)) for one in wanted]
        await asyncio.sleep(0)
        while engine.advance():
            await asyncio.sleep(0)
        return await asyncio.gather(*tasks, return_exceptions=True)

    found = asyncio.run(ask())
    assert isinstance(found[2], FloatingPointError) and "policy 'a' (version 0)" in str(found[2])
    for i in (0, 1, 3):
        assert_same(found[i], complete_request(model, wanted[i]))


def test_logits_that_are_not_numbers_stop_the_engine():
    model = tiny_model()
    with torch.no_grad():
        model.get_input_embeddings().weight.fill_(torch.nan)
    with pytest.raises(FloatingPointError, match="policy 'a'"):
        answers(LocalEngine({"a": model}), [request()])


def test_weights_that_are_numbers_again_answer_as_if_they_always_had_been():
    """Rows that enter late are beside columns which the rows before them wrote and nobody reads."""
    model = tiny_model()
    weights = [p.detach().clone() for p in model.parameters()]
    engine = LocalEngine({"a": model}, max_rows=2)
    prompts = [tuple(range(3, 20 + 3 * i)) for i in range(4)]
    with torch.no_grad():
        for p in model.parameters():
            p.fill_(torch.nan)
    with pytest.raises(FloatingPointError):
        answers(engine, [request(prompt_ids=ids, task=i) for i, ids in enumerate(prompts)])
    with torch.no_grad():
        for p, old in zip(model.parameters(), weights, strict=True):
            p.copy_(old)
    engine.publish("a", 1)
    asked = [
        request(prompt_ids=tuple(range(3, 6 + 5 * i % 17)), task=i, sampling=Sampling(max_tokens=2 + 7 * i % 19))
        for i in range(10)
    ]
    for mine, expected in zip(answers(engine, asked), [complete_request(model, one) for one in asked], strict=True):
        assert mine.token_ids == expected.token_ids


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"prompt_ids": ()}, "E_PROMPT_EMPTY"),
        ({"prompt_ids": (0,) * 125}, "E_PROMPT_TOO_LONG: 125 | max_tokens | 128"),
        ({"prompt_ids": (VOCABULARY,)}, "E_TOKEN_ID_RANGE: 96"),
        ({"prompt_ids": (3, -1)}, "E_TOKEN_ID_RANGE"),
        ({"sampling": Sampling(max_tokens=0)}, "E_SAMPLING_RANGE: max_tokens is 0"),
        ({"sampling": Sampling(max_tokens=4, temperature=-1)}, "E_SAMPLING_RANGE: temperature is -1"),
        ({"sampling": Sampling(max_tokens=4, temperature=float("nan"))}, "E_SAMPLING_RANGE: temperature is nan"),
        ({"sampling": Sampling(max_tokens=4, top_p=0.0)}, "E_SAMPLING_RANGE: top_p | 0.0"),
    ],
)
def test_requests_that_cannot_be_answered(change, code):
    with refuses(code):
        answers(LocalEngine({"a": tiny_model()}), [replace(request(), **change)])


def test_unknown_policies_are_named():
    for engine in (LocalEngine({"solver": tiny_model()}), ReferenceEngine({"solver": tiny_model()})):
        with refuses("E_UNKNOWN_POLICY", names="'solver'"):
            answers(engine, [request(policy="sover")])
        with pytest.raises(UnknownName):
            engine.publish("sover", 1)


def test_the_whole_context_can_be_used():
    model = tiny_model()
    asked = request(prompt_ids=(1, 2, 3), sampling=Sampling(max_tokens=CONTEXT - 3))
    assert_same(answers(LocalEngine({"a": model}), [asked])[0], complete_request(model, asked))


def test_a_sliding_window_limits_the_context_and_other_models_are_refused():
    sizes = {"vocab_size": 96, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "bos_token_id": 1}
    mistral = MistralForCausalLM(
        MistralConfig(**sizes, intermediate_size=32, num_key_value_heads=1, sliding_window=32, eos_token_id=2)
    )
    asked = request(sampling=Sampling(max_tokens=29))
    assert_same(answers(LocalEngine({"a": mistral}), [asked])[0], complete_request(mistral, asked))
    with refuses("E_PROMPT_TOO_LONG", names="32"):
        answers(LocalEngine({"a": mistral}), [request(sampling=Sampling(max_tokens=30))])
    gpt = GPT2LMHeadModel(
        GPT2Config(vocab_size=96, n_embd=32, n_layer=1, n_head=2, bos_token_id=1, eos_token_id=2)
    ).eval()
    assert_same(answers(LocalEngine({"a": gpt}), [asked])[0], complete_request(gpt, asked))
    mamba = MambaForCausalLM(MambaConfig(vocab_size=96, hidden_size=32, num_hidden_layers=1))
    with refuses("E_MODEL_NOT_DECODABLE", names="'mamba'"):
        LocalEngine({"a": mamba})
    with refuses("E_MODEL_NOT_DECODABLE", names="Linear"):
        LocalEngine({"a": torch.nn.Linear(2, 2)})
    with refuses("E_ENGINE_ROWS"):
        LocalEngine({"a": gpt}, max_rows=0)
