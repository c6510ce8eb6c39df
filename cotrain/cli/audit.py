"""``cotrain audit``: a judge in other trainers' rollouts."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from cotrain.cli.common import add_json_flag
from cotrain.cli.flags import Parser, add_count, real_number
from cotrain.core.errors import ConfigError
from cotrain.core.verbosity import print_progress, tell_result

if TYPE_CHECKING:
    from cotrain.analysis.audit.auditing import AuditOptions

COLUMNS = {  # flag → (key in ``AuditOptions.columns``, what the column holds)
    "--response-column": ("response", "what the policy wrote: a text, or messages"),
    "--prompt-column": ("prompt", "what the policy was asked"),
    "--gold-column": ("gold", "a reference answer, with which the package's grader compares"),
    "--truth-column": ("truth", "whether the answer is right: true or false, 1 or 0"),
    "--step-column": ("step", "the step of training"),
    "--problem-column": ("problem", "what tells problems apart, where there is no prompt"),
    "--judge": ("judge", "the score whose verdicts are audited, such as a reward function's"),
}


def audit(argv: Sequence[str]) -> int:
    """Is a judge being fooled? Its false positives and false negatives in rollouts of TRL, veRL, verifiers, OpenRLHF,
    miles, or of any file with columns, and whether the policy moves to where it errs."""
    parser = _audit_parser()
    arguments = parser.parse_strictly(argv)
    from cotrain.analysis.audit.auditing import audit_files
    from cotrain.analysis.audit.result import result_lines

    options = _options_of(arguments)
    result = audit_files([Path(path) for path in arguments.files], options, print_progress)
    tell_result(result.to_json())
    print("\n".join(result_lines(result)))
    if options.to_label is not None:
        print(f'\nwritten to {options.to_label}: set "right" in each row, then give it as --labels')
    if options.out is not None:
        print(f"\nas a run in {options.out}: `cotrain view {options.out}`")
    return 0


def _options_of(arguments: argparse.Namespace) -> AuditOptions:
    from cotrain.analysis.audit.auditing import AuditOptions

    columns = {}
    for flag, (key, _) in COLUMNS.items():
        name = getattr(arguments, flag.removeprefix("--").replace("-", "_"))
        if name is not None:
            columns[key] = name

    if arguments.out is not None and Path(arguments.out).exists() and any(Path(arguments.out).iterdir()):
        raise ConfigError(f"--out: {arguments.out} is not empty; name a new directory", code="E_OUT_IS_NOT_EMPTY")
    for flag in ("question_column", "answer_column"):
        if getattr(arguments, flag) is not None and arguments.references is None:
            raise ConfigError(
                f"--{flag.replace('_', '-')} is of --references; give both, or neither", code="E_FLAGS_GO_TOGETHER"
            )
    return AuditOptions(
        columns=columns,
        right_at=arguments.right_at,
        grades=not arguments.no_grade,
        answer=arguments.answer_format,
        references=_path_of(arguments.references),
        question_column=arguments.question_column,
        answer_column=arguments.answer_column,
        truth_by=arguments.truth_by,
        labels=arguments.labels,
        width=arguments.width,
        label=arguments.label,
        to_label=_path_of(arguments.to_label),
        out=_path_of(arguments.out),
    )


def _path_of(value: str | None) -> Path | None:
    return None if value is None else Path(value)


def _audit_parser() -> Parser:
    parser = Parser(prog="cotrain audit", description=audit.__doc__)
    parser.add_argument("files", nargs="+", metavar="FILE", help="a file of rollouts, or a folder of such files")
    columns = parser.add_argument_group("which column is what (default: the one whose name is usual)")
    for flag, (_, about) in COLUMNS.items():
        columns.add_argument(flag, metavar="NAME", help=about)
    columns.add_argument(
        "--right-at",
        type=real_number(),
        metavar="X",
        help="the judge accepts from this score on (default: the higher of two values, 0.5 of 0 to 1, 0 of -1 to 1)",
    )
    truth = parser.add_argument_group("what is true")
    truth.add_argument("--references", metavar="FILE", help="questions and reference answers, found by the prompt")
    truth.add_argument("--question-column", metavar="NAME", help="the column of questions in --references")
    truth.add_argument("--answer-column", metavar="NAME", help="the column of answers in --references")
    truth.add_argument("--answer-format", metavar="FORMAT", help="format of answers: tags, boxed, hash, phrase …")
    truth.add_argument("--no-grade", action="store_true", help="do not compare with reference answers")
    truth.add_argument(
        "--truth-by",
        metavar="FILE.py:FUNCTION",
        help="function that says of every prompt, response and reference whether it is right",
    )
    labels = parser.add_argument_group("labels, where nobody knows the truth")
    labels.add_argument(
        "--width", type=real_number(above=0.0), metavar="W", help="width of the interval that is wanted, as 0.1"
    )
    add_count(labels, "--label", "number of answers to label, in place of a width")
    labels.add_argument("--to-label", metavar="FILE", help="write the answers to label to this file")
    labels.add_argument("--labels", metavar="FILE", help="a file of labels; or FILE.py:FUNCTION, which labels a sample")
    parser.add_argument("--out", metavar="DIR", help="keep the rollouts as a run, for `view`, `why` and `diff`")
    add_json_flag(parser)
    return parser
