"""The studies that come with the package, as they were committed, and which file a name means.

Nothing is imported that takes long, so that a name that is mistyped costs no seconds.
"""

from __future__ import annotations

from pathlib import Path

from cotrain.core.errors import ConfigError, UnknownName

FOLDER = Path(__file__).resolve().parents[2] / "studies"


def shipped_studies() -> dict[str, Path]:
    """The file of each study, by its name."""
    return {path.stem: path for path in sorted(FOLDER.glob("*.toml"))}


def study_path(text: str) -> Path:
    """The file that ``text`` means: a file, or the name of a study that comes with the package. Raises UnknownName for
    a name that is none, ConfigError for a path without a file."""
    path = Path(text)
    studies = shipped_studies()
    if path.is_file():
        return path
    if text in studies:
        return studies[text]
    if len(path.parts) == 1 and path.suffix != ".toml":
        raise UnknownName("study", text, studies)
    named = f"; a study of this name comes with cotrain: cotrain study {path.stem}" if path.stem in studies else ""
    raise ConfigError(
        f"{text}: no such file{named or '; give the file of a study, or the name of one that ships'}",
        code="E_STUDY_NOT_FOUND",
    )
