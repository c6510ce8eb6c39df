"""The page on reliability: every row is there, and every test, script and flag that it names exists."""

import ast
import json
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8")
MARKS = "pytestmark"
COMMANDS = sorted(set(re.findall(r"python -m (tests\.torture\.\w+)([^`#\n]*)", PAGE)))


def test_every_row_is_there_and_names_where_it_is_held_or_says_what_is_not():
    rows = re.findall(r"^(\d+)\. (.*?)(?=^\d+\. |^### |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    assert [int(number) for number, _ in rows] == list(range(1, 29))
    for number, text in rows:
        assert re.search(r"`tests/|\.md\)|make test|Not\s+covered", text), number


def test_every_promise_about_agents_servers_and_viewers_names_a_test_that_is_there():
    section = PAGE.partition("## Agents, servers and viewers")[2].partition("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| ") and line != "| promise | test |"]
    assert len(rows) >= 17
    for row in rows:
        tests = re.findall(r"`(tests/[\w/]+\.py)`", row.split(" | ")[-1])
        assert tests and all((ROOT / name).is_file() for name in tests), row


def lane_of(file: Path, test: str) -> str:
    """The lane in which a test stands: by its own marks, those of its parameters, and those of its file."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    (function,) = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == test]
    of_all = [
        node.value for node in tree.body if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == MARKS
    ]
    marks = {ast.unparse(mark) for place in (*function.decorator_list, *of_all) for mark in marks_in(place)}
    if "pytest.mark.nightly" in marks:
        return "nightly"
    return "whole" if "pytest.mark.whole" in marks else "quick"


def marks_in(place: ast.expr) -> list[ast.expr]:
    """The marks that a decorator or a ``pytestmark`` gives to all cases, not those of single parameters."""
    if isinstance(place, ast.List | ast.Tuple):
        return place.elts
    return [place]


def test_every_promise_of_the_lanes_names_tests_that_are_there_and_in_that_lane():
    section = PAGE.partition("## Three lanes of tests")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (.+) \| (quick|whole|nightly) \| (.+) \|$", section, re.MULTILINE)
    assert len(rows) == section.partition("| promise | lane | test |")[2].count("\n| ") >= 17
    for promise, lane, named in rows:
        tests = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", named)
        assert tests, promise
        for file, test in tests:
            assert lane_of(ROOT / file, test) == lane, (promise, file, test)


@pytest.mark.whole
def test_no_test_of_the_night_is_run_at_a_save():
    """Not even one that has no other mark."""
    asked = ["-m", "pytest", "--collect-only", "-q", "zoo/tests/test_zoo_runs.py", "-m"]
    found = [
        subprocess.run([sys.executable, *asked, lane], cwd=ROOT, capture_output=True, text=True, check=False)
        for lane in ("not whole", "whole and not nightly", "nightly")
    ]
    assert [done.returncode for done in found] == [5, 5, 0]  # 5: nothing was found


def test_what_it_names_is_there():
    named = set(re.findall(r"`((?:tests|benchmarks)/[\w/.]+)", PAGE)) | set(
        re.findall(r"python (benchmarks/\S+\.py)", PAGE)
    )
    assert len(named) > 25
    assert not [name for name in sorted(named) if not (ROOT / name).exists()]
    assert not re.findall(r"@\w+@", PAGE)


@pytest.mark.whole
@pytest.mark.parametrize(("module", "words"), COMMANDS)
def test_its_commands_take_their_words(module, words, capsys):
    with pytest.raises(SystemExit) as end:
        import_module(module).main([*words.split(), "--help"])
    assert end.value.code == 0
    for flag in re.findall(r"--[\w-]+", words):
        assert flag in capsys.readouterr().out or flag == "--help"
        break


@pytest.mark.whole
@pytest.mark.parametrize("module", sorted({module for module, _ in COMMANDS}))
def test_its_scripts_run_alone(module):
    """Without the folders that pytest has put on the path of modules."""
    done = subprocess.run(
        [sys.executable, "-m", module, "--help"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_make_torture_runs_every_script():
    everything = import_module("tests.torture.everything")
    made = [words for part in everything.PARTS.values() for words in part(str, Path("out"))]
    scripts = {path.stem for path in (ROOT / "tests" / "torture").glob("*.py")} - {
        "__init__",
        "contexts",
        "reached",
        "everything",
    }
    assert scripts <= {word.removeprefix("tests.torture.") for word in made}
    assert not [word for word in made if word.endswith(".py") and not (ROOT / word).exists()]
    assert "tests.torture.everything" in (ROOT / "Makefile").read_text(encoding="utf-8")


def test_kills_of_some_runs_alone_want_names_that_there_are(capsys):
    with pytest.raises(SystemExit) as end:
        import_module("tests.torture.kills").main(["--only", "ssrl", "sspl"])
    assert end.value.code == 2 and "there is no run 'sspl'; there are " in capsys.readouterr().err


@pytest.mark.whole
def test_a_part_runs_from_the_command_and_goes_on_where_it_stopped(tmp_path):
    """Four kills, and then two more, in the log of the first."""
    for kills in (4, 6):
        words = ["-m", "tests.torture.kills", "--kills", str(kills), "--log", str(tmp_path / "kills.jsonl")]
        done = subprocess.run([sys.executable, *words], cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        logged = [json.loads(line) for line in (tmp_path / "kills.jsonl").read_text().splitlines()]
        assert sum(len(line["kills"]) for line in logged) >= kills and all(line["same"] for line in logged)
        assert len({line["chain"] for line in logged}) == len(logged)
