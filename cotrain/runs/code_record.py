"""Which code of the user's made which steps of a run: ``code.json``, and the check when a run goes on.

::

    {"versions": [{"from_step": 0, "files": {"/path/mine.py": "sha256 …"}},   the code that the run was begun with
                  {"from_step": 7, "files": …}],                              other code, with which it went on
     "texts": {"sha256 …": "the text of the file"}}

The file is there where a recipe has code of the user's own (``core/own_code.py``), and the seal has its hash. A run
whose code differs does not go on, and neither does a comparison that holds such a run, unless ``--changed-code`` says
so; then the new code becomes a version of its own. What looks like a key is left out of the texts.

Left out: code that changes while the run goes on is noticed when it is resumed, not before.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cotrain.config.policies import Policy, Weights
from cotrain.config.recipe import Recipe
from cotrain.core import redact
from cotrain.core.errors import RunDirectoryError
from cotrain.core.own_code import CodeFile, code_of, imported_by, own_file, read_code
from cotrain.core.verbosity import shows_notes
from cotrain.runs.directory import CODE, RunDirectory

MOST_TEXT = 1 << 24  # characters of all texts together; of the files behind it the hash alone is kept
NAMED = 5  # files in a message


def code_of_recipe(recipe: Recipe) -> dict[Path, CodeFile]:
    """The user's files that a recipe runs."""
    names: list[Any] = []
    if recipe.origin is not None:
        names = [recipe.origin.target, dict(recipe.origin.arguments), *recipe.origin.overrides]
    for policy in recipe.policies.values():
        if isinstance(policy, Weights) and policy.trust_remote_code:
            names += [f"{file}:code" for file in sorted(Path(policy.model).expanduser().glob("*.py"))]
    return code_of([recipe], names)


def code_json(recipe: Recipe) -> dict[str, Any] | None:
    """The content of code.json for a run that begins; None where all code is cotrain's."""
    code = code_of_recipe(recipe)
    if not code:
        return None
    return _with_version({"versions": [], "texts": {}}, code, from_step=0)


def _with_version(record: Mapping[str, Any], code: Mapping[Path, CodeFile], *, from_step: int) -> dict[str, Any]:
    """The record with one more version of the code, and the texts of its files as far as there is room for them."""
    texts = dict(record["texts"])
    for file in code.values():
        has_room = sum(map(len, texts.values())) + len(file.text) <= MOST_TEXT
        if file.sha256 not in texts and has_room:
            texts[file.sha256] = redact.redact_text(file.text)
    files = {str(path): file.sha256 for path, file in code.items()}
    version = {"from_step": from_step, "files": files}
    return {"versions": [*record["versions"], version], "texts": texts}


def record_of(directory: RunDirectory) -> dict[str, Any] | None:
    """The content of code.json; None for a run without code of the user's."""
    return directory.read(CODE)


def code_changes(directory: RunDirectory) -> list[str]:
    """How the code on disk differs from the one that the run's last steps were made with, one phrase a file:
    ``/path/mine.py has changed``."""
    record = record_of(directory)
    if record is None:
        return []
    recorded: Mapping[str, str] = record["versions"][-1]["files"]  # path → hash
    present: dict[str, CodeFile] = {}
    changed = []
    gone = []
    for path, sha256 in recorded.items():
        file = read_code(Path(path))
        if file is None:
            gone.append(path)
            continue
        present[path] = file
        if file.sha256 != sha256:
            changed.append(path)
    imported = imported_by(file.path for file in present.values())
    new = {str(path): file for path, file in imported.items() if str(path) not in recorded}

    # A file that is gone, and new elsewhere with its name and its text, was moved: that changes nothing.
    gone_files = {(Path(path).name, recorded[path]) for path in gone}
    new_files = {(file.path.name, file.sha256) for file in new.values()}
    moved = gone_files & new_files
    return [
        *(f"{path} has changed" for path in changed),
        *(f"{path} is gone" for path in gone if (Path(path).name, recorded[path]) not in moved),
        *(f"{path} is new" for path, file in new.items() if (file.path.name, file.sha256) not in moved),
    ]


def check_code_unchanged(directory: Path | str) -> None:
    """Raise RunDirectoryError for a run whose code is not what it was. Nothing of the code is run for it."""
    folder = RunDirectory.open(directory)
    changes = code_changes(folder)
    if changes:
        raise RunDirectoryError(
            f"{folder.path} was made with other code than there is now: {_in_words(changes)}; put it back (its text is "
            f"in {CODE}, and `cotrain diff {folder.path}` shows the lines that differ), or go on with the new "
            "code: --changed-code, changed_code=True from Python",
            code="E_CODE_CHANGED",
        )


def note_changed_code(directory: Path | str) -> str | None:
    """The note of a command that measures with code that has changed; None where it is as it was."""
    changes = code_changes(RunDirectory.open(directory))
    if not changes:
        return None
    return f"note: {directory} was made with other code than there is now: {_in_words(changes)}"


def tell_changed_code(directory: Path | str) -> None:
    """Print that note."""
    line = note_changed_code(directory)
    if line is not None and shows_notes():
        print(line, file=sys.stderr)


def record_changed_code(directory: RunDirectory, recipe: Recipe, *, from_step: int) -> str | None:
    """Write the code that a run goes on with into code.json, as of this step; returns the line that says what differs,
    None where it is what the run was begun with."""
    changes = code_changes(directory)
    if not changes:
        return None
    record = record_of(directory)
    assert record is not None  # there are changes, so there is a record
    recorded_files = [own_file(name) for name in record["versions"][-1]["files"]]
    kept = imported_by(path for path in recorded_files if path is not None)
    code = {**kept, **code_of_recipe(recipe)}
    directory.write_with_hashes({CODE: _with_version(record, code, from_step=from_step)})
    return f"from step {from_step} on with other code: {_in_words(changes)} (--changed-code)"


def _in_words(changes: list[str]) -> str:
    more = f", and {len(changes) - NAMED} more" if len(changes) > NAMED else ""
    return ", ".join(changes[:NAMED]) + more


# -- Which Python of the user's a run may run.


USER_CODE = ("class", "function", "object")  # keys under which recipe.json names it


def admit_code(target: str, arguments: Mapping[str, Any]) -> None:
    """Admit the Python that a recipe is made of (``core/trust.py``)."""
    from cotrain.core.trust import admit_file, admit_module

    named = [target]
    for argument in arguments.values():
        if isinstance(argument, Mapping):
            named += [str(argument[key]) for key in USER_CODE if argument.get(key)]
    for name in named:
        path, _, _ = name.rpartition(":")  # "" for a recipe of the package
        if path.endswith(".py"):
            admit_file(path)
        elif path:
            admit_module(path)


def admit_models(policies: Mapping[str, Policy]) -> None:
    """Admit models that come with Python files of their own (``core/trust.py``)."""
    from cotrain.core.trust import admit_model

    for policy in policies.values():
        if isinstance(policy, Weights) and policy.trust_remote_code:
            admit_model(policy.model)


def trust_code_of(directory: Path, recipe: Recipe) -> None:
    """Trust the user's own Python that a run is begun with, if there is any, when it goes on (``core/trust.py``)."""
    origin = recipe.origin
    is_own_recipe = origin is not None and ":" in origin.target
    has_own_argument = origin is not None and any(isinstance(value, Mapping) for value in origin.arguments.values())
    has_own_model = any(isinstance(spec, Weights) and spec.trust_remote_code for spec in recipe.policies.values())
    if is_own_recipe or has_own_argument or has_own_model:
        from cotrain.core.trust import remembering_code_of

        with remembering_code_of(directory):
            if origin is not None:
                admit_code(origin.target, origin.arguments)
            admit_models(recipe.policies)
