"""The present nanochat, held against what its own code computed (tests/assets/nanochat/make.py)."""

import io
import json
import pickle
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

from cotrain.algorithms.contract import LossTerm, Sample
from cotrain.algorithms.sft import SFT
from cotrain.cli.main import main
from cotrain.core.types import Sampling
from cotrain.inference.local import LocalEngine
from cotrain.inference.reference import complete_request
from cotrain.learner.learner import TorchLearner
from cotrain.models.attention import can_isolate, isolate_documents, takes_mask
from cotrain.models.heads import ValueModel, classifier_of
from cotrain.models.load import load_model, load_tokenizer
from cotrain.models.nanochat import convert, is_padded, weight_names
from cotrain.models.nanochat_gpt import NanoChatGPTConfig, layer_kinds, short_window
from cotrain.models.shared_prefix import can_branch, prefix_tree, use_branches
from cotrain.models.tiktoken_encoding import _EncodingUnpickler, pickle_encoding
from cotrain.pretraining.packing import Document, pack_documents
from cotrain.pretraining.trainer import token_losses
from tests.helpers import TINY, answers, request
from tests.models.test_nanochat import checkpoint, weights
from tests.sentences import command_refuses

ASSETS = Path(__file__).parents[1] / "assets" / "nanochat"
WINDOW = 129  # tokens that a short layer sees, itself among them


@pytest.fixture(scope="module")
def expected():
    return load_file(ASSETS / "expected.safetensors")


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return convert(ASSETS / "base_checkpoints" / "d3", tmp_path_factory.mktemp("converted") / "model")


@pytest.fixture
def model(directory):
    return load_model(directory)[0]


def logits(model, ids):
    with torch.no_grad():
        return model(input_ids=ids, use_cache=False).logits


def test_the_logits_are_those_of_nanochats_own_code(directory, expected):
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    assert model.config.layer_types == ["sliding_attention", "sliding_attention", "full_attention"]
    assert model.config.sliding_window == WINDOW
    found = logits(model, expected["ids"])[:, expected["places"]]
    torch.testing.assert_close(found, expected["logits"], atol=2e-5, rtol=2e-5)
    assert float(expected["logits"].std()) > 1
    # Their rotary table in bfloat16 moves logits by no more than this.
    gap = (found - expected["logits_rounded_table"]).abs().max()
    assert 1e-4 < float(gap) < 0.1


@pytest.mark.parametrize("kind", ["sdpa", "eager"])
def test_greedy_texts_are_those_of_nanochats_engine(kind, directory, expected):
    model, _ = load_model(directory, attn_implementation=kind)
    prompts = {name: expected[f"prompt/{name}"].tolist() for name in ("long", "short")}
    greedy = {name: expected[f"greedy/{name}"].tolist() for name in prompts}
    for name, prompt in prompts.items():
        ids = torch.tensor([prompt])
        options = {"attention_mask": torch.ones_like(ids), "do_sample": False, "eos_token_id": None}
        for use_cache in (True, False):
            made = model.generate(ids, max_new_tokens=24, pad_token_id=0, use_cache=use_cache, **options)
            assert made[0, len(prompt) :].tolist() == greedy[name], use_cache
    longest = max(map(len, prompts.values()))
    padded = torch.tensor([[0] * (longest - len(p)) + p for p in prompts.values()])
    mask = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts.values()])
    made = model.generate(
        padded, attention_mask=mask, max_new_tokens=24, do_sample=False, eos_token_id=None, pad_token_id=0
    )
    assert made[:, longest:].tolist() == list(greedy.values())


def test_the_gradients_of_one_step_are_those_of_nanochat(model, expected):
    ids = expected["ids"]
    loss = torch.nn.functional.cross_entropy(
        model(input_ids=ids[:, :-1], use_cache=False).logits.flatten(0, 1), ids[:, 1:].flatten()
    )
    loss.backward()
    torch.testing.assert_close(loss, expected["loss"], rtol=1e-5, atol=1e-6)
    own = dict(model.named_parameters())
    for theirs, (ours, _) in weight_names(model.config).items():
        gradient = own.pop(ours).grad
        torch.testing.assert_close(gradient.norm(), expected[f"norm/{theirs}"], rtol=1e-3, atol=1e-6)
        first = expected[f"gradient/{theirs}"]
        torch.testing.assert_close(gradient.flatten()[: len(first)], first, rtol=1e-3, atol=1e-5)
        assert float(gradient.norm()) > 0
    assert not own


# -- the engine


WAYS = pytest.mark.parametrize(
    ("static", "kind"),
    [
        pytest.param(False, "sdpa", id="shared-sdpa"),
        pytest.param(True, "eager", id="static-eager"),
        pytest.param(False, "eager", id="shared-eager", marks=pytest.mark.whole),
        pytest.param(True, "sdpa", id="static-sdpa", marks=pytest.mark.whole),
    ],
)


def asked_of(expected):
    """Requests of prompts within the window, across it, and of which several begin alike; answers that cross it."""
    long, short = expected["prompt/long"].tolist(), expected["prompt/short"].tolist()
    prompts = [short, short, long, [*long[:100], 7, 8], long[:127], [*long[:100], 9], short[:1]]
    return [
        request(
            prompt_ids=tuple(prompt),
            sampling=Sampling(max_tokens=40 - i, temperature=float(i % 2)),
            task=i,
        )
        for i, prompt in enumerate(prompts)
    ]


@WAYS  # prompts that begin alike are computed once; or each by itself
def test_the_engine_samples_what_the_slow_one_does(static, kind, directory, expected):
    model, _ = load_model(directory, attn_implementation=kind)
    assert can_branch(model) is (kind == "sdpa")
    engine = LocalEngine({"a": model}, static=static)
    assert engine.context("a") == 512
    requests = asked_of(expected)
    for asked, found in zip(requests, answers(engine, requests), strict=True):
        slow = complete_request(model, asked)
        assert found.token_ids == slow.token_ids
        assert found.logprobs == pytest.approx(slow.logprobs, abs=1e-4)
    greedy = answers(engine, [replace(requests[2], sampling=Sampling(max_tokens=24, temperature=0.0))])[0]
    assert list(greedy.token_ids) == expected["greedy/long"].tolist()


@WAYS
def test_a_conversation_that_goes_on_is_computed_from_what_was_kept(static, kind, directory, expected):
    model, _ = load_model(directory, attn_implementation=kind)
    engine = LocalEngine({"a": model}, static=static)
    first = [replace(one, keep=True) for one in asked_of(expected)[:3]]
    said = answers(engine, first)
    second = [
        replace(
            one,
            prompt_ids=(*one.prompt_ids, *reply.token_ids, 11, 12, *range(20, 20 + 30 * i)),
            continues=one.address,
            address=replace(one.address, call=1),
        )
        for i, (one, reply) in enumerate(zip(first, said, strict=True))
    ]
    for asked, found in zip(second, answers(engine, second), strict=True):
        assert found.token_ids == complete_request(model, asked).token_ids
    assert engine.counts()["a/reused_tokens"] > 0


def test_rows_may_enter_and_leave_while_others_are_beyond_the_window(model, expected):
    long = expected["ids"][0].tolist()
    requests = [
        request(
            prompt_ids=tuple(long[i : i + 5 + 31 * (i % 5)]), sampling=Sampling(max_tokens=10 + 37 * (i % 4)), task=i
        )
        for i in range(8)
    ]
    engine = LocalEngine({"a": model}, max_rows=5)
    for asked, found in zip(requests, answers(engine, requests), strict=True):
        assert found.token_ids == complete_request(model, asked).token_ids


# -- learning


def test_learner_and_model_agree_about_answers_beyond_the_window(model, expected):
    long, other = expected["ids"].tolist()
    pairs = [(tuple(long[:100]), tuple(other[i : i + 60])) for i in range(3)] + [((3,), (4, 5)), ((3,), tuple(long))]
    learner = TorchLearner(model, lr=1e-3, micro_tokens=1024)
    assert learner.scorer.shared
    for (prompt, tokens), found in zip(pairs, learner.logprobs(pairs), strict=True):
        table = logits(model, torch.tensor([[*prompt, *tokens]]))[0].log_softmax(-1)[len(prompt) - 1 : -1]
        plain = table.gather(-1, torch.tensor(tokens)[:, None])[:, 0]
        torch.testing.assert_close(found, plain, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("where", ["pieces", "rectangles"])
def test_branches_have_the_gradients_of_rows(where, model, expected):
    """Rectangles are how a GPU computes them."""
    from cotrain.models.shared_prefix import rectangles_of

    long, other = expected["ids"].tolist()
    rows = [[*long[:140], *other[:30]], [*long[:140], *other[50:150]], [*long[:140], 5], [*other[:3], 7, 7]]
    tree = prefix_tree(rows)
    branches = tree.branches
    if where == "rectangles":
        branches = replace(branches, rectangles=rectangles_of(branches.pieces))
    weights = [torch.randn(len(row), 32, generator=torch.Generator().manual_seed(i)) for i, row in enumerate(rows)]

    def gradients(states):
        model.zero_grad()
        sum((own * weight).sum() for own, weight in zip(states, weights, strict=True)).backward()
        return {name: p.grad.clone() for name, p in model.model.named_parameters()}

    body = model.model
    plain = [body(input_ids=torch.tensor([row]), use_cache=False).last_hidden_state[0] for row in rows]
    with use_branches(body):
        hidden = body(
            input_ids=torch.tensor([tree.ids]), position_ids=branches.positions, branches=branches, use_cache=False
        ).last_hidden_state[0]
    branched = [hidden[places] for places in tree.places]
    for own, other_own in zip(branched, plain, strict=True):
        torch.testing.assert_close(own, other_own, rtol=1e-4, atol=1e-4)
    one, other_one = gradients(branched), gradients(plain)
    for name, gradient in one.items():
        torch.testing.assert_close(gradient, other_one[name], rtol=1e-3, atol=1e-3, msg=name)


@pytest.mark.parametrize("way", ["documents", "mask", "positions"])
def test_documents_in_a_row_do_not_see_each_other(way, model, expected):
    long, other = expected["ids"].tolist()
    documents = [long[:150], other[:40], long[100:], other]
    packed = [Document(ids=tuple(ids), learn=(True,) * len(ids)) for ids in documents]
    taken, batch = pack_documents(packed, 3, 200, 0)
    assert taken == 4 and int(batch.segments.max()) == 1
    assert can_isolate(model) and takes_mask(model)
    if way == "positions":  # as transformers itself tells documents apart
        row = torch.tensor([[*documents[0], *documents[1]]])
        positions = torch.tensor([[*range(150), *range(40)]])
        with torch.no_grad():
            found = model(input_ids=row, position_ids=positions, use_cache=False).logits[0]
        torch.testing.assert_close(found[150:], logits(model, torch.tensor([documents[1]]))[0], rtol=1e-4, atol=1e-4)
        return
    with torch.no_grad():
        if way == "documents":
            with isolate_documents(model):
                losses = token_losses(model, batch)
        else:
            losses = token_losses(model, batch)
    found = losses[batch.learn[:, 1:].bool()].sum()
    plain = sum(
        torch.nn.functional.cross_entropy(
            logits(model, torch.tensor([ids]))[0, :-1], torch.tensor(ids[1:]), reduction="sum"
        )
        for ids in documents
    )
    torch.testing.assert_close(found, plain, rtol=1e-5, atol=1e-3)


def test_a_sum_of_steps_lowers_the_loss_with_layers_computed_again(directory, expected):
    long = expected["ids"][0].tolist()
    tokens = tuple(long[5:])
    sample = Sample(
        key="0", prompt_ids=tuple(long[:5]), token_ids=tokens, sampler_logprobs=torch.zeros(len(tokens)),
        advantages=torch.ones(len(tokens)),
    )  # fmt: skip
    losses = []
    for recompute in (False, True):
        learner = TorchLearner(load_model(directory)[0], lr=1e-2, recompute=recompute)
        term = LossTerm(name="o", algorithm=SFT(), samples=(sample,))
        losses.append([learner.update([term]).metrics["o/loss"] for _ in range(3)])
    assert losses[0] == losses[1] and losses[0][2] < losses[0][0]


def test_a_reward_model_of_it_is_written_and_read(model, tmp_path, expected):
    critic = ValueModel(model.model, bias=False)
    torch.nn.init.normal_(critic.head.weight)
    ids = expected["ids"][:1, :50]
    classifier = classifier_of(model.model, critic.head.weight.detach(), model.config.pad_token_id)
    classifier.save_pretrained(tmp_path)
    again = AutoModelForSequenceClassification.from_pretrained(tmp_path).eval()
    with torch.no_grad():
        torch.testing.assert_close(again(ids).logits[0, 0], critic(ids)[0, -1], rtol=1e-4, atol=1e-4)


# -- back to nanochat


def encoding_in(folder):
    """The state in a pickled encoding, which is all that tiktoken makes one of."""
    return _EncodingUnpickler(io.BytesIO((folder / "tokenizer" / "tokenizer.pkl").read_bytes())).load().state


def test_an_export_to_nanochat_is_the_checkpoint_again(directory, tmp_path, capsys):
    out = tmp_path / "base"
    assert main(["export", str(directory), "--role", "solver", "--to", "nanochat", "--out", str(out)]) == 0
    assert f"NANOCHAT_BASE_DIR={out} python -m scripts.chat_cli -i sft" in capsys.readouterr().out
    place = out / "chatsft_checkpoints" / "d3"
    weights = torch.load(place / "model_000000.pt", weights_only=True)
    original = torch.load(ASSETS / "base_checkpoints" / "d3" / "model_000003.pt", weights_only=True)
    vocabulary = len(load_tokenizer(directory))
    assert weights.keys() == original.keys()
    for name, tensor in original.items():
        assert weights[name].shape == tensor.shape
        real = slice(vocabulary) if is_padded(name) else slice(None)
        torch.testing.assert_close(weights[name][real], tensor[real].float(), rtol=0, atol=0)
    meta = json.loads((place / "meta_000000.json").read_text())
    expected = json.loads((ASSETS / "base_checkpoints" / "d3" / "meta_000003.json").read_text())
    assert meta == expected | {"step": 0}
    assert encoding_in(out) == encoding_in(ASSETS)
    counts = torch.load(out / "tokenizer" / "token_bytes.pt", weights_only=True)
    assert counts.dtype == torch.int32 and counts[-9:].sum() == 0
    assert int(counts[:256].sum()) == 256 and int(counts[256:-9].min()) > 1
    again = convert(place, tmp_path / "again")
    assert (again / "model.safetensors").read_bytes() == (directory / "model.safetensors").read_bytes()
    assert (again / "tokenizer.json").read_bytes() == (directory / "tokenizer.json").read_bytes()


def test_tiktoken_reads_the_exported_encoding(directory):
    tiktoken = pytest.importorskip("tiktoken")
    encoding = pickle.loads(pickle_encoding(load_tokenizer(directory)))  # noqa: S301 our own
    assert isinstance(encoding, tiktoken.Encoding)
    text = "the sum of 12 and 30 is 42"
    assert encoding.encode_ordinary(text) == load_tokenizer(directory)(text).input_ids


def test_the_first_architecture_goes_back_too(tmp_path):
    folder = checkpoint(tmp_path)
    model = convert(folder, tmp_path / "model")
    assert main(["export", str(model), "--role", "solver", "--to", "nanochat", "--out", str(tmp_path / "back")]) == 0
    written = torch.load(tmp_path / "back" / "chatsft_checkpoints" / "d2" / "model_000000.pt", weights_only=True)
    for name, tensor in weights().items():
        torch.testing.assert_close(written[name][: len(tensor)], tensor.float(), rtol=0, atol=0)


def test_what_nanochat_does_not_have_is_refused(directory, tmp_path, capsys):
    def refused(source, named, *, change=None):
        if change:
            source = shutil.copytree(source, tmp_path / "changed", dirs_exist_ok=True)
            config = json.loads((source / "config.json").read_text())
            (source / "config.json").write_text(json.dumps(config | change))
        out = tmp_path / "out"
        words = ["export", source, "--role", "solver", "--to", "nanochat", "--out", out]
        command_refuses(words, f"E_NOT_NANOCHAT_MODEL: 'generator' | {named}", capsys)
        assert not list(out.glob("*"))

    refused(TINY, "LlamaForCausalLM")
    refused(directory, "rope_theta is 5000.0 | 100000.0", change={"rope_theta": 5000.0})


# -- what is refused


def test_a_cache_without_the_tokens_before_is_refused(model, expected):
    ids = expected["ids"][:, :5]
    cache = model(input_ids=ids, use_cache=True).cache
    with pytest.raises(ValueError, match="needs previous_ids"):
        model(input_ids=ids[:, :1], cache=cache)


def test_sizes_of_windows():
    assert [short_window(context) for context in (512, 513, 2048, 64)] == [128, 256, 512, 128]
    assert layer_kinds("SL", 4, 2048) == ["sliding_attention", "full_attention"] * 2
    assert layer_kinds("S", 3, 2048) == ["sliding_attention", "sliding_attention", "full_attention"]
    assert layer_kinds("SSSL", 3, 64) == ["full_attention"] * 3  # as long as the context: none
    with pytest.raises(ValueError, match="letters S and L"):
        NanoChatGPTConfig(window_pattern="SXL")


def test_checkpoints_from_between_are_refused_by_name(tmp_path, capsys):
    source = tmp_path / "base_checkpoints" / "d3"
    shutil.copytree(ASSETS / "base_checkpoints" / "d3", source)
    shutil.copytree(ASSETS / "tokenizer", tmp_path / "tokenizer")
    file, meta = source / "model_000003.pt", source / "meta_000003.json"
    weights, settings = torch.load(file, weights_only=True), json.loads(meta.read_text())

    def refused(state, pattern, code):
        torch.save(state, file)
        meta.write_text(json.dumps({"model_config": settings["model_config"] | {"window_pattern": pattern}}))
        command_refuses(["convert", "nanochat", source, "--out", tmp_path / "out"], code, capsys)
        assert not list((tmp_path / "out").glob("*"))

    without_smear = {name: w for name, w in weights.items() if "smear" not in name and "backout" not in name}
    refused(without_smear, "SSL", "E_NANOCHAT_ARCHITECTURE: 'SSL' | smear_gate")
    refused(without_smear, "L", "E_NANOCHAT_ARCHITECTURE: 'resid_lambdas'")
    without_one = {name: w for name, w in weights.items() if name != "backout_lambda"}
    refused(without_one, "SSL", "E_NANOCHAT_WEIGHTS_MISFIT: 'backout_lambda'")
    one_more, another_shape = "value_embeds.1.weight", "transformer.h.0.attn.ve_gate.weight"
    refused(weights | {one_more: torch.ones(2, 2)}, "SSL", f"E_NANOCHAT_ARCHITECTURE: '{one_more}'")
    refused(
        weights | {another_shape: torch.ones(2, 32)}, "SSL", f"E_NANOCHAT_WEIGHTS_MISFIT: {another_shape} | [2, 32]"
    )
    refused(weights, "SXL", "E_NANOCHAT_SETTING: 'SXL'")
    refused(weights, "", "E_NANOCHAT_SETTING: ''")
