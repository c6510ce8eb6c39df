"""Whether a run fits: problems into the model's context, weights that are laid out for decoding into the memory,
models to the engine, and settings into the run's length.

Problems whose prompt leaves no room in the model's context for an answer are found and set aside.

Such an episode fails with the reason "prompt too long" (``rollout/runner.py``); here they are named. Of a finite
source the prompts of roles that are shown the problem alone are looked at before the first step, as many as a moment's
time allows. Of prompts that hold what other roles say nobody knows the length beforehand, but a bound: what these may
sample. Left out: texts of others under further names than ``OTHERS_FIELDS``, as a search's findings.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from cotrain.algorithms.policy_gradient import PolicyGradient
from cotrain.algorithms.samples import weight_at
from cotrain.config.large_model_defaults import PACKED_FROM, are_small
from cotrain.config.names import max_tokens_flag
from cotrain.config.policies import DEFAULT_LR_WARMUP, Learning, Snapshot, Weights, samples_in_int8
from cotrain.config.recipe import Recipe
from cotrain.core.errors import ConfigError, TooLong
from cotrain.core.signals import STEP
from cotrain.core.types import UNLABELLED, TaskSource, has_split
from cotrain.core.verbosity import count_of
from cotrain.distributed.local import device_of, resolve_device
from cotrain.inference.contract import ContextLimitedEngine
from cotrain.models.load import report_model_errors
from cotrain.models.sizes import parameter_count
from cotrain.prompts.chat_template import Message
from cotrain.prompts.templates import OTHERS_FIELDS, fields_of, fill_template
from cotrain.rollout.common_roles import is_terse
from cotrain.rollout.role import Role
from cotrain.trainer.trainer import CoTrainer

SECONDS = 3.0  # the most that looking at problems takes
NAMED = 3  # problems that a line names
LOOKED_AT = 64  # problems whose length stands for that of all
TRIED_PARAMETERS = 150_000_000  # the largest model that a dry run loads, to see whether it can be sampled from


def too_long_notes(trainer: CoTrainer) -> Iterator[str]:
    """A line for each split and role of which problems do not fit; none for an engine that does not say what fits.
    Raises TooLong where no problem for training does."""
    until = time.monotonic() + SECONDS
    engine = trainer.engine
    if not isinstance(engine, ContextLimitedEngine):
        return
    recipe = trainer.recipe
    # Roles that are shown the problem alone, and that models of this run have: programs have no context.
    contexts = {
        name: engine.context(role.policy)
        for name, role in recipe.roles.items()
        if fields_of(role.prompt) == {"problem"} and _has_context(trainer, role)
    }
    for split in dict.fromkeys(["train", UNLABELLED, "test", "validation", *recipe.evaluation.splits]):
        size = _finite_size(recipe.tasks, split)
        looked, misfits = _find_misfits(trainer, split, size, contexts, until=until)
        for name, lengths in misfits.items():
            named = ", ".join(list(lengths)[:NAMED]) + (", …" if len(lengths) > NAMED else "")
            line = (
                f"{len(lengths)} of {looked} problems of {split} do not fit role {name!r}: prompts of up to "
                f"{max(lengths.values())} tokens and max_tokens {recipe.roles[name].sampling.max_tokens} exceed the "
                f"context of {contexts[name]} ({named})"
            )
            if split == "train" and len(lengths) == size:
                raise TooLong(f"{line}; lower it with {max_tokens_flag(name)}, or take a model with a longer context")
            yield f"note: {line}; they are set aside"


def _finite_size(tasks: TaskSource, split: str) -> int:
    """Problems of a split; 0 for one that there is not, and for one without an end."""
    if not has_split(tasks, split):
        return 0
    return tasks.size(split) or 0


def _find_misfits(
    trainer: CoTrainer, split: str, size: int, contexts: Mapping[str, int], *, until: float
) -> tuple[int, dict[str, dict[str, int]]]:
    """How many of a split's problems were looked at before ``until``; and those that do not fit the context of a role:
    role → problem → tokens of its prompt."""
    recipe = trainer.recipe
    misfits: dict[str, dict[str, int]] = {}
    looked = 0
    while looked < size and time.monotonic() < until:
        task = recipe.tasks.get(split, looked)
        looked += 1
        for name, context in contexts.items():
            length = _prompt_length(trainer, name, task.prompt)
            if length + recipe.roles[name].sampling.max_tokens > context:
                misfits.setdefault(name, {})[task.id] = length
    in_order = {name: misfits[name] for name in contexts if name in misfits}
    return looked, in_order


def crowded_notes(trainer: CoTrainer) -> Iterator[str]:
    """A line for each role whose context may not hold what it is shown of others: the longest problem, what they may
    sample, and its own answer."""
    engine = trainer.engine
    if not isinstance(engine, ContextLimitedEngine):
        return
    tasks = trainer.recipe.tasks
    models = {name: role for name, role in trainer.recipe.roles.items() if _has_context(trainer, role)}
    size = tasks.size("train")
    count = LOOKED_AT if size is None else min(size, LOOKED_AT)
    problems = [tasks.get("train", index).prompt for index in range(count)]
    for name, role in models.items():
        shown = sorted(fields_of(role.prompt) & OTHERS_FIELDS)
        if not shown or not problems:
            continue
        asked = max(_prompt_length(trainer, name, problem) for problem in problems)
        writers = {field: _longest_writer(field, name, models) for field in shown}
        texts = {field: models[writer].sampling.max_tokens for field, writer in writers.items()}
        most = role.sampling.max_tokens
        context = engine.context(role.policy)
        if asked + sum(texts.values()) + most > context:
            listed = ", ".join(f"a {field} of up to {tokens}" for field, tokens in texts.items())
            yield (
                f"note: role {name!r} may not be able to read all that it is shown: a prompt of up to {asked} tokens, "
                f"{listed}, and max_tokens {most} exceed its context of {context}; what does not fit is left out, and "
                f"counted as {name}/failed; lower --set roles.{writers[shown[0]]}.sampling.max_tokens=N, or take a "
                "model with a longer context"
            )


MOST_COUNTED = 10_000  # steps of the longest run whose length is compared with its settings: others end by a budget


def idle_setting_notes(recipe: Recipe, *, keep_every: int = 0) -> list[str]:
    """A line for each setting that never takes effect. Such a run is not refused."""
    notes = _step_weight_notes(recipe)
    if recipe.max_steps <= MOST_COUNTED:
        notes += _too_short_notes(recipe, keep_every)
    return [f"note: {note}" for note in notes]


def _step_weight_notes(recipe: Recipe) -> list[str]:
    """Of step rewards that nobody gives, while the outcome still leaves them a share of the advantage."""
    notes = []
    for name, objective in recipe.objectives.items():
        algorithm = objective.algorithm
        if not isinstance(algorithm, PolicyGradient) or algorithm.advantage_mix != "convex":
            continue
        if STEP not in algorithm.reward_weights:
            continue
        phases = [phase for phase in recipe.schedule.phases if name in phase.objectives]
        if all(phase.options.get("step_rewards") == "none" for phase in phases):
            share = weight_at(algorithm.reward_weights[STEP], 0, 1)
            notes.append(
                f"{name} gets no step rewards, and its outcome still leaves them the share alpha of the advantage, "
                f"{share:g} at the start; --advantage-mix add gives the outcome all of it"
            )
    return notes


def _too_short_notes(recipe: Recipe, keep_every: int) -> list[str]:
    """Of settings that take effect after the end of the run, which may be made longer later. A warm-up that nobody has
    chosen is passed over; a trial of few steps does not reach its end."""
    steps = recipe.max_steps
    notes = _phase_notes(recipe, steps)
    for name, policy in recipe.policies.items():
        if isinstance(policy, Learning):
            notes += _learning_notes(recipe, name, policy, steps)
        if isinstance(policy, Snapshot):
            notes += _snapshot_notes(recipe, name, policy, steps)
    # In a run of so many updates of its leading policy, the steps between two evaluations are those that train it.
    counted_steps = steps if recipe.updates is None else recipe.updates
    if recipe.evaluate_every > counted_steps:
        notes.append(
            f"evaluate_every is {recipe.evaluate_every}, and the run lasts {count_of(counted_steps, 'step')}: "
            "validation problems are measured at the start and at the end alone"
        )
    if keep_every > steps:
        notes.append(
            f"keep_every is {keep_every}, and the run lasts {count_of(steps, 'step')}: the newest checkpoints "
            "alone are kept"
        )
    return notes


def _phase_notes(recipe: Recipe, steps: int) -> list[str]:
    """Of phases whose turn comes after the last step. Objectives that no other phase trains are refused
    (``check_due``)."""
    first_steps: dict[str, int] = {}  # phase → its first step, from 0
    step = 0
    for name, length in recipe.schedule.warmup:
        if length > 0:
            first_steps.setdefault(name, step)
        step += length
    for name in recipe.schedule.cycle:
        first_steps.setdefault(name, step)
        step += 1
    return [
        f"phase {name!r} begins with step {first + 1}, and the run lasts {count_of(steps, 'step')}: it is never run"
        for name, first in first_steps.items()
        if first >= steps
    ]


def _learning_notes(recipe: Recipe, name: str, policy: Learning, steps: int) -> list[str]:
    """Of a learning rate that does not reach its value, or is 0 before the end; of an iteration without an end."""
    updates = recipe.planned_updates(name, steps)
    notes = []
    longest_iteration = updates
    if policy.reset_every:
        longest_iteration = min(updates, policy.reset_every)
    if policy.lr_warmup > longest_iteration and policy.lr_warmup != DEFAULT_LR_WARMUP:
        share = longest_iteration / policy.lr_warmup
        within = " in an iteration" if longest_iteration < updates else ""
        notes.append(
            f"policies.{name}.lr_warmup is {policy.lr_warmup}, and {name} gets {count_of(longest_iteration, 'update')}"
            f"{within}: its learning rate rises to {share:.0%} of its value; lower --lr-warmup, or raise --steps"
        )
    if policy.reset_every > updates:
        notes.append(
            f"policies.{name}.reset_every is {policy.reset_every}, and {name} gets {count_of(updates, 'update')}: its "
            "first iteration does not end"
        )
    ends_early = recipe.horizon is not None and recipe.planned_updates(name, recipe.horizon) < updates
    if policy.lr_decay != "constant" and ends_early:
        notes.append(
            f"policies.{name}.lr_decay ends after {count_of(recipe.horizon or 0, 'step')} (horizon), and the run lasts "
            f"{steps}: its learning rate is 0 from there on; raise --set horizon, or lower --steps"
        )
    return notes


def _snapshot_notes(recipe: Recipe, name: str, policy: Snapshot, steps: int) -> list[str]:
    """Of earlier weights that are never taken: the first snapshot is that of update ``first``, or of ``every``."""
    setting = "first" if policy.first else "every"
    first_taken = policy.first or policy.every
    updates = recipe.planned_updates(policy.of, steps)
    if first_taken < updates:
        return []
    return [
        f"policies.{name}.{setting} is {first_taken}, and {policy.of} gets {count_of(updates, 'update')}: {name} keeps "
        "its first weights"
    ]


def _has_context(trainer: CoTrainer, role: Role) -> bool:
    """Whether a role is played by a model of this run: programs have no context, and that of a server is unknown."""
    return role.policy in trainer.policies.renderers and bool(trainer.policies[role.policy].spec.head)


def _longest_writer(field: str, reader: str, models: Mapping[str, Role]) -> str:
    """Whose text may be the longest that a role is shown under this name: a review is written by whoever is shown a
    solution, and a solution by whoever is not. ``models``: the roles that are no programs, whose texts are given."""
    is_review = field == "review"
    limits = {}
    for name, role in models.items():
        reads_others = bool(fields_of(role.prompt) & OTHERS_FIELDS)
        if name != reader and reads_others == is_review:
            limits[name] = role.sampling.max_tokens
    return max(limits, key=lambda name: limits[name], default=reader)


def check_decoding(recipe: Recipe) -> None:
    """Raise ModelError where the engine of this process cannot sample from a model that a policy speaks with: of small
    ones that are here by trying, as the run does, of others as far as their configuration tells."""
    from transformers import AutoConfig

    from cotrain.inference.scheduler import Scheduler, model_limits
    from cotrain.models.load import load_model, resolve_model

    for name, spec in recipe.policies.items():
        if not isinstance(spec, Weights) or not spec.generates or spec.trust_remote_code or is_terse(spec.model):
            continue
        directory = resolve_model(spec.model)
        if not isinstance(directory, Path):
            continue  # it would have to be fetched first
        with report_model_errors(f"model {spec.model!r}", "config.json "):
            config: Any = AutoConfig.from_pretrained(directory, trust_remote_code=False)
        model_limits(name, config)
        size = parameter_count(spec.model)
        if size is not None and size <= TRIED_PARAMETERS:
            Scheduler(name, load_model(spec.model)[0], max_rows=2, autocast=None)


def _prompt_length(trainer: CoTrainer, name: str, problem: str) -> int:
    """Tokens of a role's prompt with this problem, and nothing in its other fields."""
    role = trainer.recipe.roles[name]
    said = [] if role.system is None else [Message("system", role.system)]
    fields = {field: problem if field == "problem" else "" for field in fields_of(role.prompt)}
    said.append(Message("user", fill_template(role.prompt, **fields)))
    return len(trainer.policies.renderers[role.policy].render(said))


def with_packing(recipe: Recipe, backend: Mapping[str, Any]) -> tuple[Recipe, list[str]]:
    """``choose_packing``, where a model is not small: nothing is measured for the others. Raises ConfigError for int8
    weights where they cannot be, or where nobody samples from them."""
    _check_int8(recipe, backend)
    if are_small((s.model for s in recipe.policies.values() if s.generates), unknown=True, least=PACKED_FROM):
        return recipe, []
    from cotrain.runs.memory_plan import choose_packing

    return choose_packing(recipe, backend)


def _check_int8(recipe: Recipe, backend: Mapping[str, Any]) -> None:
    """Raise ConfigError for a policy with int8 weights that another engine or device samples, or that has no role."""
    speaking = {role.policy for role in recipe.roles.values()}
    for name, spec in recipe.policies.items():
        if not samples_in_int8(spec):
            continue
        device = device_of(spec, resolve_device(backend["device"]))
        problem = ""
        if backend.get("engine") == "vllm":
            problem = "vLLM samples from weights of its own"
        elif device != "cpu":
            problem = f"it samples on {device}"
        elif name not in speaking:
            problem = "no role is played by it, so that nothing is sampled"
        if problem:
            raise ConfigError(
                f"policies.{name}.pack_weights=int8: {problem}; int8 weights are for answers of the local engine on a "
                "CPU; leave it out",
                code="E_EIGHT_BIT_PLACE",
            )
