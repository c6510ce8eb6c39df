"""Loading the user's own Python, and saying where it failed.

A run saves the name of a class or function, its *target*, and finds it again by that: ``path/to/file.py:AlgorithmName``
is one that a file defines, ``package.module:AlgorithmName`` one of an installed package.
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import inspect
import os
import re
import shlex
import shutil
import sys
import sysconfig
import traceback
from asyncio import CancelledError
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from cotrain.core.errors import SHOWN, ConfigError, CotrainError, error_text, unknown_message
from cotrain.core.input_files import MOST_HANDWRITTEN, absolute_path, content_of_file
from cotrain.core.nearest_names import nearest_name
from cotrain.core.trust import admit_command, admit_file, admit_module

INTERRUPTS = (KeyboardInterrupt, CancelledError, GeneratorExit)  # raised inside of a user's code, but not by its fault
MODULE_PREFIX = "cotrain_user_"  # of the names of modules that ``load_file`` has loaded


class _UncachedLoader(SourceFileLoader):
    """Reads the file each time: Python finds outdated byte code by size and whole seconds, which an edit may not
    change."""

    def get_code(self, fullname: str) -> CodeType:
        return self.source_to_code(content_of_file(Path(self.path), MOST_HANDWRITTEN), self.path)


def load_file(path: str, where: str) -> ModuleType:
    """The module of a Python file. Raises ConfigError, one line that begins with ``where``, for whatever is wrong in
    it."""
    file = Path(path)
    if not file.is_file():
        raise ConfigError(f"{where}: there is no file {path}", code="E_CODE_FILE_MISSING")
    admit_file(path)
    if file.suffix != ".py":
        raise ConfigError(f"{where}: {path} is not a Python file", code="E_NOT_PYTHON_FILE")
    name = f"{MODULE_PREFIX}{file.stem}"
    absolute = absolute_path(file)
    spec = importlib.util.spec_from_file_location(name, absolute, loader=_UncachedLoader(name, str(absolute)))
    assert spec is not None and spec.loader is not None  # as the loader is given
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        with kept_working_directory():
            spec.loader.exec_module(module)
    except SyntaxError as error:
        raise ConfigError(
            f"{error.filename or path}, line {error.lineno}, column {error.offset}: {error.msg}", code="E_SYNTAX"
        ) from error
    except CotrainError:
        raise
    except (Exception, SystemExit) as error:
        raise ConfigError(f"{where}: {failure_in(file, error)}", code="E_USER_CODE_FAILED") from error
    return module


@contextmanager
def kept_working_directory() -> Iterator[None]:
    """After the block the working directory is the one before it, even if code of the user's has left that: relative
    paths of the command mean what they meant."""
    before = None
    with suppress(OSError):  # a directory that was removed: there is nothing to go back to
        before = os.getcwd()
    try:
        yield
    finally:
        if before is not None:
            with suppress(OSError):
                os.chdir(before)


def failure_in(file: Path, error: BaseException) -> str:
    """``method.py, line 7: ZeroDivisionError: division by zero``: the last line of this file that the error passed
    through."""
    absolute = absolute_path(file)
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if Path(frame.filename) == absolute]
    place = f"{file}, line {lines[-1]}" if lines else str(file)
    return f"{place}: {error_text(error)}{_name_hint(error)}"


def failure_of(error: BaseException) -> str:
    """``mine.py, line 7: ValueError: its message``; without a place where the error passed through no code of the
    user's."""
    place = user_line_of(error)
    message = error_text(error) + _name_hint(error)
    if "'coroutine'" in message:
        message += "; a call to a role is to be awaited"
    return f"{place}: {message}" if place else message


def failure_reason(what: str, error: BaseException) -> str:
    """``game: mine.py, line 7: ValueError``, by which failures are counted: without the error's message, which may
    differ each time."""
    return ": ".join(filter(None, (what, user_line_of(error), type(error).__name__)))


def _name_hint(error: BaseException) -> str:
    """``; did you mean 'SFT'? (there are: …)`` for an error about a name that something of cotrain's does not have: an
    import, an attribute, or a keyword of a call. "" for any other error."""
    if isinstance(error, ImportError) and error.name:
        match = _NOT_IMPORTED.match(error.msg)
        if match:
            return _hint(match[1], _public_names(sys.modules.get(error.name)), listed=False)
    if isinstance(error, AttributeError):
        return _hint(str(error.name), _public_names(error.obj), listed=not isinstance(error.obj, ModuleType))
    if isinstance(error, TypeError):
        match = _WRONG_CALL.match(str(error))
        if match:
            return _hint(match["unknown"] or "", _keywords_of(match["called"], error), listed=True)
    return ""


_NOT_IMPORTED = re.compile(r"cannot import name '(\w+)'")
_WRONG_CALL = re.compile(
    r"(?P<called>\w+)(\.__init__)?\(\) (got an unexpected keyword argument '(?P<unknown>\w+)'|missing )"
)


def _hint(name: str, known: Iterable[str], *, listed: bool) -> str:
    """Which of the ``known`` names was probably meant, and all of them where they are ``listed`` and few."""
    names = sorted(set(known))
    nearest = nearest_name(name, names) if name else None
    hint = f"; did you mean {nearest!r}?" if nearest else ""
    if listed and 0 < len(names) <= SHOWN:
        hint += f" (there are: {', '.join(names)})"
    return hint


def _public_names(thing: Any) -> list[str]:
    """The public names of a module, class or value of cotrain's; [] for those of other packages."""
    if isinstance(thing, ModuleType):
        module_name = thing.__name__
        names = dir(thing)
    else:
        kind = thing if isinstance(thing, type) else type(thing)
        module_name = kind.__module__
        names = dir(kind)
    if module_name.partition(".")[0] != "cotrain":
        return []
    return [name for name in names if not name.startswith("_")]


def _keywords_of(called: str, error: BaseException) -> list[str]:
    """The keywords of the function or class of cotrain's that is called by this name in the line where an error was
    raised; [] where it is not found."""
    innermost = error.__traceback__
    while innermost is not None and innermost.tb_next is not None:
        innermost = innermost.tb_next
    if innermost is None:
        return []
    variables = {**innermost.tb_frame.f_globals, **innermost.tb_frame.f_locals}
    for value in list(variables.values()):
        # The name first: to ask a late module (``core/late.py``) for ``__module__`` imports it.
        if getattr(value, "__name__", "") == called and str(getattr(value, "__module__", "")).startswith("cotrain."):
            return _keywords_taken_by(value)
    return []


def _keywords_taken_by(function: Any) -> list[str]:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # it cannot be called, or has no signature
        return []
    return [
        parameter.name
        for parameter in parameters
        if parameter.kind not in (parameter.POSITIONAL_ONLY, parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    ]


def user_line_of(error: BaseException) -> str:
    """``method.py, line 7``: the innermost line of the user's code that an error passed through; "" where there is
    none."""
    return first_user_line(
        (frame.filename, frame.lineno) for frame in reversed(traceback.extract_tb(error.__traceback__))
    )


def passed_user_file(error: BaseException) -> bool:
    """Whether an error passed through a file that ``load_file`` has loaded."""
    files = {
        getattr(module, "__file__", "") for name, module in list(sys.modules.items()) if name.startswith(MODULE_PREFIX)
    }
    return any(frame.filename in files for frame in traceback.extract_tb(error.__traceback__))


def first_user_line(places: Iterable[tuple[str, int | None]]) -> str:
    """``method.py, line 7``: the first of these files and lines that is of the user's code, neither cotrain's nor a
    library's; "" where there is none."""
    cotrain = Path(__file__).parents[1]
    others_folders = {cotrain, *(Path(path) for path in sysconfig.get_paths().values())}
    for name, line in places:
        file = Path(name)
        if file.suffix == ".py" and others_folders.isdisjoint(file.parents):
            return f"{file.name}, line {line}"
    return ""


def function_target(function: Callable[..., Any]) -> str:
    """The target of a function of the user's, ``/path/to/file.py:name``; its name alone where it cannot be found again
    by that, such as a lambda or one that is defined in a function."""
    try:
        file = absolute_path(inspect.getfile(function))
    except (OSError, TypeError):
        file = Path()
    can_be_found = function.__qualname__.isidentifier() and file.suffix == ".py"
    return f"{file}:{function.__qualname__}" if can_be_found else function.__qualname__


def object_target(value: object) -> str:
    """The target of an object that a loaded module has under a name; "a … of no file" where none has."""
    modules = [module for module in list(sys.modules.values()) if isinstance(module, ModuleType)]
    # __main__ last: the file that defines the object, which a script may have imported, is the better one.
    for module in sorted(modules, key=lambda module: module.__name__ == "__main__"):
        file = vars(module).get("__file__")
        for name, module_value in list(vars(module).items()):
            if module_value is value and isinstance(file, str) and file.endswith(".py"):
                return f"{absolute_path(file)}:{name}"
    return f"a {type(value).__name__} of no file"


def describe_object(name: str, value: Any) -> dict[str, Any]:
    """The argument ``name`` of a recipe as JSON, if it is no plain value (those are ``settings.describe_argument``'s):
    a function, a task source or a dataclass. Raises ConfigError for anything else."""
    if inspect.isfunction(value):
        return {"function": function_target(value)}
    describe = getattr(value, "describe", None)
    if describe is not None:
        target = class_target(type(value))
        return {"tasks": describe()} | ({"class": target} if target else {})
    if dataclasses.is_dataclass(value):
        return {"object": object_target(value)}
    raise ConfigError(
        f"argument {name!r} of a recipe is a {type(value).__name__}; expected a plain value, a function, a dataclass "
        "or a task source",
        code="E_ARGUMENT_NOT_PLAIN",
    )


def load_object(target: str, where: str, kind: type) -> Any:
    """The object of this type that ``path/to/file.py:NAME`` names, a function or an instance of a class. Raises
    ConfigError."""
    path, _, name = target.rpartition(":")
    if not path.endswith(".py"):
        raise ConfigError(f"{where} is {target!r}; expected path/to/file.py:{kind.__name__}", code="E_CODE_PLACE")
    module = load_file(path, where)
    names = [key for key, value in vars(module).items() if isinstance(value, kind)]
    if name not in names:
        raise ConfigError(f"{where}: {unknown_message(kind.__name__, name, names)}", code="E_NO_SUCH_FUNCTION")
    return getattr(module, name)


def command_words(command: str, where: str) -> list[str]:
    """The words of a command of the user's. Raises ConfigError where its program, or a Python file that it names, is
    not there; RunDirectoryError for one that a run directory names and nobody trusts."""
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise ConfigError(f"{where} {command!r}: {error}", code="E_COMMAND_SHAPE") from error
    if not words or shutil.which(words[0]) is None:
        raise ConfigError(
            f"{where} {command!r}: no such program; expected a command such as 'python {where}.py'",
            code="E_NO_SUCH_PROGRAM",
        )
    for word in words[1:]:
        if word.endswith(".py") and not Path(word).is_file():
            raise ConfigError(f"{where} {command!r}: there is no file {word}", code="E_COMMAND_FILE_MISSING")
    admit_command(words)
    return words


def class_target(kind: type) -> str | None:
    """The target of a class; None for cotrain's own, and for one that is defined inside of a function."""
    module = kind.__module__
    if module.partition(".")[0] == "cotrain" or "<locals>" in kind.__qualname__:
        return None
    if "." in module:  # a module of a package; one without a dot may be any file
        return f"{module}:{kind.__qualname__}"
    try:
        return f"{absolute_path(inspect.getfile(kind))}:{kind.__qualname__}"
    except (OSError, TypeError):  # defined where no file is
        return None


def load_class(target: str, where: str) -> Any:
    """The class that ``class_target`` named. Raises ConfigError."""
    path, _, name = target.rpartition(":")
    if path.endswith(".py"):
        module = load_file(path, where)
    else:
        admit_module(path)
        try:
            module = importlib.import_module(path)
        except ImportError as error:
            raise ConfigError(
                f"{where}: module {path} cannot be imported ({error}); install it, or mend the name",
                code="E_MODULE_NOT_IMPORTABLE",
            ) from error
    loaded = getattr(module, name, None)
    if not isinstance(loaded, type):
        classes = [key for key, value in vars(module).items() if isinstance(value, type)]
        raise ConfigError(f"{where}: {unknown_message('class', name, classes)}", code="E_NO_SUCH_CLASS")
    return loaded
