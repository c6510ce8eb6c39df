"""Where cross-entropy gains nothing more: the demonstrations of ``spin-after-sft.toml``, and a table of its start.

    python benchmarks/spin_after_sft.py MODEL … [--problems 256]

The table has a row for each model, in the order of their training: greedy accuracy and pass@1 on validation problems,
the loss of their demonstrations in nats a token, and what changed since the row before, paired by problem.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from random import Random
from typing import Any

from cotrain import CORRECT, Roles, frozen, gives, program, rng_of, solve
from cotrain.config.evaluation import held_out
from cotrain.core.statistics import Estimate, mean_interval, paired_difference
from cotrain.core.types import Task
from cotrain.data.word_problems.corrupt import Habits, with_habits
from cotrain.data.word_problems.source import study_problems
from cotrain.distributed.local import LocalBackend
from cotrain.rollout.common_roles import solver
from cotrain.rollout.runner import RolloutRunner
from cotrain.trainer.policy_store import PolicyStore

DEMONSTRATIONS = 512
HABITS = Habits(random=0.0, systematic=0.6)  # as `python -m bases --habits` taught them


class HabitDemonstrations:
    """Word problems of 2 and 3 steps in two wordings, ``DEMONSTRATIONS`` of them to train on. Their worked solutions
    have the two habits of ``shipped-habits`` and no other error. Answers are graded by the truth."""

    name = "habit-demonstrations"

    def __init__(self) -> None:
        self.problems = replace(study_problems((2, 3)), families=("plain", "owner"))

    def get(self, split: str, index: int) -> Task:
        """A problem with its demonstration. Raises IndexError past the last one to train on."""
        size = self.size(split)
        if size is not None and not 0 <= index < size:
            raise IndexError(f"{self.name}: index {index} of split {split!r}, which has {size} problems")
        task = self.problems.get(split, index)
        demonstration = with_habits(self.problems.problem(split, index), HABITS, rng_of(self.name, split, index))
        return replace(task, solution=demonstration.text)

    def size(self, split: str) -> int | None:
        """Endless, but for the problems to train on. Raises UnknownName for a split that there is not."""
        held_out_size = self.problems.size(split)
        return DEMONSTRATIONS if split == "train" else held_out_size

    def describe(self) -> dict[str, Any]:
        """It has no settings."""
        return {"kind": self.name, "settings": {}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What a model did, by problem."""

    greedy: list[float]  # 1 where the greedy answer is right
    sampled: list[float]  # the same of one sample at temperature 1
    losses: list[float]  # of the demonstration, in nats a token
    training_loss: float  # of the demonstrations that were trained on


@gives()
async def say_demonstration(task: Task, roles: Roles) -> None:
    """The role ``teacher`` says the demonstration."""
    await roles.teacher(problem=task.prompt, solution=roles.teacher.format_solution(task.solution or ""))


def say_solution(fields: Mapping[str, Any], rng: Random) -> str:
    """The policy of the role ``teacher``."""
    return str(fields["solution"])


def measure(model: str, tasks: list[Task], train_tasks: list[Task]) -> Measured:
    """Solve held-out problems once greedily and once at temperature 1, and score the demonstrations of both."""
    backend = LocalBackend("cpu")
    policies = {"model": frozen(model), "teacher": program(say_solution, tokens_of="model")}
    store = PolicyStore(backend.open(policies, seed=0))
    roles = {"solver": solver("model", model), "teacher": solver("teacher", model)}
    runner = RolloutRunner(backend.engine, store.renderers, roles, 0)
    collect = partial(runner.collect, step=-1, group_size=1)
    collect_greedily = partial(runner.greedy_copy().collect, step=-1, group_size=1)

    right = {}
    for name, collect_answers in (("greedy", collect_greedily), ("sampled", collect)):
        right[name] = [float(bool(CORRECT.of(episode.traces[0]))) for episode in collect_answers(solve, tasks)]

    said = [episode.traces[0] for episode in collect(say_demonstration, tasks + train_tasks)]
    logprobs = store["model"].logprobs([(trace.prompt_ids, trace.token_ids) for trace in said], temperature=1.0)
    losses = [-float(of_tokens.double().mean()) for of_tokens in logprobs]
    return Measured(
        greedy=right["greedy"],
        sampled=right["sampled"],
        losses=losses[: len(tasks)],
        training_loss=math.fsum(losses[len(tasks) :]) / len(train_tasks),
    )


def in_words(estimate: Estimate, digits: int = 3) -> str:
    """An estimate and its interval."""
    return f"{estimate.value:.{digits}f} [{estimate.low:.{digits}f}, {estimate.high:.{digits}f}]"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="+")
    parser.add_argument("--problems", type=int, default=256)
    given = parser.parse_args()

    source = HabitDemonstrations()
    tasks = held_out(source, "validation", given.problems, 0)
    train_tasks = [source.get("train", index) for index in range(min(given.problems, DEMONSTRATIONS))]
    said_right = [float(task.grader.grade(task, task.solution or "").value or 0.0) for task in train_tasks]
    print(f"demonstrations that are right: {math.fsum(said_right) / len(said_right):.3f} of {len(said_right)}")

    print("| model | greedy | change | pass@1 | change | loss | change | loss of training |")
    print("|---|---|---|---|---|---|---|---|")
    before: Measured | None = None
    for model in given.model:
        now = measure(model, tasks, train_tasks)
        cells = [model]
        for name, digits in (("greedy", 3), ("sampled", 3), ("losses", 4)):
            values = getattr(now, name)
            cells.append(in_words(mean_interval(values), digits))
            cells.append(in_words(paired_difference(values, getattr(before, name)), digits) if before else "")
        cells.append(f"{now.training_loss:.4f}")
        print("| " + " | ".join(cells) + " |", flush=True)
        before = now


if __name__ == "__main__":
    main()
