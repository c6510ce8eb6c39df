"""Early stopping: the end of a run is the state that was best on validation problems; and runs of so many updates."""

import json
import shutil
from dataclasses import replace

import pytest

from cotrain.recipes.grpo import grpo
from cotrain.recipes.tango import tango
from cotrain.runs import opening
from cotrain.runs import run as loop
from cotrain.runs.directory import RunDirectory
from cotrain.runs.figures import best_step, check_best
from cotrain.runs.log import SilentObserver
from tests.helpers import EASY, TINY
from tests.sentences import refuses

SMALL = {"model": TINY, "tasks_per_step": 2, "group_size": 4, "evaluation_tasks": 8, "tasks": EASY}


def stopped_early(steps, lr, **more):
    made = grpo(steps=steps, evaluate_every=1, lr=lr, kl=0.0, **SMALL)
    evaluation = replace(made.evaluation, best="solver/pass@1", curve_tasks=8, group_size=2, greedy=False, splits=())
    return replace(made, evaluation=evaluation, **more)


class Heard(SilentObserver):
    """Keeps what a run says."""

    def __init__(self):
        self.lines = []

    def message(self, text):
        self.lines.append(text)


def curve(folder):
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return {row["step"] + 1: row["eval/solver/pass@1"] for row in rows if row.get("kind") == "evaluation"}


@pytest.mark.whole
def test_the_end_is_the_best_state_and_its_checkpoint_stays(tmp_path):
    out = tmp_path / "run"
    done = loop.start_run(stopped_early(6, 0.03), out, checkpoint_every=1)  # a rate that ruins the model
    points = curve(out)
    best = min(step for step, value in points.items() if value == max(points.values()))
    assert best < 6 and points[6] < points[best], points
    assert done.summary["chosen"] == best and done.summary["steps"] == 6
    again = opening.evaluate(out, split="test", tasks=8, step=best)["figures"]["solver/pass@1"]["value"]
    assert done.summary["after"]["solver/pass@1"]["value"] == again
    kept = sorted(path.name for path in (out / "checkpoints").iterdir() if path.name.startswith("step-"))
    assert len(kept) == 3, kept  # the two newest and the best


@pytest.mark.whole
def test_a_run_whose_best_checkpoint_is_gone_ends_with_the_last_one_and_says_so(tmp_path):
    """It ended in an error after all of the training, and again each time it was resumed."""
    out = tmp_path / "run"
    recipe = stopped_early(3, 0.03)
    chosen = loop.start_run(recipe, out, checkpoint_every=1).summary["chosen"]
    assert chosen < 3
    (out / "summary.json").unlink()  # the run was stopped before it measured its end
    shutil.rmtree(out / "checkpoints" / f"step-{chosen:06d}")
    heard = Heard()
    done = loop.resume_run(recipe, out, observer=heard)
    assert done.summary["chosen"] == done.summary["steps"] == 3
    (line,) = [line for line in heard.lines if "the end is the last state" in line]
    assert "after step 3" in line and f"after step {chosen}" in line and "solver/pass@1" in line


@pytest.mark.parametrize("figure", ["solver/gredy", "slover/pass@1"])
def test_a_figure_that_is_not_measured_is_named_before_a_run_begins(figure, tmp_path):
    made = stopped_early(1, 1e-3)
    made = replace(made, evaluation=replace(made.evaluation, best=figure))
    with refuses("E_NO_SUCH_FIGURE", names=(figure, "solver/pass@1")):
        loop.start_run(made, tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.whole
def test_a_figure_that_a_run_lacks_is_named_when_it_is_missing(tmp_path):
    """Of two answers to a problem there is no vote of eight."""
    made = stopped_early(1, 1e-3)
    made = replace(made, evaluation=replace(made.evaluation, best="solver/majority@8"))
    with refuses("E_NO_SUCH_FIGURE", names="solver/majority@8"):
        loop.start_run(made, tmp_path / "run")


def evaluation_row(step, **figures):
    return {"step": step - 1, "kind": "evaluation"} | {
        f"eval/verifier/{name}": value for name, value in figures.items()
    }


def best_of(folder, figure, *rows):
    folder.mkdir(exist_ok=True)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return best_step(RunDirectory(folder), f"verifier/{figure}")


def test_an_evaluation_without_the_figure_is_passed_over(tmp_path):
    """The verifier wrote nothing readable after 4 steps: such a run ended there, and again each time it was resumed."""
    start, good = evaluation_row(0, balanced_accuracy=0.5), evaluation_row(2, balanced_accuracy=0.7)
    undefined, null = evaluation_row(4), evaluation_row(6, balanced_accuracy=None)
    assert best_of(tmp_path, "balanced_accuracy", start, good, undefined, null) == 2
    with refuses("E_NO_SUCH_FIGURE", names="verifier/balanced_accuracy"):
        best_of(tmp_path, "balanced_accuracy", undefined)


def test_the_best_of_an_error_is_the_smallest(tmp_path):
    rows = [evaluation_row(step, calibration_error=value) for step, value in ((0, 0.4), (2, 0.1), (4, 0.3))]
    assert best_of(tmp_path, "calibration_error", *rows) == 2


def test_the_best_gap_is_the_one_nearest_to_zero(tmp_path):
    """A verifier that calls too few right is as wrong as one that calls too many right."""
    gaps = ((0, 0.3), (2, -0.4), (4, -0.1), (6, 0.2))
    rows = [{"step": step - 1, "kind": "evaluation", "eval/gap": gap, "eval/meta/gap": gap} for step, gap in gaps]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert best_step(RunDirectory(tmp_path), "gap") == best_step(RunDirectory(tmp_path), "meta/gap") == 4


def test_a_figure_without_a_better_direction_is_refused_before_a_run_begins(tmp_path):
    made = tango(steps=1, warmup=0, evaluate_every=1, ratio=(1, 0), verifier="frozen", **SMALL)
    made = replace(made, evaluation=replace(made.evaluation, best="verifier/fixed/balanced_accuracy"))
    check_best(made)
    made = replace(made, evaluation=replace(made.evaluation, best="verifier/base_rate"))
    with refuses("E_NO_BEST_VALUE", names=("evaluation.best", "verifier/base_rate")):
        loop.start_run(made, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_it_wants_points_to_choose_from():
    with refuses("E_BEST_WITHOUT_EVALUATION"):
        replace(stopped_early(2, 1e-3), evaluate_every=0)


def test_a_run_of_so_many_updates_of_its_leading_policy():
    made = replace(tango(steps=99, warmup=3, ratio=(2, 1), reviews=2, **SMALL), updates=4)
    phases = [made.schedule.phase_at(step).name for step in range(made.max_steps)]
    leading = [
        name for name in phases if made.leading_objective in {p.name: p.objectives for p in made.schedule.phases}[name]
    ]
    assert len(leading) == 4 and phases[-1] == leading[-1]
