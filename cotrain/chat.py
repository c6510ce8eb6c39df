"""``cotrain chat``: type a problem, see the generator's steps and the verifier's verdict on each.

Control characters of model text are made visible before they reach the terminal.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from cotrain import opening
from cotrain.core.errors import ConfigError, UserError
from cotrain.core.notes import ANSWER, FAILURE, FINAL, SCORE, STEPS, VERDICTS
from cotrain.core.types import Grade, StepVerdicts, Task, Trace
from cotrain.functional.aggregate import majority, mean
from cotrain.pages.page import escape_terminal as visible
from cotrain.preflight.formats import DEFAULT_FORMAT, AnswerFormat
from cotrain.rollout.executor import Executor
from cotrain.train.trainer import CoTrainer

CHAT_STEP = -2  # the step in the addresses of chat episodes
EXAMPLE = 0  # index of the validation problem that is shown as an example


class UnknownAnswerGrader:
    """A judge for problems whose answer nobody knows."""

    def grade(self, task: Task, text: str) -> Grade:
        return Grade(value=False, reason=None)

    def grade_steps(self, task: Task, steps: tuple[str, ...]) -> StepVerdicts | None:
        return None


def run_chat(
    directory: Path | str,
    *,
    temperature: float = 0.0,
    read_line: Callable[[str], str] = input,
    once: str | None = None,
    answer_format: AnswerFormat = DEFAULT_FORMAT,
    device: str = "cpu",
) -> int:
    """Read problems until the input ends; an empty line takes the example. ``once``: answer this problem and return.
    ``answer_format``: the solver and the verifier are asked and read so."""
    if once is not None and not once.strip():
        raise ConfigError("cotrain chat: the problem of --once is empty; expected its text in quotes")
    trainer = opening.open_trainer(directory, answer_format, device=device)
    recipe = trainer.recipe
    if "solver" not in recipe.roles:
        raise ConfigError(
            f"{directory}: recipe {recipe.name!r} has no role 'solver' to talk to; it has {sorted(recipe.roles)}"
        )
    roles = {
        name: replace(role, sampling=replace(role.sampling, temperature=temperature))
        for name, role in recipe.roles.items()
    }
    executor = trainer.make_executor(recipe.seed, roles=roles)
    if once is not None:
        print("\n".join(problem_lines(trainer, executor, once.strip(), 0)))
        return 0
    example = recipe.tasks.get("validation", EXAMPLE).prompt
    print(f"{recipe.name} after step {trainer.finished}. Type a problem; empty line for an example, Ctrl-D to leave.")
    turn = 0
    while True:
        try:
            problem = read_line("\n> ").strip()
        except (EOFError, KeyboardInterrupt):
            print()
            return 0
        if not problem:
            problem = example
            print(visible(problem))
        try:
            print("\n".join(problem_lines(trainer, executor, problem, turn)))
        except UserError as error:  # such as a problem that is too long; the next one may do
            print(f"({error})")
        sys.stdout.flush()
        turn += 1


def problem_lines(trainer: CoTrainer, executor: Executor, problem: str, turn: int) -> list[str]:
    """The lines to show for one problem."""
    task = Task(
        id=f"chat/{turn}", prompt=problem, answer=None, solution=None, difficulty=0.0, grader=UnknownAnswerGrader()
    )
    evaluation = trainer.recipe.evaluation
    (episode,) = executor.play(evaluation.protocol, [task], step=CHAT_STEP - turn, group_size=1)
    solution = next((t for t in episode.traces if t.role == "solver"), None)
    if solution is None:
        why = executor.set_aside.get(task.id) or episode.failure or "the solver was not asked"
        return [f"(no answer: {visible(why)})"]
    reviews = [t for t in episode.traces if t.parent == str(solution.address)]
    steps = STEPS.of(solution)
    if not steps:
        return [visible(solution.text), f"(not in the stepwise format: {FAILURE.of(solution)})"]
    review_verdicts = [said for r in reviews if (said := VERDICTS.of(r))]
    lines = []
    for index, (_, _, text) in enumerate(steps):
        mark = {1.0: "✓", 0.0: "✗", None: "?" if review_verdicts else " "}[
            majority([verdicts[index] for verdicts in review_verdicts])
        ]
        lines.append(f"  {mark} {index + 1}. {visible(text.strip())}")
    lines.append(f"    answer: {visible(str(ANSWER.of(solution)))}")
    return lines + ([f"    verifier: {_verdict_text(reviews)}"] if reviews else [])


def _verdict_text(reviews: Sequence[Trace]) -> str:
    """What the reviews of one solution come to."""
    finals = [said for r in reviews if (said := FINAL.of(r)) is not None]
    if not finals:
        return f"no verdict ({FAILURE.of(reviews[0])})"
    verdict = {1.0: "CORRECT", 0.0: "INCORRECT", None: "undecided"}[majority(finals)]
    votes = f" ({int(sum(finals))} of {len(reviews)} reviews say CORRECT)" if len(reviews) > 1 else ""
    score = mean([given for r in reviews if (given := SCORE.of(r)) is not None])
    return verdict + votes + (f", probability of CORRECT {score:.2f}" if score is not None else "")
