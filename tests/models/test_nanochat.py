"""nanochat's checkpoints become directories that plain transformers loads, with the same logits and the same ids."""

import json
import pickle
import sys
import types

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, AutoTokenizer

from cotrain.cli.main import main
from cotrain.models.load import load_model
from cotrain.models.nanochat import convert
from cotrain.models.tiktoken_encoding import read_encoding
from cotrain.prompts.chat_template import Message
from cotrain.prompts.render import Renderer
from tests.sentences import command_refuses, refuses

SPECIAL = [
    "<|bos|>",
    *(f"<|{who}_{end}|>" for who in ("user", "assistant", "python", "output") for end in ("start", "end")),
]
PATTERN = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,2}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
)
LEARNED = [b"th", b"the", b" t", b" th", b" the", b"aa", b"aaa", b"aaaa", b"12", b"an", b" an", b" and", b"\xc3\xa4"]
WIDE, HEADS, KEYS, LAYERS, CONTEXT = 32, 4, 2, 2, 64
VOCABULARY = 256 + len(LEARNED) + len(SPECIAL)


def encoding():
    """The state that tiktoken pickles of an encoding."""
    ranks = {bytes([i]): i for i in range(256)} | {token: 256 + i for i, token in enumerate(LEARNED)}
    special = {name: len(ranks) + i for i, name in enumerate(SPECIAL)}
    return {"name": "rustbpe", "pat_str": PATTERN, "mergeable_ranks": ranks, "special_tokens": special}


def pickled(state, module="tiktoken.core"):
    """As tiktoken's own class is pickled, whether or not tiktoken is installed."""
    stand_in = type("Encoding", (), {"__module__": module, "__getstate__": lambda self: state})
    with pytest.MonkeyPatch.context() as patch:
        for name in (module.split(".")[0], module):  # the parent too, or pickling imports the real module
            patch.setitem(sys.modules, name, types.SimpleNamespace(Encoding=stand_in))
        return pickle.dumps(stand_in())


def weights(seed=0, padded=VOCABULARY):
    torch.manual_seed(seed)
    sizes = {"attn.c_q": (WIDE, WIDE), "attn.c_proj": (WIDE, WIDE), "mlp.c_fc": (4 * WIDE, WIDE)}
    sizes |= {"attn.c_k": (WIDE // 2, WIDE), "attn.c_v": (WIDE // 2, WIDE), "mlp.c_proj": (WIDE, 4 * WIDE)}
    state = {"transformer.wte.weight": torch.randn(padded, WIDE).bfloat16()}
    for layer in range(LAYERS):
        state |= {f"transformer.h.{layer}.{n}.weight": torch.randn(s) * 0.3 for n, s in sizes.items()}
    return state | {"lm_head.weight": torch.randn(padded, WIDE)}


@torch.no_grad()
def nanochat(w, ids):
    """The forward pass as nanochat/gpt.py has it, in float32, its rotary table not rounded."""

    def norm(x):
        return F.rms_norm(x, (x.size(-1),))

    def heads(x, count):
        return x.view(*x.shape[:2], count, WIDE // HEADS)

    def rotate(x):
        half = x.shape[3] // 2
        a, b = x[..., :half], x[..., half:]
        return torch.cat([a * cos + b * sin, a * (-sin) + b * cos], 3)

    w = {key: value.float() for key, value in w.items()}
    angles = torch.outer(
        torch.arange(ids.shape[1]).float(),
        1.0 / (10000 ** (torch.arange(0, WIDE // HEADS, 2).float() / (WIDE // HEADS))),
    )
    cos, sin = angles.cos()[None, :, None], angles.sin()[None, :, None]
    x = norm(F.embedding(ids, w["transformer.wte.weight"]))
    for layer in range(LAYERS):
        block = {n: w[f"transformer.h.{layer}.{n}.weight"] for n in ("attn.c_q", "attn.c_k", "attn.c_v")}
        h = norm(x)
        q, k, v = (heads(h @ block[f"attn.c_{n}"].T, c) for n, c in (("q", HEADS), ("k", KEYS), ("v", KEYS)))
        q, k = norm(rotate(q)), norm(rotate(k))
        k, v = (t.repeat_interleave(HEADS // KEYS, dim=2) for t in (k, v))
        y = F.scaled_dot_product_attention(*(t.transpose(1, 2) for t in (q, k, v)), is_causal=True)
        x = x + y.transpose(1, 2).reshape(x.shape) @ w[f"transformer.h.{layer}.attn.c_proj.weight"].T
        up = F.relu(norm(x) @ w[f"transformer.h.{layer}.mlp.c_fc.weight"].T).square()
        x = x + up @ w[f"transformer.h.{layer}.mlp.c_proj.weight"].T
    return 15 * torch.tanh(norm(x) @ w["lm_head.weight"].T / 15)


def checkpoint(base, state=None, step=7, tokens=True, **settings):
    """The folders of nanochat: base_checkpoints/d2/model_000007.pt and tokenizer/tokenizer.pkl."""
    folder = base / "base_checkpoints" / "d2"
    folder.mkdir(parents=True, exist_ok=True)
    torch.save(weights() if state is None else state, folder / f"model_{step:06d}.pt")
    config = {"vocab_size": VOCABULARY, "n_embd": WIDE, "n_layer": LAYERS, "n_head": HEADS, "n_kv_head": KEYS}
    meta = {"step": step, "model_config": {**config, "sequence_len": CONTEXT, **settings}}
    (folder / f"meta_{step:06d}.json").write_text(json.dumps(meta))
    if tokens:
        (base / "tokenizer").mkdir(exist_ok=True)
        (base / "tokenizer" / "tokenizer.pkl").write_bytes(pickled(encoding()))
    return folder


def test_the_logits_are_those_of_nanochat(tmp_path, capsys):
    state = {f"_orig_mod.{key}": value for key, value in weights(padded=VOCABULARY + 10).items()}
    checkpoint(tmp_path, weights(seed=5), step=3)
    folder = checkpoint(tmp_path, state)
    assert main(["convert", "nanochat", str(folder), "--out", str(tmp_path / "out")]) == 0
    assert str(tmp_path / "out") in capsys.readouterr().out
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32).eval()
    ids = torch.randint(0, VOCABULARY, (3, CONTEXT), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        found = model(ids).logits
    expected = nanochat(weights(padded=VOCABULARY + 10), ids)[..., :VOCABULARY]
    torch.testing.assert_close(found, expected, atol=2e-5, rtol=2e-5)
    assert float(expected.std()) > 1
    convert(folder, tmp_path / "older", step=3)
    with torch.no_grad():
        older = AutoModelForCausalLM.from_pretrained(tmp_path / "older", dtype=torch.float32).eval()(ids).logits
    torch.testing.assert_close(older, nanochat(weights(seed=5), ids), atol=2e-5, rtol=2e-5)


def test_it_speaks_nanochats_conversations(tmp_path):
    out = convert(checkpoint(tmp_path), tmp_path / "out")
    model, tokenizer = load_model(out)
    renderer = Renderer(tokenizer, model.generation_config)
    ids = renderer.render([Message("system", "Be brief."), Message("user", "the 12 <|bos|>")])
    assert tokenizer.decode(ids) == "<|bos|><|user_start|>Be brief.\n\nthe 12 <|bos|><|user_end|><|assistant_start|>"
    first = 256 + len(LEARNED)
    assert ids[:2] == (first, first + 1) and ids.count(first) == 1  # what a user writes is no control token
    assert set(renderer.stop_ids) == {first, first + 4}
    assert tokenizer.eos_token == "<|assistant_end|>" and model.config.bos_token_id == first


@pytest.fixture(scope="module")
def fast(tmp_path_factory):
    file = tmp_path_factory.mktemp("words") / "tokenizer.pkl"
    file.write_bytes(pickled(encoding()))
    return read_encoding(file)


@pytest.fixture(scope="module")
def theirs():
    return pytest.importorskip("tiktoken").Encoding(**encoding())


@given(st.text(st.sampled_from("the anda12 3\n'LLsä<|bos|>é🙂\u00a0.")) | st.text())
@settings(max_examples=150, deadline=None)
def test_the_ids_are_those_of_tiktoken(fast, theirs, text):
    mine = fast.backend_tokenizer
    mine.encode_special_tokens = True  # as ``encode_ordinary`` does
    assert mine.encode(text).ids == theirs.encode_ordinary(text)


def test_tiktokens_own_pickle_is_read(tmp_path):
    tiktoken = pytest.importorskip("tiktoken")
    (tmp_path / "tokenizer.pkl").write_bytes(pickle.dumps(tiktoken.Encoding(**encoding())))
    tokenizer = read_encoding(tmp_path / "tokenizer.pkl")
    assert len(tokenizer) == VOCABULARY and tokenizer.decode(tokenizer("the <|bos|> ä").input_ids) == "the <|bos|> ä"


def test_a_directory_with_tokenizer_json_is_taken(tmp_path, fast):
    folder = checkpoint(tmp_path, tokens=False)
    with refuses("E_NO_TOKENIZER"):
        convert(folder, tmp_path / "out")
    (tmp_path / "words").mkdir()
    fast.backend_tokenizer.save(str(tmp_path / "words" / "tokenizer.json"))  # as nanochat's other tokenizer is saved
    convert(folder, tmp_path / "out", tokenizer=tmp_path / "words")
    assert len(AutoTokenizer.from_pretrained(tmp_path / "out")) == VOCABULARY


@pytest.mark.parametrize(
    "extra, settings, code",
    [
        ({"resid_lambdas": torch.ones(2)}, {}, "E_NANOCHAT_ARCHITECTURE: 'resid_lambdas'"),
        ({"value_embeds.1.weight": torch.ones(2, 2)}, {}, "E_NANOCHAT_ARCHITECTURE: value_embeds"),
        ({}, {"window_pattern": "SSSL"}, "E_NANOCHAT_ARCHITECTURE: 'SSSL'"),
        ({}, {"n_experts": 8}, "E_NANOCHAT_ARCHITECTURE: 'n_experts'"),
        ({}, {"n_layer": 3}, "E_NANOCHAT_WEIGHTS_MISFIT: 'transformer.h.2"),
        ({}, {"vocab_size": 300}, f"E_NANOCHAT_VOCABULARY: vocab_size is 300 | {VOCABULARY} tokens"),
        ({}, {"n_head": 5}, "E_NANOCHAT_SETTING: 'n_head': 5"),
        ({}, {"n_kv_head": 3}, "E_NANOCHAT_SETTING: 'n_kv_head': 3"),
        ({"lm_head.weight": torch.ones(VOCABULARY, 3)}, {}, "E_NANOCHAT_WEIGHTS_MISFIT: lm_head.weight"),
    ],
    ids=["lambdas", "value", "windows", "experts", "layers", "vocabulary", "heads", "key heads", "shape"],
)
def test_other_architectures_are_refused_by_name(tmp_path, extra, settings, code, capsys):
    folder = checkpoint(tmp_path, weights() | extra, **settings)
    command_refuses(["convert", "nanochat", folder, "--out", tmp_path / "out"], code, capsys)
    assert not (tmp_path / "out").exists()


class Bomb:
    def __init__(self, canary):
        self.canary = canary

    def __reduce__(self):
        return (open, (str(self.canary), "w"))


def test_a_malicious_pickle_is_refused_and_its_canary_never_written(tmp_path, capsys):
    canary, words = tmp_path / "canary", tmp_path / "tokenizer" / "tokenizer.pkl"
    folder = checkpoint(tmp_path)
    good = words.read_bytes()
    command = ["convert", "nanochat", str(folder), "--out", str(tmp_path / "out")]
    for attack in (pickle.dumps(Bomb(canary)), pickled(encoding() | {"name": Bomb(canary), "pat_str": Bomb(canary)})):
        words.write_bytes(attack)
        command_refuses(command, "E_TIKTOKEN_UNREADABLE: tokenizer.pkl | --tokenizer", capsys)
    words.write_bytes(good)
    for state in (weights() | {"lm_head.weight": Bomb(canary)}, Bomb(canary)):
        torch.save(state, folder / "model_000007.pt")
        command_refuses(command, "E_NANOCHAT_WEIGHTS_UNREADABLE: model_000007.pt | open", capsys)
    assert not canary.exists() and not (tmp_path / "out").exists()
    torch.load(folder / "model_000007.pt", weights_only=False)
    assert canary.exists(), "the control: the plain reader is taken in"


def test_what_is_no_state_dict_is_named(tmp_path, capsys):
    folder = checkpoint(tmp_path)
    file = folder / "model_000007.pt"
    whole = file.read_bytes()
    for value in ([1], {"a": 1}, {"a": torch.ones(2, dtype=torch.int64)}, {"a": {"b": torch.ones(1)}}):
        torch.save(value, file)
        with refuses("E_NANOCHAT_WEIGHTS_UNREADABLE"):
            convert(folder, tmp_path / "out")
    for broken in (b"not a zip", whole[: len(whole) // 2]):
        file.write_bytes(broken)
        with refuses("E_NANOCHAT_WEIGHTS_UNREADABLE"):
            convert(folder, tmp_path / "out")


@pytest.mark.whole
@given(st.binary(max_size=60), st.integers(0, 10_000))
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_broken_tokenizer_is_one_error(tmp_path, noise, seed):
    whole, file = pickled(encoding()), tmp_path / "tokenizer.pkl"
    at = seed % len(whole)
    file.write_bytes(whole[:at] + noise)
    with refuses("E_TIKTOKEN_UNREADABLE", names="tokenizer.pkl"):
        read_encoding(file)


def test_a_memo_of_four_billion_entries_costs_nothing(tmp_path):
    file = tmp_path / "tokenizer.pkl"
    file.write_bytes(b"\x80\x02Nr\xff\xff\xff\xff.")
    with refuses("E_TIKTOKEN_UNREADABLE"):
        read_encoding(file)
