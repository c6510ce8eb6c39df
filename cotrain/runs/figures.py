"""What a run measures of itself on held-out problems: at the start and at the end, and in between for its curves."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from cotrain.config.evaluation import has_split
from cotrain.core.errors import ConfigError, unknown_message
from cotrain.core.statistics import Estimate
from cotrain.disk.jsonl import read_jsonl
from cotrain.runs.directory import RunDirectory
from cotrain.train.sparsity import update_sparsity
from cotrain.train.trainer import CoTrainer

STALENESS = ("balanced_accuracy", "true_positive_rate", "true_negative_rate")  # of judges, on the start's solutions


def final_figures(trainer: CoTrainer) -> dict[str, Estimate]:
    """Figures on the test split, and with fewer episodes on the evaluation's further splits."""
    evaluation = trainer.recipe.evaluation
    figures, _ = trainer.evaluate("test", evaluation.tasks)
    if evaluation.fixed:
        fixed_figures, _ = trainer.evaluate_fixed("test", evaluation.tasks, greedy=evaluation.greedy)
        figures |= {_with_split("fixed", key): value for key, value in fixed_figures.items() if "/" in key}
    for split in evaluation.splits:
        if not has_split(trainer.recipe.tasks, split):
            continue
        further, _ = trainer.evaluate(split, evaluation.tasks // 2, group_size=min(4, evaluation.group_size))
        figures |= {
            key if "/" not in key else _with_split(split, key): value for key, value in further.items() if "/" in key
        }
    return figures


def end_figures(trainer: CoTrainer, say: Callable[[str], None]) -> dict[str, Estimate]:
    """The same at the end of a run, and how much of each policy it has changed; ``say``: of what that is not known."""
    return final_figures(trainer) | update_sparsity(trainer.policies, seed=trainer.recipe.seed, say=say)


def curve_row(trainer: CoTrainer, *, step: int) -> dict[str, Any]:
    """Figures on validation problems, and how the judges do on solutions that do not change while the run goes on:
    those of the frozen start, where the evaluation has one. The latter falls when a judge forgets what it need not see
    now."""
    evaluation = trainer.recipe.evaluation
    figures, _ = trainer.evaluate("validation", evaluation.curve_tasks)
    if evaluation.fixed:
        fixed_figures, _ = trainer.evaluate_fixed("validation", evaluation.curve_tasks)
        figures |= {_with_split("fixed", k): v for k, v in fixed_figures.items() if k.split("/")[-1] in STALENESS}
    row: dict[str, Any] = {"step": step, "kind": "evaluation", "tokens": trainer.tokens}
    row |= {f"updates/{policy}": count for policy, count in trainer.policies.update_counts.items()}
    row |= {f"eval/{key}": value.value for key, value in figures.items()}
    return row


def _with_split(split: str, key: str) -> str:
    role, name = key.split("/", 1)
    return f"{role}/{split}/{name}"


def rows_of(path: Path) -> Iterable[Mapping[str, Any]]:
    return read_jsonl(path) if path.exists() else ()


def last_measured(directory: RunDirectory) -> int:
    """How many steps were finished at the last evaluation that the metrics file holds, -1 for none."""
    return max(
        (int(row["step"]) + 1 for row in rows_of(directory.metrics) if row.get("kind") == "evaluation"), default=-1
    )


def best_step(directory: RunDirectory, figure: str) -> int | None:
    """How many steps were finished at the evaluation that is highest in ``figure``, of equals the earliest; None where
    no figure is named, or nothing was measured yet. Raises ConfigError for a figure that is not measured."""
    if not figure:
        return None
    best: tuple[float, int] | None = None
    for row in rows_of(directory.metrics):
        if row.get("kind") != "evaluation":
            continue
        if (value := row.get(f"eval/{figure}")) is None:
            there = [key.removeprefix("eval/") for key in row if key.startswith("eval/")]
            raise ConfigError(f"evaluation.best: {unknown_message('figure', figure, there)}")
        if best is None or value > best[0]:
            best = float(value), int(row["step"]) + 1
    return None if best is None else best[1]
