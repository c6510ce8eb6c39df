"""Figures of a run: held-out ones, before and after training, in between and problem by problem; and its costs in
batches, tokens, FLOPs and seconds."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cotrain.core.errors import ConfigError, CotrainError, unknown_message
from cotrain.core.statistics import Estimate
from cotrain.core.types import has_split
from cotrain.core.verbosity import ProgressPrinter, clock_text, count_of
from cotrain.metrics.clusters import Figure
from cotrain.metrics.steps import flops_of
from cotrain.metrics.table import check_has_best_value, goodness
from cotrain.rollout.runner import JointProgress
from cotrain.runs.directory import RunDirectory, rows_of
from cotrain.storage.jsonl import read_jsonl
from cotrain.trainer.evaluation import figure_names, fixed_solutions_group_size
from cotrain.trainer.flops import StageClock
from cotrain.trainer.sparsity import NEAR, SAME, update_sparsity
from cotrain.trainer.trainer import CoTrainer

if TYPE_CHECKING:
    from cotrain.config.recipe import Recipe
    from cotrain.trainer.step_meter import StepResult

# Figures of verifiers that are followed while the run goes on, on the frozen start's solutions.
STALENESS = ("balanced_accuracy", "true_positive_rate", "true_negative_rate")
BEST = "evaluation.best"  # the setting of early stopping, as errors and notes name it


def metrics_on_test_split(trainer: CoTrainer) -> dict[str, Estimate]:
    """Figures on the test split, and with fewer episodes on the evaluation's further splits."""
    evaluation = trainer.recipe.evaluation
    figures, _ = trainer.evaluate("test", evaluation.tasks)
    if evaluation.frozen_roles:
        frozen, _ = trainer.evaluate_on_fixed_solutions("test", evaluation.tasks, greedy=evaluation.greedy)
        figures |= {_with_split("fixed", key): value for key, value in frozen.items() if "/" in key}
    for split in _further_splits(trainer):
        further, _ = trainer.evaluate(split, evaluation.tasks // 2, group_size=min(4, evaluation.group_size))
        figures |= {_with_split(split, key): value for key, value in further.items() if "/" in key}
    return figures


def end_figure_names(recipe: Recipe) -> set[str] | None:
    """The names of all figures that a run of this recipe may have at its end; None where a measure does not say which
    it gives. Which of them a run has, it says itself when it is over."""
    evaluation = recipe.evaluation
    names = _sampled_figure_names(recipe)
    if names is None:
        return None
    of_roles = {name for name in names if "/" in name}
    splits = [*evaluation.splits, "fixed"] if evaluation.frozen_roles else evaluation.splits
    for split in splits:
        names |= {_with_split(split, name) for name in of_roles}
    for policy, spec in recipe.policies.items():
        if spec.is_trained:
            names |= {f"{policy}/{share}" for share in (SAME, NEAR)}
    return names


def validation_figure_names(recipe: Recipe) -> set[str] | None:
    """The same for the figures on validation problems, which are measured while a run goes on."""
    names = _sampled_figure_names(recipe)
    if names is not None and recipe.evaluation.frozen_roles:
        names |= {_with_split("fixed", name) for name in names if name.split("/")[-1] in STALENESS}
    return names


def _sampled_figure_names(recipe: Recipe) -> set[str] | None:
    """The names of the figures of one split."""
    names = figure_names(recipe.evaluation, recipe.roles)
    if names is not None and recipe.evaluation.implicit_rewards:
        from cotrain.trainer.implicit_reward_evaluation import implicit_reward_names

        names |= implicit_reward_names(recipe.evaluation.implicit_rewards)
    return names


def _further_splits(trainer: CoTrainer) -> list[str]:
    """The splits beside "test" that the recipe measures, and its problems have."""
    recipe = trainer.recipe
    return [split for split in recipe.evaluation.splits if has_split(recipe.tasks, split)]


def count_episodes(trainer: CoTrainer) -> int:
    """How many episodes ``figures_on_test_split`` collects, greedy ones included."""
    evaluation = trainer.recipe.evaluation
    tasks = trainer.recipe.tasks

    def count_problems(split: str, most: int) -> int:
        size = tasks.size(split)
        return most if size is None else min(most, size)

    greedy = evaluation.greedy and tasks.get("test", 0).gradable
    total = count_problems("test", evaluation.tasks) * (evaluation.group_size + greedy)
    if evaluation.frozen_roles:
        total += count_problems("test", evaluation.tasks) * fixed_solutions_group_size(evaluation) * (1 + greedy)
    members = min(4, evaluation.group_size) + evaluation.greedy
    for split in _further_splits(trainer):
        total += count_problems(split, evaluation.tasks // 2) * members
    return total


@contextmanager
def progress_shown(trainer: CoTrainer, what: str, say: Callable[[str], None]) -> Iterator[None]:
    """Say how many episodes measuring ``what`` takes, how far it has come, and how long it took; and how to measure
    less, where that is more than the run's steps collect."""
    recipe = trainer.recipe
    count = count_episodes(trainer)
    trained_on = recipe.steps * recipe.tasks_per_step * recipe.group_size
    many = what == "the start" and count > max(trained_on, 100)
    less = "; --evaluation-tasks N measures less, --smoke is a trial" if many else ""
    say(f"measuring {what} on held-out problems, {count_of(count, 'episode')}{less} …")
    pace = ProgressPrinter(count, "  measured {} episodes", say, at_once=True)
    usual = trainer.eval_progress
    trainer.eval_progress = JointProgress(pace)
    clock = StageClock()
    try:
        with clock.stage(what):
            yield
    finally:
        trainer.eval_progress = usual
    say(f"measured {what} in {clock_text(clock.total)}")


def end_metrics(trainer: CoTrainer, say: Callable[[str], None]) -> dict[str, Estimate]:
    """``metrics_on_test_split`` at the end of a run, and how much of each policy it has changed. ``say`` hears for
    which ones that is not known."""
    return metrics_on_test_split(trainer) | update_sparsity(trainer.policies, seed=trainer.recipe.seed, say=say)


def evaluate_on_validation(trainer: CoTrainer, *, step: int) -> dict[str, Any]:
    """Figures on validation problems, and how the verifiers do on solutions that do not change while the run goes on:
    those of the frozen start, where the evaluation has one. The latter falls when a verifier forgets what it need not
    see now."""
    evaluation = trainer.recipe.evaluation
    figures, _ = trainer.evaluate("validation", evaluation.curve_tasks)
    if evaluation.frozen_roles:
        frozen, _ = trainer.evaluate_on_fixed_solutions("validation", evaluation.curve_tasks)
        followed = {key: value for key, value in frozen.items() if key.split("/")[-1] in STALENESS}
        figures |= {_with_split("fixed", key): value for key, value in followed.items()}
    row: dict[str, Any] = {"step": step, "kind": "evaluation", "tokens": trainer.tokens}
    row |= {f"updates/{policy}": count for policy, count in trainer.policies.update_counts.items()}
    row |= {f"eval/{key}": value.value for key, value in figures.items()}
    return row


def _with_split(split: str, key: str) -> str:
    role, name = key.split("/", 1)
    return f"{role}/{split}/{name}"


def last_measured(directory: RunDirectory) -> int:
    """How many steps were finished at the last evaluation that the metrics file holds, -1 for none."""
    rows = (row for row in rows_of(directory.metrics) if row.get("kind") == "evaluation")
    return max((int(row["step"]) + 1 for row in rows), default=-1)


def check_best(recipe: Recipe) -> None:
    """Raise ConfigError for an ``evaluation.best`` that no run of this recipe measures, or of which no value is the
    best one, before a run begins."""
    best = recipe.evaluation.best
    if not best:
        return
    names = validation_figure_names(recipe)
    if names is not None and best not in names:
        raise _no_such_best(best, names)
    check_has_best_value(BEST, best)


def _no_such_best(best: str, names: Iterable[str]) -> ConfigError:
    return ConfigError(f"{BEST}: {unknown_message('figure', best, names)}", code="E_NO_SUCH_FIGURE")


def best_step(directory: RunDirectory, figure: str) -> int | None:
    """How many steps were finished at the evaluation that is best in ``figure`` (``metrics/table.py: goodness``), of
    equals the earliest. None where no figure is named, or nothing was measured yet.

    An evaluation in which the figure is undefined is passed over, as where a verifier wrote nothing readable. Raises
    ConfigError where that is the first one: then it may never be measured."""
    if not figure:
        return None
    best: tuple[float, int] | None = None
    for row in rows_of(directory.metrics):
        if row.get("kind") != "evaluation":
            continue
        value = row.get(f"eval/{figure}")
        if value is None and best is None:
            measured = [key.removeprefix("eval/") for key in row if key.startswith("eval/")]
            raise _no_such_best(figure, measured)
        if value is None:
            continue
        good = goodness(figure, float(value))
        if best is None or good > best[0]:
            best = good, int(row["step"]) + 1
    if best is None:
        return None
    _, finished_steps = best
    return finished_steps


# -- What each held-out problem says of a figure, so that runs can be compared problem by problem once they are over.


DIGITS = 6


def problem_values(figure: Figure) -> dict[int, float]:
    """Problem → what it says. A problem without which the figure is undefined, or the only one, says the figure
    itself."""
    without = figure.without_each()
    n = len(without)
    return {
        task: figure.value if math.isnan(left) else n * figure.value - (n - 1) * left for task, left in without.items()
    }


def problems_json(figures: Mapping[str, Estimate]) -> dict[str, dict[str, float]]:
    """figure → problem → what it says, for a file."""
    found = {}
    for key, figure in figures.items():
        if isinstance(figure, Figure):
            found[key] = {str(task): round(value, DIGITS) for task, value in problem_values(figure).items()}
    return found


# -- What a run has cost, from its files: batches of problems, sampled tokens, floating-point operations and seconds.


def seconds_of(row: Mapping[str, Any]) -> float:
    """Seconds of one step, from its row of timings.jsonl: the stages, of which the engine's seconds are a part."""
    stages = [value for key, value in row.items() if key != "step" and "/" not in key]
    return float(sum(seconds for seconds in stages if isinstance(seconds, int | float)))


def costs_of(folder: Path) -> list[dict[str, float]]:
    """The costs of a run before its first step and after each one. Every step is a batch, also one from which nothing
    could be learned."""
    seconds = {row["step"]: seconds_of(row) for row in read_jsonl(folder / "timings.jsonl")}
    now = {"batches": 0.0, "tokens": 0.0, "flops": 0.0, "seconds": 0.0}
    costs = [now]
    steps = [row for row in read_jsonl(folder / "metrics.jsonl") if "kind" not in row]
    for row in steps:
        now = {
            "batches": now["batches"] + 1,
            "tokens": float(row["tokens"]),
            "flops": now["flops"] + flops_of(row),
            "seconds": now["seconds"] + seconds.get(row["step"], 0.0),
        }
        costs.append(now)
    return costs


def latest_costs(folder: Path) -> dict[str, float]:
    """The costs so far of a run that goes on, by which the time that is left is told; nothing where they cannot be
    read, which is said elsewhere."""
    try:
        return costs_of(folder)[-1]
    except (OSError, KeyError, CotrainError):
        return {}


def timings_row(result: StepResult) -> dict[str, float | str]:
    """A row of timings.jsonl."""
    return {"step": result.row["step"], **result.seconds, **result.engine_seconds_by_policy, **result.processes}


def throughput_row(result: StepResult) -> dict[str, float | str]:
    """Tokens a second of each role while rollouts were collected, and what each process did."""
    seconds = result.rollout_seconds or result.seconds["rollout"]
    sampled_tokens: dict[str, int] = {}
    for episode in result.episodes:
        for trace in episode.traces:
            sampled_tokens[trace.role] = sampled_tokens.get(trace.role, 0) + trace.sampled_count
    rates = {f"{role}/tokens_per_second": count / seconds for role, count in sampled_tokens.items()}
    return {**rates, **result.processes}
