"""A plan for GPUs that are not here, of models of which config.json alone is there."""

import json

import pytest
from transformers import LlamaConfig, Qwen2Config

from cotrain.cli.main import main
from cotrain.config.policies import Learning
from cotrain.models.load import load_model
from cotrain.models.sizes import model_size
from cotrain.recipes.grpo import grpo
from cotrain.recipes.tango import tango
from cotrain.runs.device_plan import memory_size, plan_devices
from cotrain.runs.memory_plan import USABLE_SHARE, estimate_run
from tests.helpers import TINY
from tests.sentences import command_refuses, refuses

GIB = 2.0**30


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Directories with a config.json and nothing else."""
    folder = tmp_path_factory.mktemp("configs")
    sizes = {"num_attention_heads": 32, "num_key_value_heads": 4, "vocab_size": 32000}
    LlamaConfig(hidden_size=2048, intermediate_size=5632, num_hidden_layers=22, **sizes).save_pretrained(folder / "1b")
    sizes = {"num_attention_heads": 15, "num_key_value_heads": 5, "vocab_size": 49152, "tie_word_embeddings": True}
    small = LlamaConfig(hidden_size=960, intermediate_size=2560, num_hidden_layers=32, **sizes)
    small.save_pretrained(folder / "350m")
    sizes = {"num_attention_heads": 28, "num_key_value_heads": 4, "vocab_size": 152064}
    large = Qwen2Config(hidden_size=3584, intermediate_size=18944, num_hidden_layers=28, **sizes)
    large.save_pretrained(folder / "7b")
    return folder


@pytest.fixture(scope="module")
def two_sizes(models):
    return estimate_run(tango(model=str(models / "1b"), verifier_model=str(models / "350m")), device="cuda", here=False)


@pytest.mark.parametrize(
    ("text", "size"),
    [("24GiB", 24 * GIB), ("80 GB", 80e9), ("1.5tib", 1536 * GIB), ("512MiB", GIB / 2)],
)
def test_sizes(text, size):
    assert memory_size(text) == size


def test_a_configuration_alone_says_the_size(models):
    size = model_size(models / "1b")
    assert size.parameters == 1_100_048_384 and size.layers == 22 and size.linear == 22 * 44_040_192
    assert model_size(models / "350m").parameters == 361_821_120  # its output layer is its embedding
    assert len(size.tokenizer("a" * 30)["input_ids"]) == 10  # three letters a token where no tokenizer is there
    with refuses("E_NO_WEIGHTS"):
        load_model(models / "1b")


def test_two_models_fit_one_large_card_as_asked_and_a_small_one_by_turns(two_sizes):
    asked, plan = plan_devices(two_sizes, [80 * GIB])
    assert asked is plan and plan.fits and plan.flags() == []
    assert plan.loads[0].policies == ("generator", "verifier", "reference")
    # By hand: weights, moments and a gradient of float32; copies in bfloat16 of all that is no embedding.
    parts, one, small = plan.loads[0].parts, 1_100_048_384, 361_821_120
    assert parts["weights"] == 4 * (2 * one + small) and parts["optimiser"] == 8 * (one + small)
    embeddings_and_norms = 32000 * 2048 + 45 * 2048
    copied = 2 * (one - embeddings_and_norms) + small - 65 * 960  # the start answers when the verifier is measured
    assert parts["copies of weights in bfloat16"] == 2 * copied

    asked, plan = plan_devices(two_sizes, [24 * GIB])
    assert not asked.fits and plan.fits and "--offload" in plan.flags()
    assert plan.loads[0].total <= USABLE_SHARE * 24 * GIB


def test_two_cards_share_the_policies(two_sizes):
    _, plan = plan_devices(two_sizes, [24 * GIB, 24 * GIB])
    assert plan.fits and "--offload" not in plan.flags()
    first, second = plan.loads
    assert {*first.policies, *second.policies} == {"generator", "verifier", "reference"} and first.policies
    assert not {"generator", "verifier"} <= set(first.policies) and not {"generator", "verifier"} <= set(
        second.policies
    )
    # of unequal ones the larger holds more
    _, plan = plan_devices(two_sizes, [16 * GIB, 80 * GIB])
    assert plan.fits and "generator" in plan.loads[1].policies


def test_two_adapters_on_a_large_model_take_four_bits(models):
    recipe = tango(model=str(models / "7b"), lora=16)
    asked, plan = plan_devices(estimate_run(recipe, device="cuda", here=False), [24 * GIB])
    assert not asked.fits and plan.fits and plan.measures == ("4 bits",)
    assert "--load-in-4bit" in plan.flags() and "--lora 16" not in plan.flags()  # which it has
    # a base stays in one place, however many devices there are
    _, plan = plan_devices(estimate_run(recipe, device="cuda", here=False), [24 * GIB] * 2)
    assert sorted(len(load.policies) for load in plan.loads) == [0, 3]

    whole = estimate_run(grpo(model=str(models / "7b")), device="cuda", here=False)
    _, plan = plan_devices(whole, [24 * GIB])
    assert plan.fits and {"adapters", "4 bits"} <= set(plan.measures)
    asked, plan = plan_devices(whole, [8 * GIB])
    assert not plan.fits and plan.fullest.share < asked.fullest.share


def test_the_flags_that_are_told_make_the_plan(models):
    """The run with these flags is estimated as the plan says."""
    _, plan = plan_devices(estimate_run(grpo(model=str(models / "1b")), device="cuda", here=False), [21 * GIB])
    assert plan.fits and plan.measures == ("offload",) and plan.rows
    assert not any("reference" in flag for flag in plan.flags())  # it answers nothing
    again = grpo(model=str(models / "1b"), offload="--offload" in plan.flags())
    from cotrain.config.override import override

    settings = [flag.removeprefix("--set ") for flag in plan.flags() if flag.startswith("--set ")]
    told = estimate_run(override(again, settings), device="cuda", here=False)
    assert told.total_memory == pytest.approx(plan.loads[0].total)
    assert any(isinstance(spec, Learning) for spec in told.recipe.policies.values())


def test_the_command_says_it_line_by_line(models, capsys):
    words = ["run", "tango", "--model", str(models / "1b"), "--verifier-model", str(models / "350m"), "--dry-run"]
    words += ["--device", "cuda", "--memory", "24GiB", "--memory", "80GiB"]
    assert main(words) == 0
    said = capsys.readouterr().out
    assert "# plan for 2 devices that need not be here:" in said and "# it fits with --set policies." in said
    assert "# cuda:0, 24.00 GiB: " in said and "# cuda:1, 80.00 GiB: " in said and "memory = [" not in said
    assert main([*words, "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)["plan"]
    assert plan["fits"] and plan["fits_as_asked"] and [d["device"] for d in plan["devices"]] == ["cuda:0", "cuda:1"]


def test_a_plan_for_a_second_model_of_which_config_json_alone_is_there(models, capsys):
    """Whether both have one tokenizer is seen once they are there."""
    words = ["run", "distill", "--teacher", str(models / "350m"), "--dry-run", "--device", "cuda", "--memory", "24GiB"]
    assert main(words) == 0
    assert f'teacher = "{models / "350m"}"' in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "code"),
    [
        (["--dry-run", "--memory", "24"], "E_MEMORY_SIZE: --memory '24' | 24GiB"),
        (["--dry-run", "--memory", "0GiB"], "E_MEMORY_SIZE: --memory '0GiB'"),
        (["--out", "x", "--memory", "24GiB"], "E_MEMORY_WITHOUT_DRY_RUN: --dry-run --device cuda"),
        (["--dry-run", "--device", "cpu", "--memory", "24GiB"], "E_MEMORY_WITHOUT_DRY_RUN: --dry-run --device cuda"),
    ],
    ids=["unit", "zero", "run", "cpu"],
)
def test_what_is_no_plan_is_one_line(flags, code, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    command_refuses(["run", "grpo", "--model", TINY, *flags], code, capsys)


def test_a_device_that_is_not_here_is_refused_without_a_size():
    with refuses("E_MEMORY_SIZE"):
        memory_size("much")
