"""Benchmarks: ``cotrain eval RUN --suite gsm8k,math500,processbench --data …``.

The solver of a run, or a model by itself, answers every problem of a suite once greedily and ``samples`` times at its
own temperature, and the run's verifier, where there is one, reviews each sampled solution; in ProcessBench the
verifier judges the solutions given. Of MBPP and HumanEval the answers are programs, which are run with the problem's
tests (``tasks/programs.py``). What came of each sample is a row of ``suite-NAME.jsonl`` in the run directory, and
``suite-NAME.json`` holds the scores (``metrics/suites.py``) beside the settings they were made with. The rows are
written as they are made: the same command goes on where it was interrupted, and only prints what is finished.

Left out: few-shot prompts, tools. A sample that does not fit its model's context counts as wrong.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any

from cotrain import __version__, api
from cotrain.config.names import role_named
from cotrain.config.override import override
from cotrain.config.recipe import Recipe
from cotrain.core.errors import ConfigError, DataError, TooLong, UnknownName
from cotrain.core.notes import ANSWER, CORRECT, FAILURE, FINAL, SCORE
from cotrain.core.pace import Pace
from cotrain.core.statistics import Estimate
from cotrain.core.types import Episode, ParseFailure, Task, Trace
from cotrain.core.verbosity import progress
from cotrain.disk.files import replace_file
from cotrain.disk.jsonl import JsonlWriter, encode_row, read_jsonl
from cotrain.grading.fences import program_of
from cotrain.grading.pool import AnswerGrader, vote_key
from cotrain.metrics.suites import (
    GREEDY,
    SampleRow,
    prmbench_scores,
    processbench_scores,
    program_scores,
    solver_scores,
)
from cotrain.metrics.templates import templates
from cotrain.preflight.answers import AS_IT_IS, Asking, answers_for
from cotrain.preflight.probing import AUTO, PROBED
from cotrain.preflight.verdicts import verdicts_for
from cotrain.rollout.executor import TOO_LONG, Executor, Roles
from cotrain.rollout.fixed_solutions import judge_given
from cotrain.rollout.protocols import examine, review
from cotrain.rollout.role import Role
from cotrain.runs.directory import RunDirectory, estimates_json
from cotrain.tasks import programs
from cotrain.tasks.processbench import Sample
from cotrain.tasks.programs import KINDS as PROGRAMS
from cotrain.tasks.programs import ProgramGrader
from cotrain.tasks.reading import Quarantine
from cotrain.tasks.suite_files import JUDGED, drawn, load_suite, some_of, suite_data
from cotrain.text.answers import parse_solution
from cotrain.text.parsers import UNFINISHED, final_answer
from cotrain.train.evaluation import EVALUATION_STEP
from cotrain.train.refusals import refuse_unmeasured

CHUNK = 64  # problems that are played, and written, at a time


@dataclass(frozen=True, slots=True, kw_only=True)
class Play:
    """How a suite is played."""

    samples: int = 8  # k of avg@k, pass@k, …; 0: the greedy answer alone
    reviews: int = 1  # of each solution; in ProcessBench one greedy review, or the plurality of several sampled ones
    solver: str = "solver"  # role
    verifier: str = "verifier"  # role; a run without it has no best@k, weighted@k and ProcessBench
    problems: int | None = None  # so many, drawn by a hash, in ProcessBench spread over each split; None for all
    how: Asking = AS_IT_IS  # how roles are asked and read; by default as the run has it, of a model "auto"
    max_tokens: int | None = None  # of an answer; None: as the role has it
    lenient: bool = False  # malformed rows are set aside

    def __post_init__(self) -> None:
        if self.samples < 0 or self.reviews < 1 or (self.problems is not None and self.problems < 1):
            raise ConfigError(
                f"suite: samples {self.samples} >= 0, reviews {self.reviews} >= 1, problems >= 1 expected"
            )


def evaluate_suites(
    directory: Path | str,
    suites: Sequence[str],
    data: Sequence[str] = (),
    *,
    play: Play | None = None,
    device: str = "cpu",
    out: Path | str | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> list[dict[str, Any]]:
    """Score a run's latest checkpoint, or a model, on suites. ``data``: see ``suite_data``. ``out``: where rows and
    scores go, by default the run's directory, of a model ``evals/NAME``. ``say`` hears how the model answers and what
    was set aside.

    Returns for each suite ``{"suite", "settings", "figures"}``, as written to ``suite-NAME.json``. Raises UnknownName,
    ConfigError, DataError before anything is played.
    """
    play = play or Play()
    paths = suite_data(suites, data)
    recipe, judge = api.recipe_of(directory, judging=not JUDGED.keys().isdisjoint(suites)), AnswerGrader()
    aside = Quarantine() if play.lenient else None
    items = {name: some_of(_loaded(name, paths[name], judge, aside), play.problems) for name in paths}
    if aside is not None and aside.refused:
        say(f"note: {aside.line()}")
    bare = api.is_model(directory)
    solver, verifier = _role(recipe, play.solver, "solver"), _role(recipe, play.verifier, "verifier")
    play = replace(play, solver=solver, verifier=verifier)
    if play.max_tokens is not None:
        recipe = override(recipe, [f"roles.{solver}.sampling.max_tokens={play.max_tokens}"])
    if bare or play.how.of_answers:
        asked = [task for mine in items.values() for task in mine if isinstance(task, Task)]
        asked = asked if not asked or isinstance(asked[0].grader, AnswerGrader) else []
        if asked or not bare:
            tasks = drawn(asked, PROBED)
            look = play.how.answer in (None, AUTO)  # where it is named the suite itself shows how well it is read
            answers, _ = answers_for(recipe, play.how, device=device, say=say, tasks=tasks, look=look)
            recipe = override(recipe, answers)
    recipe = override(recipe, verdicts_for(recipe, play.how, device=device, say=say, look=False))
    trainer = api.trained(directory, recipe=recipe, device=device)
    folder = RunDirectory(out or (Path("evals") / recipe.name if bare else directory))
    folder.path.mkdir(parents=True, exist_ok=True)
    policies = {role: trainer.recipe.policies[spec.policy].model for role, spec in trainer.recipe.roles.items()}
    made = {"run": str(directory), "step": trainer.finished, "seed": trainer.recipe.seed, "cotrain": __version__}
    results = []
    for name, mine in items.items():
        settings = made | {"data": paths[name]} | settings_of(name, mine, trainer.judge, play, policies)
        rows = played(folder.path / f"suite-{name}.jsonl", name, mine, trainer.judge, play, settings, say)
        if rows and all(row.get("failure") == TOO_LONG for row in rows):
            context = f"no problem of {name} fits the context of the model together with max_tokens"
            raise TooLong(f"{context}; lower it with --max-tokens N, or take a model with a longer context")
        figures = scores_of(name, rows, play)
        found: dict[str, Any] = {"suite": name, "settings": settings, "figures": estimates_json(figures)}
        if name not in JUDGED:
            found["templates"] = len(set(templates([task.prompt for task in mine if isinstance(task, Task)])))
        results.append(found)
        folder.write(f"suite-{name}.json", results[-1])
    for ending in {judge, *(task.grader for mine in items.values() for task in mine if isinstance(task, Task))}:
        if isinstance(ending, AnswerGrader):
            ending.close()
    return results


def _role(recipe: Recipe, name: str, flag: str) -> str:
    """The role of a name, or of a policy's; the usual name stands for itself, as a recipe may have no such role."""
    return name if name == flag else role_named(recipe, name, f"--{flag}")


def _loaded(
    name: str, paths: Sequence[str], judge: AnswerGrader, aside: Quarantine | None
) -> list[Task] | list[Sample]:
    try:
        return load_suite(name, paths, judge, aside)
    except DataError as error:
        if ", row " not in str(error):
            raise
        raise DataError(
            f"{error}; expected a file of suite {name!r}: mend it, or name another with --data {name}=PATH"
        ) from error


def scores_of(name: str, rows: Sequence[SampleRow], play: Play) -> dict[str, Estimate]:
    """The figures of a suite from its rows."""
    if name in JUDGED:
        return {"processbench": processbench_scores, "prmbench": prmbench_scores}[name](rows)
    if name in PROGRAMS:
        return program_scores(rows, play.samples)
    return solver_scores(rows, play.samples, key=vote_key)


def settings_of(
    name: str, items: Sequence[Task] | Sequence[Sample], executor: Executor, play: Play, models: dict[str, str]
) -> dict[str, Any]:
    """What the scores depend on, as JSON. Raises UnknownName for a role there is not, ConfigError for one that gives no
    verdicts."""
    judging, asked = name in JUDGED, play.verifier in executor.roles
    needed = [play.verifier] if judging else [play.solver, *([play.verifier] if asked and play.samples else [])]
    roles = {}
    for role in needed:
        if role not in executor.roles:
            raise UnknownName(f"role (of suite {name!r})", role, executor.roles)
        spec = executor.roles[role]
        if spec.parse is None:
            raise ConfigError(
                f"suite {name!r}: role {role!r} has no parser and gives nothing to score; name another role"
            )
        roles[role] = {
            "policy": spec.policy,
            "model": models.get(role, spec.policy),
            "temperature": 0.0 if judging and play.reviews == 1 else spec.sampling.temperature,
            "top_p": spec.sampling.top_p,
            "max_tokens": spec.sampling.max_tokens,
            "prompt": spec.prompt,
            **({"answer": spec.answer} if spec.parse is parse_solution else {}),
            **({"steps": spec.steps} if spec.steps is not None else {}),
            **({"verdict": spec.verdict} if spec.words else {}),
        }
    grader = f"math-verify {metadata.version('math-verify')}"
    if name in PROGRAMS:
        grader = f"the problem's tests, {programs.DEADLINE_S:g} s of CPU time"
    return {
        "problems": len(items),
        "digest": hashlib.blake2b(json.dumps([_text(i) for i in items]).encode(), digest_size=8).hexdigest(),
        **({} if judging else {"samples": play.samples, "grader": grader}),
        **({"reviews": play.reviews} if play.verifier in roles else {}),
        "roles": roles,
    }


def _text(item: Task | Sample) -> list[Any]:
    """What makes an item another one."""
    if isinstance(item, Sample):
        return [item.problem, *item.steps, str(item.label if item.wrong is None else item.wrong)]
    tests = [item.grader.problem(item).tests] if isinstance(item.grader, ProgramGrader) else []
    return [item.prompt, item.answer, *tests]


# -- play


def played(
    path: Path,
    name: str,
    items: Sequence[Any],
    executor: Executor,
    play: Play,
    settings: dict[str, Any],
    say: Callable[[str], None] = lambda text: None,
) -> list[SampleRow]:
    """The rows of a suite, one for each sample, in order; those that ``path`` holds from the same settings are kept."""
    each = 1 if name in JUDGED else play.samples + 1
    rows = _kept(path, settings, each, len(items))
    if len(rows) == each * len(items):
        return rows
    replace_file(path, b"".join(map(encode_row, [{"settings": settings}, *rows])))  # what is finished is never lost
    pace = Pace(each * len(items), f"{name}: {{}} answers", say, done=len(rows))
    executor.watch = lambda total: pace.add
    with JsonlWriter(path) as file:
        for start in range(len(rows) // each, len(items), CHUNK):
            mine, step, split = items[start : start + CHUNK], EVALUATION_STEP - start // CHUNK, f"suite/{name}"
            if name in JUDGED:
                new = judge_given(executor, mine, play.verifier, play.reviews, step=step, split=split)
            else:
                new = attempts(executor, mine, play, step=step, split=split)
            for row in new:
                file.append(row)
            file.sync()
            rows += new
    executor.watch = None
    return rows


def _kept(path: Path, settings: dict[str, Any], each: int, items: int) -> list[SampleRow]:
    """Rows of whole chunks that were made with these settings, ``each`` of an item."""
    found = read_jsonl(path) if path.exists() else []
    if not found or found[0] != {"settings": settings}:
        return []
    whole = len(found) - 1 if len(found) - 1 >= each * items else (len(found) - 1) // (each * CHUNK) * each * CHUNK
    return list(found[1 : 1 + whole])


def attempts(executor: Executor, tasks: Sequence[Task], play: Play, *, step: int, split: str) -> list[SampleRow]:
    """A solver's rows: of each problem its samples, then the greedy answer."""
    verifier = play.verifier if play.verifier in executor.roles else None
    how = {"solver": play.solver, "reviews": play.reviews}
    sampled = executor.play(attempt, tasks, step=step, split=split, group_size=play.samples, verifier=verifier, **how)
    greedy = executor.greedy().play(attempt, tasks, step=step, split=split, group_size=1, verifier=None, **how)
    for played in (sampled, greedy):
        refuse_unmeasured(split, played, executor.set_aside)
    found = [(e, e.member) for e in sampled] + [(e, GREEDY) for e in greedy]
    found.sort(key=lambda pair: (pair[0].task, pair[1] == GREEDY))  # stable: samples stay in order
    role = executor.roles[play.solver]
    return [_attempt_row(tasks[e.task], e, s, play.solver, role, None if s == GREEDY else verifier) for e, s in found]


async def attempt(task: Task, roles: Roles, *, solver: str, verifier: str | None, reviews: int) -> None:
    """Solve, grade, and let the verifier review what can be read. What is too long stays away."""
    try:
        solution = await getattr(roles, solver)(problem=task.prompt)
        correct = await examine(task, roles, solution)
        if verifier is not None and correct is not None and solution.parsed.ok:
            await review(task, roles, solution, n=reviews, role=verifier)
    except TooLong:
        return


def _attempt_row(task: Task, episode: Episode, sample: int, solver: str, role: Role, verifier: str | None) -> SampleRow:
    said = next((t for t in episode.traces if t.role == solver), None)
    reviews = [t for t in episode.traces if t.role == verifier]
    said_of_it = [SCORE.of(t) for t in reviews]
    scores = [0.5 if score is None else float(score) for score in said_of_it]  # one that cannot be read says one half
    score = sum(scores) / len(scores) if scores else None if verifier is None else 0.0  # unread: nothing speaks for it
    row = {"id": task.id, "sample": sample, "problem": task.prompt, "gold": task.answer, "score": score}
    if said is None:
        failure = episode.failure or TOO_LONG
        return row | {"answer": None, "correct": None if episode.failure else False, "failure": failure}
    return row | {
        "answer": _answer(task, said, role),
        "correct": CORRECT.of(said),
        "verdicts": [FINAL.of(t) for t in reviews],
        "failure": episode.failure or said.failure or FAILURE.of(said),
        "finish": said.finish,
        "text": said.text,
    }


def _answer(task: Task, said: Trace, role: Role) -> str | None:
    """What of a solution is graded."""
    judge = task.grader
    if isinstance(judge, ProgramGrader):
        return program_of(said.text, judge.problem(task).entry)
    if (answer := ANSWER.of(said)) is not None:
        return answer
    read = role.read(said.text, {}, thinking=FAILURE.of(said) == UNFINISHED)
    return final_answer(read.tagged or "") if isinstance(read, ParseFailure) else None


# -- report


def lines_of(result: dict[str, Any]) -> list[str]:
    """A suite's scores below the settings they were made with."""
    settings = result["settings"]
    counts = ", ".join(f"{settings[key]} {key}" for key in ("problems", "samples", "reviews") if key in settings)
    if result.get("templates", settings["problems"]) < settings["problems"]:
        counts = counts.replace(" problems", f" problems of {result['templates']} templates", 1)
    lines = [f"{result['suite']}: {counts}, after step {settings['step']}, data {' '.join(settings['data'])}"]
    lines += [f"  graded by {settings['grader']}"] if "grader" in settings else []
    for role, how in settings["roles"].items():
        drawn = f"temperature {how['temperature']}, top_p {how['top_p']}, at most {how['max_tokens']} tokens"
        lines.append(f"  {role}: {how['policy']} ({how['model']}), {drawn}")
    for key, value in result["figures"].items():
        figure = f"{value['value']:.3f} [{value['low']:.3f}, {value['high']:.3f}]"
        lines.append(f"  {key:40s} {figure:>22s}  n={value['n']}")
    return lines


def command(given: argparse.Namespace, how: Asking) -> int:
    """``cotrain eval RUN --suite …``, its flags parsed; returns the exit code."""
    play = Play(
        samples=given.samples,
        reviews=given.reviews,
        solver=given.solver,
        verifier=given.verifier,
        problems=given.problems,
        how=how,
        max_tokens=given.max_tokens,
        lenient=given.lenient,
    )
    names = [name.strip() for name in given.suite.split(",")]
    say = (lambda text: None) if given.json else progress
    results = evaluate_suites(
        given.directory, names, given.data, play=play, device=given.device, out=given.out, say=say
    )
    if given.json:
        print(json.dumps(results, indent=2, ensure_ascii=False))
    else:
        print("\n".join(line for result in results for line in lines_of(result)))
    return 0
