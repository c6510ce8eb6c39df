"""``cotrain sft`` learns conversations, ``cotrain teach`` what a role will say; each has its own flags alone."""

from __future__ import annotations

import json
import shlex

import pytest

from cotrain.cli.flags import Parser
from cotrain.cli.main import main
from tests.helpers import TINY

SHARED = {"--model", "--data", "--lenient", "--lora", "--out", "--tokens", "--resume", "--world"}
OF_SOLVER = {"--answer-format", "--steps-as", "--prompt", "--from-samples", "--samples", "--max-tokens"}
OF_VERIFIER = {"--review-format", "--verdict", "--verifier-prompt", "--reviews"}
SIZES = ["--tokens", "1024", "--batch-tokens", "512", "--length", "256", "--threads", "1", "--device", "cpu"]
WORKED = [{"question": f"{n} + 1?", "answer": f"One more.\n#### {n + 1}"} for n in range(8)]
LABELLED = [{"problem": f"{n} + 1?", "steps": [f"{n} + 1 = {n}"], "label": 0} for n in range(8)]


def line_of(capsys, *words):
    """The one line by which a command is refused."""
    assert main([*map(str, words)]) == 2
    told = [line for line in capsys.readouterr().err.splitlines() if not line.startswith("loading ")]
    assert len(told) == 1, told
    return told[0]


def written(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


@pytest.mark.parametrize(
    ("command", "own", "foreign"),
    [
        ("sft", set(), OF_SOLVER | OF_VERIFIER),
        ("teach solver", OF_SOLVER, OF_VERIFIER),
        ("teach verifier", OF_SOLVER | OF_VERIFIER, set()),
    ],
    ids=["sft", "solver", "verifier"],
)
def test_help_shows_the_flags_of_its_command_alone(command, own, foreign, capsys):
    with pytest.raises(SystemExit) as ended:
        main([*command.split(), "--help"])
    assert ended.value.code == 0
    words = set(capsys.readouterr().out.replace("[", " ").replace("]", " ").split())
    assert own | SHARED <= words
    assert not words & (foreign | {"--role"})


@pytest.mark.parametrize(
    ("before", "now"),
    [
        ("--role solver --model m --data d --out o", "solver --model m --data d --out o"),
        ("--model m --role=verifier --verdict words --out o", "verifier --model m --verdict words --out o"),
        (
            "--model 'my model' --data d --from-samples --role solver",
            "solver --model 'my model' --data d --from-samples",
        ),
    ],
)
def test_the_spelling_of_before_is_answered_with_the_command_of_now(before, now, capsys):
    line = line_of(capsys, "sft", *shlex.split(before))
    assert line.startswith("cotrain sft: --role ") and line.endswith(f"with the same flags: cotrain teach {now}")


def test_the_command_that_is_named_takes_the_same_flags(tmp_path, monkeypatch, capsys):
    """Word for word, up to its parser."""
    given = "--role verifier --model m --data d --out o --from-samples --reviews 2 --samples 3 --lora 4"
    given += " --answer-format hash"
    line = line_of(capsys, "sft", *given.split())
    command = shlex.split(line.partition("with the same flags: ")[2])
    parsed = []

    def stop(parser, words, *more):
        parsed.append((parser.prog, parse(parser, words, *more)))
        raise KeyboardInterrupt

    parse = Parser.parse_strictly
    monkeypatch.setattr(Parser, "parse_strictly", stop)
    assert main(command[1:]) == 130
    ((prog, arguments),) = parsed
    assert prog == "cotrain teach verifier"
    assert (arguments.reviews, arguments.samples, arguments.answer_format, arguments.lora) == (2, 3, "hash", 4)


REFUSED = [
    ("sft --role", "`cotrain teach solver` and `cotrain teach verifier`"),
    ("sft --role --model m", "`cotrain teach solver` and `cotrain teach verifier`"),
    ("sft --role slover --model m", "unknown role 'slover'; did you mean 'solver'?"),
    ("sft --model m --out o --answer-format hash", "unknown argument '--answer-format'; `cotrain teach solver` and"),
    ("teach", "the role stands first, as in `cotrain teach solver --model …`"),
    ("teach --model m solver", "the role stands first"),
    ("teach proposer --model m", "unknown role 'proposer' (there are: solver, verifier)"),
    ("teach verifer --model m", "did you mean 'verifier'?"),
    ("teach solver --role solver --model m --data d --out o", "the role is in the name of the command"),
    ("teach verifier --role=solver --model m --data d --out o", "the role is in the name of the command"),
    ("teach solver --verdict words --model m --data d --out o", "`cotrain teach verifier` has --verdict"),
    ("teach solver --model m --out o", "required: --data"),
    ("teach solver --samples 2 --model m --data d --out o", "--samples is about what the model samples; add"),
    ("teach solver --max-tokens 9 --model m --data d --out o", "--max-tokens is about what the model samples"),
    ("teach verifier --steps-as lines --model m --data d --out o", "--steps-as is about what the model samples"),
    ("teach verifier --reviews 0 --model m --data d --out o", "--reviews is about what the model samples"),
    ("pretrain --model m --depth 3 --out o", "--model brings its own tokenizer and sizes; leave out --depth"),
    ("pretrain --tokenizer t --vocab-size 300 --out o", "leave out --vocab-size"),
]


@pytest.mark.parametrize(("words", "told"), REFUSED, ids=range(len(REFUSED)))
def test_what_a_command_does_not_take_is_one_line(words, told, capsys):
    assert told in line_of(capsys, *words.split())


def test_teach_tells_of_its_roles(capsys):
    assert main(["teach", "--help"]) == 0
    shown = capsys.readouterr().out
    assert "cotrain teach solver" in shown and "cotrain teach verifier" in shown


@pytest.mark.parametrize(
    "command",
    ["sft", "teach solver --from-samples", "teach verifier --from-samples"],
    ids=["sft", "solver", "verifier"],
)
@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (["--tokens", "100"], "raise --tokens"),
        (["--tracker", "nobody"], "unknown tracker 'nobody'"),
        (["--out", "taken"], "is not an empty directory; choose another --out, or go on with --resume"),
    ],
    ids=["sizes", "tracker", "out"],
)
def test_what_can_be_refused_is_refused_before_the_data_are_read(command, flags, told, tmp_path, monkeypatch, capsys):
    """It once was said after hours of sampling."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "mine.txt").write_text("")
    line = line_of(capsys, *command.split(), "--model", TINY, "--data", "nowhere.jsonl", "--out", "out", *flags)
    assert told in line


@pytest.mark.parametrize(
    ("role", "rows", "told"),
    [
        ("solver", [{"question": "1 + 1?"}], "row 1: no field 'answer'"),
        ("solver", LABELLED, "row 1: no field 'answer'"),
        ("verifier", WORKED, "row 1: no field 'problem'"),
        ("verifier", [{**LABELLED[0], "label": 7}], "expected −1 … 0, found 7"),
    ],
    ids=["answer", "labelled", "worked", "label"],
)
def test_rows_of_another_kind_are_refused_with_what_was_expected(role, rows, told, tmp_path, capsys):
    data = written(tmp_path / "rows.jsonl", rows)
    line = line_of(capsys, "teach", role, "--model", TINY, "--data", data, *SIZES, "--out", tmp_path / "out")
    assert told in line
    assert not (tmp_path / "out").exists()


@pytest.mark.whole
@pytest.mark.parametrize(("role", "rows"), [("solver", WORKED), ("verifier", LABELLED)], ids=["solver", "verifier"])
def test_a_role_is_taught_by_an_adapter_and_resumed(role, rows, tmp_path, capsys):
    data = written(tmp_path / "rows.jsonl", rows)
    out = tmp_path / "out"
    words = ["teach", role, "--model", TINY, "--data", data, "--lora", "2", *SIZES, "--length", "512"]
    assert main([*words, "--out", str(out)]) == 0
    result = json.loads((out / "result.json").read_text())
    assert (result["role"], result["steps"]) == (role, 2)
    assert main([*words, "--out", str(out), "--resume"]) == 0
    assert "finished before" in capsys.readouterr().out
