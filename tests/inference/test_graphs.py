"""Decoding in steps of fixed shape: what a GPU records, recorded here by a tape that replays torch operations alone.

The tape stands for a CUDA graph: it keeps operations and the tensors that they were given, so that whatever a step
reads from Python is what it was while recording. What a graph cannot record, because the host would have to wait, it
refuses.
"""

from __future__ import annotations

import asyncio
from contextlib import contextmanager, nullcontext
from weakref import WeakSet

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map
from transformers import Gemma2Config, Gemma2ForCausalLM

from cotrain.core.types import Sampling
from cotrain.inference import cuda_graphs
from cotrain.inference.cuda_graphs import LOOK, DeferredRows, StaticScheduler
from cotrain.inference.half_precision import HalfPrecisionCopies
from cotrain.inference.local import LocalEngine
from cotrain.inference.reference import complete_request
from cotrain.inference.static_kv_cache import columns_for, lines_for
from tests.helpers import answers, mixed_requests, request, tiny_model
from tests.inference.test_adapter_schedulers import POLICIES, wrapped
from tests.inference.test_embedded import assert_same

WAITS = {"aten::_local_scalar_dense", "aten::nonzero", "aten::is_nonzero", "aten::item"}
RECORDER_FOR = cuda_graphs.recorder_for
COPIES = {"aten::lift_fresh"}  # of numbers that the host has


class Tape(TorchDispatchMode):
    def __init__(self, refused=frozenset(WAITS | COPIES)):
        super().__init__()
        self.calls, self.refused = [], refused

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func._schema.name in self.refused:
            raise RuntimeError(f"operation not permitted while recording: {func}")
        out = func(*args, **(kwargs or {}))
        self.calls.append((func, args, kwargs or {}, out))
        return out

    def replay(self):
        made = {}

        def now(value):
            return made.get(id(value), value) if isinstance(value, torch.Tensor) else value

        for func, args, kwargs, out in self.calls:
            again = func(*tree_map(now, args), **tree_map(now, kwargs))
            for old, new in zip(tree_flatten(out)[0], tree_flatten(again)[0], strict=True):
                if isinstance(old, torch.Tensor):
                    made[id(old)] = new


def record(run):
    tape = Tape()
    with tape:
        run()
    return tape.replay


@pytest.fixture(autouse=True)
def taped(monkeypatch):
    monkeypatch.setattr(cuda_graphs, "recorder_for", lambda device: record)


def static(models, **options):
    return LocalEngine(models, static=True, **options)


@pytest.mark.whole
def test_recorded_steps_equal_reference():
    """Three policies on two modules, mixed lengths and settings; the storage grows with the second batch."""
    llama, qwen = tiny_model("llama"), tiny_model("qwen3", seed=1)
    models = {"solver": llama, "verifier": qwen, "same": llama}
    engine = static(models, max_rows=3)
    long = [request(policy="solver", prompt_ids=(1,) * 90, task=90 + i) for i in range(2)]
    for requests in (mixed_requests(sorted(models), 12, seed=1)[::2], long):
        for asked, completion in zip(requests, answers(engine, requests), strict=True):
            assert_same(completion, complete_request(models[asked.policy], asked), tolerance=1e-5)
    counts = engine.counts()
    assert counts["solver/unrecorded_steps"] == 0
    assert counts["solver/recorded_steps"] == counts["solver/decode_steps"] > 4 * counts["solver/recordings"] > 0
    assert sum(counts[f"{name}/requests"] for name in models) == 8


@pytest.mark.whole
def test_adapters_on_one_module_are_recorded_apart():
    model, activate = wrapped("llama")
    engine = static(dict.fromkeys(POLICIES, model), max_rows=6, activate=activate)
    requests = [request(policy=policy, prompt_ids=(3, 1, 4), task=i) for i, policy in enumerate(POLICIES)]
    for asked, completion in zip(requests, answers(engine, requests), strict=True):
        activate[asked.policy]()
        assert_same(completion, complete_request(model, asked), tolerance=1e-4)


def test_half_precision_decodes_what_the_other_lane_does():
    """bfloat16 has steps of 2⁻⁸: the two attentions round differently, and where tokens agree, log-probabilities are
    near each other on average and never far."""
    model = tiny_model()
    requests = [request(prompt_ids=(i, 3, 4), sampling=Sampling(max_tokens=3), task=i) for i in range(32)]
    mine, theirs = (
        answers(LocalEngine({"a": model}, autocast=torch.bfloat16, static=static), requests) for static in (True, False)
    )
    far = [
        abs(p - q)
        for a, b in zip(mine, theirs, strict=True)
        if a.token_ids == b.token_ids
        for p, q in zip(a.logprobs, b.logprobs, strict=True)
    ]
    assert len(far) > 60 and max(far) < 0.3 and sum(far) / len(far) < 0.03


@pytest.mark.whole
@pytest.mark.parametrize("autocast", [None, torch.bfloat16])
def test_recordings_follow_weights_that_change_or_move(autocast):
    model = tiny_model()
    engine = static({"a": model}, autocast=autocast)
    asked = request(sampling=Sampling(max_tokens=12, temperature=0.0))
    said = [answers(engine, [asked])]
    recordings = engine.counts()["a/recordings"]
    layer = model.model.layers[0].mlp.down_proj
    with torch.no_grad():
        layer.weight.mul_(-3)
    said.append(answers(engine, [asked]))
    assert engine.counts()["a/recordings"] == recordings
    layer.weight = torch.nn.Parameter(-layer.weight.detach())
    said.append(answers(engine, [asked]))
    assert engine.counts()["a/recordings"] == recordings + (autocast is None)  # copies stay where they are
    expected = answers(LocalEngine({"a": model}, autocast=autocast), [asked])
    assert len({completions[0].token_ids for completions in said}) == 3
    assert said[2][0].token_ids == expected[0].token_ids


def test_copies_compute_what_autocast_does_and_leave_the_weights_in_place():
    model = tiny_model("qwen3")
    copies, ids = HalfPrecisionCopies(model, torch.bfloat16), torch.tensor([[1, 2, 3, 4]])
    before = dict(model.named_parameters())
    for factor in (1.0, 0.5):
        with torch.no_grad():
            for p in model.parameters():
                p.mul_(factor)
        copies.refresh()
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            expected = model(input_ids=ids).logits
            with pytest.raises(KeyError), copies.use_copies():
                assert torch.equal(model(input_ids=ids).logits, expected)
                assert model.lm_head.weight.dtype == torch.bfloat16
                raise KeyError
    assert all(p is before[name] for name, p in model.named_parameters())


def test_the_host_looks_every_few_steps(monkeypatch):
    looks = []
    finished = DeferredRows.collect_finished
    monkeypatch.setattr(DeferredRows, "collect_finished", lambda rows: looks.append(len(rows)) or finished(rows))
    engine = static({"a": tiny_model()})
    asked = [
        request(sampling=Sampling(max_tokens=n, temperature=t, top_p=0.9 if t else 1.0), task=n)
        for n, t in [(2 * LOOK + 1, 1.0), (2 * LOOK + 5, 0.0)]
    ]

    decode = StaticScheduler._decode_step

    def watched(scheduler):
        with Tape(WAITS):
            decode(scheduler)

    monkeypatch.setattr(StaticScheduler, "_decode_step", watched)
    found = answers(engine, asked)
    assert [len(completion.token_ids) for completion in found] == [2 * LOOK + 1, 2 * LOOK + 5]
    assert looks == [2, 2, 2, 1]  # after entry, twice LOOK steps, and the longer one's last four


@pytest.mark.whole
def test_companions_change_a_completion_by_rounding_only_and_the_same_again_by_nothing():
    model = tiny_model()
    asked = request(prompt_ids=(4, 3, 2), sampling=Sampling(max_tokens=30))
    [alone] = answers(static({"a": model}), [asked])
    engine = static({"a": model})
    requests = [asked, *mixed_requests(["a"], 4)[1:]]
    once = answers(engine, requests)
    assert_same(once[0], alone, tolerance=1e-5)
    assert answers(engine, requests) == once  # over what the first time left in the storage


class Pools:
    """The rule of PyTorch's allocator: a pool takes another graph only while one of its graphs lives."""

    def __init__(self):
        self.made, self.graphs, self.stream = 0, {}, "default"

    def current_stream(self, device):
        return self.stream

    def set_stream(self, stream):
        self.stream = stream

    def graph_pool_handle(self):
        self.made += 1
        return (0, self.made)

    @contextmanager
    def graph(self, graph, *, pool, **_):
        self.stream = "capture"
        if pool in self.graphs and not len(self.graphs[pool]):
            raise RuntimeError("it->second->use_count > 0 INTERNAL ASSERT FAILED")
        self.graphs.setdefault(pool, WeakSet()).add(graph)
        yield
        self.stream = "default"  # as torch does it: not after an error

    class CUDAGraph:
        def replay(self):
            pass


def test_a_pool_is_shared_while_one_of_its_graphs_lives_and_never_used_again(monkeypatch):
    pools = Pools()
    for name in ("graph_pool_handle", "graph", "CUDAGraph", "current_stream", "set_stream"):
        monkeypatch.setattr(torch.cuda, name, getattr(pools, name))
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: None)
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    record = RECORDER_FOR(torch.device("cuda"))
    held = {i: record(lambda: None) for i in range(2)}
    assert [len(pools.graphs[pool]) for pool in pools.graphs] == [2]
    held.clear()  # a store has moved
    held = {i: record(lambda: None) for i in range(2)}
    assert [len(pools.graphs[pool]) for pool in pools.graphs] == [0, 2]
    with pytest.raises(ZeroDivisionError):
        record(lambda: 1 / 0)
    assert pools.stream == "default"


def test_memory_that_runs_out_in_a_recording_halves_the_rows_and_records_on(monkeypatch):
    short = []

    def record_once_short(run):
        if short:
            raise short.pop()
        return record(run)

    monkeypatch.setattr(cuda_graphs, "recorder_for", lambda device: record_once_short)
    model = tiny_model()
    engine = static({"a": model})
    short.append(torch.OutOfMemoryError("CUDA out of memory."))
    asked = mixed_requests(["a"], 4)
    for mine, expected in zip(answers(engine, asked), [complete_request(model, one) for one in asked], strict=True):
        assert_same(mine, expected, tolerance=1e-5)
    counts = engine.counts()
    assert counts["a/out_of_memory"] == 1 and counts["a/recorded_steps"] > 0 == counts["a/unrecorded_steps"]


def test_a_failed_recording_is_told_once_and_changes_no_answer(monkeypatch):
    def refuse(run):
        run()
        raise RuntimeError("operation not permitted when stream is capturing\nand more")

    monkeypatch.setattr(cuda_graphs, "recorder_for", lambda device: refuse)
    model = tiny_model()
    with pytest.warns(
        RuntimeWarning, match=r"policy 'a': .*not permitted when stream is capturing\); they run"
    ) as told:
        engine = static({"a": model})
        found = answers(engine, [request(sampling=Sampling(max_tokens=20))])
    assert len(told) == 1
    assert_same(found[0], complete_request(model, request(sampling=Sampling(max_tokens=20))))
    assert engine.counts()["a/unrecorded_steps"] == 19 and engine.counts()["a/recorded_steps"] == 0


def test_a_model_that_it_cannot_decode_falls_back():
    sizes = {"vocab_size": 96, "hidden_size": 32, "num_hidden_layers": 2, "intermediate_size": 32, "head_dim": 16}
    config = Gemma2Config(**sizes, num_attention_heads=2, num_key_value_heads=1, pad_token_id=0, bos_token_id=1)
    gemma = Gemma2ForCausalLM(config).eval()  # caps its scores
    with pytest.warns(RuntimeWarning, match=r"policy 'a': .*fixed shape .*a soft cap"):
        engine = static({"a": gemma})
    assert_same(answers(engine, [request()])[0], complete_request(gemma, request()))
    assert "a/recordings" not in engine.counts()


def test_cancelled_rows_leave_and_the_rest_go_on():
    model = tiny_model()
    engine = static({"a": model}, max_rows=4)
    requests = [request(sampling=Sampling(max_tokens=4 + 5 * i), task=i) for i in range(5)]

    async def cancel_one():
        tasks = [asyncio.ensure_future(engine.sample(asked)) for asked in requests]
        await asyncio.sleep(0)
        assert engine.advance()
        tasks[1].cancel()
        await asyncio.sleep(0)
        while engine.advance():
            await asyncio.sleep(0)
        return [None if task.cancelled() else task.result() for task in tasks]

    found = asyncio.run(cancel_one())
    assert found[1] is None
    for i in (0, 2, 3, 4):
        assert_same(found[i], complete_request(model, requests[i]))


def ask_each(engine, requests):
    """Completions, or what each was refused with."""

    async def ask():
        tasks = [asyncio.ensure_future(engine.sample(one)) for one in requests]
        await asyncio.sleep(0)
        while engine.advance():
            await asyncio.sleep(0)
        return await asyncio.gather(*tasks, return_exceptions=True)

    return asyncio.run(ask())


def test_a_row_whose_logits_are_not_numbers_fails_alone():
    model = tiny_model()
    engine = static({"a": model})
    with torch.no_grad():
        model.get_input_embeddings().weight[7].fill_(torch.inf)
        model.get_output_embeddings().weight = torch.nn.Parameter(tiny_model().get_input_embeddings().weight.clone())
    wanted = [request(prompt_ids=(1, 2, i), task=i, stop_ids=(7,)) for i in (3, 4, 7, 5)]
    found = ask_each(engine, wanted)
    assert isinstance(found[2], FloatingPointError) and "policy 'a' (version 0)" in str(found[2])
    for i in (0, 1, 3):
        assert_same(found[i], complete_request(model, wanted[i]))


def test_what_broken_rows_leave_in_the_storage_breaks_no_later_one():
    model = tiny_model()
    weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    engine = static({"a": model})
    with torch.no_grad():
        for p in model.parameters():
            p.fill_(torch.nan)
    broken = ask_each(engine, [request(prompt_ids=(i,) * 40, task=i) for i in range(4)])
    assert all(isinstance(error, FloatingPointError) for error in broken)
    model.load_state_dict(weights)
    engine.publish("a", 1)
    wanted = [request(prompt_ids=(i, 3, 4), task=i) for i in range(4)]
    for asked, completion in zip(wanted, answers(engine, wanted), strict=True):
        assert_same(completion, complete_request(model, asked, version=1))


def test_a_stop_token_whose_weights_are_not_numbers_breaks_no_later_row():
    """A row that stands still feeds it again and again, and is not broken itself."""
    model = tiny_model()
    engine = static({"a": model}, max_rows=1)
    sampling = Sampling(max_tokens=30, temperature=0.0)
    [said] = answers(engine, [request(sampling=sampling)])
    stop = said.token_ids[4]
    head = model.get_input_embeddings().weight.clone()
    model.get_output_embeddings().weight = torch.nn.Parameter(head)
    with torch.no_grad():
        model.get_input_embeddings().weight[stop].fill_(torch.nan)
    ends = request(sampling=sampling, stop_ids=(stop,))
    goes_on = request(prompt_ids=(3, 2), sampling=Sampling(max_tokens=2), task=1)
    [first, second] = answers(engine, [ends, goes_on])
    assert first.finish == "stop"
    assert_same(second, complete_request(model, goes_on))


def test_logits_that_are_not_numbers_stop_the_engine():
    model = tiny_model()
    engine = static({"a": model})
    with torch.no_grad():
        model.get_input_embeddings().weight.fill_(torch.nan)
    with pytest.raises(FloatingPointError, match=r"policy 'a' \(version 0\) computes logits that are not numbers"):
        answers(engine, [request()])


def test_views_are_few_and_large_enough():
    assert [lines_for(n) for n in (1, 8, 9, 200, 256, 257)] == [8, 8, 16, 256, 256, 512]
    assert [columns_for(n) for n in (1, 128, 129, 192, 193, 257, 385, 1500)] == [
        128,
        128,
        192,
        192,
        256,
        384,
        512,
        1536,
    ]
