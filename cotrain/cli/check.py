"""``cotrain check data``: what is wrong with a file of questions and answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from cotrain.analysis.check_data import check_file
from cotrain.cli.flags import Parser
from cotrain.core.errors import ConfigError
from cotrain.core.verbosity import json_text, print_aside, print_lines, print_progress
from cotrain.data.columns import ANY, schema_of
from cotrain.formats.answers import check_answer
from cotrain.storage.kept_work import claim_place


def check(argv: Sequence[str]) -> int:
    """``cotrain check data FILE``. The exit code is 1 if a row has an error, else 0."""
    if argv[:1] in (["-h"], ["--help"]):
        argv = ["data", "--help"]
    if argv[:1] != ["data"]:
        raise ConfigError("cotrain check: say what to check, as in `cotrain check data FILE`", code="E_CHECK_WHAT")
    parser = Parser(prog="cotrain check data", description="Find what is wrong with a file of questions and answers.")
    parser.add_argument(
        "file",
        metavar="FILE",
        help="the file: JSON lines, one JSON array, CSV with a header, each .gz or plain, or parquet",
    )
    parser.add_argument("--against", nargs="+", default=[], metavar="FILE", help="files that must not share questions")
    parser.add_argument("--schema", help="a benchmark, such as svamp, where the columns cannot be guessed")
    parser.add_argument("--question-column", metavar="NAME", help="column of questions, where its name is no usual one")
    parser.add_argument("--answer-column", metavar="NAME", help="column of answers, where its name is no usual one")
    parser.add_argument(
        "--labelled",
        metavar="WHICH",
        help="as `cotrain run` takes it: rows may have no answer, where those that have one are the labelled ones "
        "(answers) or another file holds them",
    )
    parser.add_argument("--quarantine", metavar="FILE", help="write the malformed rows there, each with its reason")
    parser.add_argument(
        "--answer-format",
        metavar="FORMAT",
        help="where the answer stands in a worked solution: tags, boxed, hash, phrase, last-number …",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    arguments = parser.parse_strictly(argv[1:])
    if arguments.answer_format is not None:
        check_answer(arguments.answer_format)
    if arguments.quarantine is not None and Path(arguments.quarantine).exists():
        raise ConfigError(
            f"--quarantine {arguments.quarantine}: it is there already; name a new file", code="E_QUARANTINE_EXISTS"
        )
    if arguments.quarantine is not None:
        claim_place(Path(arguments.quarantine).parent)
    schema = ANY if arguments.schema is None else schema_of(arguments.schema)
    schema = replace(
        schema, question=arguments.question_column or schema.question, answer=arguments.answer_column or schema.answer
    )
    report = check_file(
        arguments.file,
        arguments.against,
        schema=schema,
        answer=arguments.answer_format,
        labelled=arguments.labelled,
        say=print_aside if arguments.json else print_progress,
    )
    if arguments.quarantine is not None:
        report.aside.write(arguments.quarantine)
    if arguments.json:
        print(json_text(report.json()))
    else:
        print_lines(report.report_lines())
    return 1 if report.count_rows("error") else 0
