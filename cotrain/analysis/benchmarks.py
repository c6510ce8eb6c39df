"""Benchmarks: ``cotrain eval RUN --suite gsm8k,math500,processbench --data …``.

Who does what, in a run or with a model by itself:

    solver    answers every problem of a suite once greedily, and ``samples`` times at its own temperature; in MBPP and
              HumanEval its answers are programs, which are run with the problem's tests (``data/programs.py``)
    verifier  of a run that has one: reviews each sampled solution. A model reviews its own solutions where the user
              says in what form (``--verdict``). In ProcessBench the verifier judges the solutions given
    comparer  of a run that has one: holds a tournament of pairs, which chooses among the samples of a problem
              (``rollout/tournament.py``)

What came of each sample is a row of ``suite-NAME.jsonl`` in the run directory, and ``suite-NAME.json`` holds the scores
(``metrics/suites.py``) next to the settings they were made with; with ``--step N`` these are ``suite-NAME-step-N``. The
rows are written as they are made, and the episodes of those that are being made are kept beside them
(``runs/kept_episodes.py``): the same command goes on where it was interrupted, and only prints what is finished. Rows
of other settings, such as another checkpoint, other weights at the same path or more samples, are never written over:
they go to the folder ``earlier``, and come back from there when their settings do.

Left out: few-shot prompts, tools. A sample that does not fit its model's context counts as wrong.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
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
    ParseFailure,
    RolloutFn,
    Task,
    TaskSource,
    Trace,
    has_split,
)
from cotrain.core.verbosity import ProgressPrinter, count_of, json_text, print_aside, print_lines, print_progress
from cotrain.data import programs
from cotrain.data.malformed_rows import Quarantine
from cotrain.data.processbench import FixedSolution
from cotrain.data.question_text import normal_question
from cotrain.data.suite_files import JUDGED, draw_items, draw_tasks, load_suite, suite_data
from cotrain.distributed.local import resolve_device
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
from cotrain.rollout.runner import CollectHeldOut, JointProgress, Roles, RolloutRunner
from cotrain.rollout.token_calls import tool_name, with_tool
from cotrain.rollout.tournament import RATING, hold_tournament
from cotrain.runs import manifest, opening
from cotrain.runs.check_models import check_tools
from cotrain.runs.choose_formats import (
    AUTO,
    DEFAULT_FORMAT,
    PROBED,
    AnswerFormat,
    as_taught,
    choose_answer_format,
    choose_verdict_format,
)
from cotrain.runs.directory import EARLIER, RunDirectory, estimates_json
from cotrain.runs.kept_episodes import EpisodeKeeper, place_of
from cotrain.runs.model_paths import weights_of
from cotrain.runs.out_of_room import DiskRetry
from cotrain.storage.file_ops import REAL_FILES, make_directory, replace_file, report_disk_errors
from cotrain.storage.jsonl import JsonlWriter, encode_row, read_jsonl
from cotrain.storage.kept_work import claim_place, kept_work
from cotrain.storage.lock import RunLock
from cotrain.trainer.checks import check_measured
from cotrain.trainer.evaluation import EVALUATION_STEP

CHUNK = 64  # problems that have their seeds together, and are written at a time
# About as many answers of a chunk are collected, and kept, at a time. A CPU takes twice as long for twice as many, so
# small parts cost it little; another device is filled by many.
ANSWERS_ON_CPU = 256
ANSWERS_ELSEWHERE = 2048


@dataclass(frozen=True, slots=True, kw_only=True)
class SuiteOptions:
    """How a suite is evaluated."""

    samples: int = 8  # k of avg@k, pass@k, …; 0: the greedy answer alone
    reviews: int = 1  # reviews of each solution; in ProcessBench one is greedy, several are sampled and vote
    solver: str = "solver"  # role
    verifier: str = "verifier"  # role; a run without it has no best@k, weighted@k and ProcessBench
    comparer: str = "comparer"  # role that judges pairs of solutions; a run without it has no tournament@k
    problems: int | None = None  # so many, drawn by a hash, in ProcessBench spread over each split; None for all
    answer_format: AnswerFormat = DEFAULT_FORMAT  # how roles are asked and read; by default as in the run
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
    step: int | None = None,
    out: Path | str | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> list[dict[str, Any]]:
    """Score a run's latest checkpoint, or a model, on suites. ``data``: see ``suite_data``. ``step``: the checkpoint
    after so many steps, 0 for the start. ``out``: where rows and scores go, by default the run's directory, of a model
    ``evals/NAME``. ``say`` hears how the model answers and what was set aside.

    Returns for each suite ``{"suite", "settings", "figures"}``, as written to ``suite-NAME.json``, with ``step`` to
    ``suite-NAME-step-N.json``. With "trained_on", how many of its problems the run was trained on, where there are
    some. Raises UnknownName, ConfigError, DataError, RunDirectoryError for a step without a checkpoint, before anything
    is sampled.
    """
    options = options or SuiteOptions()
    is_model = opening.is_model(directory)
    if is_model and step is not None:
        raise ConfigError(
            f"--step {step}: {directory} is a model and has no checkpoints; leave it out, or name a run",
            code="E_STEP_OF_A_MODEL",
        )
    if step:
        manifest.checkpoint_at(RunDirectory.open(directory), step)  # raises here, before anything is read
    paths = suite_data(suites, data)
    wait_for_room = DiskRetry(lambda: 0, say)
    folder = RunDirectory(out or (Path("evals") / Path(directory).name if is_model else directory))
    needs_verifier = options.answer_format.of_reviews or any(name in JUDGED for name in suites)
    recipe = opening.recipe_of(directory, judging=needs_verifier)
    if options.tool is not None:
        recipe = replace(recipe, roles=with_tool(recipe.roles, options.tool))
        check_tools(recipe)
    with ExitStack() as stack:
        grader = AnswerGrader()
        stack.callback(grader.close)
        items = _read_items(paths, options, grader, say)
        for suite_grader in _graders_of(items):
            stack.callback(suite_grader.close)
        options = _with_role_names(recipe, options)
        for name in items:
            scoring_roles(name, recipe.roles, options)  # raises here, before a model is loaded
        _check_options_used(items, recipe.roles, options)
        claim_place(folder.path)  # raises here, before hours of sampling, where nothing can be written
        stem_of = {name: f"suite-{name}" if step is None else f"suite-{name}-step-{step}" for name in items}
        for name, stem in stem_of.items():  # raises where another process plays the same suite for the same place
            lock = RunLock(folder.path, f".{stem}.lock", what=f"suite {name!r} of {folder.path}")
            stack.callback(lock.remove)

        recipe = _with_sampling_of(recipe, options)
        if is_model:
            # A model that was trained by cotrain says in its directory how its roles are to be asked and read.
            options = replace(options, answer_format=as_taught(recipe, options.answer_format, say))
        recipe = _with_answer_format(recipe, options, items, is_model=is_model, device=device, say=say)
        recipe = choose_verdict_format(recipe, options.answer_format, device=device, say=say, look=False)
        trainer = opening.load_trainer(directory, recipe=recipe, step=step, device=device)
        runner = trainer.evaluation_runner
        model_by_role = {
            role: trainer.recipe.policies[spec.policy].model for role, spec in trainer.recipe.roles.items()
        }
        base_settings = {
            # Of rows in the run itself its name is nothing that they depend on: a run may be moved.
            "run": str(directory) if is_model or out is not None else ".",
            "step": trainer.finished_steps,
            # At one path, and after as many steps, another model may be: one that was trained again, or taught on.
            "weights": {policy: digest for policy, digest in weights_of(recipe.policies).items() if digest},
            "checkpoint": "" if is_model else opening.checkpoint_digest(directory, trainer.finished_steps),
            "seed": trainer.recipe.seed,
            "cotrain": __version__,
        }
        training: set[str] = set() if is_model else training_questions(recipe.tasks)

        results = []
        for name, suite_items in items.items():
            own_settings = suite_settings(name, suite_items, runner, options, model_by_role)
            settings = base_settings | {"data": paths[name]} | own_settings
            rows_file = folder.path / f"{stem_of[name]}.jsonl"
            rows = evaluate_suite(
                rows_file,
                name,
                suite_items,
                runner,
                options,
                settings,
                say,
                device=device,
                checking_servers=trainer.checking_servers,
            )
            result = _suite_result(name, suite_items, rows, options, settings, training)
            results.append(result)
            wait_for_room(folder.write_measurement, f"{stem_of[name]}.json", result)
    return results


SuiteItems = list[Task] | list[FixedSolution]


def _read_items(
    paths: Mapping[str, Sequence[str]], options: SuiteOptions, grader: AnswerGrader, say: Callable[[str], None]
) -> dict[str, SuiteItems]:
    """The problems, or solutions, of each suite: as many as ``options`` asks for. Raises DataError."""
    refused = Quarantine() if options.lenient else None
    items: dict[str, SuiteItems] = {}
    for name, suite_paths in paths.items():
        all_items = _load_items(name, suite_paths, grader, refused, say)
        items[name] = draw_items(all_items, options.problems)
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


def _check_options_used(suites: Collection[str], roles: Mapping[str, Role], options: SuiteOptions) -> None:
    """Raise ConfigError for reviews where nobody reviews, and for a temperature where nothing is sampled."""
    reviews_something = any(options.verifier in scoring_roles(name, roles, options) for name in suites)
    if options.reviews > 1 and not reviews_something:
        raise ConfigError(
            f"--reviews {options.reviews}: nothing is reviewed in {', '.join(suites)}; leave it out, take a run with a "
            "verifier, or have a model review its own samples with --verdict",
            code="E_SUITE_OPTION_UNUSED",
        )
    samples_something = any(options.reviews > 1 if name in JUDGED else options.samples > 0 for name in suites)
    if options.temperature is not None and not samples_something:
        raise ConfigError(
            f"--temperature {options.temperature:g}: all answers of {', '.join(suites)} are greedy; leave it out, or "
            "raise --samples or --reviews",
            code="E_SUITE_OPTION_UNUSED",
        )


def _with_sampling_of(recipe: Recipe, options: SuiteOptions) -> Recipe:
    """The recipe with the lengths and temperatures that ``options`` states."""
    if options.max_tokens is not None:
        recipe = with_sampling(recipe, [options.solver], max_tokens=options.max_tokens)
    if options.temperature is not None:
        sampling_roles = [role for role in (options.solver, options.verifier) if role in recipe.roles]
        recipe = with_sampling(recipe, sampling_roles, temperature=float(options.temperature))
    return recipe


def _with_answer_format(
    recipe: Recipe,
    options: SuiteOptions,
    items: Mapping[str, SuiteItems],
    *,
    is_model: bool,
    device: str,
    say: Callable[[str], None],
) -> Recipe:
    """The recipe with the format of the solver's answers, chosen by a few problems of the suites; of a run as it
    stands, unless the user says how."""
    if not is_model and not options.answer_format.of_answers:
        return recipe
    answer_tasks = [task for suite_items in items.values() for task in suite_items if isinstance(task, Task)]
    if answer_tasks and not isinstance(answer_tasks[0].grader, AnswerGrader):
        answer_tasks = []
    if is_model and not answer_tasks:
        return recipe
    tasks = draw_tasks(answer_tasks, PROBED)
    # The model is asked a few problems only where no format is named: else the suite itself shows how well it is read.
    look = options.answer_format.answer in (None, AUTO)
    recipe, _ = choose_answer_format(recipe, options.answer_format, device=device, say=say, tasks=tasks, look=look)
    return recipe


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


def _graders_of(items: Mapping[str, SuiteItems]) -> set[AnswerGrader]:
    """The graders of all problems, whose processes are to be ended."""
    tasks = [task for suite_items in items.values() for task in suite_items if isinstance(task, Task)]
    return {task.grader for task in tasks if isinstance(task.grader, AnswerGrader)}


def _resolve_role(recipe: Recipe, name: str, usual_name: str) -> str:
    """The role that ``--solver NAME`` and the like mean, by its own name or by that of a policy. ``usual_name``: of the
    role, and of the flag."""
    if name == usual_name:
        return name  # also where the recipe has no such role
    return role_named(recipe, name, f"--{usual_name}")


def _load_items(
    name: str, paths: Sequence[str], grader: AnswerGrader, aside: Quarantine | None, say: Callable[[str], None]
) -> SuiteItems:
    try:
        return load_suite(name, paths, grader, aside, say)
    except DataError as error:
        is_about_a_row = ", row " in str(error)
        if not is_about_a_row:
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
    """Whether the problems of a source are those of a file. Some sources are made of another one, which tells."""
    inner = getattr(source, "source", None)  # problems in another order, or without labels
    inner = inner or getattr(source, "targets", None)  # problems of which some have labels
    if inner is not None:
        return _is_read_from_file(inner)
    return hasattr(source, "path")


def _asked_question(item: Task | FixedSolution) -> str:
    return item.problem if isinstance(item, FixedSolution) else item.prompt


def suite_scores(name: str, rows: Sequence[SampleRow], options: SuiteOptions) -> dict[str, Estimate]:
    """The figures of a suite from its rows."""
    if name == "processbench":
        return processbench_scores(rows)
    if name == "prmbench":
        return prmbench_scores(rows)
    if name in programs.KINDS:
        return program_scores(rows, options.samples)
    return solver_scores(rows, options.samples, key=vote_key)


def suite_settings(
    name: str,
    items: Sequence[Task] | Sequence[FixedSolution],
    runner: RolloutRunner,
    options: SuiteOptions,
    model_by_role: dict[str, str],
) -> dict[str, Any]:
    """The settings that the scores depend on, as JSON. Errors: see ``scoring_roles``."""
    judging = name in JUDGED
    roles = {}
    for role, spec in scoring_roles(name, runner.roles, options).items():
        settings = {
            "policy": spec.policy,
            "model": model_by_role.get(role, spec.policy),
            "temperature": 0.0 if judging and options.reviews == 1 else spec.sampling.temperature,
            "top_p": spec.sampling.top_p,
            "max_tokens": spec.sampling.max_tokens,
            "prompt": spec.prompt,
        }
        if spec.parse is parse_solution:
            settings["answer"] = spec.answer_format
        if spec.step_format is not None:
            settings["steps"] = spec.step_format
        if spec.words:  # words of a verdict: the role is a verifier
            settings["verdict"] = spec.verdict_format
        if spec.tool is not None:
            settings["tool"] = tool_name(spec.tool)
        roles[role] = settings

    grader = f"math-verify {metadata.version('math-verify')}"
    if name in programs.KINDS:
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


def scoring_roles(suite: str, roles: Mapping[str, Role], options: SuiteOptions) -> dict[str, Role]:
    """The roles whose answers give the scores of a suite, by their names. Raises UnknownName for a role there is not,
    ConfigError for one that gives nothing to score."""
    names = [options.verifier]
    if suite not in JUDGED:
        names = [options.solver]
        if options.samples:  # these two select among the samples of a problem
            names += [role for role in (options.verifier, options.comparer) if role in roles]
    for name in names:
        if name not in roles:
            raise UnknownName(f"role (of suite {suite!r})", name, roles)
        if roles[name].parse is None:
            raise ConfigError(
                f"suite {suite!r}: role {name!r} has no parser and gives nothing to score; name another role",
                code="E_ROLE_WITHOUT_PARSER",
            )
    return {name: roles[name] for name in names}


def _item_identity(item: Task | FixedSolution) -> list[Any]:
    """The parts of an item that tell it from any other."""
    if isinstance(item, FixedSolution):
        truth = item.label if item.wrong is None else item.wrong  # the first wrong step, or all wrong steps
        return [item.problem, *item.steps, str(truth)]
    tests = [item.grader.problem_of(item).tests] if isinstance(item.grader, programs.ProgramGrader) else []
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
    *,
    device: str = "cpu",
    checking_servers: Callable[[str], AbstractContextManager[object]] = nullcontext,
) -> list[SampleRow]:
    """The rows of a suite, one for each sample, in order; those that ``path`` holds from the same settings are kept.
    ``device``: on which the models are. ``checking_servers``: ``CoTrainer.checking_servers``, where a role's policy may
    be a server's."""
    _exchange_rows(path, settings, say)
    rows_per_item = 1 if name in JUDGED else options.samples + 1  # samples and the greedy answer
    rows = _kept_rows(path, settings, rows_per_item, len(items))
    n_rows = rows_per_item * len(items)
    if len(rows) == n_rows:
        return rows
    replace_file(path, b"".join(map(encode_row, [{"settings": settings}, *rows])))  # what is finished is never lost
    # What ends, and is counted, are episodes: one for each answer, or one for all samples that are compared.
    compares = name not in JUDGED and compares_samples(runner, options)
    episodes_per_item = 2 if compares else rows_per_item  # with the greedy answer
    n_done = episodes_per_item * (len(rows) // rows_per_item)
    what = f"{name}: {{}} {'tournaments and greedy answers' if compares else 'answers'}"  # {}: the counts
    printer = ProgressPrinter(episodes_per_item * len(items), what, say, done=n_done)
    runner.progress = JointProgress(printer)
    batch = _episodes_at_a_time(name, runner, options, device)
    with JsonlWriter(path) as file:
        for start in range(len(rows) // rows_per_item, len(items), CHUNK):
            chunk = items[start : start + CHUNK]
            step = EVALUATION_STEP - start // CHUNK  # -1, -2, …: each chunk has its own seeds, none those of training
            with kept_work(path, settings, say) as work:
                keeper = EpisodeKeeper(
                    work.within(f"chunk from {start} on"), place=place_of(device), say=say, batch=batch, step=step
                )
                printer.skip(_count_kept(keeper, name, len(chunk), options, compares=compares))
                with checking_servers(f"suite {name!r}"):  # raises before the rows are written
                    new = _chunk_rows(name, chunk, runner, options, keeper.collect)
                for row in new:
                    file.append(row)
                file.sync()
            rows += new

    runner.progress = None
    return rows


def _chunk_rows(
    name: str, chunk: Sequence[Any], runner: RolloutRunner, options: SuiteOptions, collect: CollectHeldOut
) -> list[SampleRow]:
    """The rows of problems, or solutions, that have their seeds together."""
    split = f"suite/{name}"
    if name in JUDGED:
        return judge_fixed_solutions(runner, chunk, options.verifier, options.reviews, split=split, collect=collect)
    return attempt_rows(runner, chunk, options, split=split, collect=collect)


def _episodes_at_a_time(name: str, runner: RolloutRunner, options: SuiteOptions, device: str) -> int:
    """How many episodes are collected, and kept, at a time. Comparisons of a tournament are not counted."""
    answers = options.reviews
    if name not in JUDGED:
        answers = 1 + (options.reviews if options.verifier in runner.roles else 0)
        if compares_samples(runner, options):
            answers *= options.samples
    at_a_time = ANSWERS_ON_CPU if resolve_device(device) == "cpu" else ANSWERS_ELSEWHERE
    return max(1, at_a_time // answers)


def _count_kept(keeper: EpisodeKeeper, name: str, problems: int, options: SuiteOptions, *, compares: bool) -> int:
    """How many episodes of a chunk an earlier try has kept."""
    if name in JUDGED:
        what = "greedy" if options.reviews == 1 else "sampled"
        return keeper.count_kept(problems, group_size=1, what=what)
    count = keeper.count_kept(problems, group_size=1, what="greedy")
    if options.samples:
        count += keeper.count_kept(problems, group_size=1 if compares else options.samples, what="sampled")
    return count


def _exchange_rows(path: Path, settings: Mapping[str, Any], say: Callable[[str], None]) -> None:
    """Move rows of other settings, and their scores, from ``path`` to the folder ``EARLIER``; fetch those of these
    settings from there."""
    saved_rows = read_jsonl(path) if path.exists() else []
    if saved_rows and saved_rows[0] == {"settings": settings}:
        return
    if len(saved_rows) > 1:  # the first one has the settings
        earlier = _earlier_place(path, saved_rows[0])
        _move_rows(path, earlier)
        say(f"note: {path} was made with other settings ({_differences(saved_rows[0], settings)}); it is now {earlier}")
    own = _earlier_place(path, {"settings": settings})
    if own.exists():
        _move_rows(own, path)
        say(f"note: {path} is again what {own} was, which was made with these settings")


def _earlier_place(path: Path, first_row: Mapping[str, Any]) -> Path:
    """Where rows that begin with this one are kept when others take their place."""
    digest = hashlib.blake2b(json.dumps(first_row, sort_keys=True).encode(), digest_size=4).hexdigest()
    return path.parent / EARLIER / f"{path.stem}-{digest}.jsonl"


def _move_rows(source: Path, target: Path) -> None:
    """Move rows, and the scores beside them. Raises DiskError."""
    with report_disk_errors(f"move {source} to {target}"):
        make_directory(REAL_FILES, target.parent)
        scores = source.with_suffix(".json")
        if scores.exists():
            scores.replace(target.with_suffix(".json"))
        source.replace(target)


def _differences(first_row: Mapping[str, Any], settings: Mapping[str, Any]) -> str:
    """The names of settings that differ: "step, samples"."""
    saved = first_row.get("settings")
    if not isinstance(saved, Mapping):
        return "none are in it"
    names = [*settings, *(name for name in saved if name not in settings)]
    return ", ".join(name for name in names if saved.get(name) != settings.get(name))


def _kept_rows(path: Path, settings: dict[str, Any], rows_per_item: int, items: int) -> list[SampleRow]:
    """The saved rows, all or those of whole chunks, if they were made with these settings."""
    saved_rows = read_jsonl(path) if path.exists() else []
    if not saved_rows or saved_rows[0] != {"settings": settings}:
        return []
    n_kept = len(saved_rows) - 1  # the first one has the settings
    is_finished = n_kept >= rows_per_item * items
    if not is_finished:
        n_kept -= n_kept % (rows_per_item * CHUNK)  # those of the others are made again, of kept episodes
    return list(saved_rows[1 : 1 + n_kept])


def compares_samples(runner: RolloutRunner, options: SuiteOptions) -> bool:
    """Whether a tournament chooses among the samples of a problem."""
    return options.comparer in runner.roles and options.samples > 0


def attempt_rows(
    runner: RolloutRunner, tasks: Sequence[Task], options: SuiteOptions, *, split: str, collect: CollectHeldOut
) -> list[SampleRow]:
    """A solver's rows: of each problem its samples, then the greedy answer."""
    verifier = options.verifier if options.verifier in runner.roles else None
    attempt = partial(attempt_task, solver=options.solver, verifier=verifier, reviews=options.reviews)
    greedy_attempt = partial(attempt_task, solver=options.solver, verifier=None, reviews=options.reviews)

    # The samples of a problem that are compared are in one episode; otherwise each has an episode of its own.
    comparing = compares_samples(runner, options)
    protocol: RolloutFn
    if comparing:
        protocol = partial(attempt_and_compare, attempt=attempt, comparer=options.comparer, n=options.samples)
        samples_per_episode, episodes_per_task = options.samples, 1
    else:
        protocol = attempt
        samples_per_episode, episodes_per_task = 1, options.samples
    sampled: tuple[Episode, ...] = ()
    if options.samples:
        sampled = collect(runner, protocol, tasks, split=split, group_size=episodes_per_task, what="sampled")
    greedy = collect(runner.greedy_copy(), greedy_attempt, tasks, split=split, group_size=1, what="greedy")
    for episodes in (sampled, greedy):
        check_measured(split, episodes, runner.set_aside)

    def solutions_of(episode: Episode, n: int) -> list[Trace | None]:
        solutions = [t for t in episode.traces if t.role == options.solver][:n]
        return [*solutions, *[None] * (n - len(solutions))]

    tries: list[tuple[Episode, int, Trace | None]] = []
    for episode in sampled:
        for place, solution in enumerate(solutions_of(episode, samples_per_episode)):
            sample = place if comparing else episode.member
            tries.append((episode, sample, solution))
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
            row["rating"] = None if solution is None else RATING.of(solution)
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
    address = None if solution is None else str(solution.address)
    reviews = [trace for trace in episode.traces if trace.role == verifier and trace.parent == address]
    row = {
        "id": task.id,
        "sample": sample,
        "problem": task.prompt,
        "gold": task.gold,
        "score": _review_score(reviews, verifier),
    }
    if solution is None:
        if episode.failure:  # whether the model could have solved it is not known
            return row | {"answer": None, "correct": None, "failure": episode.failure}
        return row | {"answer": None, "correct": False, "failure": TOO_LONG}
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
    if isinstance(grader, programs.ProgramGrader):
        return program_of(said.text, grader.problem_of(task).entry)
    if (answer := ANSWER.of(said)) is not None:
        return answer
    # A solution that could not be read has no finding ``ANSWER``, and yet it was graded if it has an answer in tags.
    parsed = role.parse_reply(said.text, {}, thinking=FAILURE.of(said) == UNFINISHED)
    return final_answer(parsed.tagged or "") if isinstance(parsed, ParseFailure) else None


# -- report


def score_lines(result: dict[str, Any]) -> list[str]:
    """A suite's scores below the settings they were made with."""
    settings = result["settings"]
    problems = f"{settings['problems']} problems"
    n_templates = result.get("templates", settings["problems"])
    if n_templates < settings["problems"]:
        problems += f" of {n_templates} templates"
    counts = [problems, *(f"{settings[key]} {key}" for key in ("samples", "reviews") if key in settings)]
    lines = [
        f"{result['suite']}: {', '.join(counts)}, after step {settings['step']}, data {' '.join(settings['data'])}"
    ]
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
        answer_format=answer_format,
        max_tokens=arguments.max_tokens,
        temperature=arguments.temperature,
        lenient=arguments.lenient,
        tool=arguments.tool,
    )
    names = [name.strip() for name in arguments.suite.split(",")]
    say = print_aside if arguments.json else print_progress
    results = evaluate_suites(
        arguments.directory,
        names,
        arguments.data,
        options=options,
        device=arguments.device,
        step=arguments.step,
        out=arguments.out,
        say=say,
    )
    if arguments.json:
        print(json_text(results))
    else:
        print_lines(line for result in results for line in score_lines(result))
    return 0
