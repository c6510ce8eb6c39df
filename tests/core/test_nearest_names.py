"""A name that nobody has is answered with the one that was meant, or with none: words that are far from it do not
help."""

import pytest

from cotrain.config.registry import find_recipe
from cotrain.core.errors import SHOWN, UnknownName, unknown_message
from cotrain.core.nearest_names import current_name, nearest_file, nearest_name
from cotrain.data.row_files import lines_of
from tests.sentences import command_refuses, refuses

FLAGS = (
    *("group-size", "lr", "max-tokens", "no-offload", "no-balance", "out", "seed", "steps", "temperature"),
    *("answer-format", "evaluation-tasks", "review-format"),
)


@pytest.mark.parametrize(
    "given, meant",
    [
        ("nosuchflag", None),
        ("no-such-flag", None),
        ("frobnicate", None),
        ("x", None),
        ("stesp", "steps"),
        ("rl", "lr"),
        ("STEPS", "steps"),
        ("max_token", "max-tokens"),
        ("temp", "temperature"),
        ("size", "group-size"),
        ("no-ofload", "no-offload"),
        ("anwser-format", "answer-format"),
        ("anwser", "answer-format"),
        ("answer_column", None),
        ("evalutaion", "evaluation-tasks"),
        ("judge", "review-format"),
        ("jduge", "review-format"),
        ("tsk", None),
    ],
)
def test_name_that_was_meant(given, meant):
    assert nearest_name(given, FLAGS) == meant


def test_a_figure_that_is_nobodys_is_meant_by_one_of_somebody():
    """Of the unknown figure "verifier/gap" it was said that "verifier/mcc" was meant."""
    assert nearest_name("verifier/gap", ["gap", "verifier/mcc", "solver/pass@1"]) == "gap"


def test_name_of_before_is_the_one_of_today_where_that_is_known():
    assert current_name("judge", FLAGS) == "review-format"
    assert current_name("judge", ("judge", "review_format")) is None  # a name that is known stays what it is
    assert current_name("judge", ("seed",)) is None
    assert current_name("embedded", ("local", "vllm")) == "local"
    assert current_name("embedded", ("shipped", "shipped-habits")) == "shipped"
    said = str(UnknownName("steps_judged_by of grpo", "nobody", ("none", "oracle")))
    assert said == "unknown steps_judged_by of grpo 'nobody'; it is called 'none' now (there are: none, oracle)"


@pytest.mark.parametrize(
    ("recipe", "before", "today"),
    [
        ("alphaproof", "among", "target_split"),
        ("constitutional", "learned", "sft_on"),
        ("cooper", "overlooked", "false_negative_rate"),
        ("debate", "by", "algorithm"),
        ("debate", "over", "overlong_penalty"),
        ("distill", "pull", "teacher_kl"),
        ("mae", "shown", "example_rate"),
        ("marti", "over", "history"),
        ("marti", "still", "frozen_agent"),
    ],
)
def test_setting_of_a_recipe_that_was_renamed(recipe, before, today):
    assert current_name(before, find_recipe(recipe).parameters) == today


def test_ending_that_all_files_share_makes_none_near():
    files = ["sums.jsonl", "train.jsonl", "notes.md"]
    assert nearest_file("nosuch.jsonl", files) is None
    assert nearest_file("trian.jsonl", files) == nearest_file("train.json", files) == "train.jsonl"


def test_only_a_long_list_of_names_is_cut_and_says_by_how_many():
    names = [f"name-{n:03}" for n in range(SHOWN + 2)]
    whole, cut = unknown_message("task", "x", names[:SHOWN]), unknown_message("task", "x", names)
    assert names[SHOWN - 1] in whole and "more" not in whole
    assert names[SHOWN] not in cut and "2 more" in cut


def test_missing_file_names_no_other_one(tmp_path):
    (tmp_path / "sums.jsonl").write_text("{}\n")
    with refuses("E_DATA_FILE_MISSING"):
        next(lines_of(tmp_path / "nosuch.jsonl"))
    with refuses("E_DATA_FILE_MISSING", names="'sums.jsonl'"):
        next(lines_of(tmp_path / "sum.jsonl"))


def test_a_missing_data_file_is_not_taken_for_a_program(tmp_path):
    """`--data nofile.csv` was answered with "did you mean 'my_file.py'?"."""
    (tmp_path / "my_file.py").write_text("")
    with refuses("E_DATA_FILE_MISSING") as refused:
        next(lines_of(tmp_path / "nofile.csv"))
    assert "my_file.py" not in str(refused.value)


def test_unknown_recipe_lists_all_of_them():
    from cotrain.config.registry import recipe_names

    said = str(UnknownName("recipe", "nosuch", recipe_names()))
    assert "did you mean" not in said and "more)" not in said and all(name in said for name in recipe_names())


MISTYPED = {  # command line → flag that was meant; what the command requires is left out, so that it could be missed
    "run tango --anwser-format boxed": "--answer-format",
    "run tango --anwser boxed": "--answer-format",
    "run tango --stesp 3": "--steps",
    "run tango --judge steps": "--review-format",
    "run tango steps=3": "--steps=3",
    "compare --sedes 3": "--seeds",
    "study --wrokers 3": "--workers",
    "eval --splt test": "--split",
    "export --rle solver": "--role",
    "push --prvate": "--private",
    "convert --tokenzer x": "--tokenizer",
    "serve --prot 3": "--port",
    "view --prot=3": "--port",
    "chat --onec=What": "--once",
    "top --onec": "--once",
    "why --jsno": "--json",
    "diff --rolout 1:2:3": "--rollout",
    "audit --jduge x": "--judge",
    "attack --fixd": "--fixed",
    "xplay --evry 3": "--every",
    "check data --shcema x": "--schema",
    "tokenizer --vocabsize 5": "--vocab-size",
    "pretrain --detph 3": "--depth",
    "sft --modl m": "--model",
    "teach solver --smaples 3": "--samples",
    "teach verifier --reveiws 3": "--reviews",
    "paraphrase --dta x": "--data",
    "resume --thraeds 3": "--threads",
    "demo --sed 3": "--seed",
    "doctor --devcie cpu": "--device",
    "list --jsno": "--json",
}


@pytest.mark.parametrize("words", MISTYPED, ids=lambda words: words.split(" --")[0].replace(" ", "-"))
def test_every_command_names_the_flag_that_was_meant(words, capsys):
    command_refuses(words.split(), f"E_COMMAND_LINE: did you mean {MISTYPED[words]}?", capsys)


CHOICES = {  # command line → value that was meant, of a flag or an argument with a fixed list
    "run grpo --backend rya": "ray",
    "run grpo --engine vlm": "vllm",
    "run grpo --engine embedded": "local",
    "run grpo --log-level wraning": "warning",
    "export x --role solver --to nanochta": "nanochat",
    "convert nanochta": "nanochat",
    "teach verifier --review-format genr": "genrm",
    "pretrain --kind lama": "llama",
    "sft --optimizer admw": "adamw",
}


@pytest.mark.parametrize("words", CHOICES, ids=lambda words: words.split()[-1])
def test_a_flag_with_choices_names_the_one_that_was_meant(words, capsys):
    command_refuses([*words.split(), "--out", "o"], f"E_COMMAND_LINE: '{CHOICES[words]}'", capsys)


OTHER_VALUES = [
    ("run grpo --device cdua", "E_DEVICE_NAME: did you mean 'cuda'?"),
    ("run grpo --device gpu", "E_DEVICE_NAME: did you mean 'cuda'?"),
    ("run grpo --labelled anwsers", "E_UNKNOWN_TASK_SOURCE: 'answers'"),
    ("run grpo --tasks wrods:2-3", "E_UNKNOWN_TASK_SOURCE: 'words'"),
    ("run grpo --steps-judged-by nobody", "E_UNKNOWN_CHOICE: it is called 'none' now"),
    ("run grpo --set objectives.generator.by.kl.weight=0", "E_NO_SUCH_FIELD: it is called 'algorithm' now"),
    ("run grpo --set roles.slover.policy=a", "E_NO_SUCH_KEY: did you mean 'solver'?"),
    ("run grpo --set answer=boxed", "E_NO_SUCH_SETTING: `--answer-format boxed`"),
    ("compare grpo genprm:judge=steps", "E_UNKNOWN_PARAMETER: it is called 'review_format' now"),
    ("compare grpo grpo:steps_judged_by=nobody", "E_UNKNOWN_CHOICE: it is called 'none' now"),
    ("compare grpo grpo:answer=boxed", "E_ARM_SETS_COMPARISON: --answer-format"),
    ("compare grpo grpo:anwser=boxed", "E_UNKNOWN_PARAMETER: did you mean 'answer_format'?"),
]


@pytest.mark.parametrize(
    ("words", "code"), OTHER_VALUES, ids=lambda text: "" if ": " in text else text.split()[-1][:24]
)
def test_a_value_names_the_one_that_was_meant(words, code, tmp_path, capsys):
    command_refuses([*words.split(), "--out", str(tmp_path / "o")], code, capsys)


STUDY = """
hypothesis = "One is better."
measure = "solver/greedy"
model = "shipped"
seeds = 1
out = "runs/x"
{above}
[arms.a]
{recipe} = "genprm"
{arm}
"""


@pytest.mark.parametrize(
    ("parts", "code"),
    [
        ({"arm": 'judge = "steps"'}, "E_UNKNOWN_PARAMETER: it is called 'review_format' now"),
        ({"arm": "override = []"}, "E_UNKNOWN_KEY: did you mean 'overrides'?"),
        ({"arm": 'answer = "boxed"'}, "E_ARM_SETS_COMPARISON: the study's key answer_format"),
        ({"recipe": "recpie"}, "E_STUDY_ARM: 'recpie' | recipe ="),
        ({"above": 'answer = "boxed"'}, "E_UNKNOWN_KEY: it is called 'answer_format' now"),
        ({"above": "settings = []"}, "E_UNKNOWN_KEY: it is called 'overrides' now"),
        ({"above": "btaches = 3"}, "E_UNKNOWN_KEY: did you mean 'batches'?"),
    ],
    ids=["judge", "override", "arm-answer", "recpie", "answer", "settings", "btaches"],
)
def test_a_study_names_the_key_that_was_meant(parts, code, tmp_path, capsys):
    path = tmp_path / "study.toml"
    path.write_text(STUDY.format(**{"above": "", "arm": "", "recipe": "recipe"} | parts))
    command_refuses(["study", str(path), "--dry-run"], code, capsys)


@pytest.mark.parametrize("command", [["run", "tango"], ["run", "grpo"], ["sft"], ["eval", "x"], ["compare", "grpo"]])
def test_unknown_flag_is_answered_without_a_guess(command, capsys):
    required = {"sft": ["--model", "m"]}.get(command[0], [])
    words = [*command, *required, "--out", "o", "--nosuchflag", "3"]
    assert "did you mean" not in command_refuses(words, "E_COMMAND_LINE: '--nosuchflag'", capsys)
