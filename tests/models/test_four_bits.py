"""``--load-in-4bit``: what is refused; and where bitsandbytes is, that layers compute as those
with these weights written out."""

import pytest
import torch

from cotrain import api
from cotrain.cli.main import main
from cotrain.config.policies import critic, ema
from cotrain.learner.logprobs import Scorer
from cotrain.models import quantize
from cotrain.models.adapters import AdapterBase
from cotrain.models.load import load_model
from cotrain.recipes.grpo import grpo
from cotrain.runs.memory_plan import estimate_run
from cotrain.trainer.trainer import CoTrainer
from tests.helpers import EASY, TINY
from tests.sentences import command_refuses, refuses

SMALL = {"model": TINY, "tasks": EASY, "steps": 2, "tasks_per_step": 2, "group_size": 2, "evaluation_tasks": 2}
TEXTS = [((5, 6, 7), (8, 9, 10)), ((5, 6), (11, 12, 13, 14))]


def test_weights_that_change_are_refused():
    with refuses("E_FOUR_BIT_TRAINED"):
        grpo(**SMALL, load_in_4bit=True)
    for made in (critic, lambda model: ema(model, of="a")):
        with refuses("E_FOUR_BIT_TRAINED"):
            type(made(TINY))(**{"model": TINY, "load_in_4bit": True} | ({"of": "a"} if made is not critic else {}))
    assert [spec.load_in_4bit for spec in grpo(**SMALL, load_in_4bit=True, lora=4).policies.values()] == [True, True]


@pytest.mark.parametrize("words", [[], ["--dry-run"]])
def test_it_is_refused_in_one_line_without_bitsandbytes(words, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(quantize, "find_spec", lambda name: None)
    flags = ["--model", TINY, "--lora", "4", "--load-in-4bit", "--out", str(tmp_path / "run")]
    code = "E_BITSANDBYTES_NOT_INSTALLED: load_in_4bit | `pip install bitsandbytes`"
    command_refuses(["run", "grpo", *flags, *words], code, capsys)


@pytest.fixture
def quantised():
    pytest.importorskip("bitsandbytes")
    torch.set_num_threads(1)
    return lambda: AdapterBase("shipped", load_in_4bit=True)


def written_out(base):
    """The same base with the weights that its layers of 4 bits stand for, in float32."""
    plain = AdapterBase("shipped")
    stored = dict(base.module.named_modules())
    for name, module in plain.module.named_modules():
        if isinstance(module, torch.nn.Linear):
            module.weight.data.copy_(quantize.full_weight(stored[name]))
    return plain


def test_layers_compute_with_their_weights_written_out(quantised):
    """Log-probabilities, and the gradients of an adapter through all layers."""
    base, found = quantised(), []
    exact = AdapterBase("shipped")
    for one in (base, written_out(base)):
        one.add("a", rank=4, alpha=8, targets="all-linear", seed=1)
        with torch.no_grad():
            for name, p in one.module.named_parameters():
                if ".lora_B." in name:
                    p.copy_(torch.linspace(-0.1, 0.1, p.numel()).reshape(p.shape))
        one.activate("a")
        scorer = Scorer(one.module)
        before = torch.cat(scorer.logprobs(TEXTS))
        with torch.inference_mode():  # as an engine has it
            one.module(input_ids=torch.arange(2, 9)[None])
        ids = torch.arange(2, 12)[None]
        one.module(input_ids=ids).logits.log_softmax(-1)[..., 3].sum().backward()
        gradients = [p.grad for _, p in sorted(one.module.named_parameters()) if p.requires_grad]
        assert gradients and all(g is not None and bool(g.any()) for g in gradients)
        found.append((before, torch.cat([g.flatten() for g in gradients])))
    for mine, theirs in zip(*found, strict=True):
        assert torch.allclose(mine, theirs, rtol=1e-3, atol=1e-4)
    kept = {name for name, p in base.module.named_parameters() if p.dtype == torch.uint8}
    assert kept and not any("embed" in name or "lm_head" in name for name in kept)
    weights = [m.weight for m in exact.module.modules() if isinstance(m, torch.nn.Linear)]
    assert any(not torch.equal(w, quantize.full_weight(m)) for w, m in zip(weights, [
        m for m in written_out(base).module.modules() if isinstance(m, torch.nn.Linear)], strict=True))  # fmt: skip


def test_a_run_and_what_is_exported_of_it(quantised, tmp_path):
    recipe = grpo(**{**SMALL, "model": "shipped"}, lora=4, load_in_4bit=True)
    api.run(recipe, tmp_path / "run")
    for flags in ([], ["--merged"]):
        out = tmp_path / f"model{len(flags)}"
        assert main(["export", str(tmp_path / "run"), "--role", "solver", "--out", str(out), *flags]) == 0
    merged = dict(load_model(tmp_path / "model1")[0].named_parameters())
    plain = dict(load_model("shipped")[0].named_parameters())
    assert merged.keys() == plain.keys() and all(p.dtype == torch.float32 for p in merged.values())
    trainer = CoTrainer(recipe)
    shape = trainer.policies["generator"].shape()
    assert shape == CoTrainer(grpo(**{**SMALL, "model": "shipped"}, lora=4)).policies["generator"].shape()


def test_the_estimate_is_what_the_weights_take(quantised):
    base = quantised()
    held = sum(
        p.nbytes + (p.quant_state.absmax.nbytes if p.dtype == torch.uint8 else 0) for p in base.module.parameters()
    )
    recipe = grpo(**{**SMALL, "model": "shipped"}, lora=4, load_in_4bit=True, kl=0.1)
    estimated = estimate_run(recipe, device="cpu")
    adapter = 4 * 4 * estimated.shapes["shipped"].linear_sides
    assert estimated.memory["weights"] - adapter == pytest.approx(held, rel=0.01)
