"""No answers: a frozen judge pays on questions that have none, and the few solved ones measure."""

import json

import pytest

from cotrain.cli.main import main
from cotrain.config.recipe import check_problems
from cotrain.core.types import UNLABELLED
from cotrain.data.sources import problem_source
from cotrain.recipes.grpo import grpo
from cotrain.recipes.judged import judged
from tests.helpers import TINY
from tests.sentences import refuses


@pytest.fixture
def files(tmp_path):
    asked = [f"Tom has {n} apples and buys {n + 3}. How many has he now?" for n in range(80)]
    solved = [{"question": text.replace("Tom", "Ann"), "answer": str(2 * n + 3)} for n, text in enumerate(asked)]
    for name, rows in {"asked": [{"question": text} for text in asked], "solved": solved}.items():
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(tmp_path / "asked.jsonl"), str(tmp_path / "solved.jsonl")


def made(files, **more):
    asked, solved = files
    tasks = problem_source("jsonl", asked, labelled=solved)
    return judged(tasks=tasks, labelled=solved, **more)


def test_every_problem_of_a_step_has_no_answer_where_the_judge_learns_nothing(files):
    recipe = made(files, verifier="frozen", warmup=0)
    check_problems(recipe)
    assert [phase.unlabelled for phase in recipe.schedule.phases] == [1.0]
    assert recipe.tasks.size(UNLABELLED) == 80 and not recipe.tasks.get(UNLABELLED, 0).gradable
    taught = made(files, verifier="frozen", warmup=5)
    assert {phase.name: phase.unlabelled for phase in taught.schedule.phases} == {"both": 1.0, "verifier": 0.0}
    for needs_labels in ({"verifier": "trained"}, {"verifier": "frozen", "pay": "truth"}):
        assert {phase.unlabelled for phase in made(files, **needs_labels).schedule.phases} == {0.0}


FROZEN = ("--verifier", "frozen", "--warmup", "0")


def unanswered(make, files, **more):
    return make(tasks=problem_source("jsonl", files[0], labelled="answers"), labelled="answers", **more)


def test_without_any_answer_some_questions_are_held_out(files):
    recipe = unanswered(judged, files, verifier="frozen", warmup=0)
    check_problems(recipe)
    sizes = {split: recipe.tasks.size(split) for split in ("train", "validation", "test", UNLABELLED)}
    assert sizes["train"] == 0 and sum(sizes.values()) == 80 and min(sizes["test"], sizes["validation"]) > 0
    asked = {split: {recipe.tasks.get(split, i).prompt for i in range(sizes[split])} for split in ("test", UNLABELLED)}
    assert asked["test"].isdisjoint(asked[UNLABELLED]) and not recipe.tasks.get("test", 0).gradable
    assert "no truth is measured" in recipe.tasks.notes[0] and "--labelled FILE" in recipe.tasks.notes[0]


@pytest.mark.parametrize("make", [grpo, judged], ids=["grpo", "judge-learns"])
def test_method_that_is_paid_by_answers_is_refused_without_any(make, files):
    with refuses("E_SPLIT_EMPTY", names="--labelled"):
        check_problems(unanswered(make, files))


@pytest.mark.whole
@pytest.mark.parametrize(
    "words", [["ttrl"], ["judged", "--verifier", "frozen", "--warmup", "0"]], ids=["vote", "judge"]
)
def test_run_without_any_answer_measures_agreement_alone(words, files, tmp_path, capsys):
    small = ["--steps", "2", "--tasks-per-step", "2", "--group-size", "4", "--evaluation-tasks", "4", "--threads", "1"]
    data = ["--data", files[0], "--labelled", "answers", "--model", TINY, "--evaluate-every", "1"]
    out = tmp_path / "run"
    assert main(["run", *words, *small, *data, "--set", "evaluation.group_size=2", "--out", str(out)]) == 0
    said = capsys.readouterr()
    assert "no truth is measured" in said.out + said.err
    summary = json.loads((out / "summary.json").read_text())
    figures = {key for key in summary["after"] if key.startswith(("solver/", "verifier/", "gap"))}
    assert figures <= {"solver/majority_share", "solver/parsed"} and "solver/majority_share" in figures
    assert main(["resume", str(out), "--steps", "3"]) == 0


def test_the_dry_run_says_how_many_unlabelled_problems_are_trained_on(files, capsys):
    words = ["run", "judged", "--data", files[0], "--labelled", files[1], "--threads", "1", "--dry-run"]
    assert main([*words, "--verifier", "frozen", "--warmup", "0"]) == 0
    assert "80 unlabelled: 100% of the problems of a step" in capsys.readouterr().out
    assert main(words) == 0
    said = " ".join(capsys.readouterr().out.replace("\n# ", " ").split())
    assert "80 unlabelled: this method does not train on them" in said


@pytest.mark.whole
def test_a_trial_learns_from_questions_alone(files, tmp_path, capsys):
    words = ["run", "judged", "--data", files[0], "--labelled", files[1], "--threads", "1", "--smoke"]
    assert main([*words, "--verifier", "frozen", "--warmup", "0", "--out", str(tmp_path / "run")]) == 0
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert rows and all("solver/reward/believed" in row and "solver/accuracy" not in row for row in rows)
