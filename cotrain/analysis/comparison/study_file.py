"""A study as it is written down before it is run: a TOML file with a hypothesis, arms, a measure, seeds and a gate.

::

    hypothesis = "Step rewards of an oracle help more the longer the problems are."
    measure = "solver/greedy"            # what verdicts and gate are about, and rates are chosen by
    model = "shipped"                   # for every arm
    seeds = 5
    equal = "flops"                      # and batches, budget, first_seed, rates, rate_seeds, evaluate_every,
                                         # overrides, threads, checkpoint_every: as of `cotrain compare`
    out = "runs/studies/ceiling"

    [arms.grpo]                          # the first arm is the reference
    recipe = "grpo"                      # every other key is a parameter of the recipe, but for
    overrides = ["roles.solver.sampling.max_tokens=64"] # for this arm alone
    [arms.oracle]
    recipe = "grpo"
    steps_judged_by = "oracle"

    [parts."4 steps"]                    # each part is a comparison of all arms; a key of it replaces that of the
    operations = [4, 4]                  # study, overrides are added. Without parts there is one

    [gate]                               # is run first; when it does not hold, nothing else is
    part = "4 steps"
    arm = "oracle"
    minus = "grpo"                       # left out: the arm's own figure
    at_least = 0.05                      # or at_most, or both; ``at = "start"`` looks before training, ``at = "gain"``
                                         # at the end minus the start of one arm
    seeds = 1                            # left out: all of the study's

The file is committed before it runs, and git is asked: what was expected cannot be written afterwards.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cotrain.analysis.comparison.arms import SET_BY_COMPARISON, Arm, distinct_arms, make_arm
from cotrain.analysis.comparison.plan import ComparisonPlan
from cotrain.config.registry import find_recipe
from cotrain.core.arguments import fits_hint, hints_of, kind_of
from cotrain.core.errors import ConfigError, DataError, UnknownName, UserError
from cotrain.core.input_files import MOST_HANDWRITTEN, content_of_file, read_toml
from cotrain.core.nearest_names import nearest_name
from cotrain.reports.compare_words import slug_of

STUDY_KEYS = ("hypothesis", "measure", "model", "out", "arms", "parts", "gate")
NOT_OF_PARTS = ("arms", "out", "measure", "workers", "device", "changed_code")  # those of the study, or of its command
PART_KEYS = tuple(field.name for field in dataclasses.fields(ComparisonPlan) if field.name not in NOT_OF_PARTS)
ARM_KEYS = ("recipe", "overrides")  # of an arm; the others are parameters of its recipe
# Parameters that an arm may not set → what sets them, as errors name it.
SET_BY_STUDY = {name: f"the study's key {name}" for name in SET_BY_COMPARISON}
SET_BY_STUDY |= {
    "seed": "the study's key seeds",
    "steps": "the study's key batches",
    "evaluation_tasks": 'overrides = ["evaluation.tasks=N"] above the arms',
    "tasks": "the study's keys tasks and data",
    "device": "--device of `cotrain study`",
}
GATE_PLACES = ("start", "end", "gain")
SINGLE_PART = "all"  # the part of a study without parts


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """A condition for running the rest: a figure, or a difference of two arms, within limits."""

    part: str
    arm: str
    minus: str | None = None
    measure: str
    at: str = "end"  # or "start", or "gain": the end minus the start
    seeds: int | None = None  # so many, the first ones; None: all of the part's
    at_least: float | None = None
    at_most: float | None = None

    def in_words(self) -> str:
        figure = f"{self.arm} minus {self.minus}" if self.minus else self.arm
        place = "gain over the start" if self.at == "gain" else f"at the {self.at}"
        limits = []
        if self.at_least is not None:
            limits.append(f"at least {self.at_least:g}")
        if self.at_most is not None:
            limits.append(f"at most {self.at_most:g}")
        return f"{figure}, {self.measure} {place} of {self.part!r}: {' and '.join(limits)}"

    def holds(self, value: float) -> bool:
        is_high_enough = self.at_least is None or value >= self.at_least
        is_low_enough = self.at_most is None or value <= self.at_most
        return is_high_enough and is_low_enough


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """A study file, read."""

    path: Path
    sha256: str  # hash of the file
    settings: Mapping[str, str]  # what the file says: a digest of each setting, by its dotted name ("arms.grpo.recipe")
    hypothesis: str
    measure: str
    out: Path
    parts: Mapping[str, ComparisonPlan]  # in the order of the file
    gate: Gate | None


def read_study(path: Path, *, workers: int | None = None, device: str = "cpu", changed_code: bool = False) -> Study:
    """Read and check a study file. Raises ConfigError and UnknownName, one line each."""
    try:
        table = read_toml(path)
        content = content_of_file(path, MOST_HANDWRITTEN)
    except DataError as error:
        raise ConfigError(f"{error}; expected TOML: the file of a study", code=error.code) from error
    for key in table:
        if key not in (*STUDY_KEYS, *PART_KEYS):
            raise UnknownName(f"key of study {path.name}", key, (*STUDY_KEYS, *PART_KEYS))
    missing = [key for key in ("hypothesis", "measure", "seeds", "out", "arms") if not table.get(key)]
    if missing:
        raise ConfigError(
            f"{path}: {missing[0]} is missing; a study says what is expected, of what, and how it is measured",
            code="E_STUDY_KEY_MISSING",
        )
    out = Path(_require_type(path, "out", table["out"], str))
    arm_tables = _require_table(path, "arms", table["arms"], "[arms.grpo]")
    arms = tuple(distinct_arms([_read_arm(path, name, spec, table.get("model")) for name, spec in arm_tables.items()]))
    common = {key: table[key] for key in PART_KEYS if key in table}  # keys of every part
    fixed = {  # what no part can change
        "arms": arms,
        "measure": _require_type(path, "measure", table["measure"], str),
        "workers": workers,
        "changed_code": changed_code,
        "device": device,
    }
    part_tables: Mapping[str, Any] = {SINGLE_PART: {}}
    if table.get("parts"):
        part_tables = _require_table(path, "parts", table["parts"], '[parts."4 steps"]')
    for name in part_tables:
        alike = [other for other in part_tables if slug_of(other) == slug_of(name)]
        if len(alike) > 1 or not slug_of(name).strip("."):
            raise ConfigError(
                f"{path}: {' and '.join(map(repr, alike))} cannot be directories of parts; rename one",
                code="E_STUDY_PARTS_ALIKE",
            )
    parts = {}
    for name, part in part_tables.items():
        parts[name] = _read_plan(path, common, part, fixed, out / slug_of(name))
    return Study(
        path=path,
        sha256=hashlib.sha256(content).hexdigest(),
        settings=setting_digests(table),
        hypothesis=_require_type(path, "hypothesis", table["hypothesis"], str),
        measure=fixed["measure"],
        out=out,
        parts=parts,
        gate=_read_gate(path, table["gate"], parts, table["measure"]) if "gate" in table else None,
    )


def setting_digests(table: Mapping[str, Any]) -> dict[str, str]:
    """A digest of each setting of a study file, by its dotted name, and of the order of its tables: the first arm is
    the reference. Comments and blanks are in none of them."""
    digests = {}
    for name, value in _leaves(table, ""):
        shown = json.dumps(value, sort_keys=True, default=str)
        digests[name] = hashlib.sha256(shown.encode()).hexdigest()[:16]
    return digests


def _leaves(table: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    """Dotted names and values; of arms and parts also their order."""
    tables = [key for key, value in table.items() if isinstance(value, Mapping)]
    if prefix and tables:
        yield f"order of {prefix.rstrip('.')}", tables
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _read_arm(path: Path, name: str, spec: Any, model: Any) -> Arm:
    if not isinstance(spec, Mapping) or not isinstance(spec.get("recipe"), str):
        mistyped = nearest_name("recipe", spec) if isinstance(spec, Mapping) else None
        instead = f", but {mistyped!r}" if mistyped else ""
        raise ConfigError(
            f'{path}: arm {name!r} has no recipe{instead}; write recipe = "grpo" below [arms.{name}]',
            code="E_STUDY_ARM",
        )
    overrides = spec.get("overrides", [])
    if not isinstance(overrides, list) or not all(isinstance(one, str) for one in overrides):
        raise ConfigError(
            f'{path}: arm {name!r}: overrides is {overrides!r:.80}; expected a list of "dotted.path=value"',
            code="E_STUDY_ARM",
        )
    arguments = {}
    if model is not None:
        arguments["model"] = model
    for key, value in spec.items():
        if key not in ARM_KEYS:
            _check_parameter_key(path, name, spec["recipe"], key)
            arguments[key] = _as_tuple(value)
    return make_arm(name, spec["recipe"], arguments, overrides, set_by=SET_BY_STUDY)


def _check_parameter_key(path: Path, arm: str, recipe: str, key: str) -> None:
    """Raise UnknownName for a key of an arm that is no parameter of its recipe and is meant to be another key."""
    try:
        parameters = find_recipe(recipe).parameters
    except UserError:
        return  # the arm's recipe is refused when it is built
    if key not in parameters and nearest_name(key, [*parameters, *ARM_KEYS]) in ARM_KEYS:
        raise UnknownName(f"key of arm {arm!r} of study {path.name}", key, [*parameters, *ARM_KEYS])


def _as_tuple(value: Any) -> Any:
    """A list of TOML as the tuple that settings have; any other value as it is."""
    return tuple(value) if isinstance(value, list) else value


def _read_plan(path: Path, common: Mapping[str, Any], part: Any, fixed: Mapping[str, Any], out: Path) -> ComparisonPlan:
    if not isinstance(part, Mapping):
        raise ConfigError(
            f'{path}: a part is a table, as in [parts."4 steps"]; found {part!r:.80}', code="E_STUDY_NOT_TABLE"
        )
    for key in part:
        if key not in PART_KEYS:
            raise UnknownName(f"key of a part of study {path.name}", key, PART_KEYS)
    hints = hints_of(ComparisonPlan)

    def typed_values(table: Mapping[str, Any]) -> dict[str, Any]:
        return {key: _require_type(path, key, _as_tuple(value), hints[key]) for key, value in table.items()}

    values_of_all = typed_values(common)
    values_of_part = typed_values(part)
    values = {**values_of_all, **values_of_part}
    values["overrides"] = (*values_of_all.get("overrides", ()), *values_of_part.get("overrides", ()))
    return ComparisonPlan(**values, **fixed, out=out)


def _read_gate(path: Path, spec: Any, parts: Mapping[str, ComparisonPlan], measure: str) -> Gate:
    names = [f.name for f in dataclasses.fields(Gate)]
    if not isinstance(spec, Mapping):
        raise ConfigError(f"{path}: gate is {spec!r:.80}; expected a table [gate]", code="E_STUDY_NOT_TABLE")
    for key in spec:
        if key not in names:
            raise UnknownName(f"key of the gate of {path.name}", key, names)
    first_part = next(iter(parts))
    values = {"part": first_part, "measure": measure, "arm": "", **spec}  # "" is no arm, which is said below
    hints = hints_of(Gate)
    gate = Gate(**{key: _require_type(path, f"gate.{key}", value, hints[key]) for key, value in values.items()})
    if gate.part not in parts:
        raise UnknownName(f"part of the gate of {path.name}", gate.part, list(parts))
    arms = [arm.label for arm in parts[first_part].arms]  # all parts have the same
    for arm in (gate.arm, gate.minus):
        if arm is not None and arm not in arms:
            raise UnknownName(f"arm of the gate of {path.name}", arm, arms)
    if gate.at not in GATE_PLACES:
        raise UnknownName(f"at of the gate of {path.name}", gate.at, GATE_PLACES)
    if gate.at == "gain" and gate.minus is not None:
        raise ConfigError(
            f'{path}: the gate has at = "gain" and minus; a gain is that of one arm, leave out minus',
            code="E_STUDY_GATE",
        )
    if gate.seeds is not None and not 1 <= gate.seeds <= parts[gate.part].seeds:
        raise ConfigError(
            f"{path}: gate.seeds is {gate.seeds}; expected 1 to {parts[gate.part].seeds}", code="E_STUDY_GATE"
        )
    if gate.at_least is None and gate.at_most is None:
        raise ConfigError(f"{path}: the gate has no limit; write at_least = 0.05 or at_most = …", code="E_STUDY_GATE")
    return gate


def _require_type(path: Path, key: str, value: Any, hint: Any) -> Any:
    if not fits_hint(value, hint):
        raise ConfigError(f"{path}: {key} is {value!r:.80}; expected {kind_of(hint)}", code="E_STUDY_VALUE")
    return value


def _require_table(path: Path, key: str, value: Any, example: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ConfigError(f"{path}: {key} is {value!r:.80}; expected tables, as in {example}", code="E_STUDY_NOT_TABLE")
    return value


GIT_WAIT = 300.0  # seconds for one answer of git: it reads the whole history, perhaps on a busy machine


class GitSilent(Exception):
    """Git gave no answer in time."""


def git_status(path: Path) -> dict[str, Any]:
    """Return the state of a file in git: ``{"committed", "commit", "words"}``. ``committed`` is True where the newest
    commit has the same content, under whatever name, and ``commit`` is then the first that had it. Where git does not
    answer in time, it is neither."""
    try:
        return _ask_git(path)
    except GitSilent:
        words = f"git gave no answer in {GIT_WAIT:g} s, so nobody can say whether it was committed"
        return {"committed": False, "commit": None, "words": words}


def _ask_git(path: Path) -> dict[str, Any]:
    if _run_git(path, "rev-parse", "--is-inside-work-tree") != "true":
        return {
            "committed": False,
            "commit": None,
            "words": "no git repository here, so nobody can say that it was committed",
        }

    # The file by its content: the newest commit may have it under another name.
    blob = _run_git(path, "hash-object", path.name)
    lines_of_head = (_run_git(path, "ls-tree", "-r", "--full-tree", "HEAD") or "").splitlines()
    in_head = any(line.split()[2] == blob for line in lines_of_head)  # mode, type, hash, name
    log = None
    if in_head:
        log = _run_git(path, "log", "--reverse", "--format=%H %cs", f"--find-object={blob}")
    if log:
        commit, _, date = log.splitlines()[0].partition(" ")
        words = f"git says that it was committed in {commit[:12]} ({date}) and unchanged when the study began"
        return {"committed": True, "commit": commit, "words": words}
    last = _run_git(path, "log", "-1", "--format=%H %cs", "--", path.name)
    if not last:
        return {"committed": False, "commit": None, "words": "git says that it was never committed"}
    commit, _, date = last.partition(" ")
    words = f"git says that it was changed since commit {commit[:12]} ({date})"
    return {"committed": False, "commit": commit, "words": words}


def _run_git(path: Path, *words: str) -> str | None:
    """Return the output of a git command; None where it fails or there is no git. Raises GitSilent where it does not
    answer."""
    command = ["git", "-C", str(path.resolve().parent), *words]
    try:
        finished = subprocess.run(command, capture_output=True, text=True, timeout=GIT_WAIT, check=False)
    except subprocess.TimeoutExpired as error:
        raise GitSilent from error
    except OSError:
        return None
    return finished.stdout.strip() if finished.returncode == 0 else None
