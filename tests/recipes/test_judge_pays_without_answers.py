"""No answers: a frozen judge pays on questions that have none, and the few solved ones measure."""

import json

import pytest

from cotrain.cli.main import main
from cotrain.config.recipe import check_problems
from cotrain.core.errors import DataError
from cotrain.core.types import UNLABELLED
from cotrain.data.sources import problem_source
from cotrain.recipes.judged import judged


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


def test_without_a_solved_problem_nothing_could_be_measured(files):
    recipe = judged(
        tasks=problem_source("jsonl", files[0], labelled="answers"), labelled="answers", verifier="frozen", warmup=0
    )
    with pytest.raises(
        DataError, match=r"nothing can be measured; bring a hundred or more solved ones .* --labelled FILE"
    ):
        check_problems(recipe)


def test_the_dry_run_says_how_many_unlabelled_problems_are_trained_on(files, capsys):
    words = ["run", "judged", "--data", files[0], "--labelled", files[1], "--threads", "1", "--dry-run"]
    assert main([*words, "--verifier", "frozen", "--warmup", "0"]) == 0
    assert "80 unlabelled: 100% of the problems of a step" in capsys.readouterr().out
    assert main(words) == 0
    assert "80 unlabelled: this method does not train on them" in capsys.readouterr().out


@pytest.mark.whole
def test_a_trial_learns_from_questions_alone(files, tmp_path, capsys):
    words = ["run", "judged", "--data", files[0], "--labelled", files[1], "--threads", "1", "--smoke"]
    assert main([*words, "--verifier", "frozen", "--warmup", "0", "--out", str(tmp_path / "run")]) == 0
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert rows and all("solver/reward/believed" in row and "solver/accuracy" not in row for row in rows)
