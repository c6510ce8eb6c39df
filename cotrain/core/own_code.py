"""Code of the user's that a recipe runs: which files it consists of, found without running any of it.

A file belongs to a recipe where a function or class of it is part of the recipe, where an argument names it
(``reward.py:paid``), or where a command starts it (``python agent.py``). Whatever such a file imports of the user's own
belongs too, and so on. What is installed, and what is cotrain's, does not: its versions stand in ``provenance.json``.

Left out: files that are opened by name (a list of words, a prompt), modules imported under a name that is computed
from outside of the folders of these files, and a program that is no text.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import inspect
import os
import shlex
import site
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from types import FunctionType, MethodType, ModuleType
from typing import Any

from cotrain.core.errors import DataError
from cotrain.core.input_files import MOST_BY_HAND, content_of_file

SCRIPTS = (".py", ".sh", ".bash", ".pl", ".rb", ".js", ".mjs", ".ts", ".lua", ".r", ".jl")  # endings of programs
MOST_FILES = 500  # most files of one recipe
MOST_ITEMS = 100  # most items of a container that is looked through: longer ones hold data


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeFile:
    """A file of the user's code, as it is now."""

    path: Path  # absolute, links followed
    sha256: str
    text: str


def read_code(path: Path) -> CodeFile | None:
    """A file of code as it is now; None where it is gone, is no regular file, or is larger than code is."""
    try:
        content = content_of_file(path, MOST_BY_HAND)
    except DataError:
        return None
    text = content.decode("utf-8", "backslashreplace")
    return CodeFile(path=path, sha256=hashlib.sha256(content).hexdigest(), text=text)


def code_of(parts: Iterable[Any], names: Iterable[Any] = ()) -> dict[Path, CodeFile]:
    """The files of the user's code by path, sorted. ``parts``: values of a recipe, whose functions and classes are
    looked for. ``names``: arguments as JSON, in which texts may name files and commands."""
    roots = {file for part in parts for file in _files_of_value(part)}
    roots |= {file for name in names for file in files_named(name)}
    return imported_by(roots | _imported_beside(roots))


def imported_by(roots: Iterable[Path]) -> dict[Path, CodeFile]:
    """These files and all of the user's that they import, by path, sorted."""
    files: dict[Path, CodeFile] = {}
    waiting = sorted(set(roots))
    while waiting and len(files) < MOST_FILES:
        path = waiting.pop()
        code = None if path in files else read_code(path)
        if code is None:
            continue
        files[path] = code
        waiting += sorted(_imports_of(code) - set(files))
    return dict(sorted(files.items()))


# -- Files of a value


def _files_of_value(value: Any) -> Iterator[Path]:
    """The files of the functions and classes that a value holds, also in closures and fields."""
    seen: set[int] = set()
    held = [value]  # keeps what is looked at alive, so that no id is used twice
    for one in held:
        if id(one) in seen:
            continue
        seen.add(id(one))
        held += _inside(one)
        if (file := _file_defining(one)) is not None:
            yield file


def _inside(value: Any) -> list[Any]:
    """The values that may hold code, of one value."""
    if value is None or isinstance(value, str | bytes | int | float | ModuleType):
        return []
    if isinstance(value, Mapping):
        return list(value.values())[:MOST_ITEMS]
    if isinstance(value, tuple | list | set | frozenset):
        return list(value)[:MOST_ITEMS]
    if isinstance(value, functools.partial):
        return [value.func, *value.args, *value.keywords.values()]
    if isinstance(value, MethodType):
        return [value.__func__, value.__self__]
    if isinstance(value, FunctionType):
        return [*_closure_of(value), getattr(value, "__wrapped__", None)]
    if isinstance(value, type):
        return []
    return _fields_of(value)


def _closure_of(function: FunctionType) -> list[Any]:
    values = []
    for cell in function.__closure__ or ():
        with suppress(ValueError):  # an empty cell
            values.append(cell.cell_contents)
    return values


def _fields_of(value: Any) -> list[Any]:
    """The fields of an object of cotrain's or of the user's."""
    if _defining_file(type(value)) is None and type(value).__module__.partition(".")[0] != "cotrain":
        return []
    slots = [name for kind in type(value).__mro__ for name in _slot_names(kind)]
    fields = [getattr(value, name, None) for name in slots]
    return [*fields, *getattr(value, "__dict__", {}).values()][:MOST_ITEMS]


def _slot_names(kind: type) -> tuple[str, ...]:
    slots = kind.__dict__.get("__slots__", ())
    return (slots,) if isinstance(slots, str) else tuple(slots)


def _file_defining(value: Any) -> Path | None:
    """The user's file that is a module, or defines a function or class, or the class of a value."""
    if isinstance(value, FunctionType | type | ModuleType):
        return _defining_file(value)
    return _defining_file(type(value))


def _defining_file(thing: Any) -> Path | None:
    with suppress(OSError, TypeError):  # built in, or defined where no file is
        return own_file(inspect.getfile(thing))
    return None


def own_file(name: str | Path) -> Path | None:
    """The path of a file where it is the user's own, absolute; None for one that is installed, or is not there."""
    if not os.path.isfile(name):  # most that is asked about, which is cheap to say before links are followed
        return None
    path = Path(os.path.realpath(name))
    parents = {*path.parents}
    if not parents.isdisjoint(_installed_folders()):
        return None
    return None if {"site-packages", "dist-packages"} & {parent.name for parent in parents} else path


@functools.cache
def _installed_folders() -> frozenset[Path]:
    names = ("stdlib", "platstdlib", "purelib", "platlib", "scripts")
    folders = [sysconfig.get_paths()[name] for name in names] + [site.getusersitepackages()]
    ours = Path(__file__).parents[1]
    return frozenset({ours.resolve(), *(Path(os.path.realpath(folder)) for folder in folders)})


# -- Files that a text names


def files_named(value: Any) -> Iterator[Path]:
    """The files of code that an argument names, by ``file.py:name``, ``package.module:AlgorithmName`` or as a
    command."""
    if isinstance(value, Mapping):
        for one in value.values():
            yield from files_named(one)
    elif isinstance(value, tuple | list):
        for one in value[:MOST_ITEMS]:
            yield from files_named(one)
    elif isinstance(value, str) and len(value) <= MOST_BY_HAND:
        yield from _files_in_text(value)


def _files_in_text(text: str) -> Iterator[Path]:
    place, _, name = text.rpartition(":")
    if place.endswith(".py") and name.isidentifier():
        candidates = [own_file(place)]
    elif place and name.isidentifier() and all(part.isidentifier() for part in place.split(".")):
        candidates = list(_files_of_module(place, _import_folders()))
    else:
        candidates = _files_of_command(text)
    yield from (file for file in candidates if file is not None)


def _files_of_command(text: str) -> list[Path | None]:
    """The programs that a command line names: a script, or the module behind ``-m``."""
    try:
        words = shlex.split(text)
    except ValueError:  # no command
        return []
    files: list[Path | None] = [own_file(word) for word in words if _is_program(word)]
    for flag, module in pairwise(words):
        if flag == "-m":
            files += _files_of_module(module, _import_folders())
    return files


def _is_program(word: str) -> bool:
    if "\0" in word or len(word) > 4096 or not os.path.isfile(word):
        return False
    if word.endswith(SCRIPTS):
        return True
    return os.access(word, os.X_OK) and _begins_as_script(word)


def _begins_as_script(word: str) -> bool:
    try:
        with open(word, "rb") as file:
            return file.read(2) == b"#!"
    except OSError:
        return False


# -- Files that a file imports


def _imports_of(code: CodeFile) -> set[Path]:
    """The user's own modules that a Python file imports anywhere in it, in functions too."""
    if code.path.suffix != ".py":
        return set()
    try:
        tree = ast.parse(code.text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # whoever loads it says what is wrong
        return set()

    folders = [code.path.parent, *_import_folders()]
    paths: set[Path] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                paths |= set(_files_of_module(alias.name, folders))
        elif isinstance(node, ast.ImportFrom):
            paths |= _imported_from(node, code.path, folders)
    return paths - {code.path}


def _imported_from(node: ast.ImportFrom, path: Path, folders: list[Path]) -> set[Path]:
    """The files of ``from package import name``: the package, and those names of it that are modules."""
    if node.level:
        folders = [path.parents[min(node.level, len(path.parents)) - 1]]
    module = node.module or ""
    paths = set(_files_of_module(module, folders)) if module else set()
    for alias in node.names:
        paths |= set(_files_of_module(f"{module}.{alias.name}".strip("."), folders))
    return paths


def _import_folders() -> list[Path]:
    """The folders in which Python looks for modules that are not installed."""
    installed = _installed_folders()
    folders = [Path(os.path.realpath(place or os.curdir)) for place in sys.path]
    return [folder for folder in folders if folder not in installed and folder.name not in ("site-packages",)]


def _files_of_module(name: str, folders: Iterable[Path]) -> Iterator[Path]:
    """The user's files that ``import package.module`` reads: each package's ``__init__.py``, and the module."""
    parts = name.split(".")
    if not all(part.isidentifier() for part in parts):
        return
    for folder in folders:
        files = [file for end in range(1, len(parts) + 1) for file in _module_file(folder.joinpath(*parts[:end]))]
        if files:
            yield from files
            return


def _module_file(place: Path) -> Iterator[Path]:
    """The files of a module, given without the ending, or ``__init__.py`` and ``__main__.py`` of a package."""
    candidates = [place.with_suffix(".py")]
    if place.is_dir():
        candidates = [place / "__init__.py", place / "__main__.py"]
    for candidate in candidates:
        file = own_file(candidate)
        if file is not None:
            yield file


def _imported_beside(roots: set[Path]) -> set[Path]:
    """Modules that this process has imported from the folders of these files: also under a name that was computed."""
    folders = {root.parent for root in roots}
    files = [vars(module).get("__file__") for module in list(sys.modules.values()) if isinstance(module, ModuleType)]
    paths = set()
    for file in files:
        path = own_file(file) if isinstance(file, str) else None
        if path is not None and not folders.isdisjoint(path.parents):
            paths.add(path)
    return paths
