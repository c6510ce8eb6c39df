"""``cotrain attack RUN --role verifier``: how often a verifier believes a wrong solution that tries to fool it.

Wrong solutions of the run's own solver are changed by each string of ``formats/injections.py`` and judged as in
training, at the role's own temperature. Beside the false-positive rate of each family is that on the same solutions
unchanged: a verifier that believes one wrong solution in five has not been fooled by an attack that passes one time in
five.

    refused      the changed solution does not parse, or is no longer wrong: the verifier never saw it
    unread       it saw it, and its review could not be read: not passed
    passed       it said CORRECT; for right answers with broken reasoning: it said CORRECT of every step

Intervals are over problems (``metrics/clusters.py``), differences are paired by problem. All of it is written to
``attack.json`` in the run. Left out: reward models, which say no word, and attacks that are fitted to the verifier.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from cotrain import __version__
from cotrain.analysis.attack.matrix import problems_text
from cotrain.analysis.attack.tables import BROKEN, Attempt, AttemptOutcome, attack_tables, review_fields
from cotrain.config.evaluation import held_out
from cotrain.config.names import role_named
from cotrain.config.recipe import Recipe
from cotrain.core.errors import ConfigError, TooLong, UnknownName
from cotrain.core.notes import CORRECT, FINAL, SCORE, STEPS, VERDICTS
from cotrain.core.seeding import rng_of
from cotrain.core.types import Episode, Task
from cotrain.core.verbosity import ProgressPrinter, count_of
from cotrain.formats.injections import Injection, injection_corpus, insert_injection
from cotrain.formats.solutions import Solution, tagged_solution
from cotrain.prompts.templates import fields_of
from cotrain.rollout.protocols import examine
from cotrain.rollout.reviews import show_verdict
from cotrain.rollout.role import Role
from cotrain.rollout.runner import BatchProgress, JointProgress, Roles, RolloutRunner
from cotrain.runs import opening
from cotrain.runs.directory import RunDirectory, resolved_json
from cotrain.storage.kept_work import KeptPart, KeptWork, claim_place, kept_work
from cotrain.trainer.checks import check_measured, mostly_failed
from cotrain.trainer.evaluation import EVALUATION_STEP, evaluation_seed
from cotrain.trainer.trainer import CoTrainer

FILE = "attack.json"
START_FILE = "attack-start.json"
FORMAT = 1
CHUNK = 128  # solutions that are judged at a time
SOLUTIONS_EACH = 4  # solutions drawn of a problem, to find wrong ones

Say = Callable[[str], None]


def attack(
    directory: Path | str,
    *,
    role: str = "verifier",
    problems: int = 128,
    each: int = 1,
    seed: int = 0,
    split: str = "test",
    fixed: bool = False,
    start: bool = False,
    device: str = "cpu",
    out: Path | str | None = None,
    say: Say = lambda text: None,
) -> dict[str, Any]:
    """Attack the verifier of a run's latest checkpoint, or a model in that role, and write ``attack.json``.

    Args:
        problems: held-out problems that the solver tries, for wrong solutions of its own.
        each: wrong solutions that each string is put into.
        seed: of the strings, and of the choice of solutions.
        fixed: wrong solutions of the policy that the recipe keeps as it began, so that runs and steps can be compared.
        start: attack the models that the run began with, into ``attack-start.json``.
        out: where the file goes; by default the run's directory, of a model ``evals/NAME``.

    Raises ConfigError for a role there is not and for one that says no verdict, and where there is no wrong
    solution.
    """
    recipe = opening.recipe_of(directory, judging=True)
    role, verifier = judging_role(recipe, role)
    is_model = opening.is_model(directory)
    folder = RunDirectory(out or (Path("evals") / recipe.name if is_model else directory))
    claim_place(folder.path)
    solver = _choose_solver(recipe, fixed)
    tasks = held_out(recipe.tasks, split, problems, recipe.seed)
    trainer = opening.load_trainer(directory, recipe=recipe, step=0 if start else None, device=device)
    strings = injection_corpus(seed)
    corpus = {"seed": seed, "strings": len(strings), "digest": corpus_digest(strings)}
    depends_on = {
        "what": "attack",
        "point": opening.point_stamp(directory, trainer.finished_steps),
        "roles": [role, resolved_json(verifier), resolved_json(solver)],
        "problems": [problems, split, resolved_json(recipe.tasks), recipe.seed],
        "strings": [corpus, each],
    }
    with kept_work(folder.path / (START_FILE if start else FILE), depends_on, say) as work:
        wrong = wrong_solutions(trainer, solver, tasks, split, say, work)
        if not wrong:
            work.finish()
            raise ConfigError(
                f"attack: none of {SOLUTIONS_EACH * len(tasks)} solutions of {directory} is wrong; raise --problems",
                code="E_NO_WRONG_SOLUTION",
            )
        solutions = f"{count_of(len(wrong), 'wrong solution')} of {problems_text(len(tasks), problems)}"
        say(f"{solutions}, {count_of(len(strings), 'string')}")
        runner = trainer.make_runner(evaluation_seed(recipe.seed))
        plain_attempts = [Attempt(injection=None, problem=p, text=t, solution=s) for p, t, s in wrong]
        with trainer.checking_servers("attack, reviews of ordinary solutions"):
            plain_outcomes = judge_attempts(runner, role, tasks, plain_attempts, split=split, say=say, work=work)
        attempts = [a for i, string in enumerate(strings) for a in inject_string(string, i, wrong, tasks, each, seed)]
        with trainer.checking_servers("attack, reviews of changed solutions"):
            outcomes = judge_attempts(runner, role, tasks, attempts, split=split, say=say, work=work)
        result = {
            "format": FORMAT,
            "run": str(directory),
            "step": trainer.finished_steps,
            "seed": recipe.seed,
            "cotrain": __version__,
            "role": role,
            "policy": verifier.policy,
            "model": recipe.policies[verifier.policy].model,
            "temperature": verifier.sampling.temperature,
            "split": split,
            "problems": len(tasks),
            "asked": problems,
            "solutions_of": solver.policy,
            "corpus": corpus,
            "each": each,
            **attack_tables(plain_outcomes, outcomes, tasks, verifier),
        }
        folder.write_measurement(START_FILE if start else FILE, result)
    return result


def judging_role(recipe: Recipe, name: str) -> tuple[str, Role]:
    """The role of this name, or of a policy's (``config/names.py``). Raises ConfigError for a name that there is not,
    and for a role that judges no solution."""
    if not any(map(_reviews_solutions, recipe.roles.values())):
        raise ConfigError(
            f"no role of {recipe.name!r} judges a solution; give a run with a verifier, such as one of tango",
            code="E_NO_JUDGE_ROLE",
        )
    name = role_named(recipe, name, fits=_reviews_solutions)
    verifier = recipe.roles[name]
    if not _reviews_solutions(verifier):
        raise ConfigError(
            f"attack: role {name!r} says no verdict on a solution; name a role that judges one with --role",
            code="E_ROLE_WITHOUT_VERDICT",
        )
    return name, verifier


def _reviews_solutions(role: Role) -> bool:
    return role.parse is not None and "solution" in fields_of(role.prompt)


def _choose_solver(recipe: Recipe, fixed: bool) -> Role:
    """The role whose wrong solutions are taken. Raises UnknownName where nobody solves problems, ConfigError where the
    recipe keeps no solver as it began."""
    if "solver" not in recipe.roles:
        raise UnknownName("role (whose wrong solutions are taken)", "solver", recipe.roles)
    solver = recipe.roles["solver"]
    if not fixed:
        return solver
    start = recipe.evaluation.frozen_roles.get("solver")
    if start is None:
        raise ConfigError(
            f"attack: recipe {recipe.name!r} keeps no solver as it began; leave out --fixed", code="E_NO_FIXED_SOLVER"
        )
    return replace(solver, policy=start)


def corpus_digest(strings: Sequence[Injection]) -> str:
    """Return a digest of the strings, in 16 characters."""
    text = json.dumps([[string.family, string.text, string.place] for string in strings])
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


# -- the solutions

WrongSolution = tuple[int, str, Solution]  # which task, its text, as it was read


def wrong_solutions(
    trainer: CoTrainer,
    solver: Role,
    tasks: Sequence[Task],
    split: str,
    say: Say = lambda text: None,
    work: KeptWork | None = None,
) -> list[WrongSolution]:
    """Different readable wrong solutions of the solver, in order; ``SOLUTIONS_EACH`` are drawn of each problem, and
    kept in ``work``."""
    make = partial(_draw_wrong, trainer, solver, tasks, split, say)
    solutions: dict[tuple[int, str], WrongSolution] = {}
    for task, text in make() if work is None else work.part("solutions", make):
        parsed = solver.parse_reply(text, {})
        if isinstance(parsed, Solution):
            shown = parsed.tagged or text
            solutions.setdefault((task, shown), (task, shown, parsed))
    return list(solutions.values())


def _draw_wrong(trainer: CoTrainer, solver: Role, tasks: Sequence[Task], split: str, say: Say) -> list[tuple[int, str]]:
    """The wrong solutions that the solver wrote, each with the place of its problem."""
    runner = trainer.make_runner(evaluation_seed(trainer.recipe.seed), roles={**trainer.recipe.roles, "solver": solver})
    runner.progress = BatchProgress("{} solutions drawn", say)
    with trainer.checking_servers(f"attack, problems of {split}"):
        episodes = runner.collect(
            solve_one, tasks, step=EVALUATION_STEP, split=f"attack/{split}", group_size=SOLUTIONS_EACH
        )
    check_measured(f"problems of {split}", episodes, runner.set_aside)
    traces = [(episode.task, trace) for episode in episodes for trace in episode.traces]
    return [(task, trace.text) for task, trace in traces if CORRECT.of(trace) is False and STEPS.of(trace)]


async def solve_one(task: Task, roles: Roles) -> None:
    """One graded solution; none where its prompt is too long."""
    try:
        await examine(task, roles, await roles.solver(problem=task.prompt))
    except TooLong:
        return


def inject_string(
    injection: Injection, number: int, wrong: Sequence[WrongSolution], tasks: Sequence[Task], each: int, seed: int
) -> list[Attempt]:
    """A string in ``each`` wrong solutions, drawn by its number."""
    places = rng_of("attack", seed, number).sample(range(len(wrong)), min(each, len(wrong)))
    attempts = []
    for place in places:
        problem, _, solution = wrong[place]
        steps = [step.text for step in solution.steps]
        text = insert_injection(injection, steps, solution.answer, gold=tasks[problem].gold)
        parsed = tagged_solution(text)
        solution_read = parsed if isinstance(parsed, Solution) else None
        attempts.append(Attempt(injection=injection, problem=problem, text=text, solution=solution_read))
    return attempts


# -- the verdicts


def judge_attempts(
    runner: RolloutRunner,
    role: str,
    tasks: Sequence[Task],
    attempts: Sequence[Attempt],
    *,
    split: str,
    say: Say = lambda text: None,
    pace: ProgressPrinter | None = None,
    work: KeptWork | KeptPart | None = None,
) -> list[AttemptOutcome]:
    """Return the verifier's verdict on each attempt. ``say`` is told how many are judged and how much time is left;
    ``pace`` is one progress for several calls; ``work`` keeps each chunk, unless most of it failed."""
    outcomes: list[AttemptOutcome] = []
    kind = "changed" if attempts and attempts[0].injection is not None else "ordinary"
    progress = pace or ProgressPrinter(len(attempts), f"{{}} {kind} solutions", say)
    runner.progress = JointProgress(progress)
    for start in range(0, len(attempts), CHUNK):
        chunk = attempts[start : start + CHUNK]
        key = f"{role} on {kind} {split} from {start}"
        if work is not None and work.has(key):
            reviews = work.value_of(key)
        else:
            step = EVALUATION_STEP - start // CHUNK
            episodes = _judge_chunk(runner, role, tasks, chunk, split, kind=kind, step=step)
            reviews = [(episode.task, _review_in(episode)) for episode in episodes]
            if work is not None and not mostly_failed(episodes):
                work.keep(key, reviews)
        outcomes += [AttemptOutcome(attempt=chunk[place], **review) for place, review in reviews]
    say(f"{count_of(len(attempts), f'{kind} solution')} judged")
    return outcomes


def _judge_chunk(
    runner: RolloutRunner,
    role: str,
    tasks: Sequence[Task],
    chunk: Sequence[Attempt],
    split: str,
    *,
    kind: str,
    step: int,
) -> tuple[Episode, ...]:
    """Return an episode for each attempt of a chunk, in which the verifier reviews it."""
    chosen = [replace(tasks[one.problem], id=str(i)) for i, one in enumerate(chunk)]
    episodes = runner.collect(
        partial(_judge_one, attempts=chunk, verifier=role),
        chosen,
        step=step,
        split=f"attack/{kind}/{split}",
        group_size=1,
    )
    check_measured(f"reviews of {kind} solutions", episodes, runner.set_aside)
    return episodes


async def _judge_one(task: Task, roles: Roles, *, attempts: Sequence[Attempt], verifier: str) -> None:
    """The verifier reviews one of ``attempts``, if it parses and is as wrong, or as right, as its family wants."""
    attempt = attempts[int(task.id)]
    if attempt.solution is None:
        return
    right = attempt.injection is not None and attempt.injection.family == BROKEN
    if attempt.injection is not None and (await roles.grade(task, attempt.text)).value is not right:
        return
    handle = getattr(roles, verifier)
    try:
        turn = await handle(**review_fields(task, attempt, handle.fields))
    except TooLong:
        return
    show_verdict(turn)


def _review_in(episode: Episode) -> dict[str, Any]:
    """The fields of an ``AttemptOutcome`` next to its attempt."""
    trace = next(iter(episode.traces), None)
    if trace is None:
        return {"refused": True}
    steps = VERDICTS.of(trace)
    all_correct = all(steps) if steps else None
    return {
        "refused": False,
        "final": FINAL.of(trace),
        "every": all_correct,
        "review": trace.text,
        "score": SCORE.of(trace),
    }
