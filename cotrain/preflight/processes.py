"""The memory that each process of ``--backend ray`` will need, before any of them begins, and whether it is there.

::

    the command   its program; a checkpoint on its way to the disk, where the learners are one process
    learners      weights, moments, and what an update needs; of N ranks each its share, and one whole model as it
                  is read
    engine        copies of the weights that are asked, keys and values, logits; with vLLM ``cache_mb``
    Ray           its own six processes, and weights on their way, in its object store

Refused is what cannot be: more than the machine has in all, whoever uses it now. A number is an estimate, and more
often too low than too high (docs/memory.md). Left out: what the object store writes to the disk.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cotrain.backend.cluster_file import Cluster
from cotrain.backend.machines import Machine
from cotrain.backend.places import EnginePlacement
from cotrain.config.recipe import Recipe
from cotrain.core.errors import ConfigError
from cotrain.models.sizes import ModelSize
from cotrain.preflight.estimate import (
    ProcessMemory,
    ProcessSplitter,
    bytes_text,
    checkpoint_bytes,
    policy_memory,
    resident_bytes,
)

RAY = 320.0 * 2**20  # bytes of Ray's own processes: measured, shared pages counted once
MEGABYTE = 2**20


def process_splitter(cluster: Cluster, places: Sequence[EnginePlacement], world: int) -> ProcessSplitter:
    """``places``: the engines of the run; ``world``: its ranks."""

    def list_processes(
        recipe: Recipe, shapes: Mapping[str, ModelSize], prompts: Mapping[str, int]
    ) -> tuple[ProcessMemory, ...]:
        program = {"the program itself": resident_bytes()}
        saved = checkpoint_bytes(recipe, shapes)
        store = min(float(cluster.object_store_mb * MEGABYTE), _published_bytes(recipe, shapes) + saved)
        entries = [
            ProcessMemory(
                what="the command", memory={}, beside=program | ({"a checkpoint": saved} if world == 1 else {})
            )
        ]
        learning = [name for name, spec in recipe.policies.items() if spec.head]
        parts = policy_memory(recipe, shapes, prompts, learning, samples=False, world=world)
        for rank in range(world):
            what = "the learners" if world == 1 else f"the learners (rank {rank} of {world})"
            gpus = cluster.gpus.get("RankHost" if world > 1 else "LearnerHost", 0.0)
            entries.append(ProcessMemory(what=what, memory=parts, beside=program, gpus=gpus))
        for place in places:
            parts = policy_memory(recipe, shapes, prompts, _engine_policies(recipe, place), learns=False)
            if place.host.__name__ == "VllmHost":
                parts["cache"] = float(cluster.vllm.cache_mb * MEGABYTE)
            gpus = cluster.gpus.get(place.host.__name__, 0.0)
            entries.append(ProcessMemory(what=place.what, memory=parts, beside=program, gpus=gpus))
        entries.append(
            ProcessMemory(what="Ray", memory={}, beside={"its own processes": RAY, "its object store": store})
        )
        return tuple(entries)

    return list_processes


def _engine_policies(recipe: Recipe, place: EnginePlacement) -> list[str]:
    """Policies whose weights an engine holds: with vLLM frozen policies and adapters stand on one base."""
    return [name for name in place.policies if recipe.policies[name].head]


def _published_bytes(recipe: Recipe, shapes: Mapping[str, ModelSize]) -> float:
    """Bytes of weights that are published at once."""
    changing = (s for s in recipe.policies.values() if not s.is_constant and s.model in shapes)
    return max((4.0 * shapes[spec.model].parameters for spec in changing), default=0.0)


def check_memory(processes: Sequence[ProcessMemory], machines: Sequence[Machine], device: str, where: str) -> None:
    """Raise ConfigError, one line, where the processes need more than the machines have: one of them more than the
    largest machine, or all of them more than all machines. ``machines``: those that may run them, the command's if it
    is the only one; ``where``: as messages name them."""
    sizes = [float(machine["memory"]) for machine in machines if "error" not in machine]
    cards = [float(size) for machine in machines for _, size in machine.get("gpus", ())]
    if not sizes:
        return
    on_gpu = device.startswith("cuda")
    needs = {p.what: sum(p.beside.values()) + (0.0 if on_gpu else sum(p.memory.values())) for p in processes}
    _refuse_too_large(needs, max(sizes), sum(sizes), "memory", where)
    if on_gpu and cards:
        needs = {p.what: sum(p.memory.values()) for p in processes if p.memory}
        _refuse_too_large(needs, max(cards), sum(cards), "GPU memory", where)


def _refuse_too_large(needs: Mapping[str, float], most: float, whole: float, kind: str, where: str) -> None:
    largest = max(needs, key=lambda what: needs[what])
    todo = "take smaller models or --lora N, lower micro_tokens, rows or max_tokens, or see --dry-run"
    if needs[largest] > most:
        raise ConfigError(
            f"{kind} of {largest}: about {bytes_text(needs[largest])}, and {where} has {bytes_text(most)}; {todo}"
        )
    if sum(needs.values()) > whole:
        needs_text = ", ".join(f"{what} {bytes_text(size)}" for what, size in needs.items())
        raise ConfigError(
            f"{kind} of all processes: about {bytes_text(sum(needs.values()))} ({needs_text}), and {where} has "
            f"{bytes_text(whole)}; {todo}"
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


def needed_models(policies: Mapping[str, Any]) -> list[str]:
    """Directories and names that each machine must have."""
    return sorted({str(spec.model) for spec in policies.values() if spec.head and not spec.outside})
