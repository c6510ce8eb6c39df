"""The price of a step against numbers worked out by hand, and the sums that a run makes of it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from cotrain.algorithms.contract import LossTerm, Sample
from cotrain.config.policies import adapter, critic, frozen, reward_model, trainable
from cotrain.core.types import Trace
from cotrain.distributed.policy_handles import ComputeShape, compute_shape
from cotrain.metrics.steps import flops_of
from cotrain.recipes.grpo import grpo
from cotrain.recipes.tango import tango
from cotrain.trainer.flops import TokenWork, decoding_work, forward_flops, learning_flops, prefill_work, sequence_work
from cotrain.trainer.trainer import CoTrainer
from tests.helpers import EASY, TINY, cast_of
from tests.sentences import refuses

SMALL = {"model": TINY, "tasks": EASY, "tasks_per_step": 2, "group_size": 3, "evaluation_tasks": 1, "lr": 1e-3}


def test_work_by_hand() -> None:
    # two distinct prompts of 3 and 2 tokens: 5 tokens, 2 predictions, 3·4/2 + 2·3/2 = 9 pairs
    assert prefill_work([(1, 2, 3), (1, 2, 3), (4, 5)]) == TokenWork(tokens=5, predicted=2, pairs=9)
    # 4 tokens after a prompt of 3: the prompt predicts the first; 3 passes over 4, 5 and 6 tokens
    assert decoding_work([(3, 4)]) == TokenWork(tokens=3, predicted=3, pairs=4 + 5 + 6)
    assert decoding_work([(9, 1)]) == TokenWork(tokens=0, predicted=0, pairs=0)
    # two answers of 4 and 1 tokens to one prompt of 3: prompt once, 3 further tokens, 5 predictions
    assert sequence_work([((1, 2, 3), (7, 7, 7, 7)), ((1, 2, 3), (8,))]) == TokenWork(
        tokens=6, predicted=5, pairs=6 + 15
    )


def test_operations_by_hand() -> None:
    shape, work = ComputeShape(body=100, head=10, pair=8, trained=110), TokenWork(tokens=6, predicted=5, pairs=21)
    # 2·(100·6 + 10·5) + 8·21 = 1300 + 168
    assert forward_flops(shape, work) == 1468
    assert learning_flops(shape, work) == 3 * 1468  # six for two
    # an adapter of 11 of 110 weights: 4·650 + 2·650/10 + 3·168
    assert learning_flops(replace(shape, trained=11), work) == 2600 + 130 + 504


def test_the_shape_of_a_model_by_hand() -> None:
    cast = cast_of(
        {"lm": trainable(TINY), "critic": critic(TINY), "rm": reward_model(TINY), "reference": frozen(TINY)}, seed=0
    )
    config = cast["lm"].model.config
    vocabulary, width, layers = config.vocab_size, config.hidden_size, config.num_hidden_layers
    heads, keys, size, inner = (
        config.num_attention_heads,
        config.num_key_value_heads,
        config.head_dim,
        config.intermediate_size,
    )
    assert config.tie_word_embeddings
    attention = width * size * (2 * heads + 2 * keys) + (2 * size if "qwen3" in config.model_type else 0)
    body = layers * (attention + 3 * width * inner + 2 * width) + width  # two norms a layer and one at the end
    lm, start = (
        compute_shape("lm", cast["lm"].spec, cast["lm"].model),
        compute_shape("s", cast["reference"].spec, cast["reference"].model),
    )
    assert (lm.body, lm.head, lm.pair) == (body, vocabulary * width, 4 * layers * heads * size)
    assert lm.trained == lm.body + lm.head and start == replace(lm, trained=0)
    value = compute_shape("critic", cast["critic"].spec, cast["critic"].model)
    assert (value.head, value.pair) == (width, lm.pair) and abs(value.body - body) <= 1  # its bias


def test_operations_are_those_that_torch_counts() -> None:
    """The reference: torch's own counter over a whole forward and backward pass, where attention has no causal mask."""
    cast = cast_of({"lm": trainable(TINY)}, seed=0)
    model, length = cast["lm"].model, 48
    model.set_attn_implementation("eager")  # the counter does not see into the fused one on a processor
    shape, work = (
        compute_shape("lm", cast["lm"].spec, model),
        TokenWork(tokens=length, predicted=length, pairs=length**2),
    )
    ids = torch.arange(length)[None] % model.config.vocab_size
    with FlopCounterMode(display=False) as ahead:
        model(input_ids=ids, use_cache=False)
    with FlopCounterMode(display=False) as both:
        model(input_ids=ids, use_cache=False).logits.logsumexp(-1).sum().backward()
    assert forward_flops(shape, work) == pytest.approx(ahead.get_total_flops(), rel=0.01)  # norms are in the formula
    assert learning_flops(shape, work) == pytest.approx(both.get_total_flops(), rel=0.01)


def test_an_adapter_pays_for_its_own_weights_and_not_for_those_of_others() -> None:
    cast = cast_of({"a": adapter(TINY, rank=2), "b": adapter(TINY, rank=4), "reference": frozen(TINY)}, seed=0)
    shapes = {name: compute_shape(name, cast[name].spec, cast[name].model) for name in ("a", "b", "reference")}
    assert shapes["reference"].trained == 0
    assert shapes["a"].body - shapes["reference"].body == shapes["a"].trained > 0
    assert shapes["b"].trained == 2 * shapes["a"].trained


@pytest.mark.whole
def test_a_step_is_the_sum_of_its_traces() -> None:
    """GRPO by hand from its ledger: prompts and answers of the solver, the reference and the learner on what was
    learned."""
    trainer = CoTrainer(grpo(**SMALL))
    shape = compute_shape("generator", trainer.policies["generator"].spec, trainer.policies["generator"].model)
    learned: list[Sample] = []
    meter, keep = trainer.flops_meter, trainer.flops_meter.count_learning

    def note_and_count(policy: str, term: LossTerm) -> None:
        learned.extend(term.samples)
        keep(policy, term)

    meter.count_learning = note_and_count  # type: ignore[method-assign]
    for _ in range(3):
        learned.clear()
        result = trainer.step()
        said: list[Trace] = [t for e in result.episodes for t in e.traces]
        row = {key: value for key, value in result.row.items() if "/flops/" in key}
        assert row["generator/flops/prefill"] == forward_flops(shape, prefill_work({t.prompt_ids for t in said}))
        assert row["generator/flops/sampling"] == forward_flops(
            shape, decoding_work([(len(t.prompt_ids), len(t.token_ids)) for t in said])
        )
        work = sequence_work([(s.prompt_ids, s.token_ids) for s in learned])
        assert row.get("generator/flops/learning", 0) == 3 * forward_flops(shape, work)
        assert row.get("reference/flops/scoring", 0) == forward_flops(shape, work)
        assert sum(row.values()) == flops_of(result.row)
    assert trainer.flops > flops_of(result.row)


@pytest.mark.whole
def test_a_frozen_verifier_pays_for_its_reviews_and_learns_nothing() -> None:
    row = CoTrainer(tango(verifier="frozen", **SMALL)).step().row
    assert row["verifier/flops/sampling"] > 0 and row["verifier/flops/prefill"] > 0
    assert "verifier/flops/learning" not in row


@pytest.mark.whole
@pytest.mark.parametrize(("name", "most"), [("flops", 1.0), ("seconds", 1e-4), ("tokens", 1)])
def test_a_budget_ends_a_run(name, most) -> None:
    trainer = CoTrainer(replace(grpo(**SMALL), **{name: most}))
    assert not trainer.is_done and trainer.step() and trainer.is_done
    with refuses("E_RECIPE_SETTING_RANGE", names=f"{name} is 0"):
        replace(grpo(**SMALL), **{name: 0})
