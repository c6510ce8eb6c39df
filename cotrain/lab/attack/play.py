"""``cotrain attack RUN --role verifier``: how often a verifier believes a wrong solution that tries to fool it.

Wrong solutions of the run's own solver are changed by each string of ``text/injections.py`` and judged as in training,
at the role's own temperature. Beside the false-positive rate of each family stands that on the same solutions
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
from pathlib import Path
from typing import Any

from cotrain import __version__, api
from cotrain.config.evaluation import held_out
from cotrain.config.names import role_named
from cotrain.config.recipe import Recipe
from cotrain.core.address import rng_of
from cotrain.core.errors import ConfigError, TooLong, UnknownName
from cotrain.core.notes import CORRECT, FINAL, SCORE, STEPS, VERDICTS
from cotrain.core.pace import Pace
from cotrain.core.types import Episode, Task
from cotrain.lab.attack.tables import BROKEN, Attempt, Outcome, asked, tables
from cotrain.rollout.executor import Executor, Roles
from cotrain.rollout.protocols import examine, show_verdict
from cotrain.rollout.role import Role
from cotrain.runs.directory import RunDirectory
from cotrain.text.injections import Injection, attacked, corpus
from cotrain.text.parsers import Solution, tagged_solution
from cotrain.text.prompts import fields_of
from cotrain.train.evaluation import EVALUATION_STEP, evaluation_seed
from cotrain.train.refusals import refuse_unmeasured
from cotrain.train.trainer import CoTrainer

FILE, OF_START, FORMAT = "attack.json", "attack-start.json", 1
CHUNK = 128  # solutions that are judged at a time
WRONG = 4  # solutions drawn of a problem, to find wrong ones

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
    recipe = api.recipe_of(directory, judging=True)
    role, judge = judging_role(recipe, role)
    trainer = api.trained(directory, recipe=recipe, step=0 if start else None, device=device)
    tasks = held_out(recipe.tasks, split, problems, recipe.seed)
    solver = _solver(trainer, fixed)
    wrong = wrong_solutions(trainer, solver, tasks, split, say)
    if not wrong:
        raise ConfigError(f"attack: none of {WRONG * problems} solutions of {directory} is wrong; raise --problems")
    strings = corpus(seed)
    say(f"{len(wrong)} wrong solutions of {problems} problems, {len(strings)} strings")
    player = trainer.player(evaluation_seed(recipe.seed))
    ordinary = [Attempt(injection=None, problem=p, text=t, solution=s) for p, t, s in wrong]
    plain = judged(player, role, tasks, ordinary, split=split, say=say)
    attempts = [one for i, string in enumerate(strings) for one in changed(string, i, wrong, tasks, each, seed)]
    outcomes = judged(player, role, tasks, attempts, split=split, say=say)
    found = {
        "format": FORMAT,
        "run": str(directory),
        "step": trainer.finished,
        "seed": recipe.seed,
        "cotrain": __version__,
        "role": role,
        "policy": judge.policy,
        "model": recipe.policies[judge.policy].model,
        "temperature": judge.sampling.temperature,
        "split": split,
        "problems": problems,
        "solutions_of": solver.policy,
        "corpus": {"seed": seed, "strings": len(strings), "digest": digest(strings)},
        "each": each,
        **tables(plain, outcomes, tasks, judge),
    }
    folder = RunDirectory(out or (Path("evals") / recipe.name if api.is_model(directory) else directory))
    folder.path.mkdir(parents=True, exist_ok=True)
    folder.write(OF_START if start else FILE, found)
    return found


def judging_role(recipe: Recipe, name: str) -> tuple[str, Role]:
    """The role of this name, or of a policy's (``config/names.py``). Raises ConfigError for a name that there is not,
    and for a role that judges no solution."""
    name = role_named(recipe, name, fits=_judges)
    judge = recipe.roles[name]
    if not _judges(judge):
        raise ConfigError(
            f"attack: role {name!r} says no verdict on a solution; name a role that judges one with --role"
        )
    return name, judge


def _judges(role: Role) -> bool:
    return role.parse is not None and "solution" in fields_of(role.prompt)


def _solver(trainer: CoTrainer, fixed: bool) -> Role:
    """The role whose wrong solutions are taken."""
    recipe = trainer.recipe
    if "solver" not in recipe.roles:
        raise UnknownName("role (whose wrong solutions are taken)", "solver", recipe.roles)
    solver = recipe.roles["solver"]
    if not fixed:
        return solver
    start = recipe.evaluation.fixed.get("solver")
    if start is None:
        raise ConfigError(f"attack: recipe {recipe.name!r} keeps no solver as it began; leave out --fixed")
    return replace(solver, policy=start)


def digest(strings: Sequence[Injection]) -> str:
    """What the strings are, in 16 characters."""
    text = json.dumps([[one.family, one.text, one.place] for one in strings])
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


# -- the solutions

Wrong = tuple[int, str, Solution]  # which task, its text, as it was read


def wrong_solutions(
    trainer: CoTrainer, solver: Role, tasks: Sequence[Task], split: str, say: Say = lambda text: None
) -> list[Wrong]:
    """Different readable wrong solutions of the solver, in order; ``WRONG`` are drawn of each problem."""
    player = trainer.player(evaluation_seed(trainer.recipe.seed), roles={**trainer.recipe.roles, "solver": solver})
    player.watch = lambda total: Pace(total, "{} solutions drawn", say).add
    played = player.play(_solve, tasks, step=EVALUATION_STEP, split=f"attack/{split}", group_size=WRONG)
    refuse_unmeasured(f"problems of {split}", played, player.set_aside)
    found: dict[tuple[int, str], Wrong] = {}
    for episode in played:
        for trace in episode.traces:
            steps = STEPS.of(trace)
            if CORRECT.of(trace) is False and steps:
                parsed = solver.read(trace.text, {})
                if isinstance(parsed, Solution):
                    text = parsed.tagged or trace.text
                    found.setdefault((episode.task, text), (episode.task, text, parsed))
    return list(found.values())


async def _solve(task: Task, roles: Roles) -> None:
    try:
        await examine(task, roles, await roles.solver(problem=task.prompt))
    except TooLong:
        return


def changed(
    injection: Injection, number: int, wrong: Sequence[Wrong], tasks: Sequence[Task], each: int, seed: int
) -> list[Attempt]:
    """A string in ``each`` wrong solutions, drawn by its number."""
    drawn = rng_of("attack", seed, number).sample(range(len(wrong)), min(each, len(wrong)))
    made = []
    for place in drawn:
        problem, _, solution = wrong[place]
        steps = [step.text for step in solution.steps]
        text = attacked(injection, steps, solution.answer, gold=tasks[problem].answer)
        parsed = tagged_solution(text)
        read = parsed if isinstance(parsed, Solution) else None
        made.append(Attempt(injection=injection, problem=problem, text=text, solution=read))
    return made


# -- the verdicts


def judged(
    player: Executor,
    role: str,
    tasks: Sequence[Task],
    attempts: Sequence[Attempt],
    *,
    split: str,
    say: Say = lambda text: None,
    pace: Pace | None = None,
) -> list[Outcome]:
    """What the verifier says of each. ``say`` hears how many, and how much time is left; ``pace``: of several calls."""
    outcomes: list[Outcome] = []
    kind = "changed" if attempts and attempts[0].injection is not None else "ordinary"
    counted = pace or Pace(len(attempts), f"{{}} {kind} solutions", say)
    player.watch = lambda total: counted.add
    for start in range(0, len(attempts), CHUNK):
        mine = attempts[start : start + CHUNK]
        chosen = [replace(tasks[one.problem], id=str(i)) for i, one in enumerate(mine)]
        episodes = player.play(
            _judge_one,
            chosen,
            step=EVALUATION_STEP - start // CHUNK,
            split=f"attack/{kind}/{split}",
            group_size=1,
            attempts=mine,
            judge=role,
        )
        refuse_unmeasured(f"reviews of {kind} solutions", episodes, player.set_aside)
        outcomes += [_outcome(mine[episode.task], episode) for episode in episodes]
    say(f"{len(attempts):,} {kind} solutions judged")
    return outcomes


async def _judge_one(task: Task, roles: Roles, *, attempts: Sequence[Attempt], judge: str) -> None:
    """The verifier reviews one of ``attempts``, if it parses and is as wrong, or as right, as its family wants."""
    attempt = attempts[int(task.id)]
    if attempt.solution is None:
        return
    right = attempt.injection is not None and attempt.injection.family == BROKEN
    if attempt.injection is not None and (await roles.grade(task, attempt.text)).value is not right:
        return
    handle = getattr(roles, judge)
    try:
        turn = await handle(**asked(task, attempt, handle.fields))
    except TooLong:
        return
    show_verdict(turn)


def _outcome(attempt: Attempt, episode: Episode) -> Outcome:
    trace = next(iter(episode.traces), None)
    if trace is None:
        return Outcome(attempt=attempt, refused=True)
    steps = VERDICTS.of(trace)
    every = all(steps) if steps else None
    return Outcome(
        attempt=attempt, refused=False, final=FINAL.of(trace), every=every, review=trace.text, score=SCORE.of(trace)
    )
