"""What a run will hold in memory and write to disk, before it begins: ``--dry-run``.

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

Left out: the ledger, whose size nobody knows before; processes that grade; what an allocator keeps. How near this comes
stands in docs/memory.md.
"""

from __future__ import annotations

import math
import resource
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cotrain.core.errors import DataError
from cotrain.core.types import Task
from cotrain.loop.answers import some
from cotrain.loop.policies import Follower, Learning, Weights
from cotrain.loop.recipe import Recipe, check_problems
from cotrain.models.sizes import Shape, shape_of
from cotrain.play.role import Role
from cotrain.text.prompts import fields_of, fill

SLICE = 2**26  # logits of the learner at once
KEPT = 3  # checkpoints: two that are kept, and one that is being written
FLOAT = 4  # bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Looked:
    """What was seen of models and data. Sizes in bytes."""

    device: str
    memory: Mapping[str, float]  # part → bytes
    checkpoint: float  # one
    models: Mapping[str, str]  # policy → what it is
    problems: str  # what the data holds
    prompts: Mapping[
        str, int
    ]  # role → tokens of the longest prompt that was looked at, with what other roles may write in it
    largest: int  # parameters of the largest model

    @property
    def total(self) -> float:
        return sum(self.memory.values())

    def lines(self) -> list[str]:
        """For people."""
        lines = [f"problems: {self.problems}", *(f"policy {name}: {what}" for name, what in self.models.items())]
        lines += [f"role {name}: prompts of up to {length} tokens" for name, length in self.prompts.items()]
        parts = ", ".join(f"{name} {size_shown(value)}" for name, value in self.memory.items())
        lines.append(f"memory on {self.device}, estimated: {size_shown(self.total)} ({parts})")
        each = size_shown(self.checkpoint)
        lines.append(f"disk, estimated: {size_shown(KEPT * self.checkpoint)} for checkpoints of {each} each")
        return lines

    def json(self) -> dict[str, Any]:
        return {
            "device": self.device,
            "memory": {name: round(value) for name, value in self.memory.items()} | {"total": round(self.total)},
            "checkpoint": round(self.checkpoint),
        }


def looked_at(recipe: Recipe, *, device: str, checkpoint_every: int) -> Looked:
    """Open models and data, and sum up. Raises ModelError, DataError as the run would."""
    check_problems(recipe)
    shapes: dict[str, Shape] = {}
    for spec in recipe.policies.values():
        if isinstance(spec, Weights) and spec.model not in shapes:
            shapes[spec.model] = shape_of(spec.model, trust_remote_code=spec.trust_remote_code)
    tasks = some(recipe)
    prompts = {
        name: n for name, role in recipe.roles.items() if (n := _prompt(recipe, role, shapes, tasks)) is not None
    }
    for name, length in prompts.items():
        shape = shapes[recipe.policies[recipe.roles[name].policy].model]
        wanted = recipe.roles[name].sampling.max_tokens
        if fields_of(recipe.roles[name].prompt) == {"problem"} and length + wanted > shape.context:
            raise DataError(
                f"role {name!r}: a prompt of {length} tokens and max_tokens {wanted} exceed the context of "
                f"{shape.context} of its "
                f"model; lower it with --set roles.{name}.sampling.max_tokens=N, or take a model with a longer context"
            )
    return Looked(
        device=device,
        memory=_memory(recipe, shapes, prompts, device),
        checkpoint=_checkpoint(recipe, shapes),
        models={name: _named(spec, shapes) for name, spec in recipe.policies.items()},
        problems=_problems(recipe),
        prompts=prompts,
        largest=max((shape.parameters for shape in shapes.values()), default=0),
    )


def _named(spec: Any, shapes: Mapping[str, Shape]) -> str:
    shape = shapes.get(spec.model)
    return f"{spec.kind}, {spec.model}" + (f", {shape.parameters:,} parameters" if shape else "")


def _problems(recipe: Recipe) -> str:
    sizes = {split: recipe.tasks.size(split) for split in ("train", "validation", "test")}
    counts = ", ".join(f"{'no end of' if n is None else f'{n:,}'} {split}" for split, n in sizes.items())
    return f"{recipe.tasks.name} ({counts})"


def _prompt(recipe: Recipe, role: Role, shapes: Mapping[str, Shape], tasks: list[Task]) -> int | None:
    """Tokens of the longest prompt of a role; what other roles write into it counts as long as they may write."""
    shape = shapes.get(recipe.policies[role.policy].model)
    if shape is None:
        return None
    fields = fields_of(role.prompt)
    others = [one.sampling.max_tokens for one in recipe.roles.values() if fields_of(one.prompt) == {"problem"}]
    written = max(others, default=role.sampling.max_tokens) * len(fields - {"problem", "question", "count"})
    longest = 0
    for task in tasks:
        text = fill(role.prompt, **{name: task.prompt if name in ("problem", "question") else "" for name in fields})
        longest = max(longest, len(shape.tokenizer(text)["input_ids"]) + shape.around)
    return longest + written


def _memory(recipe: Recipe, shapes: Mapping[str, Shape], prompts: Mapping[str, int], device: str) -> dict[str, float]:
    weights: dict[tuple[Any, ...], float] = {}
    moments = update = cache = logits = 0.0
    for name, spec in recipe.policies.items():
        if not isinstance(spec, Weights) or (shape := shapes.get(spec.model)) is None:
            continue
        each = 2 if spec.dtype == "bfloat16" else FLOAT
        alone = not spec.shares_base
        copies = getattr(spec, "keep", 1) + 1 if isinstance(spec, Follower) else 1
        weights[(spec.model, name if alone else "", each)] = float(shape.parameters * each * copies)
        if isinstance(spec, Learning):
            trained = _trained(spec, shape)
            if spec.lora is not None:
                weights[(spec.model, name, "adapter")] = float(trained * FLOAT)
            moments += 2 * FLOAT * trained
            update = max(update, FLOAT * trained + _activations(spec, shape))
        if spec.speaks:
            used, heads = _cache(recipe, name, spec, shape, prompts)
            cache, logits = cache + used, max(logits, heads)
    found = {
        "weights": sum(weights.values()),
        "optimiser": moments,
        "cache": cache,
        "logits of the sampler": logits,
        "gradients, activations and logits of an update": update,
    }
    if device == "cpu":
        found["the program itself"] = _resident()
    return found


def _trained(spec: Learning, shape: Shape) -> int:
    return shape.parameters if spec.lora is None else shape.linear_sides * spec.lora.rank


def _activations(spec: Learning, shape: Shape) -> float:
    """Bytes of what a backward pass reads, and of its logits."""
    each = 2 if spec.autocast else FLOAT
    layer = shape.hidden if spec.gradient_checkpointing else 10 * shape.hidden + 4 * shape.inner + 4 * shape.keys
    logits = 3 * FLOAT * min(SLICE, spec.micro_tokens * shape.vocabulary) if spec.head == "lm" else 0
    return float(shape.layers * spec.micro_tokens * layer * each + logits)


def _cache(recipe: Recipe, policy: str, spec: Weights, shape: Shape, prompts: Mapping[str, int]) -> tuple[float, float]:
    """Bytes of keys and values, and of the logits of one decode step, at the widest play of a policy."""
    each = 2 if spec.autocast else FLOAT
    column = 2 * shape.layers * shape.keys * each
    found = heads = 0.0
    for name, role in recipe.roles.items():
        if role.policy != policy or name not in prompts:
            continue
        own = fields_of(role.prompt) == {"problem"}
        plays = [
            ((p.tasks or recipe.tasks_per_step), (p.group_size or recipe.group_size), p.options)
            for p in recipe.schedule.phases
        ]
        size = recipe.tasks.size("test")
        held = recipe.evaluation.tasks if size is None else min(size, recipe.evaluation.tasks)
        plays.append((held, recipe.evaluation.group_size, recipe.evaluation.options))
        for tasks, members, options in plays:
            calls = (
                1
                if own
                else max([v for v in options.values() if isinstance(v, int) and not isinstance(v, bool)] or [1])
            )
            rows = min(spec.rows, tasks * members * calls)
            shared = min(8, members if own else calls)
            allocated = 1 << max(4, math.ceil(math.log2(rows)))
            columns = allocated * role.sampling.max_tokens * 1.5 + rows / shared * prompts[name]
            found, heads = max(found, columns * column), max(heads, 2.0 * FLOAT * rows * shape.vocabulary)
    return found, heads


def _checkpoint(recipe: Recipe, shapes: Mapping[str, Shape]) -> float:
    size = 0.0
    for spec in recipe.policies.values():
        shape = shapes.get(spec.model)
        if shape is None:
            continue
        if isinstance(spec, Learning):
            size += 3 * FLOAT * _trained(spec, shape)
        elif isinstance(spec, Follower):
            size += FLOAT * shape.parameters * getattr(spec, "keep", 1)
    return size


def _resident() -> float:
    """Bytes that this process holds now, with its libraries."""
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return float(used if sys.platform == "darwin" else used * 1024)


def size_shown(count: float) -> str:
    """Bytes for people."""
    for unit, power in (("GiB", 30), ("MiB", 20)):
        if count >= 2**power:
            return f"{count / 2**power:.2f} {unit}" if unit == "GiB" else f"{count / 2**power:.0f} {unit}"
    return f"{count / 1024:.0f} KiB"
