"""The audit itself: rollouts in, figures out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import FunctionType
from typing import Any

from cotrain.analysis.audit.judge_error import error_rates, error_trends, outcome_of, step_windows
from cotrain.analysis.audit.labelling import (
    LabelEstimate,
    LabelPlan,
    check_label_file,
    estimate_by_labels,
    plan_labels,
    read_labels,
    strata_of,
    write_label_file,
)
from cotrain.analysis.audit.novelty import new_habits
from cotrain.analysis.audit.result import AuditResult
from cotrain.core.arguments import check_called_with
from cotrain.core.errors import ConfigError, DataError
from cotrain.core.own_code import imported_by
from cotrain.core.user_code import load_object
from cotrain.core.verbosity import count_of
from cotrain.runs.foreign_files import ForeignRun, read_foreign_run
from cotrain.runs.foreign_run import foreign_alarms, write_as_run
from cotrain.runs.foreign_truth import Graded, grade_by_program, grade_by_reference, with_references
from cotrain.runs.kept_answers import KeptAnswers
from cotrain.storage.file_ops import DiskError, digest_of
from cotrain.storage.kept_work import KeptWork, claim_place, kept_work

MOST_DISAGREEMENTS = 50
Program = Callable[..., Any]  # prompt, response and reference → whether the answer is right, or None


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditOptions:
    """The options of ``cotrain audit``, each named as its flag."""

    columns: dict[str, str]  # field of ``Columns`` → column
    right_at: float | None = None
    grades: bool = True  # compare with reference answers
    answer: str | None = None  # format of answers
    references: Path | None = None
    question_column: str | None = None
    answer_column: str | None = None
    truth_by: str | None = None  # FILE.py:FUNCTION, asked of every answer
    labels: str | None = None  # a file, or FILE.py:FUNCTION, asked of a sample
    width: float | None = None
    label: int | None = None  # how many answers to label
    to_label: Path | None = None
    out: Path | None = None  # where the rollouts go as a run


def audit_files(
    paths: Sequence[Path], options: AuditOptions, say: Callable[[str], None] = lambda text: None
) -> AuditResult:
    """Audit the rollouts of some files. Raises UserError."""
    _check_label_options(options)
    programs = _load_programs(options)
    _check_places(options)
    run = read_foreign_run(paths, named=options.columns, right_at=options.right_at)
    notes: list[str] = []
    run = _with_references(run, options, notes)
    with _kept_work(paths, options, say) as work:
        graded = _grade(run, options, programs.get("--truth-by"), say, work)
        run = replace(run, rollouts=graded.rollouts)
        estimate, plan = _with_labels(run, options, programs.get("--labels"), notes, work)
        if options.out is not None:
            write_as_run(run, options.out)
        differing = [rollout for rollout in run.rollouts if outcome_of(rollout) in ("fp", "fn")]
        differing.sort(key=lambda rollout: (-rollout.step, rollout.task, rollout.member))
        return AuditResult(
            run=run,
            truth_source=graded.source,
            reasons=graded.reasons,
            rates=error_rates(run.rollouts),
            windows=step_windows(run.rollouts),
            trends=error_trends(run.rollouts),
            alarms=foreign_alarms(run),
            habits=new_habits(run.rollouts),
            disagreements=[rollout.address for rollout in differing[:MOST_DISAGREEMENTS]],
            differing=len(differing),
            estimate=estimate,
            plan=plan,
            notes=notes,
        )


def _load_programs(options: AuditOptions) -> dict[str, Program]:
    """The functions that say whether an answer is right, by flag. Each file is run here alone, as it may load a model.
    Raises ConfigError where one is no function that can be asked."""
    targets = {"--truth-by": options.truth_by}
    if options.labels is not None and _is_program(options.labels):
        targets["--labels"] = options.labels
    programs: dict[str, Program] = {}
    for flag, target in targets.items():
        if target is not None:
            programs[flag] = load_object(target, flag, FunctionType)
            check_called_with(flag, programs[flag], "prompt", "response", "reference")
    return programs


# -- the truth


def _with_references(run: ForeignRun, options: AuditOptions, notes: list[str]) -> ForeignRun:
    """The run with the reference answers of ``--references``. Raises ConfigError where no prompt has one."""
    if options.references is None:
        return run
    rollouts, without = with_references(
        run.rollouts, options.references, options.question_column, options.answer_column
    )
    if without == len(rollouts):
        raise ConfigError(
            f"--references {options.references}: none of its questions stands in a prompt; name its columns with "
            "--question-column and --answer-column",
            code="E_REFERENCES_UNMATCHED",
        )
    if without:
        notes.append(f"{options.references.name} has no answer to {without} of {len(rollouts)} prompts")
    return replace(run, rollouts=tuple(rollouts))


def _grade(
    run: ForeignRun,
    options: AuditOptions,
    program: Program | None,
    say: Callable[[str], None],
    work: KeptWork | None,
) -> Graded:
    """The truth of each answer: by the program of ``--truth-by``, a column, or the reference answers, whichever there
    is first. ``work`` keeps what a program says."""
    if program is not None:
        return grade_by_program(run.rollouts, program, str(options.truth_by), _kept_answers(work, "truth"))
    if run.columns.truth:
        return Graded(rollouts=run.rollouts, source=f"column {run.columns.truth!r}")
    gradable = [rollout for rollout in run.rollouts if rollout.gold is not None]
    if gradable and options.grades:
        say(f"grading {count_of(len(gradable), 'answer')} against the reference answers")
        return grade_by_reference(run.rollouts, answer_format=options.answer)
    return Graded(rollouts=run.rollouts, source="")


# -- labels of a sample


def _check_label_options(options: AuditOptions) -> None:
    """Raise UserError for what cannot be read, or would not be written."""
    labels_are_program = options.labels is not None and _is_program(options.labels)
    if options.to_label is not None and options.width is None and options.label is None:
        raise ConfigError("--to-label: how many? give --width W, as in --width 0.1, or --label N", code="E_LABEL_COUNT")
    if options.to_label is not None and labels_are_program:
        raise ConfigError(
            f"--to-label: {options.labels} labels the answers itself, so that none are left to write; leave out one "
            "of the two",
            code="E_LABELS_BY_PROGRAM",
        )
    if options.labels is not None and not labels_are_program and not Path(options.labels).is_file():
        raise DataError(f"no such file: {options.labels}", code="E_FILE_MISSING")


def _check_places(options: AuditOptions) -> None:
    """Raise UserError for what cannot be written, before answers are graded, which may take long."""
    if options.out is not None:
        claim_place(options.out if options.out.is_dir() else options.out.absolute().parent)
    if options.to_label is not None:
        check_label_file(options.to_label)


@contextmanager
def _kept_work(paths: Sequence[Path], options: AuditOptions, say: Callable[[str], None]) -> Iterator[KeptWork | None]:
    """Where what programs say of answers is kept until the audit is over: beside ``--out``, else in the working
    directory. None without a program, and where nothing can be written or another audit of the same writes: an audit
    needs no place."""
    programs = [target for target in (options.truth_by, options.labels) if target is not None and _is_program(target)]
    if not programs:
        yield None
        return
    depends_on = {
        "what": "audit",
        "programs": [_stamp_of_program(target) for target in programs],
        "rollouts": [str(path.resolve()) for path in paths],
    }
    with ExitStack() as stack:
        try:
            work = stack.enter_context(kept_work((options.out or Path("audit")).absolute(), depends_on, say))
        except (DiskError, ConfigError) as error:  # the latter where another audit keeps its answers there
            say(f"note: what {' and '.join(programs)} says is not kept while it is asked: {error}")
            work = None
        yield work


def _stamp_of_program(target: str) -> list[str]:
    """What tells a program from others: its file, its name, and what this file and those that it imports of the user's
    own hold."""
    file, _, name = target.rpartition(":")
    program = Path(file).resolve()
    imported = [f"{path} {code.sha256}" for path, code in imported_by([program]).items() if path != program]
    return [str(program), name, digest_of(program.read_bytes()).sha256, *imported]


def _kept_answers(work: KeptWork | None, what: str) -> KeptAnswers | None:
    return None if work is None else KeptAnswers(work, what)


def _with_labels(
    run: ForeignRun, options: AuditOptions, program: Program | None, notes: list[str], work: KeptWork | None
) -> tuple[LabelEstimate | None, LabelPlan | None]:
    """Return the estimate from the labels that were given, and the plan of what else to label; None for what was not
    asked for. ``program``: that of ``--labels``, whose labels ``work`` keeps; None where labels are a file."""
    wants_plan = options.width is not None or options.label is not None
    if options.labels is None and not wants_plan:
        return None, None
    strata = strata_of(run)
    labels: dict[str, bool] = {}
    if program is not None:
        plan = plan_labels(strata, {}, width=options.width if wants_plan else 0.1, total=options.label)
        drawn = [rollout for rollout, _ in plan.answers_to_label()]
        labelled = grade_by_program(drawn, program, str(options.labels), _kept_answers(work, "labels"))
        labels = {rollout.address: rollout.truth for rollout in labelled.rollouts if rollout.truth is not None}
        unsaid = plan.total - len(labels)
        if unsaid:
            notes.append(f"{options.labels} says nothing of {unsaid} of {plan.total} answers")
    elif options.labels is not None:
        labels, empty = read_labels(Path(options.labels), run)
        if empty:
            notes.append(f"{count_of(empty, 'row')} of {options.labels} without a label")

    estimate = estimate_by_labels(strata, labels) if labels else None
    if not wants_plan or program is not None:
        return estimate, None
    plan = plan_labels(strata, labels, width=options.width, total=options.label)
    if options.to_label is not None:
        write_label_file(options.to_label, plan, labels)
    return estimate, plan


def _is_program(labels: str) -> bool:
    path, colon, _ = labels.rpartition(":")
    return bool(colon) and path.endswith(".py")
