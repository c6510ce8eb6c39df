"""Which Python code a run directory may load: recipe.json names files and modules, and loading one runs it.

``~/.config/cotrain/trusted`` (or below ``$XDG_CONFIG_HOME``) holds the code that the user has trusted, by two hashes:

- that of its content, when a run of the user's began with it: any run directory may load this code;
- that of its path and of the run, for as long as that run stays where it began: so a user may edit a method and resume.

While a run directory is loaded (``trusted_code_only``), other code is refused in one line before anything of it runs,
unless the user consents: ``--trust-code``, ``cotrain.trust_code(directory)``. Installed packages are trusted, as the
user has installed them.

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

_LOADING_RUN: ContextVar[str | None] = ContextVar("the run directory that is being loaded", default=None)
_BEGINNING_RUN: ContextVar[str | None] = ContextVar("the run directory that is being begun", default=None)
_CONSENT: ContextVar[bool] = ContextVar("whether the code of a run directory was consented to", default=False)
# Code that the user has named in this process, outside of any run directory: (the user's file of trust, its place).
_NAMED_BY_USER: set[tuple[Path, str]] = set()


def trusted_code_only(directory: Path | str) -> AbstractContextManager[None]:
    """Inside of the block, which loads this run directory, only trusted code is run."""
    return _set_within(_LOADING_RUN, str(directory))


def remembering_code_of(directory: Path | str) -> AbstractContextManager[None]:
    """Inside of the block, which begins this run, code that is run is trusted for this run by its path, too. The run's
    provenance.json is there already."""
    return _set_within(_BEGINNING_RUN, str(directory))


def set_consent(consent: bool = True) -> None:
    """Whether, from now on, any code that run directories name is run, and trusted."""
    _CONSENT.set(consent)


def with_consent() -> AbstractContextManager[None]:
    """Inside of the block any code that run directories name is run, and trusted."""
    return _set_within(_CONSENT, True)


@contextmanager
def _set_within(variable: ContextVar[Any], value: Any) -> Iterator[None]:
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


def admit_file(path: str) -> None:
    """To be called before a Python file is run. Raises RunDirectoryError where a run directory names the file, and the
    user has not trusted it."""
    directory = _LOADING_RUN.get()
    if directory is not None and not os.path.isabs(path):
        raise RunDirectoryError(
            f"{directory}: recipe.json names the Python file {path!r} by a relative path, which is another file in "
            "every directory; a run names it by its whole path",
            code="E_CODE_PATH_RELATIVE",
        )
    _admit_code(hash_of([Path(path)]), os.path.realpath(path), f"the Python file {path}")


def admit_module(name: str) -> None:
    """As ``admit_file``, for a module that is about to be imported."""
    if name in sys.modules and _LOADING_RUN.get() is None:
        return
    file = _file_of(name)
    if file is not None and not _is_installed(file):
        _admit_code(hash_of([file]), str(file), f"the module {name} ({file})")


def admit_model(model: str) -> None:
    """As ``admit_file``, for the Python files that come with a model (``trust_remote_code``)."""
    folder = Path(model).expanduser()
    files = sorted(folder.glob("*.py")) if folder.is_dir() else []
    _admit_code(hash_of(files, f"code of {model}"), model, f"Python files of the model {model} (trust_remote_code)")


def admit_command(words: Sequence[str]) -> None:
    """As ``admit_file``, for a command that a run starts, with the files that it names."""
    command = shlex.join(words)
    paths = map(Path, words[1:])
    files = [path for path in paths if path.is_file()]
    _admit_code(hash_of(files, f"command {command}"), command, f"the command {command}")


def _admit_code(content_hash: str, place: str, description: str) -> None:
    """Let code be run, and trust it from now on. Raises RunDirectoryError where a run directory names it, and it is not
    trusted.

    Args:
        content_hash: of all of it.
        place: where it lies, such as the path of its file.
        description: of it, for the message.
    """
    directory = _LOADING_RUN.get()
    if directory is None:
        _NAMED_BY_USER.add((_trust_file(), place))
    elif not _is_trusted(content_hash, place, directory):
        raise RunDirectoryError(
            f"{directory} was not begun here with this code, and loading it would run {description}, which may do all "
            "that you may: read it, and give --trust-code if you trust it (from Python: "
            f"cotrain.trust_code({directory!r}))",
            code="E_CODE_NOT_TRUSTED",
        )
    remember_trusted(content_hash, place)
    beginning_run = _BEGINNING_RUN.get()
    if beginning_run is not None:
        remember_trusted(_run_code_hash(beginning_run, place), f"{place}, of {os.path.realpath(beginning_run)}")


def _is_trusted(content_hash: str, place: str, directory: str) -> bool:
    """Whether a run directory may load this code."""
    if _CONSENT.get() or (_trust_file(), place) in _NAMED_BY_USER:
        return True
    return not _read_trusted().isdisjoint((content_hash, _run_code_hash(directory, place)))


def _run_code_hash(directory: str, place: str) -> str:
    """A hash for the code at a place, whatever it is, in one run, for as long as the run stays where it is."""
    run = os.path.realpath(directory)
    return hash_of([Path(run) / "provenance.json"], f"run {run} {place}")


def hash_of(files: Iterable[Path], name: str = "") -> str:
    """A hash of the contents of files, and of a name for them."""
    digest = hashlib.sha256(name.encode("utf-8", "surrogateescape"))
    for file in files:
        with suppress(OSError):  # whoever loads it says that it is not there
            digest.update(file.read_bytes())
    return digest.hexdigest()


def remember_trusted(key: str, place: str) -> None:
    """Write a hash into the user's file of trust. Where that cannot be written to, consent is asked for again later."""
    if key in _read_trusted():
        return
    path = _trust_file()
    with suppress(OSError):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
            file.write(f"{key} {json.dumps(place)}\n")


def _read_trusted() -> set[str]:
    """The hashes in the user's file of trust; none where there is no file."""
    try:
        lines = _trust_file().read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return set()
    return {line.partition(" ")[0] for line in lines}


def _trust_file() -> Path:
    config_home = os.environ.get("XDG_CONFIG_HOME")
    if config_home:
        return Path(config_home) / "cotrain" / "trusted"
    home = os.environ.get("HOME", "")
    if not os.path.isdir(home):
        with suppress(KeyError):  # a user without an account, as in a container
            home = pwd.getpwuid(os.geteuid()).pw_dir
    return Path(home) / ".config" / "cotrain" / "trusted"


def _file_of(module: str) -> Path | None:
    """The file of a module, found without importing anything; None for one that is built in, or not there."""
    folders: list[str] | None = None  # where the next part is looked for; None: in sys.path
    spec = None
    for part in module.split("."):
        spec = PathFinder.find_spec(part, folders)
        if spec is None:
            return None
        folders = list(spec.submodule_search_locations or ())
    return Path(spec.origin) if spec is not None and spec.origin else None


def _is_installed(file: Path) -> bool:
    """Whether a file lies in a folder of installed packages, of Python's library, or of cotrain."""
    cotrain = Path(__file__).parents[1]
    folders = {cotrain, *(Path(path) for path in sysconfig.get_paths().values())}
    return not folders.isdisjoint(file.parents)
