"""``--dry-run``: an estimate of the memory and disk that a run will need.

Models are opened as far as that costs nothing: config.json, the headers of the safetensors files, the tokenizer; data
as far as a run looks at once. The parts are sums of sizes:

::

    weights      parameters × 4 bytes (2 in bfloat16), once for policies that share them
    optimiser    two moments of each trained parameter, and while an update is made its gradient
    cache        keys and values: rows × longest answer × 3/2, and prompts (``engine/cache.py``)
    activations  what the backward pass of ``micro_tokens`` tokens reads, about 10 · hidden + 4 · inner + 4 · key widths
    a layer
    logits       of the sampler, rows × vocabulary; of the learner at most 2²⁶ at once, three times
    checkpoints  weights and moments of each policy that changes, for two of them and the one that is being written

Several processes (``--backend ray``) are estimated by ``processes.py``, each by the same sums.

Left out: the ledger, whose size nobody knows before; processes that grade; what an allocator keeps. How near this comes
stands in docs/memory.md.
"""

from __future__ import annotations

import math
import os
import resource
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cotrain.config.policies import FollowerPolicy, Learning, Weights
from cotrain.config.recipe import Recipe, check_problems
from cotrain.core.errors import DataError
from cotrain.core.types import Task
from cotrain.models.sizes import ModelSize, model_size
from cotrain.preflight.formats import probe_tasks
from cotrain.rollout.role import Role
from cotrain.text.prompts import fields_of, fill_template

LOGITS_SLICE = 2**26  # logits of the learner at once
CHECKPOINTS_HELD = 3  # checkpoints: two that are kept, and one that is being written
FLOAT_BYTES = 4  # bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessMemory:
    """What one of several processes holds (``processes.py``). Sizes in bytes."""

    what: str  # as messages name it
    memory: Mapping[str, float]  # part → bytes, on its device
    beside: Mapping[str, float]  # part → bytes, of its machine's own memory
    gpus: float = 0.0  # that Ray gives it

    def memory_line(self, device: str) -> str:
        """For people."""
        where = self.beside if device == "cpu" else {}
        parts = {**self.memory, **where}
        parts_text = ", ".join(f"{name} {bytes_text(value)}" for name, value in parts.items())
        line = f"memory of {self.what}, estimated: {bytes_text(sum(parts.values()))} ({parts_text})"
        if device == "cpu":
            return line
        return f"{line} on {device}, {bytes_text(sum(self.beside.values()))} of its machine's"

    def to_json(self) -> dict[str, Any]:
        return {
            "what": self.what,
            "gpus": self.gpus,
            "memory": {name: round(value) for name, value in self.memory.items()},
            "beside": {name: round(value) for name, value in self.beside.items()},
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEstimate:
    """What was seen of models and data. Sizes in bytes."""

    device: str
    memory: Mapping[str, float]  # part → bytes
    checkpoint: float  # one
    models: Mapping[str, str]  # policy → what it is
    problems: str  # what the data holds
    prompts: Mapping[
        str, int
    ]  # role → tokens of the longest prompt that was looked at, with what other roles may write in it
    shapes: Mapping[str, ModelSize]  # name of a model → what its files say
    processes: tuple[ProcessMemory, ...] = ()  # of --backend ray, which then hold all of it

    @property
    def total_memory(self) -> float:
        return sum(self.memory.values())

    @property
    def largest_model(self) -> int:
        """Parameters of the largest model."""
        return max((shape.parameters for shape in self.shapes.values()), default=0)

    def with_settings_of(self, recipe: Recipe) -> RunEstimate:
        """The same models and data with other settings of memory; nothing is opened."""
        return replace(self, memory=_memory_parts(recipe, self.shapes, self.prompts, self.device))

    def summary_lines(self) -> list[str]:
        """For people."""
        lines = [f"problems: {self.problems}", *(f"policy {name}: {what}" for name, what in self.models.items())]
        lines += [f"role {name}: prompts of up to {length} tokens" for name, length in self.prompts.items()]
        if self.processes:
            lines += [process.memory_line(self.device) for process in self.processes]
        else:
            parts = ", ".join(f"{name} {bytes_text(value)}" for name, value in self.memory.items())
            lines.append(f"memory on {self.device}, estimated: {bytes_text(self.total_memory)} ({parts})")
        lines.append(
            f"disk, estimated: {bytes_text(CHECKPOINTS_HELD * self.checkpoint)} for checkpoints of "
            f"{bytes_text(self.checkpoint)} each"
        )
        return lines

    def to_json(self) -> dict[str, Any]:
        return {
            "device": self.device,
            "memory": {name: round(value) for name, value in self.memory.items()} | {"total": round(self.total_memory)},
            **({"processes": [process.to_json() for process in self.processes]} if self.processes else {}),
            "checkpoint": round(self.checkpoint),
        }


ProcessSplitter = Callable[[Recipe, Mapping[str, ModelSize], Mapping[str, int]], tuple[ProcessMemory, ...]]


def estimate_run(
    recipe: Recipe, *, device: str, checkpoint_every: int, split: ProcessSplitter | None = None
) -> RunEstimate:
    """Open models and data, and sum up. Raises ModelError, DataError as the run would. ``split``: into which
    processes (``processes.py``); None: there is one."""
    check_problems(recipe)
    shapes: dict[str, ModelSize] = {}
    for spec in recipe.policies.values():
        if isinstance(spec, Weights) and spec.model not in shapes:
            shapes[spec.model] = model_size(spec.model, trust_remote_code=spec.trust_remote_code)
    tasks = probe_tasks(recipe)
    prompts = {
        name: n
        for name, role in recipe.roles.items()
        if (n := _longest_prompt(recipe, role, shapes, tasks)) is not None
    }
    for name, length in prompts.items():
        shape = shapes[recipe.policies[recipe.roles[name].policy].model]
        max_tokens = recipe.roles[name].sampling.max_tokens
        if fields_of(recipe.roles[name].prompt) == {"problem"} and length + max_tokens > shape.context:
            raise DataError(
                f"role {name!r}: a prompt of {length} tokens and max_tokens {max_tokens} exceed the context of "
                f"{shape.context} of its model; lower it with --set roles.{name}.sampling.max_tokens=N, or take a "
                "model with a longer context"
            )
    return RunEstimate(
        device=device,
        memory=_memory_parts(recipe, shapes, prompts, device),
        checkpoint=checkpoint_bytes(recipe, shapes),
        models={name: _policy_text(spec, shapes) for name, spec in recipe.policies.items()},
        problems=_problem_counts(recipe),
        prompts=prompts,
        shapes=shapes,
        processes=split(recipe, shapes, prompts) if split else (),
    )


def _policy_text(spec: Any, shapes: Mapping[str, ModelSize]) -> str:
    shape = shapes.get(spec.model)
    return f"{spec.kind}, {spec.model}" + (f", {shape.parameters:,} parameters" if shape else "")


def _problem_counts(recipe: Recipe) -> str:
    sizes = {split: recipe.tasks.size(split) for split in ("train", "validation", "test")}
    counts = ", ".join(f"{'no end of' if n is None else f'{n:,}'} {split}" for split, n in sizes.items())
    return f"{recipe.tasks.name} ({counts})"


def _longest_prompt(recipe: Recipe, role: Role, shapes: Mapping[str, ModelSize], tasks: list[Task]) -> int | None:
    """Tokens of the longest prompt of a role; what other roles write into it counts as long as they may write."""
    shape = shapes.get(recipe.policies[role.policy].model)
    if shape is None:
        return None
    fields = fields_of(role.prompt)
    others = [one.sampling.max_tokens for one in recipe.roles.values() if fields_of(one.prompt) == {"problem"}]
    others_tokens = max(others, default=role.sampling.max_tokens) * len(fields - {"problem", "question", "count"})
    longest = 0
    for task in tasks:
        text = fill_template(
            role.prompt, **{name: task.prompt if name in ("problem", "question") else "" for name in fields}
        )
        longest = max(longest, len(shape.tokenizer(text)["input_ids"]) + shape.around)
    return longest + others_tokens


def _memory_parts(
    recipe: Recipe, shapes: Mapping[str, ModelSize], prompts: Mapping[str, int], device: str
) -> dict[str, float]:
    parts = policy_memory(recipe, shapes, prompts, recipe.policies)
    if device == "cpu":
        parts["the program itself"] = resident_bytes()
    return parts


def policy_memory(
    recipe: Recipe,
    shapes: Mapping[str, ModelSize],
    prompts: Mapping[str, int],
    names: Iterable[str],
    *,
    learns: bool = True,
    samples: bool = True,
    world: int = 1,
) -> dict[str, float]:
    """Bytes of what some of the policies hold in one process, by part. ``learns``: with what an update needs, else
    copies that are asked alone; ``samples``: with what the engine needs; ``world``: ranks that hold the learners in
    shards, of which this is one (each reads whole models before it keeps its share)."""
    weights: dict[tuple[Any, ...], float] = {}
    moments = update = cache = logits = 0.0
    for name in names:
        spec = recipe.policies[name]
        if not isinstance(spec, Weights) or (shape := shapes.get(spec.model)) is None:
            continue
        each = 2 if spec.dtype == "bfloat16" else FLOAT_BYTES
        alone = not spec.shares_base
        follows = isinstance(spec, FollowerPolicy)
        copies = getattr(spec, "keep", 1) + 1 if follows and learns else 1
        share = 1 if follows else world
        weights[(spec.model, name if alone else "", each)] = float(shape.parameters * each * copies) / share
        if isinstance(spec, Learning):
            trained = _trained_parameters(spec, shape)
            if spec.lora is not None:
                weights[(spec.model, name, "adapter")] = float(trained * FLOAT_BYTES) / share
            moments += 2 * FLOAT_BYTES * trained / world
            update = max(update, FLOAT_BYTES * trained / world + _activation_bytes(spec, shape))
        if world > 1:
            update = max(update, float(shape.parameters * each))
        if spec.speaks:
            used, heads = _cache_bytes(recipe, name, spec, shape, prompts)
            cache, logits = cache + used, max(logits, heads)
    parts = {"weights": sum(weights.values())}
    if learns:
        parts["optimiser"] = moments
    if samples:
        parts |= {"cache": cache, "logits of the sampler": logits}
    if learns:
        parts["gradients, activations and logits of an update"] = update
    return parts


def _trained_parameters(spec: Learning, shape: ModelSize) -> int:
    return shape.parameters if spec.lora is None else shape.linear_sides * spec.lora.rank


def _activation_bytes(spec: Learning, shape: ModelSize) -> float:
    """Bytes of what a backward pass reads, and of its logits."""
    each = 2 if spec.autocast else FLOAT_BYTES
    layer = shape.hidden if spec.gradient_checkpointing else 10 * shape.hidden + 4 * shape.inner + 4 * shape.keys
    logits = 3 * FLOAT_BYTES * min(LOGITS_SLICE, spec.micro_tokens * shape.vocabulary) if spec.head == "lm" else 0
    return float(shape.layers * spec.micro_tokens * layer * each + logits)


def _cache_bytes(
    recipe: Recipe, policy: str, spec: Weights, shape: ModelSize, prompts: Mapping[str, int]
) -> tuple[float, float]:
    """Bytes of keys and values, and of the logits of one decode step, at the widest play of a policy."""
    each = 2 if spec.autocast else FLOAT_BYTES
    column = 2 * shape.layers * shape.keys * each
    keys_values = heads = 0.0
    for name, role in recipe.roles.items():
        if role.policy != policy or name not in prompts:
            continue
        problem_only = fields_of(role.prompt) == {"problem"}
        plays = [
            ((p.tasks or recipe.tasks_per_step), (p.group_size or recipe.group_size), p.options)
            for p in recipe.schedule.phases
        ]
        size = recipe.tasks.size("test")
        held_out_tasks = recipe.evaluation.tasks if size is None else min(size, recipe.evaluation.tasks)
        plays.append((held_out_tasks, recipe.evaluation.group_size, recipe.evaluation.options))
        for tasks, members, options in plays:
            numbers = [v for v in options.values() if isinstance(v, int) and not isinstance(v, bool)]
            calls = 1 if problem_only else max([1, *numbers])
            rows = min(spec.rows, tasks * members * calls)
            shared = min(8, members if problem_only else calls)
            allocated = 1 << max(4, math.ceil(math.log2(rows)))
            columns = allocated * role.sampling.max_tokens * 1.5 + rows / shared * prompts[name]
            keys_values, heads = (
                max(keys_values, columns * column),
                max(heads, 2.0 * FLOAT_BYTES * rows * shape.vocabulary),
            )
    return keys_values, heads


def checkpoint_bytes(recipe: Recipe, shapes: Mapping[str, ModelSize]) -> float:
    size = 0.0
    for spec in recipe.policies.values():
        shape = shapes.get(spec.model)
        if shape is None:
            continue
        if isinstance(spec, Learning):
            size += 3 * FLOAT_BYTES * _trained_parameters(spec, shape)
        elif isinstance(spec, FollowerPolicy):
            size += FLOAT_BYTES * shape.parameters * getattr(spec, "keep", 1)
    return size


def resident_bytes() -> float:
    """Bytes that this process holds now, with its libraries; the most it has held where the system does not say."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
        return float(pages * os.sysconf("SC_PAGE_SIZE"))
    except (OSError, ValueError, IndexError):
        used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return float(used if sys.platform == "darwin" else used * 1024)


def bytes_text(count: float) -> str:
    """Bytes for people."""
    for unit, power in (("GiB", 30), ("MiB", 20)):
        if count >= 2**power:
            return f"{count / 2**power:.2f} {unit}" if unit == "GiB" else f"{count / 2**power:.0f} {unit}"
    return f"{count / 1024:.0f} KiB"
