"""Which files a recipe's own code consists of, found without running any of it."""

import functools
import sys
import textwrap

import pytest

from cotrain.core.own_code import MOST_HANDWRITTEN, code_of, files_named, read_code
from cotrain.core.user_code import load_file


def written(folder, **files):
    """Python files by name, ``package/inner`` as ``package_inner``, whose texts raise where they are run."""
    for name, text in files.items():
        path = folder / f"{name.replace('package_', 'package/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text) + "\nraise AssertionError('was run')\n")
    return folder


def names(files):
    return sorted(path.name for path in files)


def test_what_a_file_imports_belongs_to_it_wherever_it_imports_it(tmp_path):
    written(
        tmp_path,
        mine="import helper\nimport torch, json\nfrom package.inner import thing\n",
        helper="def late():\n    import deeper\n",
        deeper="import mine",
        unrelated="",
        package___init__="from . import sibling",
        package_inner="",
        package_sibling="",
    )
    found = code_of([], [f"{tmp_path / 'mine.py'}:paid"])
    assert names(found) == ["__init__.py", "deeper.py", "helper.py", "inner.py", "mine.py", "sibling.py"]


def test_modules_of_another_folder_on_the_path_belong_too(tmp_path, monkeypatch):
    written(tmp_path / "a", mine="from shared_losses import mean")
    written(tmp_path / "b", shared_losses="")
    monkeypatch.syspath_prepend(str(tmp_path / "b"))
    assert names(code_of([], [f"{tmp_path / 'a' / 'mine.py'}:paid"])) == ["mine.py", "shared_losses.py"]


def test_functions_are_found_in_closures_partials_methods_and_fields(tmp_path):
    for name in ("one", "two", "three", "four"):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"{name}.py").write_text("class Thing:\n    def act(self): ...\ndef act(): ...\n")
    one, two, three, four = (load_file(str(tmp_path / n / f"{n}.py"), n) for n in ("one", "two", "three", "four"))

    def closed():
        return one.act

    parts = {"a": closed, "b": [functools.partial(two.act)], "c": three.Thing().act, "d": four.Thing}
    assert {"one.py", "two.py", "three.py", "four.py"} <= set(names(code_of([parts])))


@pytest.mark.parametrize(
    "command",
    ["python AGENT", "AGENT --fast", "env X=1 python -u AGENT 3", "python -m package.solve"],
    ids=["script", "program", "words", "module"],
)
def test_a_command_names_its_program(command, tmp_path, monkeypatch):
    written(tmp_path, package_solve="", package___init__="")
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "data.jsonl").write_text("{}")
    found = list(files_named({"command": f"{command} data.jsonl".replace("AGENT", str(tmp_path / "package/solve.py"))}))
    assert "solve.py" in names(found) and "data.jsonl" not in names(found)


def test_a_script_without_an_ending_is_a_program(tmp_path):
    script = tmp_path / "agent"
    script.write_text("#!/bin/sh\necho 4\n")
    script.chmod(0o755)
    assert names(files_named(f"{script} --verbose")) == ["agent"]


def test_what_is_installed_is_left_out(tmp_path):
    from cotrain.rollout.protocols import solve

    assert code_of([solve, pytest.raises, functools.partial(textwrap.dedent)], [sys.executable, "words", "a 'b"]) == {}


def test_a_file_that_is_no_code_is_not_read(tmp_path):
    large = tmp_path / "large.py"
    large.write_bytes(b"#" * (MOST_HANDWRITTEN + 1))
    assert read_code(large) is None and read_code(tmp_path) is None and read_code(tmp_path / "gone.py") is None
    odd = tmp_path / "odd.py"
    odd.write_bytes(b"x = '\xff'\n")
    assert read_code(odd).text == "x = '\\xff'\n"
