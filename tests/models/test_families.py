"""Causal LMs of transformers, with random weights at tiny size: load, sample, score, learn, save, and adapters of PEFT.

Held against the slow reference engine and plain forward passes of transformers.
"""

import copy
import json
import re
import shutil
from dataclasses import replace

import pytest
import torch
from peft import PeftModel
from transformers import AutoConfig, AutoModelForCausalLM

from cotrain.algorithms.contract import LossTerm, Sample
from cotrain.algorithms.sft import SFT
from cotrain.cli.main import main
from cotrain.config.override import override
from cotrain.config.policies import adapter, frozen, trainable
from cotrain.core.types import Sampling
from cotrain.distributed.local import make_local_engine
from cotrain.inference.local import LocalEngine
from cotrain.inference.reference import complete_request
from cotrain.learner.learner import TorchLearner
from cotrain.learner.logprobs import Scorer
from cotrain.models.load import load_model, save_model
from cotrain.models.shared_prefix import can_branch
from cotrain.models.sizes import model_size, parameter_count
from cotrain.prompts.templates import SOLVE_FULL, fill_template
from cotrain.recipes.grpo import grpo
from cotrain.runs.fitting import check_decoding
from cotrain.storage.ledger import Ledger
from cotrain.trainer.trainer import CoTrainer
from tests.helpers import EASY, TINY, answers, cast_of, request
from tests.sentences import refuses

WINDOW = 24  # of the sliding ones
SIZES = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8, "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 5,
}  # fmt: skip
EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 16, "num_local_experts": 4, "num_experts": 4}
FAMILIES = {  # what differs: of the configuration; and are prompts shared, in branches
    "llama": ({}, True),
    "qwen2": ({}, True),
    "qwen3": ({}, True),
    "gemma": ({}, True),
    "gemma2": (
        {"sliding_window": WINDOW, "query_pre_attn_scalar": 8, "final_logit_softcapping": 2.0,
            "attn_logit_softcapping": 1.0},
        False,
    ),
    "gemma3_text": ({"sliding_window": WINDOW, "query_pre_attn_scalar": 8}, False),
    "mistral": ({"sliding_window": None}, True),
    "mistral-window": ({"sliding_window": WINDOW}, False),
    "smollm3": ({}, True),
    "nanochat": ({"final_logit_softcapping": 2.0}, True),
    "nanochat_gpt": ({}, True),
    "granite": ({"logits_scaling": 3.0, "attention_multiplier": 0.3, "residual_multiplier": 0.7}, True),
    "cohere": ({"logit_scale": 0.25}, False),
    "phi3": ({}, True),
    "olmo2": ({}, True),
    "mixtral": (EXPERTS, True),
    "qwen3_moe": (EXPERTS | {"mlp_only_layers": []}, True),
    "gpt_neox": ({}, False),
    "gpt2": ({}, False),
}  # fmt: skip


def random_model(family, vocabulary, **changes):
    config = AutoConfig.for_model(family, **SIZES | changes, vocab_size=vocabulary)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim >= 2:
                parameter *= 4  # far from uniform
    return model.eval()


@pytest.fixture(scope="module")
def saved(tokenizer, tmp_path_factory):
    """Family → a directory as transformers itself writes it, made once and only read."""
    folder = tmp_path_factory.mktemp("families")

    def save(family):
        directory = folder / family
        if not directory.exists():
            random_model(family.split("-")[0], len(tokenizer), **FAMILIES[family][0]).save_pretrained(directory)
            tokenizer.save_pretrained(directory)
        return directory

    return save


def requests():
    prompts = [(7, 8, 9), (7, 8, 9), (1, 2, 3, 4, 5, 6), (1, 2, 3, 4, 5, 6, 7, 8), (200,), (9, 4, 9, 4, 9)]
    return [
        request(prompt_ids=p, sampling=Sampling(max_tokens=4 - i % 3, temperature=float(i % 3 > 0)), task=i)
        for i, p in enumerate(prompts)
    ]


def plainly(model, prompt, tokens):
    """Log-probabilities ``[T]`` by the model's own forward."""
    ids = torch.tensor([[*prompt, *tokens]])
    table = model(input_ids=ids, use_cache=False).logits[0].float().log_softmax(-1)[len(prompt) - 1 : -1]
    return table.gather(-1, torch.tensor(tokens)[:, None])[:, 0]


def samples(pairs):
    return tuple(
        Sample(
            key=str(i), prompt_ids=p, token_ids=t, sampler_logprobs=torch.zeros(len(t)), advantages=torch.ones(len(t))
        )
        for i, (p, t) in enumerate(pairs)
    )


def logits(model):
    with torch.no_grad():
        return model(input_ids=torch.tensor([[3, 1, 4, 1, 5, 9, 2, 6]])).logits


def assert_sampled_as_by_the_reference(model, plain):
    for asked, found in zip(requests(), answers(LocalEngine({"a": model}), requests()), strict=True):
        expected = complete_request(plain, asked)
        assert found.token_ids == expected.token_ids
        assert found.logprobs == pytest.approx(expected.logprobs, abs=1e-4)


QUICK = ("llama", "qwen2", "gemma2")  # the others with the whole runs


def each(*families):
    return [f if f in QUICK else pytest.param(f, marks=pytest.mark.whole) for f in families]


@pytest.mark.whole
@pytest.mark.parametrize("family", each(*FAMILIES))
def test_a_family_samples_scores_learns_and_comes_back(family, saved, tokenizer, tmp_path):
    directory = saved(family)
    plain = AutoModelForCausalLM.from_pretrained(directory).eval()
    model, _ = load_model(directory)
    assert can_branch(model) is FAMILIES[family][1]
    assert_sampled_as_by_the_reference(model, plain)

    long = tuple((5 * i) % 89 for i in range(2 * WINDOW))  # windows hide some of it
    pairs = [((7, 8), long), ((7, 8), (9, 10, 11)), ((2,), (3,)), (long[:9], long[20:26])]
    learner = TorchLearner(model, lr=1e-2, micro_tokens=64)
    for (prompt, tokens), found in zip(pairs, learner.logprobs(pairs), strict=True):
        torch.testing.assert_close(found, plainly(plain, prompt, tokens).detach(), rtol=1e-4, atol=1e-5)

    term = LossTerm(name="o", algorithm=SFT(), samples=samples(pairs))
    first, second = learner.update([term]), learner.update([term])
    assert first.stepped and second.metrics["o/loss"] < first.metrics["o/loss"]
    save_model(model, tokenizer, tmp_path / "again")
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "again").eval()
    torch.testing.assert_close(logits(again), logits(model), rtol=1e-5, atol=1e-5)
    assert not torch.allclose(logits(again), logits(plain), atol=1e-3)


# llama: test_adapters.py
@pytest.mark.whole
@pytest.mark.parametrize("family", each("gemma2", "nanochat", "nanochat_gpt", "phi3", "qwen3_moe", "gpt_neox", "gpt2"))
def test_an_adapter_of_a_family_learns_and_is_read_by_peft(family, saved, tmp_path):
    directory = saved(family)
    cast = cast_of(
        {"a": adapter(str(directory), rank=2, alpha=4, lr=3e-2, lr_warmup=0), "reference": frozen(str(directory))},
        seed=1,
    )
    assert cast["a"].model is cast["reference"].model
    plain = AutoModelForCausalLM.from_pretrained(directory).eval()
    pairs = [((7, 8), (9, 10, 11, 12)), ((2,), (3, 4))]
    term = LossTerm(name="o", algorithm=SFT(), samples=samples(pairs))
    first, second = (cast["a"].learner.update([term]) for _ in range(2))
    assert second.metrics["o/loss"] < first.metrics["o/loss"]
    for (prompt, tokens), found in zip(pairs, cast["reference"].logprobs(pairs), strict=True):
        torch.testing.assert_close(found, plainly(plain, prompt, tokens).detach(), rtol=1e-4, atol=1e-5)
    cast["a"].save(tmp_path / "adapter")
    again = PeftModel.from_pretrained(plain, tmp_path / "adapter").eval()
    cast["a"].activate()
    torch.testing.assert_close(logits(again), logits(cast["a"].model), rtol=1e-5, atol=1e-5)
    assert_sampled_as_by_the_reference(cast["a"].model, again)


@pytest.mark.whole
@pytest.mark.parametrize("family", ["gemma2", "gemma3_text", "mistral-window"])
def test_a_window_limits_what_is_sampled(family, saved):
    engine = LocalEngine({"a": load_model(saved(family))[0]})
    inside = request(prompt_ids=tuple(range(10)), sampling=Sampling(max_tokens=WINDOW - 10))
    assert answers(engine, [inside])
    with refuses("E_PROMPT_TOO_LONG", names=f"context of {WINDOW}"):
        answers(engine, [replace(inside, prompt_ids=tuple(range(11)))])


@pytest.mark.parametrize(
    ("family", "changes", "code"),
    [
        ("bloom", {"n_layer": 2, "n_head": 4}, "E_MODEL_NOT_DECODABLE"),  # positions are biases
        ("gpt_oss", EXPERTS | {"sliding_window": WINDOW}, "E_MODEL_NOT_DECODABLE: s_aux"),  # sinks
        ("diffllama", {}, "E_MODEL_NOT_DECODABLE"),  # two attentions a layer
    ],
)
def test_models_that_would_be_sampled_wrongly_are_refused(family, changes, code, tokenizer):
    with refuses(code) as caught:
        LocalEngine({"a": random_model(family, len(tokenizer), **changes)})
    assert "\n" not in str(caught.value) and "'a'" in str(caught.value)


def test_changed_logits_that_are_not_known_are_refused(tokenizer):
    model = random_model("granite", len(tokenizer), **FAMILIES["granite"][0])
    Scorer(model)
    model.lm_head.register_forward_hook(lambda module, asked, found: found)  # what the output layer does is its own
    Scorer(model)
    model.register_forward_hook(lambda module, asked, found: found.__class__(logits=found.logits + found.logits.sin()))
    with refuses("E_MODEL_LOGITS_CHANGED", names="GraniteForCausalLM"):
        Scorer(model)


# -- options


@pytest.mark.whole
@pytest.mark.parametrize("family", ["llama", "gemma2", "qwen3_moe", "gpt2", "nanochat_gpt"])
def test_layers_that_are_computed_again_give_the_same_gradients(family, saved):
    pairs = [((7, 8), (9, 10, 11)), ((7, 8), (3, 4)), ((2,), (3,))]
    found, kept = [], []
    for recompute in (False, True):
        model, _ = load_model(saved(family))
        learner = TorchLearner(model, lr=1e-2, recompute=recompute)
        sizes = []

        def pack(tensor, sizes=sizes):
            sizes.append(tensor.numel())
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            report = learner.update([LossTerm(name="o", algorithm=SFT(), samples=samples(pairs))])
        found.append((report.metrics["o/loss"], list(model.parameters())))
        kept.append(sum(sizes))  # numbers that wait for the backward pass, inside of layers that are not computed again
        assert not any("forward" in vars(module) for module in model.modules())
    assert found[0][0] == found[1][0]
    for one, other in zip(found[0][1], found[1][1], strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)
    assert kept[1] < kept[0]


@pytest.mark.whole
@pytest.mark.parametrize("family", each("llama", "gemma2", "gpt_neox", "nanochat_gpt"))
def test_sampler_and_learner_agree_in_bfloat16(family, saved):
    directory = str(saved(family))
    cast = cast_of(
        {
            "narrow": frozen(directory, dtype="bfloat16"),
            "adapted": adapter(directory, rank=2, lr=1e-2, dtype="bfloat16"),
            "mixed": trainable(directory, autocast=True, gradient_checkpointing=True),
        },
        seed=0,
    )
    assert [handle.name for handle in cast if handle.spec.autocast] == ["mixed"]
    assert {p.dtype for p in cast["mixed"].model.parameters()} == {torch.float32}
    assert {p.dtype for p in cast["adapted"].learner._trained.values()} == {torch.float32}
    assert cast["narrow"].model.dtype == torch.bfloat16
    engine = make_local_engine({handle.name: handle for handle in cast}, "cpu")
    for handle in cast:
        name = handle.name
        asked = [replace(a, policy=name, sampling=Sampling(max_tokens=8)) for a in requests()]
        sampled = answers(engine, asked)
        pairs = [(a.prompt_ids, c.token_ids) for a, c in zip(asked, sampled, strict=True)]
        gaps = torch.cat(cast[name].logprobs(pairs)) - torch.tensor([x for c in sampled for x in c.logprobs])
        assert 0 < float(gaps.abs().mean()) < 0.03 and float(gaps.abs().max()) < 0.3
        if handle.changes:
            assert handle.update([LossTerm(name="o", algorithm=SFT(), samples=samples(pairs))]).stepped


@pytest.mark.whole
def test_an_attention_that_is_asked_for_is_used(saved):
    directory = saved("llama")
    cast = cast_of({"a": trainable(str(directory), attn_implementation="eager")}, seed=0)
    assert cast["a"].model.config._attn_implementation == "eager" and not cast["a"].learner.scorer.shared
    assert_sampled_as_by_the_reference(cast["a"].model, load_model(directory)[0])
    with refuses("E_MODEL_UNREADABLE"):
        load_model(directory, attn_implementation="flash_attention_2")  # not installed


def test_wrong_options_are_one_line(saved):
    for make, code in [
        (lambda: trainable("m", dtype="bfloat16"), "E_DTYPE_TRAINED"),
        (lambda: frozen("m", dtype="int4"), "E_DTYPE: 'int4' | float32, bfloat16"),
        (lambda: adapter("m", attn_implementation="fast"), "E_ATTENTION: 'fast' | sdpa, eager"),
        (
            lambda: cast_of({"a": adapter("m", dtype="bfloat16"), "reference": frozen("m")}, seed=0),
            "E_BASE_SHARED_UNLIKE: 'a' | 'reference' | 'm' | dtype | reference | bfloat16",
        ),
    ]:
        with refuses(code) as caught:
            make()
        assert "\n" not in str(caught.value)


def test_code_of_a_model_runs_only_when_asked_for(saved, tmp_path):
    directory = shutil.copytree(saved("llama"), tmp_path / "own")
    code = "from transformers import LlamaConfig, LlamaForCausalLM\nclass C(LlamaConfig):\n    model_type = 'own'\n"
    (directory / "own.py").write_text(code + "class M(LlamaForCausalLM):\n    config_class = C\n")
    config = (directory / "config.json").read_text().replace('"model_type": "llama"', '"model_type": "own"')
    named = '{"auto_map": {"AutoConfig": "own.C", "AutoModelForCausalLM": "own.M"},'
    (directory / "config.json").write_text(config.replace("{", named, 1))
    with refuses("E_MODEL_UNREADABLE"):
        cast_of({"a": frozen(str(directory))}, seed=0)
    cast = cast_of({"a": frozen(str(directory), trust_remote_code=True)}, seed=0)
    assert type(cast["a"].model).__name__ == "M"


def test_a_model_of_own_code_is_planned_from_its_configuration(saved, tmp_path, monkeypatch):
    """With the code where that is allowed; else transformers would ask at the terminal whether it is."""
    directory = shutil.copytree(saved("llama"), tmp_path / "own", ignore=shutil.ignore_patterns("*.safetensors*"))
    parameters = model_size(directory).parameters
    code = "from transformers import LlamaConfig, LlamaForCausalLM\nclass C(LlamaConfig):\n    model_type = 'own'\n"
    (directory / "own.py").write_text(code + "class M(LlamaForCausalLM):\n    config_class = C\n")
    config = (directory / "config.json").read_text().replace('"model_type": "llama"', '"model_type": "own"')
    named = '{"auto_map": {"AutoConfig": "own.C", "AutoModelForCausalLM": "own.M"},'
    (directory / "config.json").write_text(config.replace("{", named, 1))
    asked = []
    monkeypatch.setattr("builtins.input", lambda question="": asked.append(question) or "y")
    assert model_size(directory, trust_remote_code=True).parameters == parameters
    with refuses("E_MODEL_UNREADABLE"):
        model_size(directory)
    assert parameter_count(str(directory)) is None
    with refuses("E_MODEL_UNREADABLE"):
        check_decoding(grpo(model=str(directory), tasks=EASY))
    assert not asked


# -- whole runs


def run(directory, *words):
    """``cotrain run grpo``, two small steps; rows of metrics."""
    sizes = ["--steps", "2", "--tasks-per-step", "3", "--group-size", "4", "--evaluation-tasks", "2"]
    assert main(["run", "grpo", *sizes, "--out", str(directory), *map(str, words)]) == 0
    return [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.whole
def test_a_base_model_without_a_template_runs_on_a_file(tokenizer, tmp_path):
    """The format is told in words, and there is nothing around them but the beginning of the sequence."""
    plain = copy.deepcopy(tokenizer)
    plain.chat_template = None
    save_model(random_model("gpt2", len(tokenizer), max_position_embeddings=2048), plain, tmp_path / "model")
    assert load_model(tmp_path / "model")[1].chat_template is None
    data = tmp_path / "data.jsonl"
    data.write_text("".join(json.dumps({"question": f"{i}+1?", "answer": str(i + 1)}) + "\n" for i in range(40)))
    rows = run(
        tmp_path / "run", "--model", tmp_path / "model", "--tasks", "jsonl", "--data", data, "--answer-format", "tags",
        "--set", "roles.solver.sampling.max_tokens=8", "--set", "evaluation.group_size=1",
        "--set", "policies.generator.gradient_checkpointing=true",
    )  # fmt: skip
    assert len(rows) == 2
    [episode, *_] = Ledger(tmp_path / "run" / "episodes").read(0)
    text = tokenizer.decode(episode.traces[0].prompt_ids)
    question = re.search(r"\d+\+1\?", text)[0]
    assert text == tokenizer.bos_token + fill_template(SOLVE_FULL, problem=question)


@pytest.mark.whole
def test_a_step_in_bfloat16_arithmetic_learns_what_was_sampled():
    settings = ["policies.generator.autocast=true", "policies.reference.dtype=bfloat16"]
    recipe = override(grpo(model=TINY, tasks=EASY, tasks_per_step=3, group_size=4, steps=1), settings)
    row = CoTrainer(recipe).step().row
    gaps = [value for name, value in row.items() if name.endswith("sampler_trainer_diff")]
    assert gaps and all(0 < gap < 0.05 for gap in gaps)
