"""``cotrain resume DIR --steps N``: make a run longer than it was begun.

The run goes on as if it had been begun with ``--steps N --set horizon=OLD``, OLD being the steps that it had: decays
and other schedules that run over all steps end where they would have ended, and stay there. Stretching them would make
the first steps other ones than those that were made. Learning rates rise over ``lr_warmup`` updates and are constant
then, so they stay what they are.

What is written again: recipe.json, with the seal. What a finished run said at its end (summary.json, report.html) is
removed and made anew at the new end; metrics, ledger and checkpoints go on. Left out: shortening, and budgets of
tokens, operations or seconds.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cotrain.core.errors import ConfigError
from cotrain.disk.lock import RunLock
from cotrain.runs import seal
from cotrain.runs.directory import RunDirectory

BUDGETS = ("tokens", "flops", "seconds", "updates")


def lengthen_run(out: Path | str, steps: int) -> None:
    """Let a run, finished or not, last ``steps`` steps in all. Raises ConfigError, RunDirectoryError, one line each;
    then the run is as it was."""
    directory = RunDirectory.open(out)
    with RunLock(directory.path):
        seal.verify_files(directory)
        saved: Any = directory.read("recipe.json")
        settings = saved["settings"]
        if steps == settings["steps"]:
            return
        if steps < settings["steps"]:
            raise ConfigError(
                f"--steps {steps}: the run in {directory.path} lasts {settings['steps']} steps; expected more, or "
                "leave out --steps"
            )
        if saved["origin"] is None:
            raise ConfigError(
                f"{directory.path} was started from a bare Recipe; lengthen it from Python, as it was begun"
            )
        budget = next((name for name in BUDGETS if settings.get(name) is not None), None)
        if budget is not None:
            raise ConfigError(
                f"--steps {steps}: the run in {directory.path} ends when it has spent {settings[budget]} {budget}, not "
                "with its steps; begin a new run with a larger budget"
            )
        horizon = {} if settings.get("horizon") is not None else {"horizon": settings["steps"]}
        directory.extend({"steps": steps, **horizon})
