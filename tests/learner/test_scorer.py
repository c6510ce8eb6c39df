from dataclasses import replace

import pytest
import torch
from learn_makers import VOCABULARY, plain_logprobs, random_samples, tiny_model
from peft import LoraConfig, get_peft_model
from transformers import Gemma2Config, Gemma2ForCausalLM, LlamaModel

from cotrain.learner.batching import collate
from cotrain.learner.logprobs import Scorer
from tests.sentences import refuses


@pytest.mark.parametrize("tie", [True, False])
def test_log_probabilities_are_those_of_the_models_own_forward(tie):
    model, samples = tiny_model(tie=tie), random_samples(temperature=True)
    predictions, entropy = Scorer(model).predict(collate(samples)[0])
    assert entropy is None
    for row, sample in zip(predictions, samples, strict=True):
        expected = plain_logprobs(model, sample)
        torch.testing.assert_close(row[: len(expected)], expected, rtol=1e-10, atol=1e-10)
        assert not row[len(expected) :].any()


def test_entropy_is_that_of_the_tempered_distribution():
    model, sample = tiny_model(), random_samples(1)[0]
    rows = collate([sample])[0]
    _, entropy = Scorer(model).predict(rows, entropy=True)
    ids = torch.tensor([sample.prompt_ids + sample.token_ids])
    p = model(input_ids=ids).logits[0, len(sample.prompt_ids) - 1 : -1].softmax(-1)
    torch.testing.assert_close(entropy[0], -(p * p.log()).sum(-1), rtol=1e-10, atol=1e-10)


def test_slices_of_logits_change_neither_values_nor_gradients():
    model, samples = tiny_model(), random_samples(temperature=True)
    results = []
    for logits_at_once in (2**20, 3 * VOCABULARY, 1):
        scorer = Scorer(model, logits_at_once=logits_at_once)
        predictions, entropy = scorer.predict(collate(samples)[0], entropy=True)
        (predictions.sum() + 0.3 * entropy.sum()).backward()
        results.append((predictions, entropy, [p.grad.clone() for p in model.parameters()]))
        model.zero_grad()
    for predictions, entropy, gradients in results[1:]:
        torch.testing.assert_close(predictions, results[0][0], rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(entropy, results[0][1], rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(gradients, results[0][2], rtol=1e-10, atol=1e-12)


def test_a_head_that_learns_alone_has_the_same_gradient_in_slices():
    """Nothing that enters the slices has a gradient then, but the head itself."""
    model, samples = tiny_model(tie=False).requires_grad_(False), random_samples(3)
    head = model.get_output_embeddings().weight.requires_grad_(True)
    found = []
    for logits_at_once in (2**20, VOCABULARY):
        predictions, _ = Scorer(model, logits_at_once=logits_at_once).predict(collate(samples)[0])
        found += torch.autograd.grad(predictions.sum(), [head])
    torch.testing.assert_close(found[1], found[0], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(("fewer", "calls"), [(0, 1), (1, 4)])
def test_only_several_slices_are_computed_again(fewer, calls):
    """What one slice holds exactly is not; with one position less there are two, and both are."""
    model, count = tiny_model(), []
    rows = collate(random_samples(2))[0]
    scorer = Scorer(model, logits_at_once=(int(rows.mask.sum()) - fewer) * VOCABULARY)
    model.get_output_embeddings().register_forward_hook(lambda *_: count.append(1))
    scorer.predict(rows)[0].sum().backward()
    assert len(count) == calls


def test_one_sequence_that_is_too_long_is_told_with_its_length():
    """Prompt and answer together: 2 + 3 tokens are more than 3 + 1."""
    batches = [[((1, 2), (3, 4, 5))], [((1, 2, 3), (4,))]]
    with refuses("E_MEMORY_FOR_SEQUENCE", names="5 tokens"):
        Scorer(tiny_model()).halve_batches(batches, MemoryError())


def test_scores_come_back_in_the_order_given():
    model, samples = tiny_model(), random_samples(9)
    pairs = [(s.prompt_ids, s.token_ids) for s in samples]
    for micro_tokens in (1, 30, 10_000):
        scores = Scorer(model, micro_tokens=micro_tokens).logprobs(pairs, temperature=0.5)
        for score, sample in zip(scores, samples, strict=True):
            ids = torch.tensor([sample.prompt_ids + sample.token_ids])
            table = (model(input_ids=ids).logits[0] / 0.5).log_softmax(-1)[len(sample.prompt_ids) - 1 : -1]
            expected = table.gather(-1, ids[0, len(sample.prompt_ids) :, None]).squeeze(-1)
            assert score.dtype == torch.float32
            assert not score.requires_grad
            torch.testing.assert_close(score, expected.float(), rtol=1e-6, atol=1e-6)
    assert Scorer(model).logprobs([]) == []


def test_sharing_prompts_changes_neither_scores_nor_gradients():
    model, drawn = tiny_model(), random_samples(8, temperature=True)
    samples = [replace(s, prompt_ids=drawn[i % 3].prompt_ids) for i, s in enumerate(drawn)]
    samples += [replace(samples[0], key="again"), samples[3]]  # equal ones are computed once
    results = []
    for shared in (True, False):
        rows = collate(samples, shared=shared)[0]
        assert (rows.input_ids.shape[0] == 1) is shared
        predictions, entropy = Scorer(model).predict(rows, entropy=True)
        (predictions.sin().sum() + entropy.sum()).backward()
        results.append((predictions.detach(), entropy.detach(), [p.grad.clone() for p in model.parameters()]))
        model.zero_grad()
    torch.testing.assert_close(results[0][:2], results[1][:2], rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(results[0][2], results[1][2], rtol=1e-4, atol=1e-4)  # norms compute in float32


def test_soft_caps_are_repeated_and_other_models_are_refused():
    config = Gemma2Config(
        vocab_size=16, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1,
        num_key_value_heads=1, head_dim=8, final_logit_softcapping=0.01,
    )  # fmt: skip
    model, pair = Gemma2ForCausalLM(config).eval(), ((1, 2), (3, 4, 5))
    table = model(input_ids=torch.tensor([pair[0] + pair[1]])).logits[0, 1:-1].log_softmax(-1)
    expected = table.gather(-1, torch.tensor(pair[1])[:, None])[:, 0]
    torch.testing.assert_close(Scorer(model).logprobs([pair])[0], expected.detach(), rtol=1e-6, atol=1e-6)
    with refuses("E_MODEL_NOT_CAUSAL"):
        Scorer(LlamaModel(tiny_model().config))
    with refuses("E_HEAD_NAME", names="'scalar'"):
        Scorer(tiny_model(), head="scalar")


@pytest.mark.parametrize("inside", [False, True])
def test_adapters_score_as_in_a_plain_forward_with_shared_prompts_and_without(inside):
    """``inside``: the module in PEFT's wrapper is handed over, which is what a run does."""
    torch.manual_seed(0)
    config = {"target_modules": "all-linear", "r": 2, "init_lora_weights": False}
    model = get_peft_model(tiny_model(), LoraConfig(task_type="CAUSAL_LM", **config), adapter_name="one").eval()
    model.add_adapter("two", LoraConfig(task_type="CAUSAL_LM", **config))
    samples = [replace(s, prompt_ids=s.prompt_ids[:1]) for s in random_samples(8)]
    pairs = [(s.prompt_ids, s.token_ids) for s in samples]
    inner = model.get_base_model() if inside else model
    found = {}
    for name in ("one", "two"):
        model.set_adapter(name)
        scorer = Scorer(inner)
        found[name] = scorer.logprobs(pairs)
        assert scorer.shared
        rows = collate(samples)[0]
        padded = scorer.predict(rows)[0]
        for score, row, sample in zip(found[name], padded, samples, strict=True):
            expected = plain_logprobs(model, sample)
            torch.testing.assert_close(score, expected.float(), rtol=1e-6, atol=1e-6)
            torch.testing.assert_close(row[: len(expected)], expected, rtol=1e-6, atol=1e-6)
    assert not any(torch.equal(a, b) for a, b in zip(found["one"], found["two"], strict=True))
