"""Large models have defaults of their own, and a run that does not fit into memory is told before it begins."""

import json
import os
import re
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import httpx2
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from cotrain.cli.main import main
from cotrain.config.large_model_defaults import large_policies, size_notes
from cotrain.config.override import override
from cotrain.config.registry import make_recipe
from cotrain.distributed.device_memory import Memory
from cotrain.models.sizes import model_size, parameter_count, weight_shapes
from cotrain.recipes.cooper import cooper
from cotrain.recipes.grpo import grpo
from cotrain.recipes.judged import judged
from cotrain.recipes.tango import tango
from cotrain.rollout.common_roles import FORMAT_MARK
from cotrain.runs import memory_plan
from cotrain.runs.directory import recipe_json, resolved_json
from cotrain.runs.fitting import with_packing
from cotrain.runs.memory_plan import bytes_text, choose_packing, estimate_run, fit_to_memory, resident_bytes
from tests.helpers import TINY
from tests.sentences import command_refuses, refuses

GIB = 2**30
SHORT = ["--set", "roles.solver.sampling.max_tokens=256"]  # so that answers fit into the context of TINY


def large(folder, million=200):
    """A model of so many parameters, whose weights are a hole in a file."""
    shutil.copytree(TINY, folder)
    (folder / FORMAT_MARK).unlink()
    config = json.loads((folder / "config.json").read_text()) | {"max_position_embeddings": 8192, "dtype": "float32"}
    layers, width = 8, 1024
    inner = round((million * 1e6 / layers - 70_000 - 192 * width) / (3 * width))  # embeddings, attention, the rest
    config |= {"hidden_size": width, "num_hidden_layers": layers, "intermediate_size": inner}
    (folder / "config.json").write_text(json.dumps(config))
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder))
    header, end = {}, 0
    for name, weight in model.state_dict().items():
        if name != "lm_head.weight":  # tied
            first, end = end, end + 4 * weight.numel()
            header[name] = {"dtype": "F32", "shape": list(weight.shape), "data_offsets": [first, end]}
    text = json.dumps(header).encode()
    with (folder / "model.safetensors").open("wb") as stream:
        stream.write(len(text).to_bytes(8, "little") + text)
        stream.truncate(8 + len(text) + end)
    return str(folder)


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    place = tmp_path_factory.mktemp("large")
    return SimpleNamespace(middle=large(place / "a"), huge=large(place / "b", 4000))


def test_shipped_and_small_models_have_the_recipes_defaults():
    for recipe in (tango(), grpo(model=TINY)):
        assert recipe.origin.by_size == {} and recipe.origin.overrides == ()
        assert recipe.policies["generator"].lr == 2e-4 and recipe.tasks_per_step == 16


def test_large_models_have_rates_and_steps_of_their_own(models):
    recipe = tango(model=models.middle)
    assert [recipe.policies[name].lr for name in ("generator", "verifier")] == [1e-5, 1e-5]
    assert recipe.tasks_per_step == 8 and recipe.policies["verifier"].micro_tokens == 1024
    assert recipe.origin.by_size["lr"] == recipe.origin.arguments["lr"] == 1e-5
    assert grpo(model=models.huge).policies["generator"].lr == 1e-6
    assert grpo(model=models.middle, lora=8).policies["generator"].lr == 1e-4
    mixed = tango(model=TINY, verifier_model=models.huge)
    assert [mixed.policies[name].lr for name in ("generator", "verifier")] == [2e-4, 1e-6]
    whole = cooper(model=models.middle, rm_model=models.huge, lora=8)
    assert whole.origin.arguments["rm_lr"] == 1e-6


def test_what_is_given_counts_and_a_resumed_run_has_what_it_had(models):
    given = grpo(model=models.middle, lr=2e-4, tasks_per_step=16)
    assert given.policies["generator"].lr == 2e-4 and given.tasks_per_step == 16
    made = tango(model=models.middle)
    again = override(make_recipe("tango", made.origin.arguments, again=True), made.origin.overrides)
    assert resolved_json(again) == resolved_json(made)
    older = {name: value for name, value in made.origin.arguments.items() if name != "verifier_lr"}
    assert make_recipe("tango", older, again=True).policies["verifier"].lr == 2e-4  # a parameter that it did not have
    author = replace(made.policies["generator"], micro_tokens=8192)
    assert large_policies({"a": author, "b": replace(author, micro_tokens=2048)}) == ["b"]
    assert made.origin.by_size["policies.generator.micro_tokens"] == 1024
    assert recipe_json(made, checkpoint_every=1)["origin"]["by_size"]["lr"] == 1e-5


@pytest.mark.whole
def test_what_the_program_holds_is_what_it_holds_now():
    before = resident_bytes()
    block = bytearray(os.urandom(2**20)) * 256
    assert resident_bytes() - before > len(block) * 0.9
    del block
    assert resident_bytes() - before < 2**27  # what was given back does not count


@pytest.mark.whole
def test_as_many_answers_at_a_time_as_fit(models, monkeypatch):
    monkeypatch.setattr(memory_plan, "resident_bytes", lambda: 0.5 * GIB)  # whatever this process has run before
    recipe = tango(model=models.middle)
    room = Memory(total=64 * GIB, available=64 * GIB)
    assert fit_to_memory(recipe, "cpu", room)[1] == []
    tight = Memory(total=64 * GIB, available=10 * GIB)
    less, (line,) = fit_to_memory(recipe, "cpu", tight)
    rows = less.policies["verifier"].rows
    assert line.startswith(f"note: at most {rows} answers at a time, as 10.00 GiB are available")
    seen = estimate_run(less, device="cpu")
    doubled = override(recipe, [f"policies.{name}.rows={2 * rows}" for name in ("generator", "verifier")])
    assert seen.total_memory <= 0.9 * tight.available < replace(seen, recipe=doubled).total_memory
    few = override(recipe, ["policies.generator.rows=4"])
    few = replace(few, origin=replace(few.origin, overrides=()))  # as if the recipe had it
    assert fit_to_memory(few, "cpu", tight)[0].policies["generator"].rows == 4
    full, (line,) = fit_to_memory(recipe, "cpu", Memory(total=64 * GIB, available=4 * GIB))  # fewer rows do not help
    assert full == recipe and "most of it is optimiser" in line
    asked = override(recipe, [f"policies.{name}.rows=64" for name in recipe.policies])
    kept, (line,) = fit_to_memory(asked, "cpu", Memory(total=64 * GIB, available=4 * GIB))
    assert resolved_json(kept) == resolved_json(asked) and "--lora 16" in line
    assert "4.00 GiB are available on cpu; most of it is optimiser" in line
    with refuses("E_MEMORY_FOR_WEIGHTS", names=("cpu", "2.00 GiB", "--lora", "--lora 16")):
        fit_to_memory(recipe, "cpu", Memory(total=2 * GIB, available=GIB))
    adapted = tango(model=models.middle, lora=4)
    asked = override(adapted, [f"policies.{name}.rows=64" for name in adapted.policies])
    _, (line, *_) = fit_to_memory(asked, "cpu", Memory(total=64 * GIB, available=0.3 * GIB))
    assert "are available on cpu; most of it is" in line and "--lora" not in line  # which was given
    with refuses("E_MEMORY_FOR_WEIGHTS", names=("cpu", "10 MiB")):
        fit_to_memory(adapted, "cpu", Memory(total=0.01 * GIB, available=0.01 * GIB))


@pytest.mark.whole
def test_the_settings_that_let_a_run_fit_are_said(models, monkeypatch):
    """Moments beside the device cost less than layers computed again; together they make the most room."""
    monkeypatch.setattr(memory_plan, "resident_bytes", lambda: 0.0)
    recipe, total = tango(model=models.middle, tasks_per_step=1, group_size=2), {}
    moved = [f"policies.{name}.offload=true" for name in ("generator", "verifier", "reference")]
    again = [f"policies.{name}.gradient_checkpointing=true" for name in ("generator", "verifier")]
    wide = [f"policies.{name}.{field}" for name in recipe.policies for field in ("rows=8", "micro_tokens=16384")]
    few = override(recipe, wide)  # whose activations are larger than the moments
    for settings in ((), tuple(moved), tuple(again), (*moved, *again)):
        total[settings] = estimate_run(override(few, settings), device="cuda").total_memory
    plain, offload, checkpoints, both = total.values()
    assert both < offload < plain and both < checkpoints < plain
    assert estimate_run(override(few, moved), device="cuda").memory["optimiser"] == 0
    assert estimate_run(override(few, moved), device="cpu").memory == estimate_run(few, device="cpu").memory

    def said(available, device):
        return fit_to_memory(few, device, Memory(total=64 * GIB, available=available))[1]

    assert said(2 * plain, "cuda") == []
    for available, settings in ((offload, []), (both, again)):
        (_, line) = said(available, "cuda")
        assert line.startswith("note: it fits with --offload" + "".join(f" --set {one}" for one in settings) + ": ")
    assert len(said(both - 1, "cuda")) == 1
    (_, line) = said(checkpoints, "cpu")
    assert "gradient_checkpointing=true" in line and "offload" not in line


@pytest.mark.whole
def test_policies_that_take_turns_count_once(models):
    """Three models of one size; adapters on one base, which all of them need; and what the dry run says of it."""
    made = {n: tango(model=models.middle, lora=n, offload=True) for n in (0, 4)}
    plain = {n: tango(model=models.middle, lora=n) for n in (0, 4)}
    parts = {
        (n, moved): estimate_run(recipes[n], device="cuda").memory
        for moved, recipes in ((False, plain), (True, made))
        for n in (0, 4)
    }
    one = model_size(models.middle).parameters * 4
    assert parts[0, True]["weights"] == one and parts[0, False]["weights"] == 3 * one
    adapter = (parts[4, False]["weights"] - one) / 2
    assert 0 < adapter < one / 10 and parts[4, True]["weights"] == one + adapter
    assert parts[0, True]["cache"] < parts[0, False]["cache"] and parts[4, True]["cache"] == parts[4, False]["cache"]
    assert {parts[n, True]["optimiser"] for n in made} == {0}
    found = estimate_run(made[0], device="cpu")
    assert found.resting_bytes() == 3 * one + 2 * 2 * one
    lines = [line for line in found.summary_lines() if line.startswith("offload: ")]
    with_it, without = (bytes_text(sum(parts[0, moved].values())) for moved in (True, False))
    assert lines == [
        "offload: nothing rests on a CPU; on a GPU generator, verifier, reference rest while others compute: at most "
        f"{with_it}, without it {without}, and {bytes_text(7 * one)} beside it"
    ]
    assert not [line for line in estimate_run(plain[0], device="cpu").summary_lines() if line.startswith("offload")]
    (line,) = [line for line in estimate_run(plain[0], device="cuda").summary_lines() if line.startswith("offload")]
    assert line.startswith(f"offload: nobody rests; --offload lets them: at most {with_it}, without it {without}, and")


@pytest.mark.whole
def test_weights_are_laid_out_where_that_pays_and_fits(models, monkeypatch):
    monkeypatch.setattr(memory_plan, "resident_bytes", lambda: 0.5 * GIB)
    recipe, room = tango(model=models.middle), Memory(total=64 * GIB, available=64 * GIB)
    here = {"device": "cpu", "kind": "local"}
    made, (line,) = choose_packing(recipe, here, room, 1.4)
    assert [made.policies[name].pack_weights for name in ("generator", "verifier", "reference")] == [True, True, None]
    assert made.origin.overrides[-2:] == ("policies.generator.pack_weights=true", "policies.verifier.pack_weights=true")
    assert "are laid out for decoding" in line and "1.40 times as fast" in line and "1.49 GiB more memory" in line
    more = estimate_run(made, device="cpu").memory["packed weights"]
    assert more == 2 * 4 * model_size(models.middle).parameters
    assert choose_packing(made, here, room, 0.5) == (made, [])  # as a run that goes on: nothing is chosen anew
    slow, (line,) = choose_packing(recipe, here, room, 1.05)
    assert (
        slow.policies["generator"].pack_weights is False and "are not laid out" in line and "pack_weights=true" in line
    )
    rows, (line, fewer) = choose_packing(recipe, here, Memory(total=64 * GIB, available=11 * GIB), 1.4)
    assert (
        rows.policies["generator"].pack_weights
        and rows.policies["generator"].rows < 256
        and "answers at a time" in fewer
    )
    full, (line,) = choose_packing(recipe, here, Memory(total=64 * GIB, available=4 * GIB), 1.4)
    assert full.policies["generator"].pack_weights is False and full.policies["generator"].rows == 256
    assert "more than there is" in line
    chosen = override(recipe, ["policies.generator.pack_weights=false", "policies.verifier.pack_weights=true"])
    assert choose_packing(chosen, here, room, 1.4) == (chosen, [])
    for backend in ({"device": "cuda"}, {"device": "cpu", "engine": "vllm"}):
        assert choose_packing(recipe, backend, room, 1.4) == (recipe, [])
    shared, _ = choose_packing(tango(model=models.middle, lora=8), here, room, 1.4)
    assert estimate_run(shared, device="cpu").memory["packed weights"] == more / 2


def test_nothing_is_measured_for_small_models(monkeypatch):
    """Their weights stay in the caches; so what a run of them computes depends on no clock."""
    monkeypatch.setattr("cotrain.inference.packed_weights.measure_gain", None)
    for recipe in (tango(), grpo(model=TINY)):
        assert with_packing(recipe, {"device": "cpu", "kind": "local"}) == (recipe, [])


@pytest.mark.whole
def test_the_dry_run_says_so_and_its_file_is_the_same_run(models, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = ["run", "grpo", f"--model={models.middle}", "--out=run", "--dry-run"]
    assert main(words) == 0
    told = capsys.readouterr().out
    comments = " ".join(line.removeprefix("#").strip() for line in told.splitlines())
    assert (
        "defaults for a model of 200 million parameters: lr 1e-05, tasks_per_step 8, micro_tokens 1024; --lr"
        in comments
    )
    packing = re.findall(r"packed weights|weights of [^:]* laid out for decoding: products are [0-9.]+ times", comments)
    chosen = "policies.generator.pack_weights=true" in told
    assert len(packing) == 1 + chosen and "policies.reference.pack_weights=null" in told
    assert "\nlr = 1e-05\n" in told
    Path("run.toml").write_text(told)
    assert main(["run", "--config=run.toml", "--out=run", "--dry-run"]) == 0
    again = capsys.readouterr().out
    assert "\nlr = 1e-05\n" in again and "defaults for" not in again
    assert f"policies.generator.pack_weights={str(chosen).lower()}" in again and "laid out" not in again
    assert main([*words, "--lr=2e-4"]) == 0
    assert "\nlr = 0.0002\n" in capsys.readouterr().out


def test_a_name_that_cannot_be_opened_ends_the_dry_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    command_refuses(
        ["run", "grpo", "--model=nobody/nothing", "--out=run", "--dry-run"],
        "E_MODEL_NOT_FOUND: 'nobody/nothing'",
        capsys,
    )


@pytest.fixture
def on_the_hub(tmp_path, monkeypatch):
    """Small files of ``someone/inst`` are in the cache as the Hub's library leaves them; headers come from a server,
    which answers the call behind the first ``silent`` ones."""
    commit = "0123456789abcdef0123456789abcdef01234567"
    cache = tmp_path / "cache" / "models--someone--inst"
    shutil.copytree(TINY, cache / "snapshots" / commit)
    (cache / "snapshots" / commit / "model.safetensors").unlink()
    config = json.loads((cache / "snapshots" / commit / "config.json").read_text()) | {"num_hidden_layers": 1}
    (cache / "snapshots" / commit / "config.json").write_text(json.dumps(config))
    (cache / "refs").mkdir()
    (cache / "refs" / "main").write_text(commit)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    tensor = SimpleNamespace(shape=[64, 32])
    file = SimpleNamespace(tensors={"model.layers.0.mlp.up_proj.weight": tensor})
    server = SimpleNamespace(silent=0, snapshot=cache / "snapshots" / commit)

    def headers(name, revision):
        server.silent -= 1
        if server.silent >= 0:
            raise httpx2.ConnectError("Name or service not known")
        return SimpleNamespace(files_metadata={"model.safetensors": file})

    monkeypatch.setattr("cotrain.models.sizes.get_safetensors_metadata", headers)
    weight_shapes.cache_clear()
    yield server
    weight_shapes.cache_clear()


def test_a_model_of_the_hub_is_looked_at_without_its_weights(on_the_hub):
    assert (model_size("someone/inst").parameters, model_size("someone/inst").linear_sides) == (64 * 32, 96)
    assert parameter_count("someone/inst") == 64 * 32
    on_the_hub.silent = 1
    with refuses("E_MODEL_NOT_FOUND"):
        model_size("someone/inst")
    with refuses("E_MODEL_NOT_FOUND"):
        model_size("./nowhere")


def test_one_shard_of_two_in_the_cache_is_not_the_model(on_the_hub):
    shutil.copy(f"{TINY}/model.safetensors", on_the_hub.snapshot / "model-00001-of-00002.safetensors")
    index = {"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}
    (on_the_hub.snapshot / "model.safetensors.index.json").write_text(json.dumps(index))
    assert parameter_count("someone/inst") == model_size("someone/inst").parameters == 64 * 32  # as the server says


def test_a_size_that_nobody_can_tell_is_told(on_the_hub, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = ["run", "grpo", "--model=someone/inst", "--out=run", "--dry-run", *SHORT]
    for more, told in (
        ([], "note: the size of someone/inst is not known; defaults are those of a small model: --lr 0.0002"),
        (["--lr=1e-5"], ""),
    ):
        on_the_hub.silent = 1  # when defaults are chosen; later the server is there again
        weight_shapes.cache_clear()
        assert main([*words, *more]) == 0
        found = [line for line in capsys.readouterr().out.splitlines() if "is not known" in line]
        assert found == ([f"# {told}"] if told else [])
    assert size_notes(tango(model=TINY).origin) == []
    assert size_notes(judged(verifier="frozen", warmup=0, verifier_model="http://127.0.0.1:9/v1#judge").origin) == []
