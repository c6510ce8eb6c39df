"""How much a command says: ``--log-level``, which is the level of Python's logger "cotrain".

::

    debug    also what the libraries say, and under an error where it came from
    info     progress, notes and alarms
    warning  notes and alarms
    error    nothing but the error that ends the command, and its result

Results go to stdout at every level, and ``run.log`` of a run holds all messages. From Python it is "info" too, unless
the logger's level was set before. Left out: levels of single modules.
"""

from __future__ import annotations

import logging

LEVELS = ("debug", "info", "warning", "error")
LOGGER = logging.getLogger("cotrain")
if LOGGER.level == logging.NOTSET:  # from Python too, where no command sets it
    LOGGER.setLevel(logging.INFO)
LIBRARIES = ("transformers", "huggingface_hub", "httpx", "datasets", "peft")


def set_level(name: str | None) -> None:
    """From now on; None: info."""
    LOGGER.setLevel((name or "info").upper())
    for library in LIBRARIES:
        logging.getLogger(library).setLevel(logging.DEBUG if name == "debug" else logging.ERROR)
    if name == "debug":
        logging.basicConfig(format="%(name)s: %(message)s")


def shows_progress() -> bool:
    """Whether lines of progress are printed."""
    return LOGGER.getEffectiveLevel() <= logging.INFO


def shows_notes() -> bool:
    """Whether notes and alarms are printed."""
    return LOGGER.getEffectiveLevel() <= logging.WARNING


def shows_all() -> bool:
    """Whether libraries may speak, and errors are shown with where they came from."""
    return LOGGER.getEffectiveLevel() <= logging.DEBUG


def print_progress(text: str) -> None:
    """Print one line of progress."""
    if shows_progress():
        print(text, flush=True)
