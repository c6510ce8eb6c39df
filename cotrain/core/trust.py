"""Which Python code a run directory may load: recipe.json names files and modules, and loading one runs it.

A user's own runs remember the code that they were begun with by its hash, in ``~/.config/cotrain/trusted`` (or below
``$XDG_CONFIG_HOME``), and for the run itself, as long as it stays where it was begun, also by its path: who edits his
method may resume. While a run directory is loaded (``trusted_code_only``), other code is refused in one line before
anything of it runs, unless the user consents: ``--trust-code``, ``cotrain.trust_code(directory)``. What an installed
package holds is the user's own, as he installed it.

Left out: what such code imports in turn. A file that is trusted may import what it likes.
"""

from __future__ import annotations

import hashlib
import json
import os
import pwd
import shlex
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from contextvars import ContextVar
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from cotrain.core.errors import RunDirectoryError

_LOADED: ContextVar[str | None] = ContextVar("the run directory that is being loaded", default=None)
_BEGUN: ContextVar[str | None] = ContextVar("the run directory that is being begun", default=None)
_NAMED: set[tuple[Path, str]] = set()  # what a user, by his file of trust, named himself while this process lives
_CONSENT: ContextVar[bool] = ContextVar("whether its code was consented to", default=False)


def trusted_code_only(directory: Path | str) -> AbstractContextManager[None]:
    """Inside of the block only code that is trusted is run."""
    return _set_within(_LOADED, str(directory))


def remembering_code_of(directory: Path | str) -> AbstractContextManager[None]:
    """Inside of the block what is admitted is remembered for this run too, whose provenance.json is there."""
    return _set_within(_BEGUN, str(directory))


def set_consent(consent: bool = True) -> None:
    """From now on the code that run directories name is run, and remembered; or no more."""
    _CONSENT.set(consent)


def with_consent() -> AbstractContextManager[None]:
    """The same for a block."""
    return _set_within(_CONSENT, True)


@contextmanager
def _set_within(variable: ContextVar[Any], value: Any) -> Iterator[None]:
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


def admit_file(path: str) -> None:
    """Called before a Python file is run. Raises RunDirectoryError for one that the run directory names, and that
    nobody trusts."""
    directory = _LOADED.get()
    if directory is not None and not os.path.isabs(path):
        raise RunDirectoryError(
            f"{directory}: recipe.json names the Python file {path!r} by a relative path, which is another file in "
            "every directory; a run names it by its whole path",
            code="E_CODE_PATH_RELATIVE",
        )
    _admit_code(hash_of([Path(path)]), os.path.realpath(path), f"the Python file {path}")


def admit_module(name: str) -> None:
    """The same of a module that is about to be imported."""
    if name in sys.modules and _LOADED.get() is None:
        return
    file = _file_of(name)
    if file is not None and not _is_installed(file):
        _admit_code(hash_of([file]), str(file), f"the module {name} ({file})")


def admit_model(model: str) -> None:
    """The same of Python files that come with a model (``trust_remote_code``)."""
    folder = Path(model).expanduser()
    files = sorted(folder.glob("*.py")) if folder.is_dir() else []
    _admit_code(hash_of(files, f"code of {model}"), model, f"Python files of the model {model} (trust_remote_code)")


def admit_command(words: Sequence[str]) -> None:
    """The same of a command that a run starts, with the files that it names."""
    command = shlex.join(words)
    paths = map(Path, words[1:])
    files = [path for path in paths if path.is_file()]
    _admit_code(hash_of(files, f"command {command}"), command, f"the command {command}")


def _admit_code(key: str, where: str, what: str) -> None:
    directory = _LOADED.get()
    begun_run = _BEGUN.get()
    if directory is None:
        _NAMED.add((_trust_file(), where))
    elif (
        (_trust_file(), where) not in _NAMED
        and not _CONSENT.get()
        and _read_trusted().isdisjoint((key, _run_code_hash(directory, where)))
    ):
        raise RunDirectoryError(
            f"{directory} was not begun here with this code, and loading it would run {what}, which may do all that "
            f"you may: read it, and give --trust-code if you trust it (from Python: cotrain.trust_code({directory!r}))",
            code="E_CODE_NOT_TRUSTED",
        )
    remember_trusted(key, where)
    if begun_run is not None:
        remember_trusted(_run_code_hash(begun_run, where), f"{where}, of {os.path.realpath(begun_run)}")


def _run_code_hash(directory: str, where: str) -> str:
    """The code of this path in this run, in this place."""
    at = os.path.realpath(directory)
    return hash_of([Path(at) / "provenance.json"], f"run {at} {where}")


def hash_of(files: Iterable[Path], name: str = "") -> str:
    """A hash of the contents of files, and of a name for them."""
    digest = hashlib.sha256(name.encode("utf-8", "surrogateescape"))
    for file in files:
        with suppress(OSError):  # whoever loads it says that it is not there
            digest.update(file.read_bytes())
    return digest.hexdigest()


def remember_trusted(key: str, where: str) -> None:
    """For this user. A home that cannot be written to remembers nothing, and consent is asked for again."""
    if key in _read_trusted():
        return
    path = _trust_file()
    with suppress(OSError):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
            file.write(f"{key} {json.dumps(where)}\n")


def _read_trusted() -> set[str]:
    try:
        lines = _trust_file().read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return set()
    return {line.partition(" ")[0] for line in lines}


def _trust_file() -> Path:
    if config_home := os.environ.get("XDG_CONFIG_HOME"):
        return Path(config_home) / "cotrain" / "trusted"
    home = os.environ.get("HOME", "")
    if not os.path.isdir(home):
        with suppress(KeyError):
            home = pwd.getpwuid(os.geteuid()).pw_dir
    return Path(home) / ".config" / "cotrain" / "trusted"


def _file_of(module: str) -> Path | None:
    """The file of a module, found without importing anything; None for one that is built in, or not there."""
    places: Iterable[str] | None = None
    spec = None
    for part in module.split("."):
        spec = PathFinder.find_spec(part, None if places is None else list(places))
        if spec is None:
            return None
        places = spec.submodule_search_locations or ()
    return Path(spec.origin) if spec is not None and spec.origin else None


def _is_installed(file: Path) -> bool:
    ours = Path(__file__).parents[1]
    return not {ours, *(Path(path) for path in sysconfig.get_paths().values())}.isdisjoint(file.parents)
