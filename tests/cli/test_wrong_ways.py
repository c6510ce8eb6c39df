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
from tests.sentences import command_refuses, refuses

ROWS = "".join(json.dumps({"question": f"What is {n} + 4?", "answer": str(n + 4)}) + "\n" for n in range(40))
SMALL = ["--steps", "1", "--tasks-per-step", "2", "--group-size", "2", "--evaluation-tasks", "2", "--threads", "1"]


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("data.jsonl").write_text(ROWS)
    torch.set_num_threads(1)
    return tmp_path


def fails(capsys, code, *words):
    """The line of a command that must fail with this code, and leave nothing behind."""
    line = command_refuses(words, code, capsys)
    assert not Path("out").exists() or not any(Path("out").iterdir())
    return line


def run(capsys, code, *words):
    return fails(capsys, code, "run", "grpo", "--data", "data.jsonl", "--out", "out", *SMALL, *words)


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
    model = other(place, template=False, scale=0.0)
    code = "E_FORMAT_NOT_FOUND: no chat template | cotrain teach solver"
    run(capsys, code, "--model", model, "--set", "roles.solver.sampling.max_tokens=8")


@pytest.mark.whole
def test_a_model_that_never_stops(place, capsys):
    code = "E_FORMAT_NOT_FOUND: 8 of 8 answers were cut off | --max-tokens N"
    run(capsys, code, "--model", other(place, scale=0.0), "--set", "roles.solver.sampling.max_tokens=8")


def test_a_reward_model_as_a_solver(place, capsys):
    code = "E_MODEL_DOES_NOT_SPEAK: 'shipped-rater' | --rm-model"
    run(capsys, code, "--model", "shipped-rater")
    fails(capsys, code, "eval", "shipped-rater", "--suite", "gsm8k", "--data", "data.jsonl", "--out", "out")


def test_a_data_file_with_other_columns(place, capsys):
    Path("data.jsonl").write_text('{"ask": "What is 1 + 1?", "gold": "2"}\n' * 30)
    line = run(capsys, "E_FIELD_MISSING: row 1 | 'ask' | 'question'", "--model", TINY)
    assert "--lenient" not in line  # all rows are so


@pytest.mark.whole
def test_a_context_that_is_too_short(place, capsys):
    named = "max_tokens 4000 | context of 1024 | --max-tokens N"
    words = ["--model", TINY, "--set", "roles.solver.sampling.max_tokens=4000"]
    run(capsys, f"E_PROMPT_TOO_LONG: {named}", *words)
    run(capsys, f"E_CONTEXT_TOO_SHORT: {named}", *words, "--dry-run")


def test_a_dry_run_refuses_two_bases_in_one(place, capsys):
    code = "E_BASE_SHARED_UNLIKE: 'generator' | policies.reference.dtype=bfloat16"
    run(capsys, code, "--model", TINY, "--lora", "4", "--set", "policies.generator.dtype=bfloat16", "--dry-run")


def test_a_directory_that_holds_no_model(place, capsys):
    (place / "empty").mkdir()
    run(capsys, "E_NO_MODEL_CONFIG: 'empty'", "--model", "./empty")
    run(capsys, "E_MODEL_NOT_FOUND: './modle'", "--model", "./modle")
    fails(capsys, "E_NOT_RUN_DIRECTORY: modle", "eval", "./modle")


def test_an_adapter_without_its_base(place, capsys):
    folder = place / "adapter"
    folder.mkdir()
    (folder / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": "Qwen/Qwen3-0.6B"}))
    expected = "E_ADAPTER_WITHOUT_BASE: 'Qwen/Qwen3-0.6B' | --merged"
    run(capsys, expected, "--model", folder)
    suite = ("--suite", "jsonl", "--data", "data.jsonl")
    for command in ("chat", "serve", "eval", "attack", "xplay", "resume", "why"):
        fails(capsys, expected, command, folder)
    fails(capsys, expected, "eval", folder, *suite)
    fails(capsys, expected, "export", folder, "--role", "solver", "--out", "exported")


def test_a_file_of_another_suite(place, capsys):
    words = ["eval", TINY, "--suite", "processbench", "--data", "data.jsonl", "--out", "out"]
    fails(capsys, "E_FIELD_MISSING: row 1 | 'problem' | --data processbench=PATH", *words)
    sample = {"id": "gsm8k-0", "problem": "What is 1 + 1?", "steps": ["It is 2."], "label": -1}
    Path("judged.jsonl").write_text(json.dumps(sample) + "\n")
    words = ["eval", TINY, "--suite", "gsm8k", "--data", "judged.jsonl", "--out", "out"]
    fails(capsys, "E_FIELD_MISSING: row 1 | 'answer' | --data gsm8k=PATH", *words)
    fails(capsys, "E_UNKNOWN_SUITE: 'gsm8' | 'gsm8k'", "eval", TINY, "--suite", "gsm8")


def test_an_empty_file(place, capsys):
    Path("data.jsonl").write_text("")
    run(capsys, "E_DATA_EMPTY: data.jsonl", "--model", TINY)


def test_damaged_weights(place, capsys):
    folder = other(place)
    whole = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(whole[: len(whole) // 2])
    run(capsys, f"E_WEIGHTS_DAMAGED: '{folder}' | model.safetensors", "--model", folder)
    run(capsys, f"E_WEIGHTS_DAMAGED: '{folder}' | model.safetensors", "--model", folder, "--dry-run")


def test_answers_in_a_format_that_there_is_not(place, capsys):
    run(capsys, "E_UNKNOWN_FORMAT: 'last_number' | 'last-number'", "--model", TINY, "--answer-format", "last_number")


def test_figures_of_a_split_with_the_flags_of_a_suite(place, capsys):
    fails(capsys, "E_COMMAND_LINE: --reviews | --suite", "eval", TINY, "--reviews", "4")
    fails(capsys, "E_COMMAND_LINE: --samples K | at least 1", "eval", TINY, "--samples", "0")
    fails(capsys, "E_COMMAND_LINE: --samples K | --solver", "eval", TINY, "--solver", "solver")
    fails(capsys, "E_COMMAND_LINE: --temperature | --suite", "eval", TINY, "--temperature", "0")
    fails(capsys, "E_COMMAND_LINE: --step | --suite core", "eval", TINY, "--suite", "core", "--step", "0")
    fails(capsys, "E_STEP_OF_A_MODEL: --step 0", "eval", TINY, "--suite", "gsm8k", "--step", "0")


def test_flags_of_a_suite_that_nothing_would_use(place, capsys):
    words = ["eval", TINY, "--suite", "jsonl", "--data", "data.jsonl", "--out", "out"]
    fails(capsys, "E_SUITE_OPTION_UNUSED: --reviews 4 | --verdict", *words, "--reviews", "4")
    fails(capsys, "E_SUITE_OPTION_UNUSED: --temperature 0.5", *words, "--samples", "0", "--temperature", "0.5")
    judged = ["eval", TINY, "--suite", "processbench", "--data", "data.jsonl"]
    fails(capsys, "E_COMMAND_LINE: --samples | processbench", *judged, "--samples", "8")
    fails(capsys, "E_COMMAND_LINE: --max-tokens | processbench", *judged, "--max-tokens", "8")


def test_flags_of_a_rate_that_nobody_chooses_are_named(place, capsys):
    words = ["compare", "gropo", "--out", "compared", "--measure", "solver/greedy", "--rate-seeds", "2"]
    assert main(words) == 2
    told = capsys.readouterr().err
    assert "--measure is about" in told and "--rate-seeds is about" in told


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
    line = run(capsys, f"E_DATA_LAYOUT_NOT_PLAIN: {layout} | 'question' and 'answer' | cotrain teach solver --data")
    assert "did you mean" not in line


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
            code = f"E_NOT_RUN_DIRECTORY: {given} | {found}"
            if (command[0], given) == ("why", "data.jsonl"):  # it may be the rollouts of another trainer
                code = "E_RESPONSE_COLUMN: data.jsonl | question, answer"
            fails(capsys, code, command[0], given, *command[1:])
    fails(capsys, "E_NOT_RUN_DIRECTORY: empty", "diff", "empty", "empty")


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
    line = fails(capsys, "E_NO_SUCH_CHECKPOINT: step 9", "eval", finished, "--step", "9")
    assert line.endswith(": 1")  # the steps that there are
    fails(capsys, "E_NO_SUCH_CHECKPOINT: step 9", "eval", finished, "--step", "9", "--suite", "jsonl")


@pytest.mark.parametrize("recipe", ["grpo", "grpo --outcome-noise 0.2", "tango", "judged"])
def test_one_answer_alone_cannot_be_compared_and_is_refused_before_anything_is_measured(place, capsys, recipe):
    words = ["run", *recipe.split(), "--model", TINY, "--group-size", "1", "--out", "out"]
    fails(capsys, "E_GROUP_TOO_SMALL: at least 2 | group_size is 1", *words)


def test_sizes_of_a_stage_that_do_not_fit(place, capsys):
    words = ["sft", "--model", TINY, "--tokens", "100", "--out", "out"]
    fails(capsys, "E_LENGTHS_ORDER: length 512, batch_tokens 8192, tokens 100 | --tokens", *words)
    words = ["pretrain", "--tokenizer", TINY, "--width", "33", "--tokens", "99999", "--out", "out"]
    fails(capsys, "E_MODEL_SIZES: width 33 | 4 heads | multiple of 8", *words)


@pytest.mark.parametrize("command", ["tokenizer", "pretrain", "sft", "teach solver", "demo", "attack run"])
def test_a_negative_seed(place, capsys, command):
    fails(capsys, "E_COMMAND_LINE: --seed: '-1' | at least 0", *command.split(), "--seed", "-1")


@pytest.mark.parametrize(
    "words",
    ["compare grpo --rates= --out out", "compare grpo --out=", "run grpo --out=", "export a --out= --role b"],
)
def test_nothing_in_the_place_of_a_value(place, capsys, words):
    fails(capsys, "E_COMMAND_LINE: expected a value, found ''", *words.split())
    fails(capsys, "E_COMMAND_LINE: argument DIR | ''", "view", "")


@pytest.mark.parametrize("out", ["link", "link/below"])
@pytest.mark.parametrize("command", ["run grpo --smoke", "compare grpo", "export finished --role solver", "demo"])
def test_a_link_to_nothing_to_write_to(place, capsys, command, out):
    Path("link").symlink_to("gone")
    words = [*command.split(), "--out", out]
    assert main(words) == 2 and not capsys.readouterr().out
    fails(capsys, "E_COMMAND_LINE: --out | link is a symbolic link to gone", *words)


def test_a_run_that_is_refused_names_no_page(place, capsys):
    adapter = ["--lora", "4", "--set", "policies.generator.lora.targets=['nothing']"]
    assert main(["run", "grpo", "--model", TINY, "--data", "data.jsonl", "--out", "out", *SMALL, *adapter]) == 2
    said = capsys.readouterr()
    assert "watch it" not in said.out
    words = ["run", "grpo", "--model", TINY, "--data", "data.jsonl", "--out", "out", *SMALL, *adapter]
    command_refuses(words, "E_ADAPTER_NOT_MADE: 'generator'", capsys)


def test_a_comparison_that_cannot_begin_names_no_page(place, capsys):
    assert main(["compare", "grpo", "grpo:bogus=1", "--out", "out"]) == 2
    assert not capsys.readouterr().out
    command_refuses(["compare", "grpo", "grpo:bogus=1", "--out", "out"], "E_UNKNOWN_PARAMETER: 'bogus'", capsys)


@pytest.mark.whole
def test_the_plan_of_a_study_as_json(place, capsys):
    assert main(["study", "ceiling", "--dry-run", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["study"].endswith("ceiling.toml") and any("test problems" in line for line in plan["lines"])


FULL_DISK = """
import resource, signal, sys
import torch, transformers  # before the disk is full
from cotrain.cli.main import main
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
    assert done.returncode == 2 and "file too large" in line  # as the system calls it
    assert not Path("out").exists() and not any("out" in path.name for path in Path().iterdir())


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
    command_refuses([*words[:4], "--smoke", "--dry-run"], "E_CONFIG: no problems are named", capsys)


@pytest.mark.parametrize(
    ("family", "sizes", "named"),
    [
        ("bloom", {"hidden_size": 32, "n_layer": 2, "n_head": 4}, "max_position_embeddings"),
        (
            "gpt_neo",
            {"hidden_size": 32, "num_layers": 2, "num_heads": 4, "attention_types": [[["global", "local"], 1]]},
            "off by",
        ),
    ],
    ids=["bloom", "gpt-neo"],
)
def test_a_dry_run_refuses_what_the_engine_would(tmp_path, capsys, family, sizes, named):
    """It ended with 0, and the run that followed was refused."""
    tokenizer = load_tokenizer(TINY)
    config = AutoConfig.for_model(family, **sizes, vocab_size=len(tokenizer), eos_token_id=tokenizer.eos_token_id)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    words = ["run", "grpo", "--model", tmp_path / "model", "--dry-run"]
    command_refuses(words, f"E_MODEL_NOT_DECODABLE: 'generator' | {named}", capsys)


@pytest.mark.parametrize(
    ("command", "setting", "code"),
    [
        ("run", "lr=3", "E_NO_SUCH_SETTING: `--lr 3`"),
        ("run", "checkpoints.every=2", "E_NO_SUCH_SETTING: `--checkpoint-every 2`"),
        ("run", "mask_truncated=true", "E_NO_SUCH_SETTING: `--mask-truncated`"),
        ("run", "policies.generator.lrr=3", "E_NO_SUCH_FIELD: 'lrr' | 'lr'"),
        ("compare", "lr=3", "E_NO_SUCH_SETTING: RECIPE:lr=3"),
        ("compare", "checkpoints.every=2", "E_NO_SUCH_SETTING: `--checkpoint-every 2`"),
    ],
    ids=["lr", "every", "switch", "field", "arm", "compared"],
)
def test_a_setting_that_is_a_flag_says_which(command, setting, code, tmp_path, capsys):
    command_refuses([command, "grpo", "--out", tmp_path / "x", "--set", setting], code, capsys)
