"""Code of the user's that a recipe runs: which files it consists of, found without running any of it.

A file belongs to a recipe where a function or class of it is part of the recipe, where an argument names it
(``reward.py:paid``), or where a command starts it (``python agent.py``). Whatever such a file imports of the user's own
belongs too, and so on. What is installed, and what is cotrain's, does not: its versions stand in ``provenance.json``.

Left out:

- files that are opened by name (a list of words, a prompt);
- modules whose name is computed (``importlib.import_module(name)``), if they lie in no folder of the files found;
- a program that is no text.
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
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from types import FunctionType, MethodType, ModuleType
from typing import Any

from cotrain.core.errors import DataError
from cotrain.core.input_files import MOST_HANDWRITTEN, content_of_file

SCRIPT_SUFFIXES = (".py", ".sh", ".bash", ".pl", ".rb", ".js", ".mjs", ".ts", ".lua", ".r", ".jl")
PACKAGE_FOLDERS = ("site-packages", "dist-packages")  # where pip and the system's package manager install
MOST_FILES = 500  # of one recipe
MOST_ITEMS = 100  # looked at in one container: a longer one holds data
LONGEST_PATH = 4096  # characters


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeFile:
    """A file of the user's code, as it is now."""

    path: Path  # absolute, links followed
    sha256: str
    text: str


def read_code(path: Path) -> CodeFile | None:
    """A file of code as it is now; None where it is gone, is no regular file, or is larger than code is."""
    try:
        content = content_of_file(path, MOST_HANDWRITTEN)
    except DataError:
        return None
    text = content.decode("utf-8", "backslashreplace")
    return CodeFile(path=path, sha256=hashlib.sha256(content).hexdigest(), text=text)


def code_of(recipe_values: Iterable[Any], arguments: Iterable[Any] = ()) -> dict[Path, CodeFile]:
    """The files of the user's code by path, sorted.

    - ``recipe_values``: their functions and classes are looked for, at any depth.
    - ``arguments``: as JSON; a text in them may name a file or a command.
    """
    roots: set[Path] = set()
    for value in recipe_values:
        roots.update(_files_of_value(value))
    for argument in arguments:
        roots.update(files_named(argument))
    return imported_by(roots | _loaded_from_folders_of(roots))


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
    visited: dict[int, Any] = {}  # by id; the values are kept, as Python gives the id of a freed one to another
    queue = deque([value])
    while queue:
        current = queue.popleft()
        if id(current) in visited:
            continue
        visited[id(current)] = current
        queue.extend(_children_of(current))

        file = _file_of_value(current)
        if file is not None:
            yield file


def _children_of(value: Any) -> list[Any]:
    """The values directly inside of a value that may hold code: items, bound arguments, closure, fields."""
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
    """The fields of an object whose class is the user's own, or cotrain's, whose objects (a ``Recipe``) hold the
    user's functions. Objects of a library are not looked into."""
    is_users = _source_file(type(value)) is not None
    is_cotrains = type(value).__module__.partition(".")[0] == "cotrain"
    if not is_users and not is_cotrains:
        return []
    fields = []
    for kind in type(value).__mro__:
        fields += [getattr(value, name, None) for name in _slot_names(kind)]
    fields += getattr(value, "__dict__", {}).values()
    return fields[:MOST_ITEMS]


def _slot_names(kind: type) -> tuple[str, ...]:
    slots = kind.__dict__.get("__slots__", ())
    return (slots,) if isinstance(slots, str) else tuple(slots)


def _file_of_value(value: Any) -> Path | None:
    """The user's file that defines a function, a class or a module; of any other value, the file of its class."""
    if isinstance(value, FunctionType | type | ModuleType):
        return _source_file(value)
    return _source_file(type(value))


def _source_file(definition: FunctionType | type | ModuleType) -> Path | None:
    with suppress(OSError, TypeError):  # built in, or typed into an interpreter
        return own_file(inspect.getfile(definition))
    return None


def own_file(name: str | Path) -> Path | None:
    """The path of a file where it is the user's own, absolute; None for one that is installed, or is not there."""
    if not os.path.isfile(name):  # first, as it is cheaper than to follow links, and most names are of no file
        return None
    path = Path(os.path.realpath(name))
    is_below_installed = not _installed_folders().isdisjoint(path.parents)
    is_in_package = any(parent.name in PACKAGE_FOLDERS for parent in path.parents)
    return None if is_below_installed or is_in_package else path


@functools.cache
def _installed_folders() -> frozenset[Path]:
    """The folders of Python's own modules, of installed packages, and of cotrain."""
    python_paths = sysconfig.get_paths()
    folders = [python_paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib", "scripts")]
    folders.append(site.getusersitepackages())
    cotrain = Path(__file__).parents[1].resolve()
    return frozenset({cotrain, *(Path(os.path.realpath(folder)) for folder in folders)})


# -- Files that a text names


def files_named(value: Any) -> Iterator[Path]:
    """The files of code that an argument names, by ``file.py:name``, ``package.module:AlgorithmName`` or as a
    command."""
    if isinstance(value, Mapping):
        for item in value.values():
            yield from files_named(item)
    elif isinstance(value, tuple | list):
        for item in value[:MOST_ITEMS]:
            yield from files_named(item)
    elif isinstance(value, str) and len(value) <= MOST_HANDWRITTEN:  # a longer text is data
        yield from _files_in_text(value)


def _files_in_text(text: str) -> Iterator[Path]:
    place, _, name = text.rpartition(":")
    if not name.isidentifier():
        yield from _files_of_command(text)
    elif place.endswith(".py"):
        file = own_file(place)
        if file is not None:
            yield file
    elif _is_module_name(place):
        yield from _files_of_module(place, _import_folders())
    else:
        yield from _files_of_command(text)


def _is_module_name(name: str) -> bool:
    return all(part.isidentifier() for part in name.split("."))


def _files_of_command(text: str) -> list[Path]:
    """The programs that a command line names: a script, or the module behind ``-m``."""
    try:
        words = shlex.split(text)
    except ValueError:  # no command
        return []
    files = []
    for word in words:
        file = own_file(word) if _is_program(word) else None
        if file is not None:
            files.append(file)
    for flag, module in pairwise(words):
        if flag == "-m":
            files += _files_of_module(module, _import_folders())
    return files


def _is_program(word: str) -> bool:
    if "\0" in word or len(word) > LONGEST_PATH or not os.path.isfile(word):
        return False
    if word.endswith(SCRIPT_SUFFIXES):
        return True
    return os.access(word, os.X_OK) and _begins_as_script(word)


def _begins_as_script(path: str) -> bool:
    try:
        with open(path, "rb") as file:
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
    if node.level:  # dots before the name: one is the file's own folder, and there is none above the root
        level = min(node.level, len(path.parents))
        folders = [path.parents[level - 1]]
    paths = set(_files_of_module(node.module, folders)) if node.module else set()
    for alias in node.names:
        name = f"{node.module}.{alias.name}" if node.module else alias.name
        paths |= set(_files_of_module(name, folders))
    return paths


def _import_folders() -> list[Path]:
    """The folders in which Python looks for modules that are not installed."""
    installed = _installed_folders()
    folders = [Path(os.path.realpath(entry or os.curdir)) for entry in sys.path]
    return [folder for folder in folders if folder not in installed and folder.name not in PACKAGE_FOLDERS]


def _files_of_module(name: str, folders: Iterable[Path]) -> Iterator[Path]:
    """The user's files that ``import package.module`` reads: each package's ``__init__.py``, and the module."""
    if not _is_module_name(name):
        return
    parts = name.split(".")
    for folder in folders:
        files: list[Path] = []
        for depth in range(1, len(parts) + 1):
            files += _files_of_import(folder.joinpath(*parts[:depth]))
        if files:
            yield from files
            return


def _files_of_import(path: Path) -> Iterator[Path]:
    """The files of a module, whose path is given without ``.py``; of a package, ``__init__.py`` and ``__main__.py``."""
    candidates = [path.with_suffix(".py")]
    if path.is_dir():
        candidates = [path / "__init__.py", path / "__main__.py"]
    for candidate in candidates:
        file = own_file(candidate)
        if file is not None:
            yield file


def _loaded_from_folders_of(roots: set[Path]) -> set[Path]:
    """Modules that this process has imported from the folders of these files, also by a name that was computed."""
    folders = {root.parent for root in roots}
    paths = set()
    for module in list(sys.modules.values()):
        # vars, as getattr would run the code of a module that has a __getattr__ of its own
        name = vars(module).get("__file__") if isinstance(module, ModuleType) else None
        path = own_file(name) if isinstance(name, str) else None
        if path is not None and not folders.isdisjoint(path.parents):
            paths.add(path)
    return paths
