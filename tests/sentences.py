"""What an error says, apart from what it means: tests ask for its code, the sentences stand in one file.

A test says which error it wants, and which values the error has to name::

    with refuses("E_ROW_NOT_OBJECT", names="row 3"):
        read_rows(path)

In a table of cases one text says both, as ``"E_ROW_NOT_OBJECT: row 3"``, with `` | `` between several names.

``assets/sentences.json`` has one real sentence of each code, and the test in which it is said; that test compares it.
So a sentence is rewritten in one place of the package, and then by one command::

    python -m tests.sentences --write E_ROW_NOT_OBJECT    # its test runs again
    python -m tests.sentences --write                     # all of them: minutes
    python -m tests.sentences --write tests/data          # new codes, from quick tests in there

Left out: what other libraries say within a sentence, lists of known names, and the places of temporary files, which
differ from machine to machine.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import pytest

from cotrain.core.errors import (
    ConfigError,
    CotrainError,
    DataError,
    ModelError,
    ProcessLost,
    RowError,
    RunDirectoryError,
    StateError,
    UserError,
)

ROOT = Path(__file__).parents[1]
FILE = Path(__file__).parent / "assets" / "sentences.json"
RECORD = "COTRAIN_RECORD_SENTENCES"  # the file that a run of --write collects them in
GENERAL = {  # what is raised without a code of its own, as by tests themselves: it may say anything
    kind.code
    for kind in (
        CotrainError,
        UserError,
        ConfigError,
        DataError,
        RowError,
        ModelError,
        RunDirectoryError,
        StateError,
        ProcessLost,
    )
}
_VARYING = {
    r"[^\s'\"]*/pytest-of-[^/]+/pytest-\d+/(?:popen-\w+/)?[\w.-]+": "TMP",
    r"\(there are: .*?\)": "(there are: …)",
    r"(?<=127\.0\.0\.1:)\d+": "PORT",
    r"\bTask-\d+": "Task-N",
    r"(?<=\.py, line )\d+": "N",  # of a test, which moves
    r"\bprocess \d+ since \S+ \S+(?=;)": "process N since DATE TIME",
}
_SEEN: dict[str, set[str]] = {}  # the test that runs, and the codes that it has met: the first sentence of each counts


@contextmanager
def refuses(
    code: str | Sequence[str], *, names: str | Sequence[str] = ()
) -> Iterator[pytest.ExceptionInfo[CotrainError]]:
    """An error with this code is raised within, and its sentence has these names: places, values, what to give.

    Several codes: any one of them, where it is no promise which check comes first.
    """
    wanted = [names] if isinstance(names, str) else list(names)
    if isinstance(code, str):
        code, _, more = code.partition(": ")
        wanted += more.split(" | ") if more else []
    with pytest.raises(CotrainError) as raised:
        yield raised
    codes = [code] if isinstance(code, str) else code
    found = raised.value.code
    check_error(raised.value, found if found in codes else " or ".join(codes), wanted)


def check_error(error: CotrainError, code: str, names: Sequence[str] = ()) -> None:
    """Asserts the code of an error and what it names, and that its sentence is the one in the file."""
    said = str(error)
    assert error.code == code, f"expected {code}, found {error.code}: {said}"
    missing = [name for name in names if name not in said]
    assert not missing, f"{code} does not name {missing}: {said}"
    _compare_sentence(code, sentence_of(error))


def command_refuses(
    words: Sequence[object], code: str, capsys: pytest.CaptureFixture[str], *, names: str | Sequence[str] = ()
) -> str:
    """A command ends with exit code 2 and one line, which says the error with this code and has these names; the line.

    Codes show at ``--log-level debug``, where the traceback of the error stands above its line.
    """
    from cotrain.cli.main import main  # here, so that a test of imports may use this module

    capsys.readouterr()  # what was said before
    assert main([*map(str, words), "--log-level", "debug"]) == 2
    above, shown, below = capsys.readouterr().err.partition("Traceback (most recent call last):\n")
    beside = [line for line in above.splitlines() if not line.startswith(("loading ", "note: "))]
    assert shown and not beside, f"beside the line of the error: {beside}"
    return check_line(below.splitlines()[-1], code, names)


def check_line(line: str, code: str, names: str | Sequence[str] = ()) -> str:
    """Asserts that the line of a command at ``--log-level debug`` has this code and these names.

    Returns the line without the code.
    """
    code, _, more = code.partition(": ")
    wanted = [names] if isinstance(names, str) else list(names)
    wanted += more.split(" | ") if more else []
    assert line.startswith("cotrain") and line.endswith(f" [{code}]"), f"expected {code}: {line}"
    missing = [name for name in wanted if name not in line]
    assert not missing, f"{code} does not name {missing}: {line}"
    return line.removesuffix(f" [{code}]")


def sentence_of(error: CotrainError) -> str:
    """What an error says, where it is the same in each run and with each version of another library."""
    said = str(error).replace(f"{ROOT}/", "")
    for pattern, shown in _VARYING.items():
        said = re.sub(pattern, shown, said)
    cause = error.__cause__ or error.__context__
    while cause is not None:
        for words in _words_of(cause):
            said = said.replace(words, "…")
        cause = cause.__cause__ or cause.__context__
    return said


def _words_of(cause: BaseException) -> list[str]:
    """What a library's own error may have put into a sentence, the longest first."""
    if isinstance(cause, CotrainError):
        return []
    texts = [str(cause), getattr(cause, "msg", None), getattr(cause, "strerror", None), getattr(cause, "reason", None)]
    lines = [text.strip().splitlines()[0].strip() for text in texts if isinstance(text, str) and text.strip()]
    words = {form for line in lines for form in (line, line.rstrip("."), line.lower(), line.partition(";")[0])}
    return sorted((text for text in words if len(text) > 3), key=len, reverse=True)


@cache
def golden() -> dict[str, dict[str, str]]:
    """Code → ``test`` (its id) and ``says``."""
    return json.loads(FILE.read_text("utf-8")) if FILE.exists() else {}


def _compare_sentence(code: str, said: str) -> None:
    test = os.environ["PYTEST_CURRENT_TEST"].rpartition(" ")[0]
    if test not in _SEEN:
        _SEEN.clear()
        _SEEN[test] = set()
    if code in _SEEN[test] or code in GENERAL:
        return
    _SEEN[test].add(code)
    if RECORD in os.environ:
        with open(os.environ[RECORD], "a", encoding="utf-8") as stream:
            stream.write(json.dumps({"code": code, "test": test, "says": said}) + "\n")
        return
    kept = golden().get(code)
    if kept is not None and kept["test"] == test:
        advice = f"the sentence of {code} is another one; if it is meant: python -m tests.sentences --write {code}"
        assert said == kept["says"], advice


# -- The command


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sentences", description=__doc__.partition("\n")[0])
    parser.add_argument("--write", nargs="*", required=True, metavar="CODE|PATH", help="codes, or tests to read")
    wanted = parser.parse_args(argv).write
    kept = dict(golden())
    codes = [word for word in wanted if word.startswith("E_")]
    places = [word for word in wanted if not word.startswith("E_")]
    unknown = [code for code in codes if code not in kept]
    if unknown:
        parser.error(f"{FILE.name} has no {unknown[0]}; name the tests that it is raised in")
    if not wanted:
        codes = list(kept)
    again = {kept[code]["test"] for code in codes}
    said = record_sentences([*sorted(again), *places])
    for code in codes:
        now = said.get((code, kept[code]["test"]))
        if now is None:
            print(f"{code}: {kept[code]['test']} does not raise it any more; its sentence is left out")
            del kept[code]
        else:
            kept[code]["says"] = now
    for (code, test), now in said.items():
        kept.setdefault(code, {"test": test, "says": now})
    FILE.write_text(json.dumps(kept, indent=1, sort_keys=True, ensure_ascii=False) + "\n", "utf-8")
    print(f"{FILE.relative_to(ROOT)}: {len(kept)} sentences")
    return 0


def record_sentences(tests: Sequence[str]) -> dict[tuple[str, str], str]:
    """Run these tests twice; (code, test) → what was said both times."""
    runs = []
    for _ in range(2):
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "said.jsonl"
            file.touch()
            command = [sys.executable, "-m", "pytest", "-q", "-m", "not whole", *tests]
            subprocess.run(command, cwd=ROOT, env=os.environ | {RECORD: str(file)}, check=False)
            rows = [json.loads(line) for line in file.read_text("utf-8").splitlines()]
        runs.append({(row["code"], row["test"]): row["says"] for row in rows})
    first, second = runs
    return {key: said for key, said in first.items() if second.get(key) == said}


if __name__ == "__main__":
    sys.exit(main())
