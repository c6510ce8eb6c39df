"""Benchmarks: ``cotrain eval RUN --suite gsm8k,math500,processbench --data …``.

The solver of a run, or a model by itself, answers every problem of a suite once greedily and ``samples`` times at its
own temperature, and the run's verifier, where there is one, reviews each sampled solution; a model reviews its own
where it is said how (``--verdict``); where it has a comparer, a
tournament of pairs chooses among them (``rollout/tournament.py``); in ProcessBench the verifier judges the solutions
given. Of MBPP and HumanEval the answers are programs, which are run with the problem's
tests (``data/programs.py``). What came of each sample is a row of ``suite-NAME.jsonl`` in the run directory, and
``suite-NAME.json`` holds the scores (``metrics/suites.py``) next to the settings they were made with. The rows are
written as they are made: the same command goes on where it was interrupted, and only prints what is finished.

Left out: few-shot prompts, tools. A sample that does not fit its model's context counts as wrong.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

from cotrain import __version__
from cotrain.config.edits import with_sampling
from cotrain.config.names import role_named
from cotrain.config.recipe import Recipe
from cotrain.core.errors import ConfigError, DataError, TooLong, UnknownName
from cotrain.core.notes import ANSWER, CORRECT, FAILURE, FINAL, SCORE, VERDICTS
from cotrain.core.statistics import Estimate
from cotrain.core.types import (
    TOO_LONG,
    UNLABELLED,
    Episode,
    Grader,
    ParseFailure,
    RolloutFn,
    Task,
    TaskSource,
    Trace,
    has_split,
)
from cotrain.core.verbosity import ProgressPrinter, count_of, json_text, print_lines, print_progress
from cotrain.data import programs
from cotrain.data.malformed_rows import Quarantine
from cotrain.data.processbench import FixedSolution
from cotrain.data.programs import KINDS as PROGRAMS
from cotrain.data.programs import ProgramGrader
from cotrain.data.question_text import normal_question
from cotrain.data.suite_files import JUDGED, draw_items, draw_tasks, load_suite, suite_data
from cotrain.formats.answers import final_answer
from cotrain.formats.solutions import UNFINISHED, parse_solution
from cotrain.grading.compare_texts import vote_key
from cotrain.grading.fences import program_of
from cotrain.grading.pool import AnswerGrader
from cotrain.metrics.suites import (
    GREEDY_SAMPLE,
    SampleRow,
    prmbench_scores,
    processbench_scores,
    program_scores,
    solver_scores,
)
from cotrain.metrics.templates import question_templates
from cotrain.rollout.event_loop import gather
from cotrain.rollout.fixed_solutions import judge_fixed_solutions
from cotrain.rollout.protocols import examine
from cotrain.rollout.reviews import review
from cotrain.rollout.role import Role, Turn
from cotrain.rollout.runner import JointProgress, Roles, RolloutRunner
from cotrain.rollout.token_calls import tool_name, with_tool
from cotrain.rollout.tournament import RATING, hold_tournament
from cotrain.runs import opening
from cotrain.runs.check_tools import check_tools
from cotrain.runs.choose_formats import (
    AUTO,
    DEFAULT_FORMAT,
    PROBED,
    AnswerFormat,
    as_taught,
    choose_answer_format,
    choose_verdict_format,
)
from cotrain.runs.directory import RunDirectory, estimates_json
from cotrain.storage.file_ops import replace_file
from cotrain.storage.jsonl import JsonlWriter, encode_row, read_jsonl
from cotrain.storage.kept_work import claim_place
from cotrain.trainer.checks import check_measured
from cotrain.trainer.evaluation import EVALUATION_STEP

CHUNK = 64  # problems that are sampled, and written, at a time


@dataclass(frozen=True, slots=True, kw_only=True)
class SuiteOptions:
    """How a suite is evaluated."""

    samples: int = 8  # k of avg@k, pass@k, …; 0: the greedy answer alone
    reviews: int = 1  # reviews of each solution; in ProcessBench one is greedy, several are sampled and vote
    solver: str = "solver"  # role
    verifier: str = "verifier"  # role; a run without it has no best@k, weighted@k and ProcessBench
    comparer: str = "comparer"  # role that judges pairs of solutions; a run without it has no tournament@k
    problems: int | None = None  # so many, drawn by a hash, in ProcessBench spread over each split; None for all
    how: AnswerFormat = DEFAULT_FORMAT  # how roles are asked and read; by default as the run has it, of a model "auto"
    max_tokens: int | None = None  # tokens of an answer; None: as the role has it
    temperature: float | None = None  # temperature of samples and of their reviews; None: as the roles have it
    lenient: bool = False  # malformed rows are set aside
    tool: str | None = None  # tool of the solver (``rollout/token_calls.py``); None: as the run has it

    def __post_init__(self) -> None:
        if self.samples < 0 or self.reviews < 1 or (self.problems is not None and self.problems < 1):
            raise ConfigError(
                f"suite: samples {self.samples} >= 0, reviews {self.reviews} >= 1, problems >= 1 expected",
                code="E_SUITE_RANGE",
            )


def evaluate_suites(
    directory: Path | str,
    suites: Sequence[str],
    data: Sequence[str] = (),
    *,
    options: SuiteOptions | None = None,
    device: str = "cpu",
    out: Path | str | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> list[dict[str, Any]]:
    """Score a run's latest checkpoint, or a model, on suites. ``data``: see ``suite_data``. ``out``: where rows and
    scores go, by default the run's directory, of a model ``evals/NAME``. ``say`` hears how the model answers and what
    was set aside.

    Returns for each suite ``{"suite", "settings", "figures"}``, as written to ``suite-NAME.json``, with "trained_on",
    how many of its problems the run was trained on, where there are some. Raises UnknownName,
    ConfigError, DataError before anything is sampled.
    """
    options = options or SuiteOptions()
    paths = suite_data(suites, data)
    is_model = opening.is_model(directory)
    folder = RunDirectory(out or (Path("evals") / Path(directory).name if is_model else directory))
    judging = options.how.of_reviews or not JUDGED.keys().isdisjoint(suites)
    recipe = opening.recipe_of(directory, judging=judging)
    if options.tool is not None:
        recipe = replace(recipe, roles=with_tool(recipe.roles, options.tool))
        check_tools(recipe)
    grader = AnswerGrader()
    items = _read_items(paths, options, grader, say)
    options = _with_role_names(recipe, options)
    claim_place(folder.path)

    recipe = _with_sampling_of(recipe, options)
    if is_model:
        options = replace(options, how=as_taught(recipe, options.how, say))
    recipe = _with_formats(recipe, options, items, is_model=is_model, device=device, say=say)
    trainer = opening.load_trainer(directory, recipe=recipe, device=device)
    policies = {role: trainer.recipe.policies[spec.policy].model for role, spec in trainer.recipe.roles.items()}
    base_settings = {
        "run": str(directory),
        "step": trainer.finished_steps,
        "seed": trainer.recipe.seed,
        "cotrain": __version__,
    }
    training: set[str] = set() if is_model else training_questions(recipe.tasks)

    runner = trainer.evaluation_runner
    results = []
    for name, suite_items in items.items():
        own_settings = suite_settings(name, suite_items, runner, options, policies)
        settings = base_settings | {"data": paths[name]} | own_settings
        rows_file = folder.path / f"suite-{name}.jsonl"
        rows = evaluate_suite(rows_file, name, suite_items, runner, options, settings, say)
        result = _suite_result(name, suite_items, rows, options, settings, training)
        results.append(result)
        folder.write(f"suite-{name}.json", result)
    _close_graders(grader, items)
    return results


SuiteItems = list[Task] | list[FixedSolution]


def _read_items(
    paths: Mapping[str, Sequence[str]], options: SuiteOptions, grader: AnswerGrader, say: Callable[[str], None]
) -> dict[str, SuiteItems]:
    """The problems, or solutions, of each suite: as many as ``options`` asks for. Raises DataError."""
    refused = Quarantine() if options.lenient else None
    items = {name: draw_items(_load_items(name, paths[name], grader, refused, say), options.problems) for name in paths}
    if refused is not None and refused.refused:
        say(f"note: {refused.summary_line()}")
    return items


def _with_role_names(recipe: Recipe, options: SuiteOptions) -> SuiteOptions:
    """``options`` with names of roles where policies were named. Raises UnknownName."""
    return replace(
        options,
        solver=_resolve_role(recipe, options.solver, "solver"),
        verifier=_resolve_role(recipe, options.verifier, "verifier"),
        comparer=_resolve_role(recipe, options.comparer, "comparer"),
    )


def _with_sampling_of(recipe: Recipe, options: SuiteOptions) -> Recipe:
    """The recipe with the lengths and temperatures that ``options`` states."""
    if options.max_tokens is not None:
        recipe = with_sampling(recipe, [options.solver], max_tokens=options.max_tokens)
    if options.temperature is not None:
        sampling_roles = [role for role in (options.solver, options.verifier) if role in recipe.roles]
        recipe = with_sampling(recipe, sampling_roles, temperature=float(options.temperature))
    return recipe


def _with_formats(
    recipe: Recipe,
    options: SuiteOptions,
    items: Mapping[str, SuiteItems],
    *,
    is_model: bool,
    device: str,
    say: Callable[[str], None],
) -> Recipe:
    """The recipe with the formats in which its roles are asked and read, chosen by a few problems of the suites."""
    if is_model or options.how.of_answers:
        answer_tasks = [task for suite_items in items.values() for task in suite_items if isinstance(task, Task)]
        has_answers = bool(answer_tasks) and isinstance(answer_tasks[0].grader, AnswerGrader)
        if not has_answers:
            answer_tasks = []
        if answer_tasks or not is_model:
            tasks = draw_tasks(answer_tasks, PROBED)
            look = options.how.answer in (None, AUTO)  # where it is named the suite itself shows how well it is read
            recipe, _ = choose_answer_format(recipe, options.how, device=device, say=say, tasks=tasks, look=look)
    return choose_verdict_format(recipe, options.how, device=device, say=say, look=False)


def _suite_result(
    name: str,
    items: SuiteItems,
    rows: Sequence[SampleRow],
    options: SuiteOptions,
    settings: Mapping[str, Any],
    training: Collection[str],
) -> dict[str, Any]:
    """What is written of a suite. ``training``: questions that the run may have been trained on. Raises TooLong where
    no problem fits."""
    if rows and all(row.get("failure") == TOO_LONG for row in rows):
        context = f"no problem of {name} fits the context of the model together with max_tokens"
        raise TooLong(f"{context}; lower it with --max-tokens N, or take a model with a longer context")
    result: dict[str, Any] = {
        "suite": name,
        "settings": settings,
        "figures": estimates_json(suite_scores(name, rows, options)),
    }
    if name not in JUDGED:
        prompts = [task.prompt for task in items if isinstance(task, Task)]
        result["templates"] = len(set(question_templates(prompts)))
    trained_on = sum(normal_question(_asked_question(item)) in training for item in items)
    if trained_on:
        result["trained_on"] = trained_on
    return result


def _close_graders(grader: AnswerGrader, items: Mapping[str, SuiteItems]) -> None:
    """End the processes that grade."""
    graders: set[Grader] = {grader}
    for suite_items in items.values():
        graders |= {task.grader for task in suite_items if isinstance(task, Task)}
    for each in graders:
        if isinstance(each, AnswerGrader):
            each.close()


def _resolve_role(recipe: Recipe, name: str, flag: str) -> str:
    """The role of a name, or of a policy's; the usual name stands for itself, as a recipe may have no such role."""
    return name if name == flag else role_named(recipe, name, f"--{flag}")


def _load_items(
    name: str, paths: Sequence[str], grader: AnswerGrader, aside: Quarantine | None, say: Callable[[str], None]
) -> SuiteItems:
    try:
        return load_suite(name, paths, grader, aside, say)
    except DataError as error:
        if ", row " not in str(error):
            raise
        raise DataError(
            f"{error}; expected a file of suite {name!r}: mend it, or name another with --data {name}=PATH",
            code=error.code,
        ) from error


def training_questions(source: TaskSource) -> set[str]:
    """The questions that a run may have been trained on, and their paraphrases; none of problems that are generated,
    which no file holds."""
    questions: set[str] = set()
    if not _is_read_from_file(source):
        return questions
    for split in ("train", UNLABELLED):
        size = source.size(split) if has_split(source, split) else None
        for index in range(size or 0):
            task = source.get(split, index)
            questions.update(map(normal_question, (task.prompt, *task.paraphrases)))
    return questions


def _is_read_from_file(source: Any) -> bool:
    """Also of a source around another one: with labels, or with a ramp."""
    inner = getattr(source, "source", None) or getattr(source, "targets", None)
    return hasattr(source, "path") if inner is None else _is_read_from_file(inner)


def _asked_question(item: Task | FixedSolution) -> str:
    return item.problem if isinstance(item, FixedSolution) else item.prompt


def suite_scores(name: str, rows: Sequence[SampleRow], options: SuiteOptions) -> dict[str, Estimate]:
    """The figures of a suite from its rows."""
    if name == "processbench":
        return processbench_scores(rows)
    if name == "prmbench":
        return prmbench_scores(rows)
    if name in PROGRAMS:
        return program_scores(rows, options.samples)
    return solver_scores(rows, options.samples, key=vote_key)


def suite_settings(
    name: str,
    items: Sequence[Task] | Sequence[FixedSolution],
    runner: RolloutRunner,
    options: SuiteOptions,
    models: dict[str, str],
) -> dict[str, Any]:
    """The settings that the scores depend on, as JSON. Raises UnknownName for a role there is not, ConfigError for one
    that gives no verdicts."""
    judging = name in JUDGED
    choosers = [role for role in (options.verifier, options.comparer) if role in runner.roles and options.samples]
    needed = [options.verifier] if judging else [options.solver, *choosers]
    roles = {}
    for role in needed:
        if role not in runner.roles:
            raise UnknownName(f"role (of suite {name!r})", role, runner.roles)
        spec = runner.roles[role]
        if spec.parse is None:
            raise ConfigError(
                f"suite {name!r}: role {role!r} has no parser and gives nothing to score; name another role",
                code="E_ROLE_WITHOUT_PARSER",
            )
        settings = {
            "policy": spec.policy,
            "model": models.get(role, spec.policy),
            "temperature": 0.0 if judging and options.reviews == 1 else spec.sampling.temperature,
            "top_p": spec.sampling.top_p,
            "max_tokens": spec.sampling.max_tokens,
            "prompt": spec.prompt,
        }
        if spec.parse is parse_solution:
            settings["answer"] = spec.answer_format
        if spec.step_format is not None:
            settings["steps"] = spec.step_format
        if spec.words:
            settings["verdict"] = spec.verdict_format
        if spec.tool is not None:
            settings["tool"] = tool_name(spec.tool)
        roles[role] = settings

    grader = f"math-verify {metadata.version('math-verify')}"
    if name in PROGRAMS:
        grader = f"the problem's tests, {programs.DEADLINE_S:g} s of CPU time"
    identities = json.dumps([_item_identity(item) for item in items]).encode()
    described: dict[str, Any] = {
        "problems": len(items),
        "digest": hashlib.blake2b(identities, digest_size=8).hexdigest(),
    }
    if not judging:
        described["samples"] = options.samples
        described["grader"] = grader
    if options.verifier in roles:
        described["reviews"] = options.reviews
    described["roles"] = roles
    return described


def _item_identity(item: Task | FixedSolution) -> list[Any]:
    """The parts of an item that tell it from any other."""
    if isinstance(item, FixedSolution):
        return [item.problem, *item.steps, str(item.label if item.wrong is None else item.wrong)]
    tests = [item.grader.problem_of(item).tests] if isinstance(item.grader, ProgramGrader) else []
    return [item.prompt, item.gold, *tests]


# -- rollouts


def evaluate_suite(
    path: Path,
    name: str,
    items: Sequence[Any],
    runner: RolloutRunner,
    options: SuiteOptions,
    settings: dict[str, Any],
    say: Callable[[str], None] = lambda text: None,
) -> list[SampleRow]:
    """The rows of a suite, one for each sample, in order; those that ``path`` holds from the same settings are kept."""
    each = 1 if name in JUDGED else options.samples + 1
    rows = _kept_rows(path, settings, each, len(items))
    if len(rows) == each * len(items):
        return rows
    replace_file(path, b"".join(map(encode_row, [{"settings": settings}, *rows])))  # what is finished is never lost
    pace = ProgressPrinter(each * len(items), f"{name}: {{}} answers", say, done=len(rows))
    runner.progress = JointProgress(pace)
    with JsonlWriter(path) as file:
        for start in range(len(rows) // each, len(items), CHUNK):
            chunk = items[start : start + CHUNK]
            step = EVALUATION_STEP - start // CHUNK
            split = f"suite/{name}"
            if name in JUDGED:
                new = judge_fixed_solutions(runner, chunk, options.verifier, options.reviews, step=step, split=split)
            else:
                new = attempt_rows(runner, chunk, options, step=step, split=split)
            for row in new:
                file.append(row)
            file.sync()
            rows += new

    runner.progress = None
    return rows


def _kept_rows(path: Path, settings: dict[str, Any], each: int, items: int) -> list[SampleRow]:
    """Rows of whole chunks that were made with these settings, ``each`` of an item."""
    saved_rows = read_jsonl(path) if path.exists() else []
    if not saved_rows or saved_rows[0] != {"settings": settings}:
        return []
    whole = (
        len(saved_rows) - 1
        if len(saved_rows) - 1 >= each * items
        else (len(saved_rows) - 1) // (each * CHUNK) * each * CHUNK
    )
    return list(saved_rows[1 : 1 + whole])


def attempt_rows(
    runner: RolloutRunner, tasks: Sequence[Task], options: SuiteOptions, *, step: int, split: str
) -> list[SampleRow]:
    """A solver's rows: of each problem its samples, then the greedy answer."""
    verifier = options.verifier if options.verifier in runner.roles else None
    solve = partial(attempt_task, solver=options.solver, reviews=options.reviews)
    # The samples of a problem that are compared are in one episode; otherwise each has an episode of its own.
    comparing = options.comparer in runner.roles and options.samples > 0
    each = options.samples if comparing else 1
    attempt = partial(solve, verifier=verifier)
    protocol: RolloutFn = attempt
    if comparing:
        protocol = partial(attempt_and_compare, attempt=attempt, comparer=options.comparer, n=each)
    sampled = runner.collect(protocol, tasks, step=step, split=split, group_size=options.samples // each)
    greedy = runner.greedy_copy().collect(partial(solve, verifier=None), tasks, step=step, split=split, group_size=1)
    for episodes in (sampled, greedy):
        check_measured(split, episodes, runner.set_aside)

    def solutions_of(episode: Episode, n: int) -> list[Trace | None]:
        solutions = [t for t in episode.traces if t.role == options.solver][:n]
        return [*solutions, *[None] * (n - len(solutions))]

    tries: list[tuple[Episode, int, Trace | None]] = []
    for episode in sampled:
        for place, solution in enumerate(solutions_of(episode, each)):
            tries.append((episode, episode.member + place, solution))
    for episode in greedy:
        (solution,) = solutions_of(episode, 1)
        tries.append((episode, GREEDY_SAMPLE, solution))
    tries.sort(key=lambda one: (one[0].task, one[1] == GREEDY_SAMPLE))  # stable: samples stay in order

    role = runner.roles[options.solver]
    rows: list[SampleRow] = []
    for episode, sample, solution in tries:
        judged = sample != GREEDY_SAMPLE
        row = _attempt_row(tasks[episode.task], episode, sample, solution, role, verifier if judged else None)
        if comparing and judged:
            row["rating"] = solution and RATING.of(solution)
        rows.append(row)
    return rows


async def attempt_task(task: Task, roles: Roles, *, solver: str, verifier: str | None, reviews: int) -> Turn | None:
    """Solve, grade, and let the verifier review what can be read. What is too long stays away."""
    try:
        solution: Turn = await getattr(roles, solver)(problem=task.prompt)
        correct = await examine(task, roles, solution)
        if verifier is not None and correct is not None and solution.parsed.ok:
            await review(task, roles, solution, n=reviews, role=verifier)
    except TooLong:
        return None
    return solution


async def attempt_and_compare(
    task: Task,
    roles: Roles,
    *,
    attempt: Callable[[Task, Roles], Coroutine[Any, Any, Turn | None]],
    comparer: str,
    n: int,
) -> None:
    """``n`` attempts and the tournament of those that can be read."""
    solutions = await gather([attempt(task, roles) for _ in range(n)])
    await hold_tournament(task, roles, [s for s in solutions if s is not None], role=comparer)


def _review_score(reviews: Sequence[Trace], verifier: str | None) -> float | None:
    """The mean score of the reviews of an attempt. None without a verifier, 0 without a review."""
    if verifier is None:
        return None
    if not reviews:
        return 0.0
    scores = []
    for trace in reviews:
        score = SCORE.of(trace)
        scores.append(0.5 if score is None else float(score))  # one that cannot be read counts one half
    return sum(scores) / len(scores)


def _attempt_row(
    task: Task, episode: Episode, sample: int, solution: Trace | None, role: Role, verifier: str | None
) -> dict[str, Any]:
    of = None if solution is None else str(solution.address)
    reviews = [trace for trace in episode.traces if trace.role == verifier and trace.parent == of]
    row = {
        "id": task.id,
        "sample": sample,
        "problem": task.prompt,
        "gold": task.gold,
        "score": _review_score(reviews, verifier),
    }
    if solution is None:
        failure = episode.failure or TOO_LONG
        return row | {"answer": None, "correct": None if episode.failure else False, "failure": failure}
    return row | {
        "answer": _graded_answer(task, solution, role),
        "correct": CORRECT.of(solution),
        "verdicts": [FINAL.of(t) for t in reviews],
        "step_verdicts": [VERDICTS.of(t) for t in reviews],
        "failure": episode.failure or solution.failure or FAILURE.of(solution),
        "finish": solution.finish,
        "text": solution.text,
    }


def _graded_answer(task: Task, said: Trace, role: Role) -> str | None:
    """The part of a solution that is graded: its program or its answer; None where it has none."""
    grader = task.grader
    if isinstance(grader, ProgramGrader):
        return program_of(said.text, grader.problem_of(task).entry)
    if (answer := ANSWER.of(said)) is not None:
        return answer
    read = role.parse_reply(said.text, {}, thinking=FAILURE.of(said) == UNFINISHED)
    return final_answer(read.tagged or "") if isinstance(read, ParseFailure) else None


# -- report


def score_lines(result: dict[str, Any]) -> list[str]:
    """A suite's scores below the settings they were made with."""
    settings = result["settings"]
    counts = ", ".join(f"{settings[key]} {key}" for key in ("problems", "samples", "reviews") if key in settings)
    if result.get("templates", settings["problems"]) < settings["problems"]:
        counts = counts.replace(" problems", f" problems of {result['templates']} templates", 1)
    lines = [f"{result['suite']}: {counts}, after step {settings['step']}, data {' '.join(settings['data'])}"]
    if trained_on := result.get("trained_on"):
        of_them = f"{trained_on} of {count_of(settings['problems'], 'problem')}"
        verb = "is a training problem" if trained_on == 1 else "are training problems"
        lines.append(f"  note: {of_them} {verb} of this run")
    lines += [f"  graded by {settings['grader']}"] if "grader" in settings else []
    for role, role_settings in settings["roles"].items():
        sampling = f"temperature {role_settings['temperature']}, top_p {role_settings['top_p']}"
        limit = f"at most {role_settings['max_tokens']} tokens"
        lines.append(f"  {role}: {role_settings['policy']} ({role_settings['model']}), {sampling}, {limit}")

    for key, value in result["figures"].items():
        figure = f"{value['value']:.3f} [{value['low']:.3f}, {value['high']:.3f}]"
        lines.append(f"  {key:40s} {figure:>22s}  n={value['n']}")
    return lines


def run_suites(arguments: argparse.Namespace, answer_format: AnswerFormat) -> int:
    """``cotrain eval RUN --suite …``, its flags parsed; returns the exit code."""
    options = SuiteOptions(
        samples=arguments.samples,
        reviews=arguments.reviews,
        solver=arguments.solver,
        verifier=arguments.verifier,
        comparer=arguments.comparer,
        problems=arguments.problems,
        how=answer_format,
        max_tokens=arguments.max_tokens,
        temperature=arguments.temperature,
        lenient=arguments.lenient,
        tool=arguments.tool,
    )
    names = [name.strip() for name in arguments.suite.split(",")]
    say = (lambda text: None) if arguments.json else print_progress
    results = evaluate_suites(
        arguments.directory, names, arguments.data, options=options, device=arguments.device, out=arguments.out, say=say
    )
    if arguments.json:
        print(json_text(results))
    else:
        print_lines(line for result in results for line in score_lines(result))
    return 0
