import copy
import hashlib
import json

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import GenerationConfig, PreTrainedTokenizerFast

from cotrain.core import shipped
from cotrain.models.load import (
    describe_model,
    load_config,
    load_model,
    load_renderer,
    load_tokenizer,
    resolve_model,
    save_model,
)
from cotrain.prompts.render import Renderer
from tests.helpers import TINY
from tests.sentences import refuses


def test_round_trip_is_exact(model, tokenizer, directory):
    again, tokens = load_model(directory)
    assert {p.dtype for p in again.parameters()} == {torch.float32} and not again.training
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))
    assert again.config._attn_implementation == "sdpa"
    assert tokens.get_vocab() == tokenizer.get_vocab() and tokens.chat_template == tokenizer.chat_template
    assert load_tokenizer(str(directory)).get_vocab() == tokenizer.get_vocab()


@pytest.mark.whole
def test_bfloat16_is_for_the_disk(model, tokenizer, tmp_path, directory):
    weights = [p.clone() for p in model.parameters()]
    save_model(model, tokenizer, tmp_path / "small", dtype=torch.bfloat16)
    assert all(torch.equal(a, b) for a, b in zip(weights, model.parameters(), strict=True)), "the model was changed"
    again, _ = load_model(tmp_path / "small")
    for a, b in zip(weights, again.parameters(), strict=True):
        assert b.dtype == torch.float32 and torch.equal(a.bfloat16().float(), b)
    small, large = describe_model(tmp_path / "small"), describe_model(directory)
    assert small["parameters"] == large["parameters"] and small["bytes"] < 0.6 * large["bytes"]
    half, _ = load_model(tmp_path / "small", dtype=torch.bfloat16)
    assert {p.dtype for p in half.parameters()} == {torch.bfloat16}


def test_a_written_model_stops_where_its_replies_end(model, tokenizer, tmp_path):
    tokenizer = copy.deepcopy(tokenizer)
    (end,) = Renderer(tokenizer).stop_ids
    tokenizer.eos_token = "<|pad|>"  # as in a base: turns end with a token of their own
    pad = tokenizer.pad_token_id
    for number, (written, expected) in enumerate(((pad, sorted([pad, end])), ([end, pad], [end, pad]), (end, None))):
        model.generation_config = GenerationConfig(eos_token_id=written, temperature=0.5, do_sample=True)
        if expected is None:
            tokenizer.eos_token, expected = "<|end|>", end
        save_model(model, tokenizer, tmp_path / f"{number}")
        found = GenerationConfig.from_pretrained(tmp_path / f"{number}")
        assert (found.eos_token_id, found.temperature) == (expected, 0.5)
        assert model.generation_config.eos_token_id == written  # of the model itself nothing was changed


def test_description(model, directory):
    found = describe_model(directory)
    assert found["class"] == "LlamaForCausalLM"
    assert found["parameters"] == sum(p.numel() for p in model.parameters())
    assert found["sha256"] == hashlib.sha256((directory / "model.safetensors").read_bytes()).hexdigest()


def test_loading_draws_nothing(directory):
    before = torch.get_rng_state()
    load_model(directory)
    assert torch.equal(torch.get_rng_state(), before)


def change(name, **fields):
    def act(directory):
        content = json.loads((directory / name).read_text())
        (directory / name).write_text(json.dumps(content | fields))

    return act


def remove(name):
    return lambda directory: (directory / name).unlink()


def truncate(directory):
    content = (directory / "model.safetensors").read_bytes()
    (directory / "model.safetensors").write_bytes(content[:-7])


def pickled(directory):
    (directory / "model.safetensors").rename(directory / "pytorch_model.bin")


def malicious(directory):
    (directory / "evil.py").write_text(f"open({str(directory / 'ran')!r}, 'w')\nclass C: pass\nclass M: pass\n")
    change("config.json", model_type="evil", auto_map={"AutoConfig": "evil.C", "AutoModelForCausalLM": "evil.M"})(
        directory
    )


@pytest.mark.whole
@pytest.mark.parametrize(
    ("damage", "code"),
    [
        (remove("config.json"), "E_NO_MODEL_CONFIG"),
        (remove("model.safetensors"), "E_NO_WEIGHTS: found no weights"),
        (remove("tokenizer.json"), "E_MODEL_UNREADABLE"),
        (pickled, "E_NO_WEIGHTS: pytorch_model.bin"),
        (truncate, "E_WEIGHTS_DAMAGED: safetensors"),
        (lambda d: (d / "tokenizer.json").write_text("{"), "E_MODEL_UNREADABLE: its tokenizer"),
        (lambda d: (d / "config.json").write_text("{"), "E_MODEL_FILE_NOT_JSON: config.json"),
        (lambda d: (d / "config.json").write_text("[]"), "E_MODEL_FILE_NOT_OBJECT: config.json | list"),
        (change("config.json", hidden_size=32), "E_WEIGHTS_MISFIT"),
        (change("config.json", num_hidden_layers=2), "E_WEIGHTS_MISFIT: 9 weights | 'model.layers.1"),
        (change("config.json", model_type="t5"), "E_MODEL_UNREADABLE"),
        (malicious, "E_MODEL_UNREADABLE"),
    ],
)
def test_every_damage_is_one_line(directory, damage, code):
    damage(directory)
    with refuses(code) as caught:
        load_model(directory)
    assert "\n" not in str(caught.value) and str(directory) in str(caught.value)
    assert not (directory / "ran").exists()


@pytest.mark.parametrize("kind", ["LlamaTokenizer", "Qwen2Tokenizer", "BertTokenizer", "T5Tokenizer"])
def test_a_tokenizer_without_its_vocabulary_is_refused(directory, kind):
    (directory / "tokenizer.json").unlink()
    change("tokenizer_config.json", tokenizer_class=kind)(directory)  # of which transformers makes an empty one
    with refuses("E_TOKENIZER_DAMAGED"):
        load_model(directory)


@pytest.mark.parametrize("words", [["e4", "Nf3"], ["♔", "♞", "→"], ["w1", "w2"], list("ACDEFGHIKLMNPQRSTVWY")], ids=len)
def test_a_tokenizer_of_other_things_than_english_is_one(directory, model, words):
    """Moves, signs, made-up words, amino acids: of a text of English it may know nothing at all."""
    made = Tokenizer(WordLevel({word: i for i, word in enumerate(["?", ".", *words])}, unk_token="?"))
    made.pre_tokenizer = WhitespaceSplit()
    special = PreTrainedTokenizerFast(tokenizer_object=made, eos_token=".", unk_token="?")
    special.save_pretrained(directory)
    assert load_tokenizer(directory)(words[0]).input_ids == [2]


def test_a_tokenizer_to_which_all_of_its_tokens_are_unknown_is_refused(directory):
    made = Tokenizer(WordLevel({"?": 0, ".": 1, "a b": 2, "c d": 3}, unk_token="?"))
    made.pre_tokenizer = WhitespaceSplit()  # so that no token is ever found
    PreTrainedTokenizerFast(tokenizer_object=made, eos_token=".", unk_token="?").save_pretrained(directory)
    with refuses("E_TOKENIZER_DAMAGED"):
        load_tokenizer(directory)


def test_names_and_paths(tmp_path, monkeypatch, directory):
    monkeypatch.chdir(tmp_path)
    assert resolve_model("organisation/name") == "organisation/name" and resolve_model("name") == "name"
    assert resolve_model("model") == resolve_model("./model").relative_to(".") == directory.relative_to(tmp_path)
    for path in ("./nothing", "/nothing", "a/b/c", "model/nothing", tmp_path / "nothing"):
        with refuses("E_MODEL_NOT_FOUND"):
            resolve_model(path)
    with refuses("E_MODEL_IS_FILE"):
        resolve_model(directory / "config.json")


def test_embedded_models_are_named_when_missing(tmp_path, monkeypatch):
    monkeypatch.setattr(shipped, "DEMO_MODELS", tmp_path)
    monkeypatch.setattr(shipped, "CHECKOUT_MODELS", tmp_path / "bases")
    with refuses("E_SHIPPED_MODEL_MISSING", names="install cotrain again"):
        resolve_model("shipped")
    with refuses("E_SHIPPED_MODEL_MISSING", names="./bases"):
        resolve_model("shipped-games")
    (tmp_path / "base").mkdir()
    (tmp_path / "bases" / "base-games").mkdir(parents=True)
    assert resolve_model("shipped") == tmp_path / "base"
    assert resolve_model("shipped-games") == tmp_path / "bases" / "base-games"


def test_installed_bases_are_found(tmp_path, monkeypatch):
    monkeypatch.setattr(shipped, "CHECKOUT_MODELS", tmp_path / "nothing")
    (tmp_path / "cotrain_bases" / "base-games").mkdir(parents=True)
    (tmp_path / "cotrain_bases" / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    assert resolve_model("shipped-games") == tmp_path / "cotrain_bases" / "base-games"


def test_no_network(monkeypatch, tmp_path):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with refuses("E_MODEL_NOT_FOUND") as caught:
        load_model("nobody/no-such-model")
    assert "\n" not in str(caught.value)
    with refuses("E_MODEL_NOT_FOUND"):
        load_model("no hub name")


def test_a_tokenizer_and_a_configuration_are_had_without_weights(monkeypatch):
    wanted = []

    def download(repository, *, allow_patterns, **how):
        wanted.append(allow_patterns)
        return TINY

    monkeypatch.setattr("cotrain.models.load.snapshot_download", download)
    for load in (load_renderer, load_tokenizer, load_config):
        load("owner/name")
    assert wanted and not any("*.safetensors" in patterns for patterns in wanted)
    load_model("owner/name")
    assert "*.safetensors" in wanted[-1]
