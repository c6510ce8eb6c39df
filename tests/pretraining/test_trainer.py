import json
import math
import os
import signal
from dataclasses import replace

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from cotrain.core.errors import ConfigError, UnknownName
from cotrain.learner.optim import adamw
from cotrain.models.attention import isolate_documents
from cotrain.models.from_scratch import new_model
from cotrain.pretraining.corpora import procedural_corpus, split_corpus
from cotrain.pretraining.documents import all_documents, document_reader
from cotrain.pretraining.packing import Document, arrange_rows, cut_document, pack_documents
from cotrain.pretraining.trainer import TrainingPlan, check_resumed, evaluate, token_losses, train, update
from tests.sentences import refuses

PLAN = TrainingPlan(
    steps=9, rows=2, length=40, lr=1e-2, warmup=2, autocast=False, log_every=1, save_every=2, validate_every=3
)


def weights(model):
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def equal(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def lines(out):
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in row.items() if key != "tokens_per_second"} for row in rows]


@pytest.fixture
def read(sentences, tokenizer):
    return document_reader(sentences, tokenizer)


@pytest.fixture
def held(conversations, tokenizer):
    return {"talk": all_documents(split_corpus(conversations, 5)[1], tokenizer, replies_only=True)}


def test_packing_is_only_an_arrangement(model, read):
    items = read(0, 12)
    taken, packed = pack_documents(items, 3, 60, pad_id=0)
    pieces = [piece for item in items[:taken] for piece in cut_document(item, 60)]
    alone = arrange_rows(pieces, [[i] for i in range(len(pieces))], 60, pad_id=0)
    assert taken >= 6
    expected = token_losses(model, alone)[alone.learn[:, 1:]].sort().values
    assert torch.allclose(token_losses(model, packed)[packed.learn[:, 1:]].sort().values, expected, atol=1e-5)
    with isolate_documents(model):
        fast = token_losses(model, packed)[packed.learn[:, 1:]].sort().values
    assert torch.allclose(fast, expected, atol=1e-5)
    mixed = token_losses(model, packed, isolate=False)[packed.learn[:, 1:]].sort().values
    assert not torch.allclose(mixed, expected, atol=1e-4), "without isolation documents do see each other"


SIZES = {
    "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 1, "head_dim": 8, "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 1,
    "eos_token_id": 5,
}  # fmt: skip


def random_model(family, vocabulary, **changes):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        made = AutoModelForCausalLM.from_config(
            AutoConfig.for_model(family, **SIZES | changes, vocab_size=vocabulary),
            attn_implementation="eager" if family == "gemma2" else None,
        )
    with torch.no_grad():
        for parameter in made.parameters():
            parameter *= 4 if parameter.ndim == 2 else 1  # far from uniform
    return made.eval()


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("gpt2", {}),
        ("mistral", {"sliding_window": 8}),
        ("gemma2", {"sliding_window": 8, "query_pre_attn_scalar": 8}),  # attention that adds its mask
        ("mamba", {"state_size": 4}),  # a state that goes on from one document to the next
        ("bloom", {"n_layer": 2, "n_head": 2}),  # biases by distance
    ],
)
def test_documents_of_one_row_are_to_every_model_as_if_alone(family, changes, read, tokenizer):
    model = random_model(family, len(tokenizer), **changes)
    taken, packed = pack_documents(read(0, 12), 3, 60, pad_id=0)
    expected = []
    for item in read(0, taken):
        ids = torch.tensor([item.ids])
        logits = model(input_ids=ids, use_cache=False).logits[0, :-1]
        expected.append(torch.nn.functional.cross_entropy(logits, ids[0, 1:], reduction="none"))
    found = token_losses(model, packed)[packed.learn[:, 1:]]
    assert taken >= 6
    assert torch.allclose(found.sort().values, torch.cat(expected).sort().values, atol=1e-4)
    found.mean().backward()
    assert all(p.grad is not None for p in model.parameters())


def test_rows_without_a_token_to_learn_change_nothing(read, tokenizer):
    model = random_model("gpt2", len(tokenizer))
    documents = [read(0, 1)[0], Document(ids=(7,), learn=(True,))]
    batch = arrange_rows(documents, [[0], [1]], len(documents[0].ids), pad_id=0)
    alone = update(model, adamw(model, 1e-9), batch.select_rows(0, 1), PLAN, 1.0, 0)
    assert update(model, adamw(model, 1e-9), batch, replace(PLAN, micro=1), 1.0, 0) == pytest.approx(alone, rel=1e-4)
    assert update(model, adamw(model, 1e-9), batch.select_rows(1, 2), PLAN, 1.0, 0) == (0.0, 0.0)


def test_a_model_that_sees_what_it_is_to_predict_is_refused(read, tokenizer, tmp_path):
    encoder = random_model("bert", len(tokenizer))
    with refuses("E_MODEL_NOT_CAUSAL", names="BertLMHeadModel"):
        train(encoder, read, tmp_path / "run", PLAN, pad_id=0)
    assert not (tmp_path / "run").exists()


def test_tokens_that_the_model_does_not_know_are_refused(read, tokenizer, tmp_path):
    model = random_model("llama", len(tokenizer) - 20)
    for validation in ({"held": read(0, 5)}, None):
        with refuses("E_TOKEN_BEYOND_EMBEDDINGS"):
            train(model, read, tmp_path / "run", PLAN, pad_id=0, validation=validation)


def test_token_losses_by_hand(model, read):
    _, batch = pack_documents(read(0, 1), 1, 20, pad_id=0)
    logits = model(batch.ids[:, :5]).logits[0].detach()
    expected = [-math.log(float(logits[t].softmax(0)[batch.ids[0, t + 1]])) for t in range(4)]
    assert token_losses(model, batch)[0, :4].tolist() == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("micro", [1, 2, 3])
def test_micro_batches_change_nothing(config, read, micro):
    _, batch = pack_documents(read(0, 40), 4, 40, pad_id=0)
    found = []
    for plan in (PLAN, replace(PLAN, micro=micro)):
        model = new_model(config, 0)
        loss, norm = update(model, adamw(model, 1e-2, eps=1e-4), batch, plan, 1.0, 0)
        found.append((loss, norm, torch.cat([p.detach().flatten() for p in model.parameters()])))
    assert found[0][:2] == pytest.approx(found[1][:2], rel=1e-5)
    assert torch.allclose(found[0][2], found[1][2], atol=2e-5)


def test_only_learned_tokens_count(model, conversations, tokenizer):
    items = all_documents(split_corpus(conversations, 4)[1], tokenizer, replies_only=True)
    _, batch = pack_documents(items, 4, 60, pad_id=0)
    losses = token_losses(model, batch).detach()
    expected = float(losses[batch.learn[:, 1:]].mean())
    assert evaluate(model, [batch.select_rows(0, 1), batch.select_rows(1, 4)], PLAN) == pytest.approx(
        expected, rel=1e-5
    )
    assert update(model, adamw(model, 1e-2), batch, PLAN, 1.0, 0)[0] == pytest.approx(expected, rel=1e-5)
    assert int(batch.learn.sum()) < 0.7 * int((batch.segments >= 0).sum())


@pytest.mark.whole
def test_it_learns(model, read, tmp_path):
    outcome = train(model, read, tmp_path / "run", replace(PLAN, steps=60, lr=3e-2, save_every=0), pad_id=0)
    rows = lines(tmp_path / "run")
    assert [row["step"] for row in rows] == list(range(1, 61))
    assert rows[0]["loss"] > 5.0 and outcome.loss < 3.5 and outcome.finished
    assert rows[0]["rate"] == pytest.approx(1.5e-2) and rows[1]["rate"] == pytest.approx(3e-2)


@pytest.mark.whole
@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
@pytest.mark.parametrize(
    "stop", [pytest.param(1, marks=pytest.mark.whole), 4, pytest.param(8, marks=pytest.mark.whole)]
)
def test_an_interrupted_run_ends_as_an_uninterrupted_one(config, read, held, tmp_path, optimizer, stop):
    plan = replace(PLAN, optimizer=optimizer)
    straight, broken, resumed = (new_model(config, 0) for _ in range(3))
    before = signal.getsignal(signal.SIGTERM)
    first = train(straight, read, tmp_path / "a", plan, pad_id=0, validation=held)

    def interrupt(line):
        if line["step"] == stop:
            os.kill(os.getpid(), signal.SIGTERM)

    torn = train(broken, read, tmp_path / "b", plan, pad_id=0, validation=held, report=interrupt)
    assert (torn.step, torn.finished) == (stop, False) and signal.getsignal(signal.SIGTERM) is before
    with (tmp_path / "b" / "metrics.jsonl").open("a") as file:
        file.write('{"step": 9, "loss": 0.0}\n{"st')  # what a killed process wrote after its last checkpoint
    second = train(resumed, read, tmp_path / "b", plan, pad_id=0, validation=held, resume=True)
    assert equal(weights(straight), weights(resumed)) and not equal(weights(straight), weights(broken))
    assert lines(tmp_path / "a") == lines(tmp_path / "b")
    assert second.finished and (second.loss, second.validation) == (first.loss, first.validation)
    assert not (tmp_path / "b" / "checkpoints").exists()


@pytest.mark.whole
def test_slow_steps_are_told_one_by_one_and_leave_no_other_rows(config, read, tmp_path, monkeypatch):
    """Sixteen steps of 22 s each said nothing for four minutes: only each tenth was told."""
    plan, quick, slow = replace(PLAN, log_every=4), [], []
    train(new_model(config, 0), read, tmp_path / "a", plan, pad_id=0, report=quick.append)
    monkeypatch.setattr("cotrain.pretraining.trainer.PACE_SECONDS", 0.0)
    train(new_model(config, 0), read, tmp_path / "b", plan, pad_id=0, report=slow.append)
    assert [row["step"] for row in slow] == list(range(1, plan.steps + 1)) and set(slow[1]) == {"step", "loss"}
    assert [row["step"] for row in lines(tmp_path / "b")] == [row["step"] for row in quick] != []


@pytest.mark.whole
def test_a_slow_step_is_told_before_its_held_out_documents_are_measured(config, read, held, tmp_path, monkeypatch):
    """The last step of a large model said nothing until minutes of measuring were over."""
    monkeypatch.setattr("cotrain.pretraining.trainer.PACE_SECONDS", 0.0)
    told = []
    plan = replace(PLAN, log_every=0, validate_every=4)
    train(new_model(config, 0), read, tmp_path / "a", plan, pad_id=0, validation=held, report=told.append)
    first, second = (row for row in told if row["step"] == 4)
    assert set(first) == {"step", "loss"} and any(name.startswith("validation/") for name in second)
    assert [row["step"] for row in lines(tmp_path / "a")] == [*range(4, plan.steps, 4), plan.steps]


@pytest.mark.whole
def test_a_damaged_checkpoint_costs_steps_not_the_run(config, read, tmp_path):
    def interrupt(line):
        if line["step"] == 5:
            os.kill(os.getpid(), signal.SIGINT)

    straight, resumed = new_model(config, 0), new_model(config, 0)
    train(straight, read, tmp_path / "a", PLAN, pad_id=0)
    train(new_model(config, 0), read, tmp_path / "b", PLAN, pad_id=0, report=interrupt)
    newest = max((tmp_path / "b" / "checkpoints").glob("step-*"))
    (newest / "model.safetensors").write_bytes(b"torn")
    train(resumed, read, tmp_path / "b", PLAN, pad_id=0, resume=True)
    assert equal(weights(straight), weights(resumed)) and lines(tmp_path / "a") == lines(tmp_path / "b")


@pytest.mark.whole
def test_whose_directory_it_is(config, read, tmp_path):
    out = tmp_path / "run"
    train(new_model(config, 0), read, out, PLAN, pad_id=0, about={"corpus": "sentences"})
    with refuses("E_OUT_HOLDS_TRAINING", names=str(tmp_path / "run")):
        train(new_model(config, 0), read, out, PLAN, pad_id=0)
    with refuses("E_TRAINING_DIFFERS", names=("lr = 0.01", "0.02")):
        train(
            new_model(config, 0),
            read,
            out,
            replace(PLAN, lr=0.02),
            pad_id=0,
            resume=True,
            about={"corpus": "sentences"},
        )
    with refuses("E_TRAINING_DIFFERS", names=("corpus = 'sentences'", "None")):
        train(new_model(config, 0), read, out, PLAN, pad_id=0, resume=True)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.tex").touch()
    with refuses("E_OUT_NOT_TRAINING", names=str(tmp_path / "other")):
        train(new_model(config, 0), read, tmp_path / "other", PLAN, pad_id=0, resume=True)


@pytest.mark.parametrize("text", ["{", "[]", '{"plan": 3}', "[" * 100_000], ids=["cut", "list", "number", "deep"])
def test_settings_that_are_damaged_are_one_line(text, tmp_path):
    (tmp_path / "training.json").write_text(text)
    with refuses("E_TRAINING_DAMAGED", names=str(tmp_path / "training.json")):
        check_resumed(tmp_path, {"steps": 4}, {})


def test_resuming_with_another_model_is_refused(config, read, tmp_path):
    def interrupt(line):
        os.kill(os.getpid(), signal.SIGINT)

    train(new_model(config, 0), read, tmp_path / "run", PLAN, pad_id=0, report=interrupt)
    config.intermediate_size = 32
    with refuses("E_CHECKPOINT_OF_OTHER_MODEL"):
        train(new_model(config, 0), read, tmp_path / "run", PLAN, pad_id=0, resume=True)


def test_a_loss_that_is_not_finite_stops_before_the_step(model, read, tmp_path):
    with torch.no_grad():
        model.model.norm.weight[0] = math.inf
    before = weights(model)
    with refuses("E_LOSS_NOT_FINITE", names=("step 1", "step 0")):
        train(model, read, tmp_path / "run", PLAN, pad_id=0)
    assert equal(before, weights(model)) and all(p.grad is None for p in model.parameters())


def test_the_global_generator_is_untouched(model, read, tmp_path):
    before = torch.get_rng_state()
    train(model, read, tmp_path / "run", replace(PLAN, steps=2), pad_id=0)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    ("fields", "error", "code"),
    [
        ({"steps": 0}, ConfigError, "E_TRAINING_PLAN_RANGE: steps | be 1"),
        ({"length": 1}, ConfigError, "E_TRAINING_PLAN_RANGE: length | be 2"),
        ({"lr": 0.0}, ConfigError, "E_TRAINING_PLAN_RANGE"),
        ({"optimizer": "adam"}, UnknownName, "E_UNKNOWN_OPTIMIZER: 'adamw'"),
        ({"shape": "cosin"}, UnknownName, "E_UNKNOWN_SCHEDULE_SHAPE: 'cosine'"),
    ],
)
def test_plans_that_make_no_sense(model, read, tmp_path, fields, error, code):
    with refuses(code):
        train(model, read, tmp_path / "run", replace(PLAN, **fields), pad_id=0)
    assert not (tmp_path / "run").exists()


def test_errors_of_the_corpus_come_through(model, tokenizer, tmp_path):
    def get(index):
        if index > 10:
            raise ValueError("no more")
        return "ab 7"

    with pytest.raises(ValueError, match="no more"):
        train(model, document_reader(procedural_corpus("short", get), tokenizer), tmp_path / "run", PLAN, pad_id=0)
