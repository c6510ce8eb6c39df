"""The run directory: what a run leaves behind, so that it can be read, resumed and trusted.

::

    recipe.json       which recipe with which arguments, and the resolved settings
    quarantine.jsonl  malformed rows that were left out, with --lenient
    provenance.json   versions, machine, threads, hashes of the starting weights
    code.json         the user's own code that made the run: hashes and texts (``code_record.py``)
    seal.json         size and hash of the files that are written once (``manifest.py``)
    metrics.jsonl     one row a step, and evaluation rows; the same bytes whether or not the run was interrupted
    stopped.json      what ended a run before its time; gone when it goes on
    run.log           messages with their time: notes, alarms, resumptions
    timings.jsonl     seconds of each step's stages and of each policy in the engine; these depend on the clock
    before.json       figures before the first step
    before_counts.json  what they were counted from, problem by problem: the end is paired with it
    after_problems.json  what each problem says of each figure at the end: runs are compared by it
    checkpoints/      transactions over all policies
    episodes/         the ledger: every rollout, token by token
    summary.json      before, after and the change paired by problem, and the alarms; written at the end
    report.html       written at the end and on interruption
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import os
import platform
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from cotrain.config.edits import override_text
from cotrain.config.evaluation import Evaluation
from cotrain.config.recipe import Origin, Recipe
from cotrain.config.schedule import Phase
from cotrain.core import redact
from cotrain.core.arguments import bound_function
from cotrain.core.errors import ConfigError, CotrainError, RunDirectoryError, ServerSilent, UserError
from cotrain.core.input_files import open_regular, read_regular
from cotrain.core.nearest_names import current_name
from cotrain.core.signals import Signal
from cotrain.core.statistics import Estimate
from cotrain.core.verbosity import count_of, print_note
from cotrain.metrics.starved import SKIPPED
from cotrain.runs.log import LOG_FILE as LOG
from cotrain.storage import checkpoints
from cotrain.storage.file_ops import FileDigest, digest_of, is_staging_of, replace_file, report_disk_errors
from cotrain.storage.jsonl import cut_to_size, read_jsonl, truncate_after
from cotrain.storage.ledger import Ledger
from cotrain.storage.lock import NAME as LOCK
from cotrain.storage.lock import RunLock
from cotrain.storage.schemas import QUARANTINE, check_path, fault_in

PACKAGES = ("cotrain", "torch", "transformers", "tokenizers", "safetensors", "numpy", "math-verify")
MANIFEST = "seal.json"
# Values of a recipe's argument ``judge`` in runs of an earlier cotrain, which now is ``review_format``.
REVIEW_FORMATS_OF_JUDGE = ("steps", "genrm", "genprm", "scored")
AFTER_PROBLEMS = "after_problems.json"
STOPPED = "stopped.json"
EARLIER = "earlier"  # folder of figures and samples that others took the place of
CODE = "code.json"
RECIPE_FILE = "recipe.json"  # the file that makes a directory one of a run
EARLY_FILES = ("provenance.json", CODE, QUARANTINE, MANIFEST, LOG)  # written before it
# What a run may have that never finished a step, in the order in which it is removed: recipe.json last, so that a kill
# in between leaves a directory that can still be told from others.
FILES = (
    *EARLY_FILES, "before.json", "before_counts.json", "metrics.jsonl", "timings.jsonl", STOPPED, "trackers.json",
    "report.html", RECIPE_FILE,
)  # fmt: skip
FOLDERS = ("checkpoints", "episodes", "tensorboard")


class RunDirectory:
    """Paths of one run, and its small JSON files."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path).expanduser().absolute()  # code of the user's may change the working directory
        self.checkpoints = self.path / "checkpoints"
        self.episodes = self.path / "episodes"
        self.metrics = self.path / "metrics.jsonl"
        self.timings = self.path / "timings.jsonl"
        self.summary = self.path / "summary.json"
        self.report = self.path / "report.html"

    @classmethod
    @contextmanager
    def begin(cls, path: Path | str) -> Iterator[RunDirectory]:
        """A directory for a new run, not there yet, empty, or one of a run that never finished a step, and held by this
        process alone for as long as the block lasts.

        It is held before anything in it is written or removed: of two runs that are begun at once in one directory, one
        goes on as if it were alone. A run that ends before anything was measured leaves nothing, but for one whose
        server gave no answers, which can be resumed. Nothing that is left is in the way of the next try.
        """
        run = cls(path)
        run.check_unused()
        is_new = not run.path.exists()
        run._create()
        with RunLock(run.path) as lock:
            run.check_unused()  # another run may have ended since
            run._remove_unfinished()
            try:
                yield run
            except CotrainError as error:
                is_resumable = isinstance(error, ServerSilent) or (run.path / "before.json").exists()
                if not is_resumable:
                    run._remove_unfinished()
                    lock.remove()
                    if is_new:
                        run._remove_if_empty()
                raise

    def _create(self) -> None:
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(
                f"cannot create run directory {self.path}: {error.strerror}; choose another --out",
                code="E_RUN_DIRECTORY_NOT_CREATED",
            ) from error

    def _remove_if_empty(self) -> None:
        with suppress(OSError):  # it is not empty
            self.path.rmdir()

    def check_unused(self) -> None:
        """Raise RunDirectoryError for a place that holds anything but what a run leaves that never finished a step."""
        if self.path.is_file():
            raise RunDirectoryError(
                f"{self.path} is a file; give a directory for the run with --out", code="E_OUT_IS_FILE"
            )
        if not self.path.exists() or self._may_be_replaced():
            return
        if self.summary.exists():
            raise RunDirectoryError(
                f"{self.path} already holds a run, which is finished; choose another --out", code="E_OUT_HOLDS_RUN"
            )
        if (self.path / RECIPE_FILE).exists():
            raise RunDirectoryError(
                f"{self.path} already holds a run; go on with `cotrain resume {self.path}`, or choose another --out",
                code="E_OUT_HOLDS_RUN",
            )
        raise RunDirectoryError(
            f"{self.path} is not empty and is no run directory; choose another --out", code="E_OUT_NOT_EMPTY"
        )

    def _may_be_replaced(self) -> bool:
        """Whether nothing is here but what a run writes until it has finished its first step."""
        is_run = (self.path / RECIPE_FILE).exists()
        # Of a directory without recipe.json the staging file may be there, in which it was being written.
        names = (*FILES, *FOLDERS) if is_run else (*EARLY_FILES, RECIPE_FILE)
        replaceable = {LOCK, *names, *self._staging_files(names)}
        has_other_files = any(child.name not in replaceable for child in self.path.iterdir())
        if has_other_files or self.summary.exists():
            return False
        try:
            has_steps = any(row.get("kind") != "evaluation" for row in rows_of(self.metrics))  # evaluated before step 1
            has_checkpoint = self.checkpoints.is_dir() and any(checkpoints.checkpoint_steps(self.checkpoints))
        except (CotrainError, OSError, AttributeError):  # damaged: not for this function to decide
            return False
        has_episodes = self.episodes.is_dir() and any(self.episodes.iterdir())
        lost_metrics = has_episodes and not self.metrics.exists()
        return not (has_steps or has_checkpoint or lost_metrics)

    def _remove_unfinished(self) -> None:
        """Remove what a run writes until it has finished its first step."""
        if (self.path / RECIPE_FILE).exists():
            for name in FOLDERS:
                shutil.rmtree(self.path / name, ignore_errors=True)
        for name in (*FILES, *self._staging_files(FILES)):
            (self.path / name).unlink(missing_ok=True)

    def _staging_files(self, names: Sequence[str]) -> list[str]:
        """The files here in which files of these names were being written."""
        return [child for child in os.listdir(self.path) if any(is_staging_of(child, name) for name in names)]

    @classmethod
    def open(cls, path: Path | str) -> RunDirectory:
        """The directory of a run that was begun."""
        run = cls(path)
        check_path(run.path)
        run._check_names()
        return run

    def _check_names(self) -> None:
        """Raise RunDirectoryError for a run whose files an earlier cotrain wrote, under other names."""
        recipe = _as_mapping(self.read(RECIPE_FILE))
        settings = _as_mapping(recipe.get("settings"))
        objectives = _as_mapping(settings.get("objectives"))
        origin = _as_mapping(recipe.get("origin"))
        has_old_origin = "settings" in origin
        has_old_objective = any("on" in _as_mapping(objective) for objective in objectives.values())
        has_old_argument = _as_mapping(origin.get("arguments")).get("judge") in REVIEW_FORMATS_OF_JUDGE
        has_old_evaluation = "implied" in _as_mapping(settings.get("evaluation"))  # now implicit_rewards
        if has_old_origin or has_old_objective or has_old_argument or has_old_evaluation:
            raise RunDirectoryError(
                f"{self.path} was written by an earlier cotrain, whose files have other names; read and resume it with "
                "that version, or start the run anew",
                code="E_RUN_OF_EARLIER_VERSION",
            )

    def write(self, name: str, value: Any) -> None:
        """Write a JSON file so that it is there whole or not at all. Raises DiskError."""
        replace_file(self.path / name, _json_bytes(name, value))

    def write_measurement(self, name: str, value: Any) -> None:
        """Write figures that a command measured, as ``write`` does. Others that the file holds, such as those of an
        earlier checkpoint or of more problems, go to the folder ``earlier``, which is said. Raises DiskError."""
        path = self.path / name
        payload = _json_bytes(name, value)
        if path.is_file():
            with report_disk_errors(f"read {path}"):
                earlier = read_regular(path)
            if earlier != payload:
                place = path.parent / EARLIER / f"{path.stem}-{digest_of(earlier).sha256[:8]}{path.suffix}"
                replace_file(place, earlier)
                print_note(f"{path} held other figures, which are now in {place}")
        replace_file(path, payload)

    def write_with_hashes(self, values: Mapping[str, Any], grown: Mapping[str, FileDigest] | None = None) -> None:
        """Write JSON files on which the run's claims rest, in this order, and before them their digests into the seal.
        ``grown``: digests of other files, which are there already. Raises DiskError."""
        digests = self.recorded_hashes() | hash_entries(values) | dict(grown or {})
        entries = {name: {"bytes": digest.bytes, "sha256": digest.sha256} for name, digest in digests.items()}
        self.write(MANIFEST, {"files": entries})
        for name, value in values.items():
            self.write(name, value)

    @property
    def begin_time(self) -> datetime | None:
        """When the run was begun, by its own clock; None for one that did not write it down."""
        provenance: Any = self.read("provenance.json")
        try:
            begun: datetime | None = datetime.fromisoformat(provenance["begun"])
        except (KeyError, TypeError, ValueError):
            begun = None
        return begun

    def recorded_hashes(self) -> dict[str, FileDigest]:
        """The digests of the files as the seal has them; none before there is a seal. Raises RunDirectoryError for a
        run that lost it."""
        saved = self.read(MANIFEST)
        if saved is not None:
            digests = {}
            for name, entry in saved["files"].items():
                digests[name] = FileDigest(bytes=entry["bytes"], sha256=entry["sha256"])
            return digests
        if (self.path / RECIPE_FILE).exists():
            raise RunDirectoryError(
                f"{self.path / MANIFEST} is missing, which says what the run's files should hold; restore it, or "
                "start anew",
                code="E_MANIFEST_MISSING",
            )
        return {}

    def extend(self, ends: Mapping[str, Any]) -> None:
        """Let a finished run go on when it is resumed: to other ``steps``, or another budget. Its settings say so from
        then on; decays do not stretch where it has a horizon."""
        saved = self.read_recipe()
        (self.path / "summary.json").unlink(missing_ok=True)
        saved["settings"] |= ends
        saved["steps"] = saved["settings"]["steps"]
        saved["origin"]["overrides"] += [override_text(name, value) for name, value in ends.items()]
        self.write_with_hashes({"recipe.json": saved})

    def truncate_to(self, steps: int, metrics_size: int) -> None:
        """Truncate metrics to this many bytes, and timings, skipped updates and the ledger to the first ``steps``
        steps."""
        cut_to_size(self.metrics, metrics_size)
        last_step = steps - 1
        for path in (self.timings, self.path / SKIPPED):
            truncate_after(path, last_step)
        with Ledger(self.episodes) as ledger:
            ledger.truncate_after(last_step)

    def read_recipe(self) -> dict[str, Any]:
        """The content of recipe.json, by which a directory is one of a run. Raises RunDirectoryError for a damaged
        one."""
        saved: dict[str, Any] | None = self.read(RECIPE_FILE)
        assert saved is not None, f"{self.path} holds no run"  # ``open`` has checked, ``begin`` has written it
        return saved

    def read(self, name: str) -> Any | None:
        """The value of a JSON file, None when it is not there; RunDirectoryError when it is damaged."""
        target = self.path / name
        if not target.exists():
            return None
        try:
            value = json.loads(read_regular(target).decode("utf-8"))
        except (ValueError, RecursionError) as error:
            raise RunDirectoryError(
                f"{target} is damaged ({error}); restore it, or start the run anew", code="E_RUN_DAMAGED"
            ) from error
        except OSError as error:
            why = (error.strerror or str(error)).lower()
            raise RunDirectoryError(
                f"{target} cannot be read: {why}; restore it, or start the run anew", code="E_RUN_UNREADABLE"
            ) from error
        fault = fault_in(name, value)
        if fault is not None:
            raise RunDirectoryError(
                f"{target} is damaged ({fault}); restore it, or start the run anew", code="E_RUN_DAMAGED"
            )
        return value


def _as_mapping(value: Any) -> Mapping[str, Any]:
    """A JSON value, or an empty mapping in the place of one that is none."""
    return value if isinstance(value, Mapping) else {}


def rows_of(path: Path) -> Sequence[Mapping[str, Any]]:
    """The rows of a file; none where it is not there."""
    return read_jsonl(path) if path.exists() else ()


def hash_entries(values: Mapping[str, Any]) -> dict[str, FileDigest]:
    """The digests that a seal has for JSON files with these values."""
    return {name: digest_of(_json_bytes(name, value)) for name, value in values.items()}


def _json_bytes(name: str, value: Any) -> bytes:
    indent = None if name in ("before_counts.json", AFTER_PROBLEMS) else 2
    text = json.dumps(value, indent=indent, ensure_ascii=False, allow_nan=False)
    return text.encode("utf-8", "backslashreplace") + b"\n"  # a lone surrogate becomes JSON's escape for it


def recipe_json(recipe: Recipe, *, checkpoint_every: int, keep_every: int = 0, async_steps: int = 0) -> dict[str, Any]:
    """The recipe as saved: how to build it again, and all settings as they were resolved. ``keep_every``: checkpoints
    of which steps are never deleted, 0 for none. Raises ConfigError for a number that is not finite, which no JSON
    holds, and for steps to keep that have no checkpoint."""
    if keep_every % checkpoint_every:
        raise ConfigError(
            f"checkpoints are kept every {count_of(keep_every, 'step')} and made every {checkpoint_every}; keep a "
            "multiple of it",
            code="E_CHECKPOINT_MULTIPLE",
        )
    settings = resolved_json(recipe)
    not_finite = next(_not_finite("", settings), None)
    if not_finite is not None:
        path, value = not_finite
        raise ConfigError(
            f"recipe {recipe.name!r}: {path} is {value}, expected a finite number", code="E_SETTING_NOT_FINITE"
        )
    saved = {
        "name": recipe.name,
        "description": recipe.description,
        "steps": recipe.steps,
        "seed": recipe.seed,
        "checkpoint_every": checkpoint_every,
        "keep_every": keep_every,
        "origin": None if recipe.origin is None else _origin_json(recipe.origin),
        "settings": settings,
    }
    if async_steps:
        saved["async_steps"] = async_steps
    return saved


def _origin_json(origin: Origin) -> dict[str, Any]:
    """How a recipe is built again."""
    saved: dict[str, Any] = {
        "target": origin.target,
        "arguments": dict(origin.arguments),
        "overrides": list(origin.overrides),
    }
    if origin.by_size:
        saved["by_size"] = dict(origin.by_size)
    return saved


def _not_finite(path: str, value: Any) -> Iterator[tuple[str, float]]:
    """The numbers in a JSON value that are not finite, with their dotted paths."""
    if isinstance(value, float) and not math.isfinite(value):
        yield path, value
    for key, part in _json_parts(value):
        yield from _not_finite(f"{path}.{key}".lstrip("."), part)


def _json_parts(value: Any) -> Iterable[tuple[Any, Any]]:
    """The parts of a JSON value by key or number; none of a plain one."""
    match value:
        case Mapping():
            parts: Iterable[tuple[Any, Any]] = value.items()
        case list():
            parts = enumerate(value)
        case _:
            parts = ()
    return parts


def check_same_recipe(path: Path, saved: Mapping[str, Any], recipe: Recipe) -> None:
    """Raise RunDirectoryError when ``recipe`` has other settings than the run in ``path``, whose recipe.json is
    ``saved``. A setting that did not exist when the run was begun has its default now and is no difference."""
    changes = setting_differences(saved, recipe)
    if changes:
        name, was, now = changes[0]
        raise RunDirectoryError(
            f"{path}: {name} was {json.dumps(was)} when this run was begun and is {json.dumps(now)} in the "
            "recipe given or built again from recipe.json; bring the recipe it was begun with "
            "(cotrain.resume(directory, recipe=…)), or start anew",
            code="E_RECIPE_CHANGED",
        )


def setting_differences(saved: Mapping[str, Any], recipe: Recipe) -> list[tuple[str, Any, Any]]:
    """Settings in which a recipe differs from the one that a recipe.json holds: dotted path, saved value, present
    value. A setting that was renamed since is compared under its name of today."""
    return list(_value_differences("", saved["settings"], _settings_read_back(recipe)))


def _settings_read_back(recipe: Recipe) -> dict[str, Any]:
    """The settings of a recipe as they would be read back from its recipe.json."""
    settings: dict[str, Any] = json.loads(json.dumps(resolved_json(recipe)))
    return settings


def path_of_today(path: str, recipe: Recipe) -> str:
    """The dotted path of a setting that was saved under this one, of which parts may have other names since."""
    part: Any = _settings_read_back(recipe)
    names = []
    for name in path.split("."):
        if isinstance(part, Mapping):
            name = current_name(name, part) or name
            part = part.get(name)
        elif isinstance(part, list) and name.isdecimal() and int(name) < len(part):
            part = part[int(name)]
        names.append(name)
    return ".".join(names)


def _value_differences(name: str, was: Any, now: Any) -> Iterator[tuple[str, Any, Any]]:
    if isinstance(was, Mapping) and isinstance(now, Mapping):
        for key in was:
            today = current_name(key, now) or key
            yield from _value_differences(f"{name}.{today}".lstrip("."), was[key], now.get(today))
    elif _are_alike_lists(was, now):  # of phases, or of edits, each with its own settings
        for index, part in enumerate(was):
            yield from _value_differences(f"{name}.{index}", part, now[index])
    elif was == "partial" and name.endswith("protocol"):
        return  # earlier versions wrote a protocol with options without its function
    elif was != now:
        yield name, was, now


def _are_alike_lists(was: Any, now: Any) -> bool:
    """Whether both are lists of as many parts, of which some have settings."""
    are_lists = isinstance(was, list) and isinstance(now, list) and len(was) == len(now)
    return are_lists and any(isinstance(part, Mapping) for part in was)


def resolved_json(value: Any) -> Any:
    """Any part of a recipe as JSON: dataclasses by field, functions by name, task sources by their description."""
    saved: Any
    match value:
        case None | str() | int() | float() | bool():
            saved = value
        case Signal():
            saved = value.name
        case Recipe():
            names = [f.name for f in dataclasses.fields(value) if f.name not in ("description", "origin")]
            saved = {name: resolved_json(getattr(value, name)) for name in names}
        case _ if hasattr(value, "describe"):
            saved = resolved_json(value.describe())
        case _ if dataclasses.is_dataclass(value) and not isinstance(value, type):
            saved = _dataclass_json(value)
        case Mapping():
            saved = {str(key): resolved_json(part) for key, part in value.items()}
        case tuple() | list():
            saved = [resolved_json(part) for part in value]
        case _:
            name = getattr(value, "__qualname__", type(value).__name__)
            saved = name.replace(".<locals>.measure", "")  # measure_solver.<locals>.measure → measure_solver
    return saved


def _dataclass_json(value: Any) -> dict[str, Any]:
    """The name of a dataclass as "is", and its fields."""
    fields = {f.name: getattr(value, f.name) for f in dataclasses.fields(value) if f.init and f.repr}
    if isinstance(value, Phase | Evaluation):  # the options of a protocol are settings like any other
        fields |= {"protocol": bound_function(value.protocol), "options": value.options}
    return {"is": type(value).__name__, **{name: resolved_json(part) for name, part in fields.items()}}


def provenance_json(
    recipe: Recipe, weights: Mapping[str, str], threads: int, backend: Mapping[str, Any]
) -> dict[str, Any]:
    """Where and with what a run was made. Holds no environment variables, no paths of the home directory and nothing
    that looks like a key."""
    return {
        "packages": {name: _package_version(name) for name in PACKAGES},
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "command": redact.redact_command(sys.argv),
        "seed": recipe.seed,
        "begun": datetime.now().isoformat(timespec="seconds"),
        "threads": threads,
        "device": backend["device"],
        "backend": dict(backend),
        "weights": dict(weights),
    }


def _package_version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def estimates_json(figures: Mapping[str, Estimate]) -> dict[str, Any]:
    return {key: value.to_json() for key, value in figures.items()}


def sha256_of(path: Path) -> str:
    with open_regular(path) as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def weights_hash(model: str) -> str:
    """SHA-256 over the weight files of a local model; "" for a model of the Hub, whose revision is in its cache."""
    from cotrain.models.load import resolve_model  # imports transformers, which reading a run does not need

    folder = Path(resolve_model(model))
    files = sorted(folder.glob("*.safetensors")) if folder.is_dir() else []
    if not files:
        return ""
    return hashlib.sha256("".join(sha256_of(f) for f in files).encode()).hexdigest()


def check_same_async_steps(out: Path | str, async_steps: int | None) -> None:
    """Raise ConfigError where a run was begun with another policy lag than ``async_steps``; None: whatever it was."""
    saved = RunDirectory.open(out).read_recipe()
    if async_steps is not None and async_steps != saved.get("async_steps", 0):
        raise ConfigError(
            f"--async-steps {async_steps}: the run in {out} was begun with --async-steps "
            f"{saved.get('async_steps', 0)}, which its results depend on; leave it out",
            code="E_ASYNC_STEPS_CHANGED",
        )
