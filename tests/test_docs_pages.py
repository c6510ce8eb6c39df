"""The pages of ``docs/`` that a user reads first: their Python runs, their commands parse, and the cheap ones are run.

Python of one page is one program, run in order in a fresh directory; the reading page reads the run that the quickstart
made. "shipped" is replaced by a tiny model. Shell commands go to the real parsers; ``cotrain run`` is a dry run,
unless its data would have to be fetched.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from hashlib import sha256
from pathlib import Path

import pytest

from cotrain.analysis.comparison.arms import parse_arm
from cotrain.cli.flags import Parser
from cotrain.cli.main import main
from cotrain.config.override import override
from cotrain.config.registry import find_recipe
from cotrain.recipes import NAMES as SHIPPED
from tests.helpers import TINY

ROOT = Path(__file__).parents[1]
PAGES = [
    "quickstart",
    "concepts",
    "your-model-and-data",
    "policy-settings",
    "reading-a-run",
    "commands",
    "other-frameworks",
    "new-task-source",
    "recipes-for-problems",
]
FETCHED = ("gym:", "openai/")  # data that is made by another package, or fetched
QUESTION = (
    '{{"question": "Tom has {0} apples and buys 4 more. How many has he in the end, all in all?", "answer": "{1}"}}\n'
)


def text_of(page: str) -> str:
    return (ROOT / ("README.md" if page == "README" else f"docs/{page}.md")).read_text(encoding="utf-8")


def blocks(page: str, *languages: str) -> list[str]:
    found = re.findall(r"^```(\w*)\n(.*?)^```$", text_of(page), re.MULTILINE | re.DOTALL)
    return [block for name, block in found if name in languages]


def shell(page: str) -> list[list[str]]:
    """The commands of a page's shell blocks, and of the README's tables."""
    lines = [line for block in blocks(page, "sh") for line in block.replace("\\\n", " ").splitlines()]
    if page == "README":
        lines += re.findall(r"`(cotrain [^`]+)`", text_of(page))
    found = [shlex.split(line, comments=True) for line in lines]
    return [words[: words.index(">")] if ">" in words else words for words in found if words]


COMMANDS = [(page, words[1:]) for page in [*PAGES, "README"] for words in shell(page) if words[0] == "cotrain"]
OUTSIDE = [(page, words) for page in PAGES for words in shell(page) if words[0] != "cotrain"]


EVERY = sorted(str(path.relative_to(ROOT / "docs").with_suffix("")) for path in (ROOT / "docs").rglob("*.md"))


def shown(page: str) -> list[list[str]]:
    """The commands of any other page: lines of its blocks, and code between backticks that says where it writes."""
    lines = [line for block in blocks(page, "", "sh") for line in block.replace("\\\n", " ").splitlines()]
    lines += re.findall(r"`(cotrain run [^`]+ --out [^`]+)`", text_of(page))
    return [shlex.split(line, comments=True)[1:] for line in lines if line.startswith("cotrain ")]


class Parsed(Exception):
    """A parser has taken its words; nothing more is to be done."""


@pytest.fixture
def parse(monkeypatch):
    """Give words to the command line up to its parser: which parser, and what it read."""
    strict = Parser.parse_strictly

    def stop(parser, words, *_):
        raise Parsed(parser, strict(parser, words))

    def command(words):
        with monkeypatch.context() as patch:
            patch.setattr(Parser, "parse_strictly", stop)
            try:
                code = main(words)
            except Parsed as parsed:
                return parsed.args
        assert code == 0, words  # --help and --version print and return
        return None, None

    return command


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Iterator[Path]:
    """A directory with the files that the pages speak of."""
    place = tmp_path_factory.mktemp("docs")
    rows = "".join(QUESTION.format(n, n + 4) for n in range(30))
    for name in ("data.jsonl", "gsm8k/train.jsonl", "path/to/gsm8k/train.jsonl"):
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text(rows)
    for name in ("test.jsonl", "gsm8k/test.jsonl", "path/to/gsm8k/test.jsonl"):
        (place / name).write_text(QUESTION.format(100, 104))
    for name in (
        "my-model",
        "path/or/hub-name",
        "runs/start",
        "runs/judge",
        "my-reward-model",
    ):  # a dry run looks into them
        shutil.copytree(TINY, place / name)
    unanswered = [json.dumps({"question": f"How many legs have {n} dogs and a cat?"}) + "\n" for n in range(30)]
    (place / "questions.jsonl").write_text("".join(unanswered))
    (place / "half-answered.jsonl").write_text(rows + "".join(unanswered))
    (place / "solved.jsonl").write_text(rows)
    (task,) = blocks("recipes-for-problems", "json")
    (place / "tasks.jsonl").write_text("".join(task.replace("total", f"total_{n}") for n in range(40)))
    (place / "my_agent.py").write_text(blocks("recipes-for-problems", "python")[0])
    (place / "my_reward.py").write_text("def score(task, answer, correct):\n    return correct\n")
    (place / "my_gate.py").write_text("def check(problem):\n    return None\n")
    (place / "reversals.py").write_text(blocks("new-task-source", "python")[0])
    (place / "rival.py").write_text("\n\n".join(blocks("method-from-scratch", "python")))
    yield place


@pytest.fixture(autouse=True)
def there(place, monkeypatch):
    monkeypatch.chdir(place)


def program(page: str) -> dict:
    """Run a page's Python and return its names."""
    source = "\n\n".join(blocks(page, "python")).replace('"shipped"', repr(TINY))
    names: dict = {"__name__": f"docs_{page.replace('-', '_')}"}
    exec(compile(source, f"docs/{page}.md", "exec", dont_inherit=True), names)  # noqa: S102
    return names


@pytest.fixture(scope="module")
def small(place) -> dict:
    """The quickstart's run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        return program("quickstart")


@pytest.mark.whole
def test_the_quickstart_trains_both_roles(small, place):
    assert small["outcome"].summary["updates"] == {"generator": 1, "verifier": 1}
    assert (place / "runs/small/report.html").is_file()


@pytest.mark.whole
def test_the_quickstart_can_be_measured_and_talked_to(small, capsys):
    done = [words for page, words in COMMANDS if page == "quickstart" and "runs/small" in words]
    assert {words[0] for words in done} == {"eval", "chat", "report"}
    for words in done:
        assert main(words) == 0, words
    out = capsys.readouterr().out
    assert "split validation, after step 2" in out
    assert "    answer: " in out or "(not in the stepwise format" in out
    assert Path("runs/small/eval-validation.json").is_file()


@pytest.mark.whole
def test_the_concepts_make_one_step():
    names = program("concepts")
    assert names["trainer"].policies.update_counts == {"generator": 0, "verifier": 1}


def test_own_data_and_policies_are_built():
    names = program("policy-settings")
    assert names["recipe"].policies["verifier"].outside


@pytest.mark.whole
def test_the_reading_page_reads_the_quickstarts_run(small):
    names = program("reading-a-run")
    assert [row["phase"] for row in names["rows"]] == ["verifier", "generator"]


@pytest.mark.whole
@pytest.mark.parametrize("page", [*PAGES, "README"])
def test_commands_parse(page, parse, capsys):
    mine = [["grpo" if word == "NAME" else word for word in words] for where, words in COMMANDS if where == page]
    assert mine or page in ("concepts", "other-frameworks")
    for words in mine:
        if words[:1] == ["run"] and not any(mark in word for mark in FETCHED for word in words):
            code = main([*words, "--dry-run"] if "--out" in words else [*words, "--out", "x", "--dry-run"])
            said = capsys.readouterr().err
            hub = code == 2 and any(word.startswith("Qwen/") for word in words)  # no network: the flags are right
            away = hub and "check the name and the network" in said
            assert code == 0 or away or (code == 2 and "sees no GPU here" in said), (words, said)
            continue
        _, given = parse(words)
        for arm in getattr(given, "arms", ()):
            made = parse_arm(arm)
            recipe = find_recipe(made.target)(**made.arguments)
            assert {"seed", "steps", "evaluate_every"} <= find_recipe(made.target).parameters.keys()
            override(recipe, given.set)


def test_what_is_not_cotrain_exists():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = set(project["optional-dependencies"])
    for page in PAGES:
        assert set(re.findall(r"(?:cotrain|'\.)\[(\w+)\]", text_of(page))) <= extras, page
    targets = (ROOT / "Makefile").read_text()
    for page, words in OUTSIDE:
        assert words[0] in ("make", "pip") or words[:3] == ["python", "-m", "bases"], (page, words)
        assert words[0] != "make" or f"\n{words[1]}:" in targets, (page, words)


@pytest.mark.whole
@pytest.mark.parametrize(
    "page", [page for page in EVERY if page not in (*PAGES, "method-from-scratch", "new-estimator") and shown(page)]
)
def test_commands_of_the_other_pages_parse(page, parse):
    for words in shown(page):
        _, given = parse(words)
        for arm in getattr(given, "arms", ()):
            made = parse_arm(arm)
            override(find_recipe(made.target)(**made.arguments), given.set)


@pytest.mark.parametrize("page", [*EVERY, "README"])
def test_a_table_begins_behind_an_empty_line(page):
    """Elsewhere its rows become words of the paragraph in front of it."""
    in_code = False
    before = ""
    for line in text_of(page).split("\n"):
        if line.lstrip().startswith("```"):
            in_code = not in_code
        if line.startswith("|") and not in_code:
            assert before == "" or before.startswith("|"), f"{page}: {line}"
        before = line


def test_links_lead_somewhere():
    for page in EVERY:
        for link in re.findall(r"\]\(([^)#]+)(?:#[\w-]+)?\)", text_of(page)):
            assert link.startswith("https://") or ((ROOT / "docs" / page).parent / link).exists(), (page, link)


def known_commands(capsys) -> set[str]:
    """The subcommands, as the message about an unknown one lists them."""
    assert main(["no-such-command"]) == 2
    return set(re.findall(r"there are: (.*)\)", capsys.readouterr().err)[0].split(", "))


@pytest.mark.whole
def test_the_table_of_commands_is_whole(parse, capsys):
    rows = re.findall(r"^\| `(\w[\w ]*)` \|.*\| (.*) \|$", text_of("commands"), re.MULTILINE)
    listed = {name: set(re.findall(r"--[\w-]+", flags)) for name, flags in rows}
    assert {name.split()[0] for name in listed} == known_commands(capsys) and len(rows) == len(listed)
    examples = [words for page, words in COMMANDS if page == "commands"]
    for name, flags in listed.items():
        example = next(words for words in examples if words[: len(name.split())] == name.split())
        parser, _ = parse(example)
        real = {flag for action in parser._actions for flag in action.option_strings if flag.startswith("--")}
        if name in ("train", "dpo", "reward"):  # `run` by another name, as their rows say
            flags |= listed["run"]
        if name in ("run", "train", "dpo", "reward"):
            own = find_recipe(name if name in SHIPPED else example[1]).parameters
            real -= {
                f"--{no}{parameter.replace('_', '-')}"
                for parameter in own
                if parameter != "tasks"
                for no in ("", "no-")
            }
        assert flags == real - {"--help", "--log-level"}, name  # of which the page speaks once


@pytest.mark.whole
def test_cheap_commands_run(capsys):
    for words in (
        [],
        ["--help"],
        ["list"],
        ["doctor"],
        ["check", "data", "data.jsonl", "--against", "test.jsonl", "--json"],
    ):
        assert main(words) == 0, words
    out = capsys.readouterr().out
    assert all(name in out for name in SHIPPED)
    checked = json.loads(out[out.rindex('{\n  "path"') :])
    assert checked["rows"] == 30 and checked["errors"] == 0


def test_check_data_finds_what_the_page_says(capsys):
    row = QUESTION.format(100, 104)
    Path("bad.jsonl").write_text(row + row + '{"question": "1+1?", "answer" "2"}\n')
    assert main(["check", "data", "bad.jsonl", "--against", "test.jsonl"]) == 1
    out = capsys.readouterr().out
    assert "malformed: 1 row" in out and "overlap: 2 rows" in out and "duplicate: 1 row" in out
    rows = [json.loads(line) for line in blocks("your-model-and-data", "json")[0].splitlines()]
    Path("shown.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert main(["check", "data", "shown.jsonl"]) == 0
    assert "3 rows" in capsys.readouterr().out


NAMED = re.compile(r"`((?:[\w-]+/)*[\w-]+\.py)(?:: ([\w.]+))?`")


@cache
def source_files() -> set[str]:
    folders = ("cotrain", "tests", "benchmarks", "bases", "docs", "examples", "reference", "zoo")
    return {str(path.relative_to(ROOT)) for folder in folders for path in (ROOT / folder).rglob("*.py")}


def missing_files(path: Path) -> Iterator[str]:
    """Files, and functions in them (``file.py: name``), that a page or a docstring names and that are not there. In a
    page, a name without a folder that is no file of ours is a user's own."""
    for name, inside in NAMED.findall(path.read_text(encoding="utf-8")):
        near = str((path.parent / name).relative_to(ROOT))
        known = [s for s in (name, f"cotrain/{name}", near) if s in source_files()]
        known = known or [s for s in source_files() if "/" not in name and s.endswith(f"/{name}")]
        if not known:
            if ("/" in name and not name.startswith("path/to/")) or path.suffix == ".py":
                yield f"{path.relative_to(ROOT)}: {name}"
            continue
        texts = [(ROOT / source).read_text(encoding="utf-8") for source in known]
        for part in inside.split("."):
            if part and not any(re.search(rf"(?:def|class) {part}\b|^{part}\b", text, re.MULTILINE) for text in texts):
                yield f"{path.relative_to(ROOT)}: {name}: {inside}"


def test_files_and_functions_that_are_named_exist():
    pages = [path for path in (ROOT / "docs").rglob("*.md") if path.name != "other-frameworks.md"]
    sources = [ROOT / source for source in source_files() if source.startswith(("cotrain", "bases"))]
    readers = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *pages, *sources]
    assert not sorted(missing for path in readers for missing in missing_files(path))


@pytest.mark.whole
def test_the_speedrun_goes_from_text_to_a_run_and_goes_on_where_it_stopped(parse, tmp_path):
    """Its commands parse, each stage begins from what one before it wrote, and a run that is there is resumed."""
    stub = tmp_path / "bin" / "cotrain"
    stub.parent.mkdir()
    log = tmp_path / "log.jsonl"
    stub.write_text(
        f"#!{sys.executable}\nimport json, sys\nprint(json.dumps(sys.argv[1:]), file=open({str(log)!r}, 'a'))"
    )
    stub.chmod(0o755)
    python = stub.with_name("python")
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')  # a link would be outside of the environment
    python.chmod(0o755)
    environment = {**os.environ, "PATH": f"{stub.parent}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}

    def walk() -> list[list[str]]:
        log.unlink(missing_ok=True)
        script = ["sh", str(ROOT / "examples/speedrun/speedrun.sh")]
        subprocess.run(script, env=environment | {"OUT": "out"}, cwd=tmp_path, check=True, timeout=120)
        return [json.loads(line) for line in log.read_text().splitlines()]

    commands = walk()
    names = [words[0] for words in commands]
    assert names == [
        *("tokenizer", "pretrain", "eval", "sft", "teach", "eval", "teach", "run", "eval", "chat", "chat", "report")
    ]
    written = {"out"}
    for words in commands:
        parse(words)
        needed = [word for word in words[1:] if word.startswith("out") and words[words.index(word) - 1] != "--out"]
        assert all(word in written or (tmp_path / word).exists() for word in needed), words
        written |= {words[words.index("--out") + 1]} if "--out" in words else set()
    (tmp_path / "out/tokenizer").mkdir()
    (tmp_path / "out/run").mkdir()
    (tmp_path / "out/run/recipe.json").write_text("{}")
    assert [words[0] for words in walk() if words[0] in ("tokenizer", "run", "resume")] == ["resume"]
    data = tmp_path / "out/data"
    tests = {json.loads(line)["question"] for line in (data / "questions/test.jsonl").read_text().splitlines()}
    learned = (data / "text.txt").read_text() + (data / "questions/train.jsonl").read_text()
    assert len(tests) > 350 and not any(question in learned for question in tests)


@pytest.mark.whole
def test_each_study_ran_with_the_file_that_its_commit_holds():
    differing = []
    for record in sorted((ROOT / "docs" / "results").glob("*/study.json")):
        study = json.loads(record.read_text(encoding="utf-8"))
        commit, name = study["git"]["commit"], Path(study["study"]).name
        listed = subprocess.run(
            ["git", "ls-tree", "-r", "--name-only", commit], capture_output=True, check=False, cwd=ROOT
        )
        if listed.returncode:
            pytest.skip(f"a clone without the commit {commit}")
        files = [path for path in listed.stdout.decode().splitlines() if Path(path).name == name]
        texts = [subprocess.check_output(["git", "show", f"{commit}:{path}"], cwd=ROOT) for path in files]
        if study["sha256"] not in [sha256(text).hexdigest() for text in texts]:
            differing.append(record.parent.name)
    assert differing == []
