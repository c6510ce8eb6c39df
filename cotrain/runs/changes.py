"""Building the recipe of a run directory again, what may change of a run that goes on (how long it lasts, and where its
models are), and whose Python it may run.

``cotrain resume DIR --steps N`` lets it go on as if it had been begun with ``--steps N --set horizon=OLD``, OLD being
the steps that it had: decays and other schedules that run over all steps end where they would have ended, and stay
there. Stretching them would make the first steps other ones than those that were made. Learning rates rise over
``lr_warmup`` updates and are constant then, so they stay what they are; a run whose rates fall to 0 (``lr_decay``)
cannot be lengthened. What a finished run said at its end (summary.json, report.html) is removed and made anew at the
new end; metrics, ledger and checkpoints go on.

``--model`` of ``cotrain resume`` and ``cotrain export`` is another place for a directory that is gone, which must hold
the weights that the run began with. Either way recipe.json is written again, with the seal. Left out: shortening, and
budgets of tokens, operations or seconds.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from cotrain.config.override import override, restore_overrides
from cotrain.config.policies import Policy, Weights, model_names
from cotrain.config.recipe import Recipe
from cotrain.config.registry import find_recipe, make_recipe
from cotrain.core.errors import ConfigError, RunDirectoryError, UserError
from cotrain.core.nearest_names import with_current_names
from cotrain.core.trust import trusted_code_only
from cotrain.core.verbosity import count_of
from cotrain.runs import manifest
from cotrain.runs.code_record import admit_code, admit_models
from cotrain.runs.directory import RunDirectory, check_same_recipe, path_of_today, setting_differences, weights_hash
from cotrain.runs.renaming import rename_origin, saved_names
from cotrain.storage.lock import RunLock

BUDGETS = ("tokens", "flops", "seconds", "updates")


def lengthen_run(out: Path | str, steps: int) -> None:
    """Let a run, finished or not, last ``steps`` steps in all. Raises ConfigError, RunDirectoryError, one line each;
    then the run is as it was."""
    directory = RunDirectory.open(out)
    with RunLock(directory.path):
        manifest.verify_files(directory)
        saved = directory.read_recipe()
        settings = saved["settings"]
        if steps == settings["steps"]:
            return
        if steps < settings["steps"]:
            raise ConfigError(
                f"--steps {steps}: the run in {directory.path} lasts {count_of(settings['steps'], 'step')}; expected "
                "more, or leave out --steps",
                code="E_STEPS_NOT_MORE",
            )
        if saved["origin"] is None:
            raise ConfigError(
                f"{directory.path} was started from a bare Recipe; lengthen it from Python, as it was begun",
                code="E_BARE_RECIPE_LENGTHENED",
            )
        budget = next((name for name in BUDGETS if settings.get(name) is not None), None)
        if budget is not None:
            raise ConfigError(
                f"--steps {steps}: the run in {directory.path} ends when it has spent {settings[budget]} {budget}, not "
                "with its steps; begin a new run with a larger budget",
                code="E_STEPS_WITH_BUDGET",
            )
        falling = sorted(
            name for name, one in settings["policies"].items() if one.get("lr_decay", "constant") != "constant"
        )
        if falling:
            raise ConfigError(
                f"--steps {steps}: the learning rate of {falling[0]!r} falls to 0 by step {settings['steps']} "
                f"(lr_decay); begin a new run that is longer",
                code="E_STEPS_WITH_LR_DECAY",
            )
        ends = {"steps": steps}
        if settings.get("horizon") is None:
            ends["horizon"] = settings["steps"]
        directory.extend(ends)


# -- models that were moved


def check_models_exist(policies: Mapping[str, Policy], where: Path | str) -> None:
    """Raise RunDirectoryError for directories of models that are gone."""
    lost = sorted(name for name in model_names(policies) if _is_gone(name))
    if lost:
        many = f" (and {len(lost) - 1} more)" if len(lost) > 1 else ""
        new = "NEW" if len(lost) == 1 else "OLD=NEW"
        raise RunDirectoryError(
            f"{where}: its model {lost[0]!r}{many} is not there any more; if it was moved, say where to with "
            f"--model {new}, of `cotrain resume` or `cotrain export`",
            code="E_MODEL_MOVED",
        )


def _is_gone(name: str) -> bool:
    return name.startswith((".", "/", "~")) and not Path(name).expanduser().is_dir()


def update_model_path(out: Path | str, model: str) -> None:
    """Let a run know the new place of a model that was moved: ``NEW``, or ``OLD=NEW`` where several are gone. Raises
    ConfigError, RunDirectoryError, one line each; then the run is as it was."""
    from cotrain.models.names import lasting_name

    directory = RunDirectory.open(out)
    with RunLock(directory.path):
        manifest.verify_files(directory)
        saved = directory.read_recipe()
        policies = saved["settings"]["policies"]
        lost = sorted(name for name in saved_names(policies) if _is_gone(name))
        old, new = _old_and_new(model, lost, directory.path)
        where = lasting_name(new)
        if not Path(where).is_dir():
            raise ConfigError(
                f"--model {model}: {new} is no directory; give the one that holds the model now",
                code="E_MODEL_FLAG_NOT_DIRECTORY",
            )
        provenance: Any = directory.read("provenance.json") or {}
        begun = provenance.get("weights", {})
        for policy, spec in policies.items():
            before = {key: spec[key] for key in ("model", "lora") if key in spec}
            adapter = spec.get("lora") or {}
            # The hashes of the starting weights: of a policy's model, and of the adapter that it starts from.
            path_by_key = {policy: spec["model"], f"{policy}/adapter": adapter.get("path")}
            for key, path in path_by_key.items():
                if path == old and begun.get(key) != weights_hash(where):
                    raise ConfigError(
                        f"--model {model}: {new} holds other weights than policy {policy!r} began with; give the "
                        "directory that was moved, unchanged",
                        code="E_MODEL_FLAG_OTHER_WEIGHTS",
                    )
            if spec["model"] == old:
                spec["model"] = where
            if adapter.get("path") == old:
                spec["lora"] = adapter | {"path": where}
            was_moved = any(spec[key] != before[key] for key in before)
            if was_moved:
                saved.setdefault(manifest.MOVED, {}).setdefault(policy, before)
        if (origin := saved["origin"]) is not None:
            origin["arguments"], origin["overrides"] = rename_origin(
                origin["arguments"], origin["overrides"], {old: where}
            )
        directory.write_with_hashes({"recipe.json": saved})


def _old_and_new(model: str, lost: list[str], where: Path) -> tuple[str, str]:
    """The two places that ``--model`` means, where these models are gone."""
    old, equals, new = model.partition("=")
    if not lost:
        raise ConfigError(
            f"--model {model}: every model of the run in {where} is in its place; leave it out",
            code="E_MODEL_FLAG_NOT_NEEDED",
        )
    if not equals:
        if len(lost) > 1:
            raise ConfigError(
                f"--model {model}: {', '.join(lost)} are gone; say which with --model OLD=NEW",
                code="E_MODEL_FLAG_AMBIGUOUS",
            )
        return lost[0], model
    if old not in lost:
        raise ConfigError(
            f"--model {model}: the run has no model {old!r} that is gone; expected {' or '.join(lost)}",
            code="E_MODEL_FLAG_NOT_NEEDED",
        )
    return old, new


def with_recorded_packing(recipe: Recipe, saved: Mapping[str, Any]) -> Recipe:
    """The recipe with ``pack_weights`` of its policies as recipe.json has it: nothing is measured again."""
    policies = dict(recipe.policies)
    for name, spec in policies.items():
        recorded = saved["settings"]["policies"].get(name, {}).get("pack_weights")
        if isinstance(spec, Weights) and recorded is not None:
            policies[name] = replace(spec, pack_weights=recorded)
    return replace(recipe, policies=policies)


def rebuild_recipe(directory: Path | str, *, say: Callable[[str], None] | None = None) -> Recipe:
    """The recipe of a run directory: the function that made it, called again with the arguments it was given. Plain
    settings whose defaults have changed since stay as the run was begun with them, which ``say`` is told. Raises
    RunDirectoryError where more has changed, a file of the run is not as the run wrote it, or the recipe is Python that
    no run of this user was begun with (``core/trust.py``)."""
    folder = RunDirectory.open(directory)
    manifest.verify_files(folder)
    saved = folder.read_recipe()
    with trusted_code_only(directory):
        return _rebuild_saved(directory, saved, say)


def recipe_to_measure(directory: Path | str) -> Recipe:
    """The recipe of a run that is asked or measured: a note on the terminal says where its code has changed."""
    from cotrain.runs.code_record import tell_changed_code

    recipe = rebuild_recipe(directory)
    tell_changed_code(directory)
    return recipe


def _rebuild_saved(directory: Path | str, saved: Any, say: Callable[[str], None] | None) -> Recipe:
    origin = saved["origin"]
    if origin is None:
        raise RunDirectoryError(
            f"{directory} was started from a bare Recipe; resume it from Python with "
            f"cotrain.resume({str(directory)!r}, recipe=…)",
            code="E_BARE_RECIPE",
        )
    try:
        arguments = {name: _parse_argument(value) for name, value in origin["arguments"].items()}
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        why = f"{type(error).__name__}: {error}"
        code = "E_PROBLEMS_NOT_REBUILT"
        if isinstance(error, UserError):  # some of them are ValueErrors, and say enough by themselves
            why = str(error)
            code = error.code
        raise RunDirectoryError(f"the problems of {directory} cannot be built again: {why}", code=code) from error
    try:
        arguments = with_current_names(arguments, find_recipe(origin["target"]).parameters)
        rebuilt = make_recipe(origin["target"], arguments, again=True)
        for assignment in origin["overrides"]:
            path, equals, value = assignment.partition("=")
            rebuilt = override(rebuilt, [path_of_today(path, rebuilt) + equals + value])
    except RunDirectoryError:
        raise
    except UserError as error:
        raise RunDirectoryError(f"the recipe of {directory} cannot be built again: {error}", code=error.code) from error
    changed = setting_differences(saved, rebuilt)
    rebuilt = restore_overrides(rebuilt, [(name, saved_value) for name, saved_value, _ in changed])
    if say is not None:
        for name, was, now in changed:
            say(f"note: {name} stays {json.dumps(was)}, as this run was begun; a new one would have {json.dumps(now)}")
    check_same_recipe(Path(directory), saved, rebuilt)
    admit_models(rebuilt.policies)
    return rebuilt


def check_foreign_code(directory: Path | str) -> None:
    """Raise RunDirectoryError where building the recipe of a run directory would run Python that is not trusted."""
    folder = RunDirectory.open(directory)
    manifest.verify_files(folder)
    saved = folder.read_recipe()
    with trusted_code_only(directory):
        if saved["origin"] is not None:
            admit_code(saved["origin"]["target"], saved["origin"]["arguments"])


def _parse_argument(value: Any) -> Any:
    """An argument as a recipe takes it, from its form in recipe.json."""
    if isinstance(value, Mapping):
        named = value.get("function") or value.get("object")
        if named:
            return str(named)  # "my.py:reward", which the recipe loads
    if isinstance(value, Mapping) and "tasks" in value:
        from cotrain.data.sources import from_description

        return from_description(value["tasks"], value.get("class"))
    return tuple(value) if isinstance(value, list) else value
