"""An argument that has no effect is said to have none, with the choice that takes its effect away."""

import json
from functools import partial
from pathlib import Path
from random import Random

import pytest

from cotrain.analysis.comparison.arms import make_arm
from cotrain.analysis.comparison.compare import idle_notes_of_arms
from cotrain.cli.main import main
from cotrain.config.idle_arguments import _alike, _other_values, idle_notes
from cotrain.config.registry import find_recipe
from cotrain.config.run_config import problems_read_once
from cotrain.data.files import JsonlTasks
from cotrain.data.word_problems.source import study_problems
from cotrain.runs.directory import recipe_json
from tests.helpers import EASY, TINY
from tests.sentences import refuses


def notes_of(name, **arguments):
    return idle_notes(find_recipe(name), {"model": TINY, **arguments}, "{}={}".format)


@pytest.mark.parametrize(
    ("name", "arguments", "idle", "reason"),
    [
        ("tango", {"verifier": "frozen", "verifier_lr": 1e-3}, "verifier_lr=0.001", " with verifier=frozen"),
        ("tango", {"verifier": "frozen", "ratio": (2, 1)}, "ratio=(2, 1)", " with verifier=frozen"),
        ("grpo", {"alpha": 0.3}, "alpha=0.3", " with steps_judged_by=none"),
        ("gram", {"generator": "frozen", "kl": 0.1}, "kl=0.1", " with generator=frozen"),
        ("debate", {"votes": 3}, "votes=3", " with judge=budget"),
        ("tango", {"tasks": EASY, "simultaneous": True, "reviews": 9}, "reviews=9", " with simultaneous=True"),
        ("two_agents_split", {"train": "starter", "kl": 0.1}, "kl=0.1", "; without it the run is the same"),
    ],
)
def test_an_argument_without_effect_is_named_with_what_takes_it_away(name, arguments, idle, reason):
    assert notes_of(name, **arguments) == [f"note: {idle} has no effect{reason}"]


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("tango", {"verifier_lr": 1e-3, "reviews": 4, "balance": False, "kl": 0.0, "lr": 1e-3, "temperature": 0.7}),
        ("tango", {"verifier": "frozen", "votes": 3, "combine": "majority", "verifier_lr": 2e-4}),  # its default
        ("tango", {"simultaneous": True, "reviews": 12}),
        ("grpo", {"steps_judged_by": "oracle", "alpha": 0.3, "alpha_end": 0.3, "lora": 4, "seed": 3}),
        ("pair_judge", {"combine": "majority"}),  # which a closure keeps
        ("grpo", {"temperature": 1.0, "lr_warmup": 5, "lr_decay": "constant", "updates_per_batch": 1}),  # as by default
        ("grpo", {"tasks": study_problems(), "seed": 1}),
        ("grpo", {"tasks": EASY, "mask_truncated": True, "overlong_tokens": 4, "refill": 2, "evaluation_tasks": 3}),
    ],
)
def test_an_argument_with_an_effect_is_not(name, arguments):
    assert notes_of(name, **arguments) == []


def test_a_model_is_not_taken_for_code(tmp_path):
    model = tmp_path / "mine.pytorch"
    model.symlink_to(Path(TINY).resolve())
    assert notes_of("grpo", model=str(model), alpha=0.3) == ["note: alpha=0.3 has no effect with steps_judged_by=none"]


def test_a_file_of_labelled_problems_is_read_once(tmp_path):
    """It may be large."""
    data = tmp_path / "data.jsonl"
    solved = tmp_path / "solved.jsonl"
    for path in (data, solved):
        rows = [{"question": f"What is {n} and 1 in {path.stem}?", "answer": n + 1} for n in range(80)]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    arguments = {"model": TINY, "tasks": JsonlTasks(data), "labelled": str(solved), "lr": 1e-3, "alpha": 0.3}
    with problems_read_once():
        find_recipe("grpo").make(arguments)
        solved.unlink()
        assert notes_of("grpo", **arguments) == ["note: alpha=0.3 has no effect with steps_judged_by=none"]
    with refuses("E_DATA_FILE_MISSING", names="solved.jsonl"):
        find_recipe("grpo").make(arguments)


def test_a_recipe_in_a_file_is_not_loaded_again_for_an_arm(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text("from cotrain.recipes.grpo import grpo as mine\nopen(__file__ + '.loaded', 'a').write('x')\n")
    arm = make_arm("own", f"{file}:mine", {"model": TINY})
    assert idle_notes_of_arms([arm], {"tasks": EASY}) == []
    assert not Path(f"{file}.loaded").exists()


def test_without_it_the_run_is_the_same():
    frozen = {"model": TINY, "tasks": EASY, "verifier": "frozen"}
    with_rate, without = (find_recipe("tango").make(frozen | more) for more in ({"verifier_lr": 1e-3}, {}))
    settings = [recipe_json(recipe, checkpoint_every=1)["settings"] for recipe in (with_rate, without)]
    assert settings[0] == settings[1]


def test_a_recipe_in_a_file_is_made_once(tmp_path):
    """Its code may start something."""
    file = tmp_path / "mine.py"
    file.write_text(
        "from cotrain import Recipe, RunConfig, recipe\n"
        "from cotrain.recipes.grpo import grpo\n"
        "@recipe\n"
        "def mine(run: RunConfig, *, unused: int = 1) -> Recipe:\n"
        "    open(__file__ + '.made', 'a').write('x')\n"
        "    return grpo(**run.values())\n"
    )
    assert main(["run", f"{file}:mine", "--unused", "2", "--model", TINY, "--operations", "2", "2", "--dry-run"]) == 0
    assert Path(f"{file}.made").read_text() == "x"


def test_notes_of_a_recipe_are_printed_once(tmp_path, capsys):
    """``mae`` says whenever it is made that no program checks its questions."""
    rows = [{"question": f"What is {i} and {j}?", "answer": str(i + j)} for i in range(20) for j in range(20)]
    data = tmp_path / "rows.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = ["--model", TINY, "--data", str(data), "--lr", "1e-3", "--cap", "9"]
    assert main(["run", "mae", *words, "--dry-run"]) == 0
    assert capsys.readouterr().err.count("no program works out problems") == 1


def test_a_run_says_so_as_it_begins(tmp_path, capsys):
    short = ["--operations", "2", "2", "--set", "evaluation.splits=[]", "--device", "cpu"]
    words = ["--model", TINY, "--steps", "1", "--tasks-per-step", "1", "--group-size", "2", "--evaluation-tasks", "1"]
    smoke = ["run", "tango", "--smoke", "--dry-run", "--verifier", "frozen", "--verifier-lr", "1e-3"]
    assert main(smoke) == 0
    (line,) = (line for line in capsys.readouterr().out.splitlines() if "no effect" in line)
    assert "--verifier-lr 0.001 has no effect with" in line  # and nothing of --warmup, which --smoke sets
    run = ["run", "tango", *words, *short, "--verifier", "frozen", "--warmup", "7", "--out", str(tmp_path / "run")]
    assert main(run) == 0
    assert "note: --warmup 7 has no effect with --verifier frozen" in capsys.readouterr().out


def test_a_comparison_says_of_which_arm():
    arms = [
        make_arm("plain", "grpo", {"model": TINY, "alpha": 0.3}),
        make_arm("truth", "grpo", {"model": TINY, "alpha": 0.3, "steps_judged_by": "oracle"}),
    ]
    notes = idle_notes_of_arms(arms, {"tasks": EASY})
    assert notes == ["note: arm 'plain': alpha=0.3 has no effect with steps_judged_by=none"]


def test_objects_of_other_packages_are_like_no_other():
    """What tells two generators of random numbers apart is not in their attributes."""
    assert not _alike(Random(1), Random(2), {})
    assert _alike(partial(max, 1), partial(max, 1), {})


@pytest.mark.parametrize("value", [0.0, 0.3, 0, 7, False, True])
def test_the_values_that_are_tried_in_place_of_one_are_others(value):
    others = _other_values(find_recipe("grpo").parameters["alpha"], value)
    assert others and value not in others
