"""``cotrain export``: plain model directories that transformers and PEFT load, with the weights of the run."""

import json
import shutil
from dataclasses import replace

import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer

from cotrain import api
from cotrain.cli.main import main
from cotrain.config.override import override
from cotrain.core.errors import ModelError
from cotrain.models.heads import ValueModel, reward_model
from cotrain.models.load import load_model, resolve_model
from cotrain.recipes.cooper import cooper
from cotrain.recipes.proposer_solver import proposer_solver
from cotrain.recipes.tango import tango
from cotrain.runs import opening
from cotrain.runs.changes import rebuild_recipe
from cotrain.runs.directory import RunDirectory
from cotrain.serving.export import export_policy, load_policy, model_card
from tests.helpers import EASY, TINY, cast_of
from tests.sentences import command_refuses, refuses

pytestmark = pytest.mark.whole

SMALL = {"model": TINY, "tasks_per_step": 2, "group_size": 2, "evaluation_tasks": 1, "lr": 1e-2, "seed": 3}
BRIEF = ["evaluation.splits=[]", "evaluation.group_size=1"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("export") / "run"
    api.run(override(tango(steps=2, warmup=1, reviews=2, verifier_lr=1e-2, tasks=EASY, **SMALL), BRIEF), folder)
    return folder


@torch.no_grad()
def logits(model, tokenizer):
    return model(input_ids=torch.tensor([tokenizer("There are 12 pears.").input_ids])).logits


def test_plain_transformers_loads_what_the_run_has_learned(run, tmp_path, capsys):
    out = tmp_path / "verifier"
    assert main(["export", str(run), "--role", "verifier", "--out", str(out)]) == 0
    assert str(out) in capsys.readouterr().out
    model, tokenizer = AutoModelForCausalLM.from_pretrained(out), AutoTokenizer.from_pretrained(out)
    cast = opening.load_trainer(run).policies
    assert torch.equal(logits(model, tokenizer), logits(cast["verifier"].model, tokenizer))
    assert not torch.equal(logits(model, tokenizer), logits(cast["reference"].model, tokenizer))
    mark = json.loads((out / "cotrain.json").read_text())  # it is asked as its base was, and as the run asked it
    role = opening.recipe_of(run).roles["verifier"]
    assert mark == {"prompts": "short", "roles": {"verifier": {"verdict": "tags", "prompt": role.prompt}}}


def test_only_the_policy_asked_for_is_loaded(tmp_path):
    other = shutil.copytree(resolve_model(TINY), tmp_path / "other")
    recipe = tango(steps=2, warmup=0, ratio=(1, 1), verifier_model=str(other), tasks=EASY, **SMALL)
    api.run(override(recipe, BRIEF), tmp_path / "run")
    for weights in other.glob("*.safetensors"):  # the verifier's model cannot be loaded any more
        weights.unlink()
    out = export_policy(tmp_path / "run", "solver", tmp_path / "solver")
    assert f"| verifier | trainable | `{other}` | " in (out / "README.md").read_text()
    with pytest.raises(ModelError):
        export_policy(tmp_path / "run", "verifier", tmp_path / "verifier")
    exported = load_policy(tmp_path / "run", rebuild_recipe(tmp_path / "run"), "generator")
    assert exported.handle.name == "generator" and set(exported.updates) == {"generator", "verifier"}


def test_a_run_that_keeps_a_store_is_exported(tmp_path):
    """Its checkpoint has one field more, for which every export and push of such a run was refused."""
    recipe = proposer_solver(steps=1, **SMALL)
    assert recipe.stores
    api.run(override(recipe, BRIEF), tmp_path / "run")
    out = export_policy(tmp_path / "run", "solver", tmp_path / "solver")
    assert (out / "model.safetensors").is_file()


def test_a_frozen_base_of_adapters_is_exported_without_them(tmp_path):
    recipe = tango(steps=2, warmup=0, ratio=(1, 1), lora=4, tasks=EASY, **SMALL)
    api.run(override(recipe, BRIEF), tmp_path / "run")
    out = export_policy(tmp_path / "run", "reference", tmp_path / "reference")
    model, tokenizer = AutoModelForCausalLM.from_pretrained(out), AutoTokenizer.from_pretrained(out)
    fresh = AutoModelForCausalLM.from_pretrained(resolve_model(TINY), dtype=torch.float32)
    assert torch.equal(logits(model, tokenizer), logits(fresh, tokenizer))


def test_the_card_says_against_whom_the_figures_were_earned(run, tmp_path):
    text = (export_policy(run, "verifier", tmp_path / "out") / "README.md").read_text()
    after = json.loads((run / "summary.json").read_text())["after"]["verifier/parsed"]
    assert "| verifier/parsed | " in text and f"{after['value']:.3f} [{after['low']:.3f}" in text
    assert f"| **verifier** | trainable | `{TINY}` | 1 | verifier |" in text
    assert f"| generator | trainable | `{TINY}` | 1 | solver |" in text
    assert '"kind": "words"' in text and "{problem}" in text


def test_an_adapter_is_loaded_by_peft(tmp_path):
    recipe = tango(steps=2, warmup=0, ratio=(1, 1), lora=4, tasks=EASY, **SMALL)
    api.run(override(recipe, BRIEF), tmp_path / "run")
    out = export_policy(tmp_path / "run", "solver", tmp_path / "adapter")
    base = opening.load_trainer(tmp_path / "run").policies["generator"].base
    tokenizer = base.tokenizer
    base.activate("generator")
    expected = logits(base.module, tokenizer)
    fresh = AutoModelForCausalLM.from_pretrained(resolve_model(TINY), dtype=torch.float32)
    loaded = PeftModel.from_pretrained(fresh, out).eval()
    assert torch.allclose(logits(loaded, tokenizer), expected, atol=1e-5)
    assert "library_name: peft" in (out / "README.md").read_text()
    assert (
        main(["export", str(tmp_path / "run"), "--role", "solver", "--merged", "--out", str(tmp_path / "merged")]) == 0
    )
    whole = AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
    assert torch.allclose(logits(whole, tokenizer), expected, atol=1e-5)
    plain = AutoModelForCausalLM.from_pretrained(resolve_model(TINY), dtype=torch.float32)
    assert not torch.allclose(logits(plain, tokenizer), expected, atol=1e-5)
    assert type(whole) is type(plain) and "library_name: transformers" in (tmp_path / "merged/README.md").read_text()
    with refuses("E_MERGED_WITHOUT_ADAPTER", names="'reference'"):
        export_policy(tmp_path / "run", "reference", tmp_path / "b", merged=True)


def test_a_reward_model_is_one_of_transformers(tmp_path):
    recipe = override(cooper(steps=2, warmup=1, rm_lr=1e-2, rm_model=TINY, tasks=EASY, **SMALL), BRIEF)
    api.run(recipe, tmp_path / "run")
    out = export_policy(tmp_path / "run", "rater", tmp_path / "rater")
    trained = opening.load_trainer(tmp_path / "run").policies["rm"].model
    assert isinstance(trained, ValueModel) and trained.head.weight.any()
    plain = AutoModelForSequenceClassification.from_pretrained(out).eval()
    ids = torch.arange(3, 40)[None]
    with torch.no_grad():
        expected = trained(ids)[0, -1]
        assert plain(input_ids=ids).logits.item() == pytest.approx(expected.item(), abs=1e-5) and expected.item() != 0.0
        assert reward_model(out)(ids)[0, -1].item() == pytest.approx(expected.item(), abs=1e-5)
    text = (out / "README.md").read_text()
    assert "pipeline_tag: text-classification" in text and "A reward model (one score for a whole text)" in text
    started = cooper(steps=1, rm="frozen", rm_model=str(out), tasks=EASY, **SMALL)
    mine = cast_of({"rm": started.policies["rm"]}, seed=0)["rm"].model
    assert torch.equal(mine(ids), reward_model(out)(ids))
    with refuses("E_MODEL_DOES_NOT_SPEAK"):
        load_model(out)


def test_refusals(run, tmp_path, capsys):
    command_refuses(
        ["export", str(run), "--role", "verifer", "--out", str(tmp_path / "a")],
        "E_NO_SUCH_ROLE_OR_POLICY: 'verifer' | 'verifier'",
        capsys,
    )
    with refuses("E_OUT_NOT_EMPTY"):
        export_policy(run, "solver", run)
    api.run(override(cooper(steps=2, warmup=1, tasks=EASY, **SMALL), BRIEF), tmp_path / "cooper")
    with refuses("E_POLICY_NOT_EXPORTABLE", names="program"):
        export_policy(tmp_path / "cooper", "corruptor", tmp_path / "b")
    assert not (tmp_path / "b").exists()


def test_a_run_that_is_not_finished_is_exported_with_a_word(run, tmp_path):
    """A run before its first checkpoint was exported as it began, and nothing said so."""
    said = []
    export_policy(run, "verifier", tmp_path / "finished", say=said.append)
    assert not any("not finished" in line for line in said)

    unfinished = shutil.copytree(run, tmp_path / "unfinished")
    (unfinished / "summary.json").unlink()
    export_policy(unfinished, "verifier", tmp_path / "a", say=said.append)
    assert "the run is not finished: verifier is that after step 2" in said
    shutil.rmtree(unfinished / "checkpoints")
    export_policy(unfinished, "verifier", tmp_path / "b", say=said.append)
    assert "the run is not finished: verifier is that after step 0" in said

    before = len(said)
    export_policy(str(TINY), "solver", tmp_path / "d", say=said.append)  # a model, which no run has to finish
    export_policy(unfinished, "reference", tmp_path / "c", say=said.append)  # which never changes
    assert not any("not finished" in line for line in said[before:])


def test_the_card_of_an_unfinished_run_claims_nothing(run, tmp_path):
    unfinished = shutil.copytree(run, tmp_path / "unfinished")
    (unfinished / "summary.json").unlink()
    exported = load_policy(unfinished, rebuild_recipe(unfinished), "verifier")
    gone = replace(exported.recipe.policies["verifier"], model="/gone/model")  # a path, and no name on the Hub
    recipe = replace(exported.recipe, policies={**exported.recipe.policies, "verifier": gone})
    text = model_card(replace(exported, recipe=recipe), "verifier", RunDirectory.open(unfinished))
    assert "nothing was measured" in text and "No alarm" not in text and "summed up at the end" in text
    assert "base_model" not in text
