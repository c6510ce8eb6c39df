"""Wrong ways to call it: each is told in one line that names the flag that helps, and ends with code 2."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

from cotrain import api
from cotrain.cli.main import main
from cotrain.models.load import load_tokenizer
from cotrain.rollout.common_roles import FORMAT_MARK
from tests.helpers import TINY
from tests.sentences import refuses

ROWS = "".join(json.dumps({"question": f"What is {n} + 4?", "answer": str(n + 4)}) + "\n" for n in range(40))
SMALL = ["--steps", "1", "--tasks-per-step", "2", "--group-size", "2", "--evaluation-tasks", "2", "--threads", "1"]


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("data.jsonl").write_text(ROWS)
    torch.set_num_threads(1)
    return tmp_path


def fails(capsys, *words):
    """The one line of a command that must fail, and leave nothing behind."""
    assert main([*map(str, words)]) == 2, capsys.readouterr()
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1, lines
    assert not Path("out").exists() or not any(Path("out").iterdir())
    return lines[0]


def run(capsys, *words):
    return fails(capsys, "run", "grpo", "--data", "data.jsonl", "--out", "out", *SMALL, *words)


def other(place, *, template=True, scale=1.0, **config):
    """A model that nobody knows, made of the tiny one."""
    folder = place / "model"
    shutil.copytree(TINY, folder)
    (folder / FORMAT_MARK).unlink()
    if not template:
        (folder / "chat_template.jinja").unlink()
    if config:
        path = folder / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | config))
    if scale != 1.0:
        weights = {name: tensor * scale for name, tensor in load_file(folder / "model.safetensors").items()}
        save_file(weights, folder / "model.safetensors", {"format": "pt"})
    return folder


@pytest.mark.whole
def test_a_base_model_without_a_template(place, capsys):
    line = run(
        capsys, "--model", other(place, template=False, scale=0.0), "--set", "roles.solver.sampling.max_tokens=8"
    )
    assert "no chat template" in line and "cotrain teach solver" in line


@pytest.mark.whole
def test_a_model_that_never_stops(place, capsys):
    line = run(capsys, "--model", other(place, scale=0.0), "--set", "roles.solver.sampling.max_tokens=8")
    assert "8 of 8 answers were cut off" in line and "--max-tokens N" in line


def test_a_reward_model_as_a_solver(place, capsys):
    assert "scores and does not speak" in run(capsys, "--model", "shipped-rater")
    assert "--rm-model" in fails(
        capsys, "eval", "shipped-rater", "--suite", "gsm8k", "--data", "data.jsonl", "--out", "out"
    )


def test_a_data_file_with_other_columns(place, capsys):
    Path("data.jsonl").write_text('{"ask": "What is 1 + 1?", "gold": "2"}\n' * 30)
    line = run(capsys, "--model", TINY)
    assert "row 1" in line and "ask" in line and "question" in line and "--lenient" not in line  # all rows are so


@pytest.mark.whole
def test_a_context_that_is_too_short(place, capsys):
    line = run(capsys, "--model", TINY, "--set", "roles.solver.sampling.max_tokens=4000")
    assert "exceed the context of" in line and "--max-tokens N" in line
    line = run(capsys, "--model", TINY, "--set", "roles.solver.sampling.max_tokens=4000", "--dry-run")
    assert "exceed the context of" in line and "--max-tokens N" in line


def test_a_dry_run_refuses_two_bases_in_one(place, capsys):
    line = run(capsys, "--model", TINY, "--lora", "4", "--set", "policies.generator.dtype=bfloat16", "--dry-run")
    assert "share the base" in line and "set policies.reference.dtype=bfloat16 too" in line


def test_a_directory_that_holds_no_model(place, capsys):
    (place / "empty").mkdir()
    assert "no config.json" in run(capsys, "--model", "./empty")
    assert "no such directory" in run(capsys, "--model", "./modle")
    assert "is not a run directory" in fails(capsys, "eval", "./modle")


def test_an_adapter_without_its_base(place, capsys):
    folder = place / "adapter"
    folder.mkdir()
    (folder / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": "Qwen/Qwen3-0.6B"}))
    line = run(capsys, "--model", folder)
    assert "an adapter without its base 'Qwen/Qwen3-0.6B'" in line and "--merged" in line


def test_a_file_of_another_suite(place, capsys):
    line = fails(capsys, "eval", TINY, "--suite", "processbench", "--data", "data.jsonl", "--out", "out")
    assert "row 1" in line and "--data processbench=PATH" in line
    sample = {"id": "gsm8k-0", "problem": "What is 1 + 1?", "steps": ["It is 2."], "label": -1}
    Path("judged.jsonl").write_text(json.dumps(sample) + "\n")
    line = fails(capsys, "eval", TINY, "--suite", "gsm8k", "--data", "judged.jsonl", "--out", "out")
    assert "row 1" in line and "--data gsm8k=PATH" in line
    assert "unknown suite 'gsm8'; did you mean 'gsm8k'" in fails(capsys, "eval", TINY, "--suite", "gsm8")


def test_an_empty_file(place, capsys):
    Path("data.jsonl").write_text("")
    assert "data.jsonl" in (line := run(capsys, "--model", TINY)) and "no rows" in line


def test_damaged_weights(place, capsys):
    folder = other(place)
    whole = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(whole[: len(whole) // 2])
    assert "cut short or damaged" in run(capsys, "--model", folder)
    assert "cut short or damaged" in run(capsys, "--model", folder, "--dry-run")


def test_answers_in_a_format_that_there_is_not(place, capsys):
    assert "did you mean 'last-number'" in run(capsys, "--model", TINY, "--answer-format", "last_number")


def test_figures_of_a_split_with_the_flags_of_a_suite(place, capsys):
    assert "--reviews goes with --suite" in fails(capsys, "eval", TINY, "--reviews", "4")
    assert "--samples K of a run is at least 1" in fails(capsys, "eval", TINY, "--samples", "0")
    assert "--solver goes with it" in fails(capsys, "eval", TINY, "--solver", "solver")
    assert "--step does not go with --suite" in fails(capsys, "eval", TINY, "--suite", "gsm8k", "--step", "1")


@pytest.mark.parametrize(
    ("layout", "row"),
    [
        ("prompt and completion", {"prompt": "What is 2 + 3?", "completion": "2 + 3 = 5\n#### 5"}),
        ("ShareGPT", {"conversations": [{"from": "human", "value": "Q?"}, {"from": "gpt", "value": "#### 5"}]}),
        ("messages", {"messages": [{"role": "user", "content": "Q?"}, {"role": "assistant", "content": "#### 5"}]}),
    ],
)
def test_rows_for_fine_tuning(place, capsys, layout, row):
    Path("data.jsonl").write_text("".join(json.dumps(row) + "\n" for _ in range(9)))
    line = run(capsys)
    assert f"the layout is {layout}" in line and "'question' and 'answer'" in line
    assert "cotrain teach solver --data" in line and "did you mean" not in line


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run of one step."""
    out = tmp_path_factory.mktemp("finished") / "run"
    torch.set_num_threads(1)
    assert main(["run", "grpo", "--model", TINY, "--kl", "0", "--smoke", *SMALL, "--out", str(out)]) == 0
    return out


def test_what_is_no_run_is_told_alike_by_every_command_that_reads_one(place, capsys):
    Path("empty").mkdir()
    for command in (
        ["resume"],
        ["report"],
        ["top"],
        ["why", "0:0:0"],
        ["eval"],
        ["export", "--role", "r", "--out", "o"],
    ):
        for given, found in (("empty", "no recipe.json in it"), ("data.jsonl", "a file"), ("no", "no such directory")):
            line = fails(capsys, command[0], given, *command[1:])
            if (command[0], given) == ("why", "data.jsonl"):  # it may be the rollouts of another trainer
                assert "data.jsonl: no column of responses among question, answer; " in line, line
            else:
                assert f"{given} is not a run directory ({found}); start one with" in line, line
    assert "empty is not a run directory" in fails(capsys, "diff", "empty", "empty")


@pytest.mark.whole
def test_a_tilde_that_the_shell_left_is_the_home_directory_and_no_folder_of_that_name(place, monkeypatch):
    (home := place / "home").mkdir()
    monkeypatch.setenv("HOME", str(home))
    Path("rows.jsonl").write_text(ROWS + '{"question": "What?"}\n')
    assert main(["check", "data", "rows.jsonl", "--quarantine=~/aside.jsonl"]) == 1
    assert (home / "aside.jsonl").exists() and not Path("~").exists()
    for begun in (api.report, api.resume):
        with refuses("E_NOT_RUN_DIRECTORY", names=str(home / "run")):
            begun("~/run")


def test_a_step_without_a_checkpoint(place, finished, capsys):
    line = fails(capsys, "eval", finished, "--step", "9")
    assert "no whole checkpoint of step 9" in line and line.endswith("there are: 1")


@pytest.mark.parametrize("recipe", ["grpo", "grpo --outcome-noise 0.2", "tango", "judged"])
def test_one_answer_alone_cannot_be_compared_and_is_refused_before_anything_is_measured(place, capsys, recipe):
    line = fails(capsys, "run", *recipe.split(), "--model", TINY, "--group-size", "1", "--out", "out")
    assert "compares at least 2 answers to a problem, and group_size is 1" in line


def test_sizes_of_a_stage_that_do_not_fit(place, capsys):
    line = fails(capsys, "sft", "--model", TINY, "--tokens", "100", "--out", "out")
    assert "length 512, batch_tokens 8192, tokens 100" in line and "raise --tokens" in line
    line = fails(capsys, "pretrain", "--tokenizer", TINY, "--width", "33", "--tokens", "99999", "--out", "out")
    assert "choose a multiple of" in line


@pytest.mark.parametrize("command", ["tokenizer", "pretrain", "sft", "teach solver", "demo", "attack run"])
def test_a_negative_seed(place, capsys, command):
    assert "--seed: '-1' is too small, expected at least 0" in fails(capsys, *command.split(), "--seed", "-1")


@pytest.mark.parametrize(
    "words",
    ["compare grpo --rates= --out out", "compare grpo --out=", "run grpo --out=", "export a --out= --role b"],
)
def test_nothing_in_the_place_of_a_value(place, capsys, words):
    assert "expected a value, found ''; see `cotrain" in fails(capsys, *words.split())
    assert "argument DIR: expected a value" in fails(capsys, "view", "")


@pytest.mark.parametrize("out", ["link", "link/below"])
@pytest.mark.parametrize("command", ["run grpo --smoke", "compare grpo", "export finished --role solver", "demo"])
def test_a_link_to_nothing_to_write_to(place, capsys, command, out):
    Path("link").symlink_to("gone")
    assert "link is a symbolic link to gone, which is not there" in fails(capsys, *command.split(), "--out", out)
    assert not capsys.readouterr().out


def test_a_run_that_is_refused_names_no_page(place, capsys):
    adapter = ["--lora", "4", "--set", "policies.generator.lora.targets=['nothing']"]
    assert main(["run", "grpo", "--model", TINY, "--data", "data.jsonl", "--out", "out", *SMALL, *adapter]) == 2
    said = capsys.readouterr()
    assert "adapter of policy" in said.err and "watch it" not in said.out


def test_a_comparison_that_cannot_begin_names_no_page(place, capsys):
    assert main(["compare", "grpo", "grpo:bogus=1", "--out", "out"]) == 2
    said = capsys.readouterr()
    assert "unknown parameter of grpo 'bogus'" in said.err and not said.out


@pytest.mark.whole
def test_the_plan_of_a_study_as_json(place, capsys):
    assert main(["study", "ceiling", "--dry-run", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["study"].endswith("ceiling.toml") and any("test problems" in line for line in plan["lines"])


FULL_DISK = """
import resource, signal, sys
import torch, transformers  # before the disk is full
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.whole
@pytest.mark.parametrize("words", ["export MODEL --role solver --out out", "tokenizer --out out --data data.jsonl"])
def test_a_disk_that_is_full_leaves_no_half_of_a_model(place, words):
    """The libraries in Rust tell it in errors of their own."""
    Path("data.jsonl").write_text('{"text": "some words, and others"}\n' * 40)
    command = [sys.executable, "-c", FULL_DISK, *words.replace("MODEL", str(TINY)).split()]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    (line,) = done.stderr.strip().splitlines()
    assert done.returncode == 2 and line == "cotrain: file too large; choose another place, or mend this one"
    assert not any(Path("out").iterdir())


def test_a_trial_of_a_recipe_that_cannot_be_without_its_problems(tmp_path, capsys):
    """As that of environments, which asked for the problems that were named."""
    (tmp_path / "mine.py").write_text(
        "from dataclasses import replace\n"
        "from cotrain import ConfigError, Recipe, RunConfig, recipe\n"
        "from cotrain.recipes.grpo import grpo\n\n"
        "@recipe(steps=3)\n"
        "def mine(run: RunConfig) -> Recipe:\n"
        "    if run.tasks is None or run.tasks.describe()['kind'] != 'jsonl':\n"
        "        raise ConfigError('mine: no problems are named')\n"
        "    return replace(grpo(**run.values()), name='mine')\n"
    )
    rows = "".join(json.dumps({"question": f"{i} + {i} = ?", "answer": str(2 * i)}) + "\n" for i in range(60))
    (tmp_path / "sums.jsonl").write_text(rows)
    words = ["run", f"{tmp_path}/mine.py:mine", "--model", TINY, "--data", str(tmp_path / "sums.jsonl")]
    assert main([*words, "--smoke", "--dry-run"]) == 0
    assert "note: --smoke: 2 steps of 2 problems" in capsys.readouterr().out
    assert main([*words[:4], "--smoke", "--dry-run"]) == 2
    assert "mine: no problems are named" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("family", "sizes", "why"),
    [
        ("bloom", {"hidden_size": 32, "n_layer": 2, "n_head": 4}, "no max_position_embeddings"),
        (
            "gpt_neo",
            {"hidden_size": 32, "num_layers": 2, "num_heads": 4, "attention_types": [[["global", "local"], 1]]},
            "off by",
        ),
    ],
    ids=["bloom", "gpt-neo"],
)
def test_a_dry_run_refuses_what_the_engine_would(tmp_path, capsys, family, sizes, why):
    """It ended with 0, and the run that followed was refused."""
    tokenizer = load_tokenizer(TINY)
    config = AutoConfig.for_model(family, **sizes, vocab_size=len(tokenizer), eos_token_id=tokenizer.eos_token_id)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    assert main(["run", "grpo", "--model", str(tmp_path / "model"), "--dry-run"]) == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("cotrain: ")]
    assert "the local engine cannot run" in line and why in line


@pytest.mark.parametrize(
    ("command", "setting", "meant"),
    [
        ("run", "lr=3", "did you mean the flag `--lr 3`"),
        ("run", "checkpoints.every=2", "did you mean the flag `--checkpoint-every 2`"),
        ("run", "mask_truncated=true", "did you mean the flag `--mask-truncated`"),
        ("run", "policies.generator.lrr=3", "unknown field of Trained 'lrr'; did you mean 'lr'"),
        ("compare", "lr=3", "give it to an arm, as in RECIPE:lr=3"),
        ("compare", "checkpoints.every=2", "did you mean the flag `--checkpoint-every 2`"),
    ],
    ids=["lr", "every", "switch", "field", "arm", "compared"],
)
def test_a_setting_that_is_a_flag_says_which(command, setting, meant, tmp_path, capsys):
    assert main([command, "grpo", "--out", str(tmp_path / "x"), "--set", setting]) == 2
    assert meant in capsys.readouterr().err
