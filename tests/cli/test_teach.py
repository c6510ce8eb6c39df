"""``cotrain sft`` learns conversations, ``cotrain teach`` what a role will say; each has its own flags alone."""

from __future__ import annotations

import json
import shlex

import pytest

from cotrain.cli.flags import Parser
from cotrain.cli.main import main
from tests.helpers import TINY
from tests.sentences import command_refuses

SHARED = {"--model", "--data", "--lenient", "--lora", "--out", "--tokens", "--resume", "--world"}
OF_SOLVER = {"--answer-format", "--steps-as", "--prompt", "--from-samples", "--samples", "--max-tokens"}
OF_VERIFIER = {"--review-format", "--verdict", "--verifier-prompt", "--reviews"}
SIZES = ["--tokens", "1024", "--batch-tokens", "512", "--length", "256", "--threads", "1", "--device", "cpu"]
WORKED = [{"question": f"{n} + 1?", "answer": f"One more.\n#### {n + 1}"} for n in range(8)]
LABELLED = [{"problem": f"{n} + 1?", "steps": [f"{n} + 1 = {n}"], "label": 0} for n in range(8)]


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
    line = command_refuses(["sft", *shlex.split(before)], "E_ROLE_IS_COMMAND", capsys)
    assert line.endswith(f": cotrain teach {now} --log-level debug")


def test_the_command_that_is_named_takes_the_same_flags(tmp_path, monkeypatch, capsys):
    """Word for word, up to its parser."""
    given = "--role verifier --model m --data d --out o --from-samples --reviews 2 --samples 3 --lora 4"
    given += " --answer-format hash"
    line = command_refuses(["sft", *given.split()], "E_ROLE_IS_COMMAND", capsys)
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
    ("sft --role", "E_ROLE_IS_COMMAND: `cotrain teach solver` | `cotrain teach verifier`"),
    ("sft --role --model m", "E_ROLE_IS_COMMAND: `cotrain teach solver` | `cotrain teach verifier`"),
    ("sft --role slover --model m", "E_TEACH_WITHOUT_ROLE: 'slover' | 'solver'?"),
    ("sft --model m --out o --answer-format hash", "E_COMMAND_LINE: '--answer-format' | `cotrain teach solver`"),
    ("teach", "E_TEACH_WITHOUT_ROLE: `cotrain teach solver --model …`"),
    ("teach --model m solver", "E_TEACH_WITHOUT_ROLE: `cotrain teach solver --model …`"),
    ("teach proposer --model m", "E_TEACH_WITHOUT_ROLE: 'proposer' | solver, verifier"),
    ("teach verifer --model m", "E_TEACH_WITHOUT_ROLE: 'verifer' | 'verifier'?"),
    ("teach solver --role solver --model m --data d --out o", "E_COMMAND_LINE: '--role' | name of the command"),
    (
        "teach verifier --role=solver --model m --data d --out o",
        "E_COMMAND_LINE: '--role=solver' | name of the command",
    ),
    ("teach solver --verdict words --model m --data d --out o", "E_COMMAND_LINE: `cotrain teach verifier` | --verdict"),
    ("teach solver --model m --out o", "E_COMMAND_LINE: required: --data"),
    ("teach solver --samples 2 --model m --data d --out o", "E_COMMAND_LINE: --samples | --from-samples"),
    ("teach solver --max-tokens 9 --model m --data d --out o", "E_COMMAND_LINE: --max-tokens | --from-samples"),
    ("teach verifier --steps-as lines --model m --data d --out o", "E_COMMAND_LINE: --steps-as | --from-samples"),
    ("teach verifier --reviews 0 --model m --data d --out o", "E_COMMAND_LINE: --reviews | --from-samples"),
    ("pretrain --model m --depth 3 --out o", "E_MODEL_WITH_TOKENIZER: --model | --depth"),
    ("pretrain --tokenizer t --vocab-size 300 --out o", "E_MODEL_WITH_TOKENIZER: --vocab-size"),
]


@pytest.mark.parametrize(("words", "code"), REFUSED, ids=range(len(REFUSED)))
def test_what_a_command_does_not_take_is_one_line(words, code, capsys):
    command_refuses(words.split(), code, capsys)


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
    ("flags", "code"),
    [
        (["--tokens", "100"], "E_LENGTHS_ORDER: tokens 100 | --tokens"),
        (["--tracker", "nobody"], "E_UNKNOWN_TRACKER: 'nobody'"),
        (["--out", "taken"], "E_OUT_NOT_EMPTY: taken | --out | --resume"),
    ],
    ids=["sizes", "tracker", "out"],
)
def test_what_can_be_refused_is_refused_before_the_data_are_read(command, flags, code, tmp_path, monkeypatch, capsys):
    """It once was said after hours of sampling."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "mine.txt").write_text("")
    words = [*command.split(), "--model", TINY, "--data", "nowhere.jsonl", "--out", "out", *flags]
    command_refuses(words, code, capsys)


@pytest.mark.parametrize(
    ("role", "rows", "code"),
    [
        ("solver", [{"question": "1 + 1?"}], "E_FIELD_MISSING: row 1 | 'answer'"),
        ("solver", LABELLED, "E_FIELD_MISSING: row 1 | 'answer'"),
        ("verifier", WORKED, "E_FIELD_MISSING: row 1 | 'problem'"),
        ("verifier", [{**LABELLED[0], "label": 7}], "E_STEP_LABELS: row 1 | field 'label' | −1 … 0 | 7"),
    ],
    ids=["answer", "labelled", "worked", "label"],
)
def test_rows_of_another_kind_are_refused_with_what_was_expected(role, rows, code, tmp_path, capsys):
    data = written(tmp_path / "rows.jsonl", rows)
    command_refuses(["teach", role, "--model", TINY, "--data", data, *SIZES, "--out", tmp_path / "out"], code, capsys)
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
