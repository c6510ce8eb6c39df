"""The memory and disk that a run will need: an estimate for ``--dry-run``, and to refuse what cannot be.

Models are opened as far as that costs nothing: config.json, the headers of the safetensors files, the tokenizer; data
as far as a run looks at once. The parts are sums of sizes:

::

    weights      parameters × 4 bytes (2 in bfloat16, 0.56 of linear layers in 4 bits), once for policies that share
                 them; as much again where they are laid out for decoding (``inference/packed_weights.py``), a quarter
                 where that is in 8 bits, half as much where they are copied in bfloat16 for it
                 (``inference/half_precision.py``)
    optimiser    two moments of each trained parameter, and while an update is made its gradient
    cache        keys and values: rows × longest answer × 3/2, and prompts (``inference/kv_cache.py``)
    activations  what the backward pass of ``micro_tokens`` tokens reads, about 10 · hidden + 4 · inner + 4 · key widths
    a layer
    logits       of the sampler, rows × vocabulary; of the learner at most 2²⁶ at once, three times
    checkpoints  weights and moments of each policy that changes, for two of them and the one that is being written

With ``offload``, of the policies that take turns on a GPU the largest counts, with its cache, and moments are there for
the optimiser's step alone; and of ``--backend ray``, by the same sums, of each process:

::

    the command   its program; a checkpoint on its way to the disk, where the learners are one process
    learners      weights, moments, and what an update needs; of N ranks each its share, and one whole model as it
                  is read
    engine        copies of the weights that are asked, keys and values, logits; with vLLM ``cache_mb``
    Ray           its own six processes, and weights on their way, in its object store

A run is refused whose weights and optimisers alone exceed all memory there is, since these cannot be smaller, and one
by Ray whose processes do. Fewer answers are decoded at a time (``policies.NAME.rows``) where a run then fits and the
user did not choose. Left out: the ledger, whose size nobody knows before; processes that grade; what an allocator
keeps; what the object store writes to the disk. How near this comes stands in docs/memory.md.
"""

from __future__ import annotations

import math
import os
import resource
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cotrain.config.edits import policy_overrides, with_policies
from cotrain.config.large_model_defaults import PACKED_FROM, are_small
from cotrain.config.names import max_tokens_flag
from cotrain.config.override import is_given
from cotrain.config.policies import INT8, FollowerPolicy, Learning, Weights
from cotrain.config.recipe import Recipe, check_problems
from cotrain.core.errors import ConfigError, DataError, UserError
from cotrain.core.types import UNLABELLED, Task, has_split
from cotrain.core.verbosity import count_of
from cotrain.distributed.device_memory import Memory, memory_of
from cotrain.models.sizes import ModelSize, matrices_of, model_size, weight_shapes
from cotrain.prompts.templates import fields_of, fill_template
from cotrain.rollout.role import Role
from cotrain.runs.choose_formats import asks_plainly, probe_tasks

if TYPE_CHECKING:
    from cotrain.distributed.cluster_file import Cluster
    from cotrain.distributed.placement import EnginePlacement
    from cotrain.distributed.ray_nodes import Machine

LOGITS_SLICE = 2**26  # logits of the learner at once
CHECKPOINTS_HELD = 3  # two that are kept, and one that is being written
FLOAT_BYTES = 4
MEGABYTE = 2**20
RAY = 320.0 * MEGABYTE  # bytes of Ray's own processes: measured, shared pages counted once
PROGRAM = "the program itself"
ROW_CHOICES = (128, 64, 32, 16, 8)  # answers at a time
USABLE_SHARE = 0.9  # the share of available memory that rows are chosen to fit into


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessMemory:
    """The memory of one of several processes. Sizes in bytes."""

    what: str  # its name in messages
    memory: Mapping[str, float]  # part → bytes, on its device
    beside: Mapping[str, float]  # part → bytes, of its machine's own memory
    gpus: float = 0.0  # GPUs that Ray reserves for it

    def memory_line(self, device: str) -> str:
        """For people."""
        if device == "cpu":
            return f"memory of {self.what}, estimated: {parts_text({**self.memory, **self.beside})}"
        beside = bytes_text(sum(self.beside.values()))
        return f"memory of {self.what}, estimated: {parts_text(self.memory)} on {device}, {beside} of its machine's"

    def to_json(self) -> dict[str, Any]:
        return {
            "what": self.what,
            "gpus": self.gpus,
            "memory": _rounded_parts(self.memory),
            "beside": _rounded_parts(self.beside),
        }


Part = tuple[Any, ...]  # a base model or an adapter, which several policies may share


@dataclass(slots=True, kw_only=True)
class HeldParts:
    """What policies hold in one process, added up policy by policy. Sizes in bytes."""

    weights: dict[Part, float] = field(default_factory=dict)
    packed: dict[Part, float] = field(default_factory=dict)  # weights laid out again for decoding, in float32 or int8
    narrow: dict[Part, float] = field(default_factory=dict)  # copies in half precision
    caches: dict[Part, float] = field(default_factory=dict)  # keys and values
    parts_of: dict[str, list[Part]] = field(default_factory=dict)  # policy → its parts
    staying: set[Part] = field(default_factory=set)  # parts of policies that take no turns
    moments: float = 0.0
    update: float = 0.0  # gradients, activations and logits of the largest update
    logits: float = 0.0  # the sampler's logits

    def at_once(self, sizes: Mapping[Part, float]) -> float:
        """Of parts with these sizes: all that stay, and the most that one policy brings when it has its turn."""
        always = sum(size for part, size in sizes.items() if part in self.staying)
        largest_turn = 0.0
        for own_parts in self.parts_of.values():
            in_turn = sum(sizes.get(part, 0.0) for part in own_parts if part not in self.staying)
            largest_turn = max(largest_turn, in_turn)
        return always + largest_turn


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEstimate:
    """The sizes of models and prompts of a run, and what memory and disk they come to. Sizes in bytes."""

    recipe: Recipe
    device: str
    shapes: Mapping[str, ModelSize]  # name of a model → what its files say
    prompts: Mapping[str, int]  # role → tokens of the longest prompt, with what other roles may write in it
    program: float  # bytes that this process holds, with its libraries
    processes: tuple[ProcessMemory, ...] = ()  # with --backend ray, those that hold it all

    @property
    def memory(self) -> dict[str, float]:
        """Part → bytes, of one process that does it all."""
        parts = self.policy_memory(self.recipe.policies)
        if self.device == "cpu":
            parts[PROGRAM] = self.program
        return parts

    @property
    def answering(self) -> set[str]:
        """Policies that are asked for answers, in training or when the run is measured."""
        return {role.policy for role in self.recipe.roles.values()} | set(self.recipe.evaluation.frozen_roles.values())

    @property
    def total_memory(self) -> float:
        return sum(self.memory.values())

    @property
    def checkpoint(self) -> float:
        """Bytes of one checkpoint."""
        size = 0.0
        for spec in self.recipe.policies.values():
            if isinstance(spec, Learning):
                size += 3 * FLOAT_BYTES * _trained_parameters(spec, self.shapes[spec.model])
            elif isinstance(spec, FollowerPolicy):
                size += FLOAT_BYTES * self.shapes[spec.model].parameters * getattr(spec, "keep", 1)
        return size

    def summary_lines(self) -> list[str]:
        """For people."""
        tasks = self.recipe.tasks
        counts = ", ".join(f"{_size_text(tasks.size(split))} {split}" for split in ("train", "validation", "test"))
        lines = [f"problems: {tasks.name} ({counts}{self._unlabelled_text()})"]
        for name, spec in self.recipe.policies.items():
            shape = self.shapes.get(spec.model)
            size = f", {shape.parameters:,} parameters" if shape else ""
            lines.append(f"policy {name}: {spec.kind}, {spec.model}{size}")
        lines += [f"role {name}: prompts of up to {length} tokens" for name, length in self.prompts.items()]
        lines += [process.memory_line(self.device) for process in self.processes]
        if not self.processes:
            lines.append(f"memory on {self.device}, estimated: {parts_text(self.memory)}")
        offload = self._offload_line()
        if offload is not None:
            lines.append(offload)
        disk = bytes_text(CHECKPOINTS_HELD * self.checkpoint)
        lines.append(f"disk, estimated: {disk} for checkpoints of {bytes_text(self.checkpoint)} each")
        return lines

    def _unlabelled_text(self) -> str:
        """How many problems have no label, and whether they are trained on; "" where all have one."""
        tasks = self.recipe.tasks
        size = tasks.size(UNLABELLED) if has_split(tasks, UNLABELLED) else 0
        if size == 0:
            return ""
        shares = sorted({phase.unlabelled for phase in self.recipe.schedule.phases if phase.unlabelled})
        of_steps = " and ".join(f"{share:.0%}" for share in shares)
        used = f"{of_steps} of the problems of a step" if shares else "this method does not train on them"
        return f"; {_size_text(size)} unlabelled: {used}"

    def with_offload(self, wanted: bool) -> RunEstimate:
        """The estimate where all policies take turns, or none; on a GPU, if this is a CPU."""
        names = [name for name, spec in self.recipe.policies.items() if isinstance(spec, Weights)]
        return replace(self, recipe=with_policies(self.recipe, names, offload=wanted)).on_gpu()

    def on_gpu(self) -> RunEstimate:
        """The estimate on a GPU, if this is a CPU."""
        if self.device != "cpu":
            return self
        return replace(self, recipe=_with_arithmetic(self.recipe, "cuda", here=False), device="cuda")

    def _offload_line(self) -> str | None:
        """Who rests, and what memory of a GPU that saves; None where neither is a question."""
        resting = [n for n, spec in self.recipe.policies.items() if isinstance(spec, Weights) and spec.offload]
        if self.processes or not (resting or self.device != "cpu"):
            return None
        asked = self.on_gpu() if resting else self.with_offload(True)
        less, most = (bytes_text(one.total_memory) for one in (asked, self.with_offload(False)))
        who = f"{', '.join(resting)} rest while others compute" if resting else "nobody rests; --offload lets them"
        where = "nothing rests on a CPU; on a GPU " if self.device == "cpu" else ""
        beside = bytes_text(asked.resting_bytes())
        return f"offload: {where}{who}: at most {less}, without it {most}, and {beside} beside it"

    def resting_bytes(self) -> float:
        """Bytes of what may lie in the machine's own memory: weights, moments, pools of policies with ``offload``."""
        sizes: dict[tuple[Any, ...], float] = {}
        for name, spec in self.recipe.policies.items():
            if not isinstance(spec, Weights) or not spec.offload:
                continue
            shape = self.shapes[spec.model]
            copies = 1 + getattr(spec, "keep", 0)
            sizes[spec.model, "" if spec.shares_base else name] = _weight_bytes(spec, shape) * copies
            if isinstance(spec, Learning):
                sizes[name, "moments"] = 2 * FLOAT_BYTES * _trained_parameters(spec, shape)
        return sum(sizes.values())

    def to_json(self) -> dict[str, Any]:
        return {
            "device": self.device,
            "memory": _rounded_parts(self.memory) | {"total": round(self.total_memory)},
            **({"processes": [process.to_json() for process in self.processes]} if self.processes else {}),
            "checkpoint": round(self.checkpoint),
        }

    def policy_memory(
        self, names: Iterable[str], *, learns: bool = True, samples: bool = True, world: int = 1
    ) -> dict[str, float]:
        """Bytes of what some of the policies hold in one process, by part.

        Args:
            learns: True counts what an update needs; False is for copies that only answer.
            samples: True counts what the engine needs.
            world: ranks that hold the learners in shards, of which this is one.
        """
        held = HeldParts()
        for name in names:
            spec = self.recipe.policies[name]
            if not isinstance(spec, Weights):
                continue
            base = self._add_weights(held, name, spec, pooled=learns, world=world)
            if isinstance(spec, Learning):
                self._add_update(held, spec, world=world)
            if world > 1:  # a rank reads a whole model before it keeps its share
                held.update = max(held.update, _weight_bytes(spec, self.shapes[spec.model]))
            if spec.generates:
                self._add_sampling(held, name, spec, base)

        parts = {"weights": held.at_once(held.weights)}
        if learns:
            parts["optimiser"] = held.moments
        if samples and held.packed:
            parts["packed weights"] = sum(held.packed.values())
        if samples and held.narrow:
            parts["copies of weights in bfloat16"] = held.at_once(held.narrow)
        if samples:
            parts["cache"] = held.at_once(held.caches)
            parts["logits of the sampler"] = held.logits
        if learns:
            parts["gradients, activations and logits of an update"] = held.update
        return parts

    def _takes_turns(self, spec: Weights) -> bool:
        """Whether the policy leaves the device while others compute."""
        return spec.offload and self.device != "cpu"

    def _add_weights(self, held: HeldParts, name: str, spec: Weights, *, pooled: bool, world: int) -> Part:
        """Add the weights of a policy. Returns its base, which other policies may share. ``pooled``: with the earlier
        copies that a follower keeps."""
        shape = self.shapes[spec.model]
        each = _weight_bytes(spec, shape)
        follows = isinstance(spec, FollowerPolicy)
        has_pool = follows and pooled and not self._takes_turns(spec)
        copies = getattr(spec, "keep", 1) + 1 if has_pool else 1
        n_shards = 1 if follows else world

        base: Part = (spec.model, "" if spec.shares_base else name, each)
        held.weights[base] = each * copies / n_shards
        own_parts = [base]
        if isinstance(spec, Learning) and spec.lora is not None:
            adapter: Part = (spec.model, name, "adapter")
            held.weights[adapter] = float(_trained_parameters(spec, shape) * FLOAT_BYTES) / n_shards
            own_parts.append(adapter)

        held.parts_of[name] = own_parts
        if not self._takes_turns(spec):
            held.staying |= set(own_parts)
        return base

    def _add_update(self, held: HeldParts, spec: Learning, *, world: int) -> None:
        """Add the moments of a policy's optimiser. Of what updates need, the largest counts: policies learn in turn."""
        shape = self.shapes[spec.model]
        trained = _trained_parameters(spec, shape)
        gradients = FLOAT_BYTES * trained / world
        moments = 2 * FLOAT_BYTES * trained / world
        activations = _activation_bytes(spec, shape)
        if self._takes_turns(spec):
            # The moments are back on the device when the activations are gone.
            activations = max(activations, moments)
        else:
            held.moments += moments
        held.update = max(held.update, gradients + activations)

    def _add_sampling(self, held: HeldParts, name: str, spec: Weights, base: Part) -> None:
        """Add what the engine needs to sample from a policy: keys and values, logits, and copies of its weights."""
        shape = self.shapes[spec.model]
        keys_values, logits = self._cache_bytes(name, spec, shape)
        held.caches[base] = held.caches.get(base, 0.0) + keys_values
        held.logits = max(held.logits, logits)
        if spec.pack_weights:
            each = 1 if spec.pack_weights == INT8 else FLOAT_BYTES
            held.packed[*base, each] = float(each * shape.parameters)
        is_copied = spec.autocast and spec.dtype == "float32" and name in self.answering
        if is_copied:
            layers = 0 if spec.load_in_4bit else shape.linear
            last_layer = shape.vocabulary * shape.hidden
            held.narrow[base] = 2.0 * (layers + last_layer)

    def _cache_bytes(self, policy: str, spec: Weights, shape: ModelSize) -> tuple[float, float]:
        """Bytes of keys and values, and of the logits of one decode step, in the widest rollout of a policy."""
        sizes = self._rollout_sizes()
        roles = {name: role for name, role in self.recipe.roles.items() if role.policy == policy}
        column = 2 * shape.layers * shape.keys * (2 if spec.autocast else FLOAT_BYTES)
        keys_values = 0.0
        heads = 0.0
        for name, role in roles.items():
            for tasks, members, options in sizes:
                numbers = [v for v in options.values() if isinstance(v, int) and not isinstance(v, bool)]
                calls = 1 if asks_plainly(role) else max([1, *numbers])
                rows = min(spec.rows, tasks * members * calls)
                shared = min(8, members if asks_plainly(role) else calls)
                allocated = 1 << max(4, math.ceil(math.log2(rows)))
                columns = allocated * role.sampling.max_tokens * 1.5 + rows / shared * self.prompts[name]
                keys_values = max(keys_values, columns * column)
                heads = max(heads, 2.0 * FLOAT_BYTES * rows * shape.vocabulary)
        return keys_values, heads

    def _rollout_sizes(self) -> list[tuple[int, int, Mapping[str, Any]]]:
        """How wide each phase and the evaluation are: problems, episodes on each, and the options of the protocol."""
        recipe = self.recipe
        sizes: list[tuple[int, int, Mapping[str, Any]]] = []
        for phase in recipe.schedule.phases:
            tasks = phase.tasks or recipe.tasks_per_step
            sizes.append((tasks, phase.group_size or recipe.group_size, phase.options))
        evaluation = recipe.evaluation
        size = recipe.tasks.size("test")
        held_out_tasks = evaluation.tasks if size is None else min(size, evaluation.tasks)
        sizes.append((held_out_tasks, evaluation.group_size, evaluation.options))
        return sizes


def estimate_run(recipe: Recipe, *, device: str, here: bool = True) -> RunEstimate:
    """Open models and data. ``here``: on this machine, which then has what 4 bits need. Raises ModelError, DataError as
    the run would."""
    check_problems(recipe)
    if device.startswith("cuda"):
        recipe = _with_arithmetic(recipe, device, here=here)
    shapes: dict[str, ModelSize] = {}
    for spec in recipe.policies.values():
        if isinstance(spec, Weights) and spec.model not in shapes:
            shapes[spec.model] = model_size(spec.model, trust_remote_code=spec.trust_remote_code)
            if spec.load_in_4bit and here:
                from cotrain.models.quantize import check_quantizer

                check_quantizer(f"model {spec.model!r}")
    tasks = probe_tasks(recipe)
    prompts = {}
    for name, role in recipe.roles.items():
        shape = shapes.get(recipe.policies[role.policy].model)
        if shape is None:
            continue
        prompts[name] = length = _longest_prompt(recipe, role, shape, tasks)
        if asks_plainly(role) and length + role.sampling.max_tokens > shape.context:
            raise DataError(
                f"role {name!r}: a prompt of {length} tokens and max_tokens {role.sampling.max_tokens} exceed the "
                f"context of {shape.context} of its model; lower it with {max_tokens_flag(name)}, or "
                "take a model with a longer context",
                code="E_CONTEXT_TOO_SHORT",
            )
    return RunEstimate(recipe=recipe, device=device, shapes=shapes, prompts=prompts, program=resident_bytes())


def _with_arithmetic(recipe: Recipe, device: str, *, here: bool) -> Recipe:
    """The recipe with the arithmetic that a GPU decides on; one that is not here knows bfloat16, as all new ones do."""
    import torch

    from cotrain.learner.optim import has_bfloat16

    narrow = not here or not torch.cuda.is_available() or has_bfloat16(torch.device(device))
    policies = {name: spec.with_device_defaults(autocast=narrow) for name, spec in recipe.policies.items()}
    return replace(recipe, policies=policies)


def _longest_prompt(recipe: Recipe, role: Role, shape: ModelSize, tasks: Sequence[Task]) -> int:
    """Tokens of the longest prompt of a role; what other roles write into it counts as long as they may write."""
    fields = fields_of(role.prompt)
    others = [one.sampling.max_tokens for one in recipe.roles.values() if asks_plainly(one)]
    others_tokens = max(others, default=role.sampling.max_tokens) * len(fields - {"problem", "question", "count"})
    longest = 0
    for task in tasks:
        shown = {name: task.prompt if name in ("problem", "question") else "" for name in fields}
        text = fill_template(role.prompt, **shown)
        longest = max(longest, len(shape.tokenizer(text)["input_ids"]) + shape.around)
    return longest + others_tokens


def _weight_bytes(spec: Weights, shape: ModelSize) -> float:
    """Bytes of a model as it is loaded."""
    each = 2.0 if spec.dtype == "bfloat16" else float(FLOAT_BYTES)
    if not spec.load_in_4bit:
        return shape.parameters * each
    from cotrain.models.quantize import BYTES

    return (shape.parameters - shape.linear) * each + shape.linear * BYTES


def _trained_parameters(spec: Learning, shape: ModelSize) -> int:
    return shape.parameters if spec.lora is None else shape.linear_sides * spec.lora.rank


def _activation_bytes(spec: Learning, shape: ModelSize) -> float:
    """Bytes of what a backward pass reads, and of its logits."""
    each = 2 if spec.autocast else FLOAT_BYTES
    layer = shape.hidden if spec.gradient_checkpointing else 10 * shape.hidden + 4 * shape.inner + 4 * shape.keys
    logits = 3 * FLOAT_BYTES * min(LOGITS_SLICE, spec.micro_tokens * shape.vocabulary) if spec.head == "lm" else 0
    return float(shape.layers * spec.micro_tokens * layer * each + logits)


def resident_bytes() -> float:
    """Bytes that this process holds now, with its libraries; the most it has held where the system does not say."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
        return float(pages * os.sysconf("SC_PAGE_SIZE"))
    except OSError:
        used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return float(used if sys.platform == "darwin" else used * 1024)


def _size_text(size: int | None) -> str:
    """A number of problems for people; None: there is no end of them."""
    return "no end of" if size is None else f"{size:,}"


def bytes_text(count: float) -> str:
    """Bytes for people."""
    if count >= 2**30:
        return f"{count / 2**30:.2f} GiB"
    return f"{count / MEGABYTE:.0f} MiB" if count >= MEGABYTE else f"{count / 1024:.0f} KiB"


def parts_text(parts: Mapping[str, float]) -> str:
    listed = ", ".join(f"{name} {bytes_text(value)}" for name, value in parts.items())
    return f"{bytes_text(sum(parts.values()))} ({listed})"


def _rounded_parts(parts: Mapping[str, float]) -> dict[str, int]:
    return {name: round(value) for name, value in parts.items()}


# -- one process, and the memory of this machine


def fit_to_memory(recipe: Recipe, device: str, memory: Memory | None = None) -> tuple[Recipe, list[str]]:
    """The recipe with as many rows as fit, and what is to be said of that. ``memory``: by default the machine's. Raises
    ConfigError for a run that certainly does not fit; whatever else is wrong with models and data the run says."""
    try:
        estimate = estimate_run(recipe, device=device)
    except UserError:
        return recipe, []
    memory = memory or memory_of(device)
    if memory is None:
        return recipe, []
    _check_weights_fit(estimate, memory)
    usable = USABLE_SHARE * memory.available
    with_fewer_rows = None if estimate.total_memory <= usable else _with_fewer_rows(estimate, usable)
    if with_fewer_rows is None:
        notes = _shortage_notes(estimate, memory)
    else:
        recipe, rows = with_fewer_rows
        notes = [
            f"note: at most {count_of(rows, 'answer')} at a time, as {bytes_text(memory.available)} are available; "
            "--set policies.NAME.rows=N chooses otherwise"
        ]
    return recipe, notes


def _check_weights_fit(estimate: RunEstimate, memory: Memory) -> None:
    """Raise ConfigError where weights and optimisers alone, which cannot be smaller, are more than all memory."""
    parts = estimate.memory
    least = parts["weights"] + parts["optimiser"]
    if least > memory.total:
        first_try = []
        if not _trains_adapters(estimate.recipe):
            first_try.append("train adapters on one frozen base with --lora 16")
        if estimate.device != "cpu":
            first_try.append("let policies take turns with --offload")
        advice = "take a smaller model"
        if first_try:
            advice = f"{', '.join(first_try)}, or {advice}"
        raise ConfigError(
            f"weights and optimisers alone take {bytes_text(least)}, and {estimate.device} has "
            f"{bytes_text(memory.total)}; {advice}",
            code="E_MEMORY_FOR_WEIGHTS",
        )


def _with_fewer_rows(estimate: RunEstimate, usable: float) -> tuple[Recipe, int] | None:
    """The recipe with the most rows, of ``ROW_CHOICES``, with which the run fits, and their number; None without."""
    for rows in ROW_CHOICES:
        names = _policies_with_more_rows(estimate.recipe, rows)
        recipe = with_policies(estimate.recipe, names, rows=rows)
        if replace(estimate, recipe=recipe).total_memory <= usable:
            return recipe, rows
    return None


def _shortage_notes(estimate: RunEstimate, memory: Memory) -> list[str]:
    """What may be said of a run that is estimated to take more than is available; nothing of one that fits."""
    if estimate.total_memory <= memory.available:
        return []
    parts = estimate.memory
    most = max(parts, key=lambda name: parts[name])
    advice = _memory_advice(most, adapts=_trains_adapters(estimate.recipe))
    return [
        f"note: this run is estimated to take {bytes_text(estimate.total_memory)}, and {bytes_text(memory.available)} "
        f"are available on {estimate.device}; most of it is {most}: {advice}",
        *_fitting_settings(estimate, memory.available),
    ]


def _fitting_settings(estimate: RunEstimate, available: float) -> Iterator[str]:
    """A line that says which settings let a run fit, the cheapest first; none where none does."""
    for flags, plan in _smaller_plans(estimate):
        if plan.total_memory <= available:
            yield f"note: it fits with {' '.join(flags)}: {bytes_text(plan.total_memory)}"
            return


def _smaller_plans(estimate: RunEstimate) -> Iterator[tuple[list[str], RunEstimate]]:
    """The same run with less memory, and the flags that ask for it: the cheapest first."""
    learning = [name for name, spec in estimate.recipe.policies.items() if isinstance(spec, Learning)]
    checkpointing = [f"--set {text}" for text in policy_overrides(learning, gradient_checkpointing=True)]
    on_gpu = estimate.device != "cpu"
    if on_gpu:
        yield ["--offload"], estimate.with_offload(True)
    yield checkpointing, _with_checkpointing(estimate, learning)
    if on_gpu:
        yield ["--offload", *checkpointing], _with_checkpointing(estimate.with_offload(True), learning)


def _with_checkpointing(estimate: RunEstimate, learning: Sequence[str]) -> RunEstimate:
    return replace(estimate, recipe=with_policies(estimate.recipe, learning, gradient_checkpointing=True))


def _policies_with_more_rows(recipe: Recipe, rows: int) -> list[str]:
    """The policies that speak, have more rows, and whose rows the user did not choose."""
    return [
        name
        for name, spec in recipe.policies.items()
        if isinstance(spec, Weights) and spec.generates and spec.rows > rows
        if not is_given(recipe, f"policies.{name}.rows")
    ]


def _trains_adapters(recipe: Recipe) -> bool:
    """Whether ``--lora`` was given, or every policy that learns is an adapter already."""
    if recipe.origin is not None and recipe.origin.arguments.get("lora"):
        return True
    return all(spec.lora is not None for spec in recipe.policies.values() if isinstance(spec, Learning))


def _memory_advice(part: str, *, adapts: bool) -> str:
    """The flags that make a part smaller. ``adapts``: adapters are trained already."""
    smaller_updates = "--set policies.NAME.micro_tokens=512 or --set policies.NAME.gradient_checkpointing=true"
    if part == "packed weights":
        advice = "--set policies.NAME.pack_weights=false"
    elif part in ("weights", "optimiser"):
        advice = "take a smaller model"
        if not adapts:
            advice = f"--lora 16 trains adapters on one base, or {advice}"
    elif part.startswith("gradients"):
        advice = smaller_updates if adapts else f"--lora 16, {smaller_updates}"
    elif part == PROGRAM:
        advice = "end other programs, or take a machine with more memory"
    else:
        advice = (
            "fewer answers at a time with --set policies.NAME.rows=8, shorter ones with --set "
            "roles.NAME.sampling.max_tokens=N, or --set policies.NAME.autocast=true"
        )
    return advice


def choose_packing(
    recipe: Recipe, backend: Mapping[str, Any], memory: Memory | None = None, gain: float | None = None
) -> tuple[Recipe, list[str]]:
    """The recipe with ``pack_weights`` of each policy that answers through the local engine on a CPU, where nobody
    chose it and its model is not small, with as many rows as then fit; and what is to be said of that. ``backend``: as
    it describes itself; ``memory``, ``gain``: by default the machine's, and what a short probe finds."""
    from cotrain.inference.packed_weights import LEAST_GAIN, can_pack, measure_gain

    if backend["device"] != "cpu" or backend.get("engine") == "vllm" or not can_pack():
        return recipe, []
    notes: list[str] = []
    for model, names in sorted(_policies_to_pack(recipe).items()):
        packed = with_policies(recipe, names, pack_weights=True)
        plain = with_policies(recipe, names, pack_weights=False)
        try:
            estimate = estimate_run(packed, device="cpu")
            fitting, row_notes = fit_to_memory(packed, "cpu", memory)
        except UserError:  # whoever opens it says what is wrong
            return recipe, notes

        more = estimate.total_memory - replace(estimate, recipe=plain).total_memory
        available = memory or memory_of("cpu")
        fits = available is None or replace(estimate, recipe=fitting).total_memory <= available.available
        speedup = gain or measure_gain(matrices_of(weight_shapes(model) or []))
        is_chosen = fits and speedup >= LEAST_GAIN

        by_probe = f"products are {speedup:.2f} times as fast so by a short probe, for {bytes_text(more)} more memory"
        if not fits:
            by_probe += ", more than there is"
        if is_chosen:
            recipe = fitting
            notes.append(
                f"note: weights of {model} are laid out for decoding: {by_probe}; "
                "--set policies.NAME.pack_weights=false chooses otherwise"
            )
            notes += row_notes
        else:
            recipe = plain
            notes.append(
                f"note: weights of {model} are not laid out for decoding: {by_probe}; "
                "--set policies.NAME.pack_weights=true chooses otherwise"
            )
    return recipe, notes


def _policies_to_pack(recipe: Recipe) -> dict[str, list[str]]:
    """Model → the policies that speak with it in float32, where it is not small and nobody chose a layout."""
    names: dict[str, list[str]] = {}
    for name in dict.fromkeys(role.policy for role in recipe.roles.values()):
        spec = recipe.policies[name]
        if not isinstance(spec, Weights) or not spec.generates:
            continue
        is_float32 = spec.dtype == "float32" and not spec.autocast
        is_open = spec.pack_weights is None
        if is_float32 and is_open and not are_small([spec.model], unknown=True, least=PACKED_FROM):
            names.setdefault(spec.model, []).append(name)
    return names


# -- several processes, and the memory of their machines


def with_processes(
    estimate: RunEstimate, cluster: Cluster, places: Sequence[EnginePlacement], world: int
) -> RunEstimate:
    """The estimate with what each process of ``--backend ray`` holds. ``places``: engines of the run; ``world``: its
    ranks."""
    policies = estimate.recipe.policies
    program = {PROGRAM: estimate.program}
    saved = estimate.checkpoint
    changing = [s for s in policies.values() if not s.is_constant and s.model in estimate.shapes]
    published = max((4.0 * estimate.shapes[spec.model].parameters for spec in changing), default=0.0)
    store = min(float(cluster.object_store_mb * MEGABYTE), published + saved)
    command = program | ({"a checkpoint": saved} if world == 1 else {})
    processes = [ProcessMemory(what="the command", memory={}, beside=command)]
    learning = [name for name, spec in policies.items() if spec.head]
    parts = estimate.policy_memory(learning, samples=False, world=world)
    gpus = cluster.gpus.get("RankHost" if world > 1 else "LearnerHost", 0.0)
    for rank in range(world):
        what = "the learners" if world == 1 else f"the learners (rank {rank} of {world})"
        processes.append(ProcessMemory(what=what, memory=parts, beside=program, gpus=gpus))
    for place in places:
        asked = [name for name in place.policies if policies[name].head]
        parts = estimate.policy_memory(asked, learns=False)
        kind = place.host.__name__
        if kind == "VllmHost":
            parts["cache"] = float(cluster.vllm.cache_mb * MEGABYTE)
        gpus = cluster.gpus.get(kind, 0.0)
        processes.append(ProcessMemory(what=place.what, memory=parts, beside=program, gpus=gpus))
    processes.append(ProcessMemory(what="Ray", memory={}, beside={"its own processes": RAY, "its object store": store}))
    return replace(estimate, processes=tuple(processes))


def check_memory(processes: Sequence[ProcessMemory], machines: Sequence[Machine], device: str, where: str) -> None:
    """Raise ConfigError, one line, where the processes need more than the machines have: one of them more than the
    largest machine, or all of them more than all machines, whoever uses it now. ``machines``: those that may run them,
    the command's if it is the only one; ``where``: as messages name them."""
    on_gpu = device.startswith("cuda")
    needs = {p.what: sum(p.beside.values()) + (0.0 if on_gpu else sum(p.memory.values())) for p in processes}
    sizes = [float(machine["memory"]) for machine in machines if "error" not in machine]
    _check_fits(needs, sizes, "memory", where)
    cards = [float(size) for machine in machines for _, size in machine.get("gpus", ()) if on_gpu]
    needs = {p.what: sum(p.memory.values()) for p in processes if p.memory}
    _check_fits(needs, cards, "GPU memory", where)


def _check_fits(needs: Mapping[str, float], sizes: Sequence[float], kind: str, where: str) -> None:
    """``sizes``: of what there is; nothing is refused where nobody knows."""
    if not sizes:
        return
    largest = max(needs, key=lambda what: needs[what])
    most = max(sizes)
    whole = sum(sizes)
    todo = "take smaller models or --lora N, lower micro_tokens, rows or max_tokens, or see --dry-run"
    if needs[largest] > most:
        raise ConfigError(
            f"{kind} of {largest}: about {bytes_text(needs[largest])}, and {where} has {bytes_text(most)}; {todo}",
            code="E_MEMORY_FOR_POLICIES",
        )
    if sum(needs.values()) > whole:
        raise ConfigError(
            f"{kind} of all processes: about {parts_text(needs)}, and {where} has {bytes_text(whole)}; {todo}",
            code="E_MEMORY_FOR_POLICIES",
        )


def object_store_note(processes: Sequence[ProcessMemory], cluster: Cluster) -> str | None:
    """Where weights do not fit into the object store that Ray begins with here: it writes them to the disk then."""
    moved = max(process.memory.get("weights", 0.0) for process in processes)
    if cluster.address is not None or moved <= cluster.object_store_mb * MEGABYTE:
        return None
    return (
        f"note: weights of up to {bytes_text(moved)} pass through an object store of {cluster.object_store_mb} MB, and "
        "Ray writes to the disk what does not fit; raise object_store_mb in the --cluster file"
    )
