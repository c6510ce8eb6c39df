"""Names of models that do not depend on the working directory: an absolute path, or a name of the Hub with its
revision.

::

    shipped                 a model of this package
    /home/ann/models/inst    a directory
    owner/name@1f2e3d…       a model of the Hub at a commit, branch or tag; without "@": what the Hub has at present

Left out: names of the Hub without an owner, which it keeps for the oldest models; they stay as they are.
"""

from __future__ import annotations

import os
import re
from functools import cache
from pathlib import Path

from huggingface_hub import snapshot_download
from huggingface_hub.errors import HFValidationError

from cotrain.core.errors import ModelError
from cotrain.core.shipped import is_shipped
from cotrain.models.files import read_object
from cotrain.models.load import hub_parts, resolve_model

_HUB = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*(@[\w./-]+)?")


def is_hub_model(text: str) -> bool:
    """Whether a text can name a model of the Hub, with or without a revision; a directory here is none."""
    return _HUB.fullmatch(text) is not None and not Path(text).exists()


def lasting_name(name: str) -> str:
    """A name of the same model that is valid in any directory and at any later time: an absolute path, or a Hub name
    with its commit. A model that cannot be found keeps its name; loading it raises the error."""
    try:
        where = resolve_model(name)
    except ModelError:
        return name
    if isinstance(where, Path):
        return name if is_shipped(name) else str(where.absolute())
    repository, revision = hub_parts(where)
    commit = None if revision else _latest_commit(repository)
    return f"{repository}@{commit}" if commit else name


def unpinned_name(name: str) -> str:
    """A name that is the same for all revisions of a model: ``lasting_name``, or the Hub name without its revision.
    Uses no network."""
    return hub_parts(name)[0] if is_hub_model(name) else lasting_name(name)


def _latest_commit(repository: str) -> str | None:
    """The newest commit of a model on the Hub, or in the cache if there is no network; None if neither has it."""
    try:
        folder = Path(snapshot_download(repository, allow_patterns=["config.json"]))
    except (OSError, ValueError, HFValidationError):
        return None
    return folder.name if folder.parent.name == "snapshots" else None


@cache
def hub_folder_with(name: str, file: str) -> Path | None:
    """The folder in the Hub's cache with the small file ``file`` of a model, which is downloaded if possible. None for
    a name that is not one of the Hub, and if neither network nor cache has the model. Looked up once in a process."""
    if not is_hub_model(name):
        return None
    repository, revision = hub_parts(name)
    try:
        return Path(snapshot_download(repository, revision=revision, allow_patterns=[file]))
    except (OSError, ValueError, HFValidationError):
        return None


def base_of(name: str | os.PathLike[str]) -> tuple[str, str | None]:
    """(name, revision) of a base, as an adapter's configuration names it for PEFT: an absolute directory and None, or a
    name of the Hub and its revision."""
    where = resolve_model(name)
    return (str(where.absolute()), None) if isinstance(where, Path) else hub_parts(where)


def hub_name_of(name: str) -> str | None:
    """The Hub name of a model, which for a directory is the one in its config.json; None if there is none."""
    try:
        where = resolve_model(name)
    except ModelError:
        return None
    if not isinstance(where, Path):
        return hub_parts(where)[0]
    try:
        hub_name = read_object(where / "config.json", f"model {name!r}")["_name_or_path"]
    except (ModelError, KeyError):
        return None
    return hub_name if isinstance(hub_name, str) and is_hub_model(hub_name) else None
