"""Model directories from elsewhere: files that never end, sizes that no model has, JSON that is something else. One
line each, and nothing is built."""

import json
import os
import shutil
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from cotrain.core.errors import ModelError
from cotrain.models.load import load_model, load_tokenizer
from cotrain.models.sizes import model_size
from cotrain.prompts.render import Renderer
from tests.helpers import TINY
from tests.sentences import command_refuses, refuses

DEEP = '{"a": ' + "[" * 100_000 + "]" * 100_000 + "}"
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
SMALL = ["config.json", "generation_config.json", "tokenizer_config.json", "tokenizer.json", INDEX]


@pytest.fixture
def copy(tmp_path):
    return Path(shutil.copytree(TINY, tmp_path / "model"))


def loaded(folder: Path) -> None:
    model, tokenizer = load_model(folder)
    Renderer(tokenizer, model.generation_config)


def refused(folder: Path, code: str | Sequence[str], *, names: str = "") -> None:
    """By the dry run and by whoever loads it alike, in one line and soon. Several codes: either may come first."""
    look_twice(folder, lambda: refuses(code, names=names))


def look_twice(folder: Path, expected, *, within: float = 10.0) -> None:
    for look in (model_size, loaded):
        began = time.process_time()  # on however busy a machine
        with expected() as error:
            look(folder)
        assert "\n" not in str(error.value) and time.process_time() - began < within


def with_config(folder: Path, **fields: object) -> Path:
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | fields))
    return folder


@pytest.mark.whole
@pytest.mark.parametrize("name", [*SMALL[:4], WEIGHTS, "chat_template.jinja", "vocab.json", "special_tokens_map.json"])
@pytest.mark.parametrize("kind", ["pipe", "device", "itself", "nowhere", "folder"])
def test_what_is_no_file_is_not_opened(copy, name, kind):
    (copy / name).unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(copy / name)
    elif kind == "folder":
        (copy / name).mkdir()
    else:
        (copy / name).symlink_to({"device": "/dev/zero", "itself": name, "nowhere": "gone"}[kind])
    code = "E_MODEL_FILE_DANGLING" if kind in ("itself", "nowhere") else "E_MODEL_FILE_NOT_REGULAR"
    refused(copy, code, names=name)
    with refuses(code, names=name):
        load_tokenizer(copy)


@pytest.mark.whole
@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("content", [DEEP, "[1, 2]", "5", "\ufeff{", "{", "null"])
def test_json_that_is_something_else(copy, name, content):
    if name == INDEX:
        (copy / WEIGHTS).rename(copy / "one.safetensors")
    (copy / name).write_text(content)
    if name == "tokenizer.json":
        refused(copy, "E_MODEL_UNREADABLE", names="its tokenizer")
    elif content in ("[1, 2]", "5", "null"):
        refused(copy, "E_MODEL_FILE_NOT_OBJECT", names=name)
    else:
        refused(copy, "E_MODEL_FILE_NOT_JSON", names=name)


@pytest.mark.whole
@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("num_hidden_layers", n) for n in (0, -3, 100_000, 10**30)),
        *(
            (name, 0)
            for name in ("num_attention_heads", "num_key_value_heads", "head_dim", "hidden_size", "vocab_size")
        ),
        *((name, 10**30) for name in ("hidden_size", "vocab_size", "max_position_embeddings", "intermediate_size")),
        *(("max_position_embeddings", n) for n in (0, -5)),
        *(("dtype", one) for one in ("os.system", "load", "nn", "int8", "bool", "", 5, True, ["float32"], {"a": "b"})),
        ("torch_dtype", "os.system"),
        ("text_config", {"dtype": "os.system"}),
    ],
)
def test_sizes_and_types_that_no_model_has(copy, field, value):
    refused(with_config(copy, **{field: value}), "E_MODEL_CONFIG", names="config.json has")


@pytest.mark.whole
@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("num_hidden_layers", n) for n in (1, 3)),
        *((name, 10**10) for name in ("hidden_size", "vocab_size", "intermediate_size")),
        *(("num_key_value_heads", 3), ("head_dim", 7)),
    ],
)
def test_sizes_that_are_not_those_of_the_weights(copy, field, value):
    refused(with_config(copy, **{field: value}), ("E_WEIGHTS_MISFIT", "E_MODEL_UNREADABLE"))


@pytest.mark.whole
@pytest.mark.parametrize("value", [5, {}, [], "x"])
@pytest.mark.parametrize("field", ["quantization_config", "rope_parameters", "layer_types", "hidden_act", "model_type"])
def test_settings_of_another_kind_end_in_one_line_or_not_at_all(copy, field, value):
    for look in (model_size, loaded):
        try:
            look(with_config(copy, **{field: value}))
        except ModelError as error:
            assert "\n" not in str(error)


def renamed(folder: Path, change) -> Path:
    weights = change(load_file(folder / WEIGHTS))
    save_file({name: weight.contiguous() for name, weight in weights.items()}, folder / WEIGHTS, {"format": "pt"})
    return folder


def test_names_of_weights_that_are_not_the_models(copy):
    refused(renamed(copy, lambda held: {"other." + name: one for name, one in held.items()}), "E_WEIGHTS_MISFIT")


def test_a_weight_too_many_and_one_too_few(copy):
    first = "model.layers.0.mlp.up_proj.weight"
    refused(
        renamed(copy, lambda held: held | {"other.weight": torch.zeros(3)}),
        "E_WEIGHTS_MISFIT: no place for | 'other.weight'",
    )
    less = renamed(copy, lambda held: {n: one for n, one in held.items() if n not in (first, "other.weight")})
    refused(less, f"E_WEIGHTS_MISFIT: {first!r}")


def test_two_weights_of_one_name(copy):
    content = (copy / WEIGHTS).read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = content[8 : 8 + length].decode().rstrip()
    name, one = next((key, value) for key, value in json.loads(header).items() if key != "__metadata__")
    twice = f"{header[:-1]},{json.dumps(name)}:{json.dumps(one)}}}".encode()
    (copy / WEIGHTS).write_bytes(len(twice).to_bytes(8, "little") + twice + content[8 + length :])
    refused(copy, f"E_WEIGHT_TWICE: 2 weights | {name!r}")


def test_one_weight_in_two_files(copy):
    (copy / WEIGHTS).rename(copy / "a.safetensors")
    shutil.copy(copy / "a.safetensors", copy / "b.safetensors")
    names = sorted(load_file(copy / "a.safetensors"))
    where = {name: f"{'ab'[i % 2]}.safetensors" for i, name in enumerate(names)}
    (copy / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": where}))
    refused(copy, "E_WEIGHT_TWICE: 2 weights")


@pytest.mark.whole
@pytest.mark.parametrize(
    "words",
    [
        ["run", "grpo", "--model=MODEL", "--out=out", "--steps=1"],
        ["run", "grpo", "--model=MODEL", "--out=out", "--dry-run"],
        ["chat", "MODEL", "--once=2 + 2?"],
        ["eval", "MODEL", "--suite=gsm8k", "--data=rows.jsonl"],
        ["serve", "MODEL", "--port=0"],
        ["teach", "solver", "--model=MODEL", "--out=out", "--data=rows.jsonl"],
    ],
    ids=lambda words: " ".join([words[0], words[-1]]),
)
@pytest.mark.parametrize("wrong", ["template", "pipe", "layers"])
def test_every_command_says_it_in_one_line(copy, tmp_path, monkeypatch, capsys, words, wrong):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.jsonl").write_text(
        "".join(f'{{"question": "{n} + 1?", "answer": "{n + 1}"}}\n' for n in range(9))
    )
    code = {
        "template": "E_CHAT_TEMPLATE_BAD",
        "pipe": f"E_MODEL_FILE_NOT_REGULAR: {WEIGHTS}",
        "layers": "E_MODEL_CONFIG: 100000",
    }[wrong]
    if wrong == "template":
        loops = "{% for a in range(99999) %}" * 3 + "{% endfor %}" * 3
        (copy / "chat_template.jinja").write_text(loops + "{{ messages[0].content }}<|end|>")
    elif wrong == "pipe":
        (copy / WEIGHTS).unlink()
        os.mkfifo(copy / WEIGHTS)
    else:
        with_config(copy, num_hidden_layers=100_000)
    command_refuses([word.replace("MODEL", str(copy)) for word in words], code, capsys)


@pytest.mark.whole
def test_adapters_from_elsewhere_are_looked_at_too(tmp_path):
    from cotrain.models.adapters import AdapterBase

    base = AdapterBase(TINY)
    base.add("one", rank=2, alpha=4, targets="all-linear", seed=0)
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        for kind in ("pipe", "device", "deep"):
            folder = tmp_path / f"{name}-{kind}"
            base.save("one", folder)
            (folder / name).unlink()
            if kind == "pipe":
                os.mkfifo(folder / name)
            elif kind == "device":
                (folder / name).symlink_to("/dev/zero")
            else:
                (folder / name).write_text(DEEP)
            codes = ("E_MODEL_FILE_NOT_JSON", "E_WEIGHTS_DAMAGED") if kind == "deep" else ("E_ADAPTER_FILE_MISSING",)
            with refuses(codes, names=("'two'", f"adapter '{folder}'")) as error:
                AdapterBase(TINY).load("two", folder)
            assert "\n" not in str(error.value)
