"""A run whose sampler has int8 weights: its loss has ratios to what was sampled, and it is resumed bit for bit."""

import json

import pytest
import torch

from cotrain import api
from cotrain.algorithms.policy_loss import LOOSE
from cotrain.config.override import override
from cotrain.learner.learner import TorchLearner
from cotrain.recipes.grpo import grpo
from cotrain.runs import run as loop
from cotrain.runs.run import Interrupted
from tests.helpers import EASY, TINY
from tests.runs.test_run import counted, digest


def shorter(task, answer, correct):
    """Nearly every answer of a group earns something else, so there is something to learn from."""
    return 1 / (1 + len(answer.text))


def recipe_of(packing, steps=2):
    sizes = {"tasks_per_step": 2, "group_size": 4, "evaluation_tasks": 1, "lr_warmup": 0}
    made = grpo(model=TINY, steps=steps, tasks=EASY, lr=1e-3, reward=shorter, **sizes)
    changes = ["evaluation.group_size=1", "evaluation.greedy=false", "evaluation.splits=[]"]
    return override(made, [*changes, f"policies.generator.pack_weights={packing}"])


def steps_of(folder):
    rows = map(json.loads, (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
    return [row for row in rows if "generator/updates" in row]


def test_the_update_has_ratios_to_what_int8_weights_sampled(monkeypatch, tmp_path):
    """The difference is measured, the ratio corrects it, and the mask of answers far off is on."""
    torch.set_num_threads(1)
    seen, update = [], TorchLearner.update

    def record(self, terms):
        samples = [sample for term in terms for sample in term.samples]
        texts = [(tuple(s.prompt_ids), tuple(s.token_ids)) for s in samples]
        seen.append((samples, self.scorer.logprobs(texts)))
        return update(self, terms)

    monkeypatch.setattr(TorchLearner, "update", record)
    api.run(recipe_of("int8", steps=1), tmp_path / "int8")
    [(samples, exact)] = seen
    assert {sample.bounds for sample in samples} == {LOOSE}
    log_ratios = [own - sample.sampler_logprobs for own, sample in zip(exact, samples, strict=True)]
    differences = torch.cat(log_ratios)
    [row] = steps_of(tmp_path / "int8")
    assert row["generator/generator/sampler_trainer_diff"] == pytest.approx(float(differences.abs().mean()), rel=1e-3)
    assert row["generator/generator/ratio"] == pytest.approx(float(differences.exp().mean()), rel=1e-4)
    assert row["generator/generator/mismatch_masked"] == 0.0

    seen.clear()
    api.run(recipe_of("false", steps=1), tmp_path / "float32")
    [(samples, _)] = seen
    assert {sample.bounds for sample in samples} == {None}
    [plain] = steps_of(tmp_path / "float32")
    assert plain["generator/generator/sampler_trainer_diff"] < 1e-5 < 1e-3 < float(differences.abs().mean())


@pytest.mark.whole
def test_a_run_is_the_same_again_and_resumed(tmp_path):
    engines = []
    for name in ("one", "two"):
        loop.start_run(
            recipe_of("int8"), tmp_path / name, checkpoint_every=1, wrap_engine=lambda e: counted(engines, e)
        )
    assert digest(tmp_path / "one") == digest(tmp_path / "two")
    with pytest.raises(Interrupted):
        loop.start_run(
            recipe_of("int8"),
            tmp_path / "cut",
            checkpoint_every=1,
            wrap_engine=lambda e: counted([], e, 3 * engines[0].count // 4),
        )
    api.resume(tmp_path / "cut")
    assert digest(tmp_path / "cut") == digest(tmp_path / "one")
    loop.start_run(recipe_of("false"), tmp_path / "float32", checkpoint_every=1)
    assert digest(tmp_path / "float32") != digest(tmp_path / "one")
