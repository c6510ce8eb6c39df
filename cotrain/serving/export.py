"""``cotrain export``: one policy of a run as a model directory, with a model card that says how it was trained.

A language model becomes a directory that ``transformers`` loads, a reward model one for its
``AutoModelForSequenceClassification``, an adapter one that ``peft`` loads on its base, or, merged into its base, one
that ``transformers`` loads. A model of nanochat also goes back there: a directory that nanochat's own loader reads.

The card takes its figures from the run's own summary and says against whom they were earned: a verifier's precision
means little without the generator that it was measured on. Left out: critics, which value every token and are no use
without their policy.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cotrain import __version__
from cotrain.config.names import policy_named
from cotrain.config.policies import Policy, Weights
from cotrain.config.recipe import Recipe
from cotrain.core.errors import ConfigError, ModelError, UnknownName
from cotrain.core.verbosity import count_of
from cotrain.distributed.local import LocalBackend
from cotrain.distributed.policy_handles import ModelHandle, PolicyHandle
from cotrain.models.names import hub_name_of
from cotrain.rollout.common_roles import how_taught, is_terse, keep_taught_roles, mark_terse_prompts
from cotrain.runs import manifest, opening
from cotrain.runs.changes import check_foreign_code, check_models_exist, update_model_path
from cotrain.runs.directory import RunDirectory
from cotrain.storage import checkpoints
from cotrain.storage.file_ops import REAL_FILES, Files, filled_directory, replace_file
from cotrain.storage.io_progress import MegabytePace, Say, WatchedFiles, directory_bytes, watch_growth
from cotrain.storage.kept_work import claimed_directory
from cotrain.storage.tensor_files import split_part_name
from cotrain.trainer.trainer import require_fields, state_fields

CARD = "README.md"
TRANSFORMERS = "transformers"
NANOCHAT = "nanochat"
FORMATS = (TRANSFORMERS, NANOCHAT)
ATTACK = "attack.json"  # written by ``cotrain attack``


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedPolicy:
    """One policy of a run, as the run's latest valid checkpoint has it."""

    recipe: Recipe
    handle: PolicyHandle  # the handle of this policy alone: no other model is loaded, no other file of tensors decoded
    finished: int  # steps
    tokens: int  # sampled in training, of all roles
    updates: Mapping[str, int]  # updates of every trained policy

    @property
    def weight_bytes(self) -> int:
        """Bytes of its weights, about."""
        weights = self.handle.model.parameters() if isinstance(self.handle, ModelHandle) else ()
        return sum(weight.numel() * weight.element_size() for weight in weights)


def export_policy(
    directory: Path | str,
    role: str,
    out: Path | str,
    *,
    merged: bool = False,
    to: str = TRANSFORMERS,
    model: str | None = None,
    say: Say = lambda text: None,
) -> Path:
    """Write the weights of a policy to the new directory ``out``, with its model card, and return that.

    Args:
        role: a role that the policy plays, or the policy's own name.
        merged: write the weights of an adapter within its base, as one plain model.
        to: whose format, one of ``FORMATS``. An adapter goes to nanochat within its base.
        model: where a model of the run was moved to (``runs/model_paths.py``).
        say: called with a line for a run that is not finished, and with lines about what takes long.

    Raises RunDirectoryError when ``out`` is not empty or another command writes to it, ConfigError for an unknown role
    or format, a policy that is a program or a critic, or one without an adapter that is to be ``merged``; ModelError
    for a model that nanochat does not have.
    """
    if to not in FORMATS:
        raise UnknownName("format", to, FORMATS)
    target = Path(out)
    with claimed_directory(target):
        if model is not None:
            check_foreign_code(directory)  # before anything of the run is changed
            update_model_path(directory, model)
        recipe = opening.recipe_of(directory)
        policy = policy_named(recipe, role)
        spec = recipe.policies[policy]
        _check_exportable(spec, policy, directory, merged=merged, to=to)

        exported = load_policy(directory, recipe, policy, say=say)
        if exported.handle.changes and _is_unfinished_run(directory):
            say(f"the run is not finished: {policy} is that after step {exported.finished}")
        with filled_directory(target) as folder:
            if to == NANOCHAT:
                _export_to_nanochat(exported, folder, merged=spec.lora is not None, policy=policy)
            else:
                with watch_growth(folder, exported.weight_bytes, f"{target}: {{}} MB written", say):
                    _export_to_transformers(exported, folder, merged=merged, policy=policy)
            card = model_card(exported, policy, RunDirectory(directory), merged=merged)
            replace_file(folder / CARD, card.encode())
    return target


def _is_unfinished_run(directory: Path | str) -> bool:
    """Whether this is a run, not a model, and has no result yet."""
    run = RunDirectory(directory)
    return run.read("recipe.json") is not None and run.read("summary.json") is None


def _check_exportable(spec: Policy, policy: str, directory: Path | str, *, merged: bool, to: str) -> None:
    """Raise ConfigError for a policy that is not exported, or not so."""
    if not (spec.generates or spec.scores):
        raise ConfigError(
            f"policy {policy!r} of {directory} is of kind {spec.kind!r}; only language models and reward models are "
            "exported",
            code="E_POLICY_NOT_EXPORTABLE",
        )
    if merged and spec.lora is None:
        raise ConfigError(
            f"policy {policy!r} of {directory} is no adapter, so nothing is to be merged; leave --merged out",
            code="E_MERGED_WITHOUT_ADAPTER",
        )
    if to == NANOCHAT and spec.scores:
        raise ConfigError(
            f"policy {policy!r} of {directory} is a reward model; nanochat has none, leave --to out",
            code="E_NANOCHAT_REWARD_MODEL",
        )
    if to == NANOCHAT:
        from cotrain.models.nanochat import check_can_write

        check_models_exist({policy: spec}, directory)
        with _nanochat_errors(policy):
            check_can_write(spec.model, trust_remote_code=getattr(spec, "trust_remote_code", False))


def _export_to_transformers(exported: ExportedPolicy, target: Path, *, merged: bool, policy: str) -> None:
    """Write a policy as a directory that transformers or peft loads, with how its roles were taught, so that later
    runs ask it alike."""
    recipe = exported.recipe
    exported.handle.save(target, merged=merged)
    if is_terse(recipe.policies[policy].model):
        mark_terse_prompts(target)
    taught_by_role = {}
    for name, role in recipe.roles.items():
        taught = how_taught(role)
        if role.policy == policy and taught is not None:
            taught_by_role[name] = taught
    keep_taught_roles(target, taught_by_role)


def _export_to_nanochat(exported: ExportedPolicy, target: Path, *, merged: bool, policy: str) -> None:
    """Write a policy as a base directory of nanochat."""
    from cotrain.models.nanochat import write_base_directory

    with tempfile.TemporaryDirectory(prefix="cotrain-export-") as folder:
        exported.handle.save(Path(folder), merged=merged)
        stage = "chatrl" if exported.finished else "chatsft"
        with _nanochat_errors(policy):
            write_base_directory(Path(folder), target, stage=stage, step=exported.finished)


@contextmanager
def _nanochat_errors(policy: str) -> Iterator[None]:
    """Name the policy in an error about what nanochat does not have."""
    try:
        yield
    except ModelError as error:
        raise ModelError(f"policy {policy!r} cannot go to nanochat: {error}", code=error.code) from error


def load_policy(directory: Path | str, recipe: Recipe, policy: str, *, say: Say = lambda text: None) -> ExportedPolicy:
    """Load one policy of a run as its newest checkpoint has it, or as the run begins where there is none; and how many
    updates every policy has had. Raises StateError for a checkpoint that does not fit."""
    check_models_exist({policy: recipe.policies[policy]}, directory)
    (handle,) = LocalBackend().open({policy: recipe.policies[policy]}, seed=recipe.seed).values()
    run = RunDirectory(directory)
    files = _watched_files(run, policy, say)
    saved = manifest.newest_checkpoint(run, files=files)
    if saved is None:
        return ExportedPolicy(recipe=recipe, handle=handle, finished=0, tokens=0, updates={})

    tensors, documents = saved.load(only=[policy], files=files)
    state = require_fields(documents["state"], state_fields(recipe), owner="run")
    policy_states = state["policies"]
    if handle.changes:
        handle.load(policy_states[policy], tensors[policy])
    updates = {name: saved["updates"] for name, saved in policy_states.items() if recipe.policies[name].is_trained}
    return ExportedPolicy(
        recipe=recipe, handle=handle, finished=int(state["finished"]), tokens=int(state["tokens"]), updates=updates
    )


def _watched_files(run: RunDirectory, policy: str, say: Say) -> Files:
    """Files that say how much of the newest checkpoint has been read: all of it once to verify it, and then the files
    of one policy to load them."""
    saved_steps = checkpoints.checkpoint_steps(run.checkpoints)
    if not saved_steps:
        return REAL_FILES
    newest = run.checkpoints / checkpoints.step_name(saved_steps[-1])
    policy_files = [file for file in newest.iterdir() if split_part_name(file.name).stem == policy]
    total = directory_bytes(newest) + sum(file.stat().st_size for file in policy_files)
    pace = MegabytePace(total, f"checkpoint of step {saved_steps[-1]}: {{}} MB read", say)
    return WatchedFiles(pace.add)


def model_card(exported: ExportedPolicy, policy: str, run: RunDirectory, *, merged: bool = False) -> str:
    """The model card, in the format of the Hub: YAML in front, then prose and tables."""
    recipe = exported.recipe
    spec = recipe.policies[policy]
    summary: Mapping[str, Any] = run.read("summary.json") or {}
    own_roles = [name for name, role in recipe.roles.items() if role.policy == policy]
    lines = [
        *_card_front(recipe, spec, merged=merged),
        *_card_opening(exported, policy, merged=merged),
        *_training_section(exported, policy),
        *_measured_section(summary, own_roles),
        *_attack_section(run, own_roles),
        *_weaknesses_section(summary),
        *_prompts_section(recipe, own_roles),
    ]
    return "\n".join(lines).rstrip() + "\n"


def _card_front(recipe: Recipe, spec: Policy, *, merged: bool) -> list[str]:
    """The YAML in front, by which the Hub files a model."""
    library = "peft" if _is_adapter(spec, merged=merged) else "transformers"
    task = "text-classification" if spec.scores else "text-generation"
    front = ["---", f"library_name: {library}", f"pipeline_tag: {task}"]
    base_name = _base_name(spec)
    if base_name:
        front.append(f"base_model: {base_name}")
    return [*front, "tags:", "- cotrain", f"- {json.dumps(recipe.name)}", "---"]


def _is_adapter(spec: Policy, *, merged: bool) -> bool:
    """Whether an adapter alone is exported."""
    return spec.lora is not None and not merged


def _base_name(spec: Policy) -> str | None:
    """The name of the policy's model on the Hub, where it says one."""
    return hub_name_of(spec.model) if isinstance(spec, Weights) else None


def _kind_of_model(spec: Policy, *, merged: bool) -> str:
    if spec.scores:
        return "A reward model (one score for a whole text)"
    if _is_adapter(spec, merged=merged):
        return "A LoRA adapter"
    return "A LoRA adapter within its base" if merged else "A causal language model"


def _card_opening(exported: ExportedPolicy, policy: str, *, merged: bool) -> list[str]:
    """The title, and one paragraph: what it is, what it began as, and how long it was trained."""
    recipe = exported.recipe
    spec = recipe.policies[policy]
    base_name = _base_name(spec)
    also_known_as = ""
    if base_name and not spec.model.startswith(base_name):
        also_known_as = f" (its config.json calls it `{base_name}`)"
    own_updates = count_of(exported.updates.get(policy, 0), "update")
    return [
        "",
        f"# {policy} of {recipe.name}",
        "",
        f"{_kind_of_model(spec, merged=merged)}, begun as `{spec.model}`{also_known_as}, {spec.kind}, after "
        f"{own_updates} of its own in {exported.finished} of {count_of(recipe.steps, 'step')} and "
        f"{exported.tokens:,} sampled tokens of all roles. Written by cotrain {__version__}.",
    ]


def _training_section(exported: ExportedPolicy, policy: str) -> list[str]:
    """All policies of the run, its problems, and how the recipe was called."""
    recipe = exported.recipe
    lines = [
        "",
        "## What it was trained with, and against",
        "",
        "| policy | kind | begun as | updates | plays |",
        "|---|---|---|---|---|",
    ]
    for name, other in recipe.policies.items():
        roles = ", ".join(r for r, role in recipe.roles.items() if role.policy == name) or "–"
        name_cell = f"**{name}**" if name == policy else name
        lines.append(f"| {name_cell} | {other.kind} | `{other.model}` | {exported.updates.get(name, 0)} | {roles} |")

    origin = recipe.origin
    target = recipe.name
    arguments = "a recipe built in Python"
    if origin is not None:
        target = origin.target
        arguments = json.dumps(dict(origin.arguments), ensure_ascii=False)
    return [
        *lines,
        "",
        f"Problems: `{json.dumps(recipe.tasks.describe(), ensure_ascii=False)}`, seed {recipe.seed}.",
        f"Recipe: `{target}` with `{arguments}`.",
    ]


def _measured_section(summary: Mapping[str, Any], own_roles: list[str]) -> list[str]:
    heading = ["", "## Measured on held-out problems", ""]
    if not summary:
        return [*heading, "The run is not finished; nothing was measured at its end."]
    return [*heading, *_figures_table(summary, own_roles)]


def _weaknesses_section(summary: Mapping[str, Any]) -> list[str]:
    """The alarms of the run, and what holds of every verifier."""
    alarms = summary.get("alarms") or []
    lines = [f"- {_alarm_text(alarm)}" for alarm in alarms]
    if not alarms and summary:
        lines = ["- No alarm of the run's health checks fired."]
    elif not alarms:
        lines = ["- Alarms are summed up at the end of the run."]
    return [
        "",
        "## Known weaknesses",
        "",
        *lines,
        "- A verifier's figures hold for solutions of the generator that it was trained with; on those of other models "
        "they may differ. `gap` is how much more often it says CORRECT than is true.",
    ]


def _prompts_section(recipe: Recipe, own_roles: list[str]) -> list[str]:
    """The prompts of the roles that the policy plays."""
    lines = ["", "## How to ask it", ""]
    for name in own_roles:
        role = recipe.roles[name]
        after_system = f" after the system message {role.system!r}" if role.system else ""
        lines += [f"As `{name}`, one user message{after_system}:", "", "```", role.prompt, "```", ""]
    return lines


def _figures_table(summary: Mapping[str, Any], roles: list[str]) -> list[str]:
    """Before and after of this policy's roles, then of the others, with 95 % intervals."""
    before, after = summary["before"], summary["after"]

    def own_roles_first(key: str) -> tuple[bool, str]:
        role, _, _ = key.partition("/")
        return role not in roles, key

    keys = sorted(after, key=own_roles_first)
    rows = [
        f"| {key} | {_estimate_text(before.get(key))} | {_estimate_text(after[key])} | {after[key]['n']} |"
        for key in keys
    ]
    return ["| figure | before | after | n |", "|---|---|---|---|", *rows]


def _attack_section(run: RunDirectory, roles: list[str]) -> list[str]:
    """The result of ``cotrain attack`` for one of these roles, if there is one."""
    attack: Any = run.read(ATTACK)
    if not attack or attack.get("role") not in roles:
        return []
    rows = [("unchanged", attack["ordinary"]), *((one["family"], one) for one in attack["families"])]
    return [
        "",
        "## Wrong solutions that try to fool it",
        "",
        f"Share that it called CORRECT as `{attack['role']}` after step {attack['step']}, of wrong solutions of "
        f"`{attack['solutions_of']}` with one of {attack['corpus']['strings']} strings in them, by family; unchanged "
        "is the same solutions without. Right answers with broken reasoning pass where it calls every step CORRECT.",
        "",
        "| family | false-positive rate | n |",
        "|---|---|---|",
        *(
            f"| {name} | {_estimate_text(row['false_positive_rate'])} | {row['asked'] - row['refused']} |"
            for name, row in rows
        ),
    ]


def _estimate_text(estimate: Mapping[str, Any] | None) -> str:
    if estimate is None or estimate["value"] is None:
        return "–"
    return f"{estimate['value']:.3f} [{estimate['low']:.3f}, {estimate['high']:.3f}]"


def _alarm_text(alarm: Any) -> str:
    """One line of an alarm as the summary holds it."""
    try:
        steps = f"step {alarm['step'] + 1}"
        if alarm["last"] != alarm["step"]:
            steps += f" to {alarm['last'] + 1}"
        reading = f"{alarm['key']}: {alarm['reading']}; healthy: {alarm['healthy']}"
        return f"{alarm['band']}, after {steps} ({reading}). {alarm['advice']}"
    except (KeyError, TypeError):
        return json.dumps(alarm)
