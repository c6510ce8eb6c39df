"""Checks before a run by Ray: memory, GPUs, and on a running cluster the same versions, files and models on every
machine."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from cotrain.core.errors import ConfigError

if TYPE_CHECKING:
    from cotrain.distributed.multi_process import MultiProcessBackend
    from cotrain.runs.memory_plan import RunEstimate


def estimate_processes(backend: MultiProcessBackend, recipe: Any) -> RunEstimate:
    """Estimate what each process of the run will hold in memory. Raises ConfigError for models that its engines do not
    run."""
    import torch

    from cotrain.runs.memory_plan import estimate_run, with_processes

    launcher: Any = backend.launcher
    places = backend.placing(recipe.policies, recipe.seed, backend.device, torch.get_num_threads())
    estimate = estimate_run(recipe, device=backend.device)
    return with_processes(estimate, launcher.cluster, places, backend.world)


@contextmanager
def cluster_ready(backend: MultiProcessBackend, recipe: Any) -> Iterator[list[str]]:
    """Notes on what is there. Raises ConfigError, one line, for the first thing that is missing; a Ray that runs is
    left again where the work within fails."""
    try:
        yield check_cluster(backend, recipe)
    except BaseException:
        backend.launcher.stop()
        raise


def check_cluster(backend: MultiProcessBackend, recipe: Any) -> list[str]:
    """See ``cluster_ready``."""
    from cotrain.distributed import ray_nodes
    from cotrain.distributed.ray_join import check_here
    from cotrain.runs.memory_plan import check_memory, object_store_note

    launcher: Any = backend.launcher
    cluster = launcher.cluster
    estimate = estimate_processes(backend, recipe)
    if cluster.address is None:
        check_here(cluster)
        check_memory(estimate.processes, [_this_machine()], backend.device, "this machine")
        note = object_store_note(estimate.processes, cluster)
        return [] if note is None else [note]
    launcher.start()
    where = f"the Ray at {cluster.address}"
    wanted_gpus = []
    for process in estimate.processes:
        if process.gpus:
            kind = "learner" if process.what.startswith("the learners") else "engine"
            wanted_gpus.append((kind, process.gpus))

    ray_nodes.await_gpus(wanted_gpus, f"at {cluster.address}")
    engine = cluster.pythons.get("VllmHost") if backend.kind == "vllm" else None
    hosts = [process for process in estimate.processes if process.memory]
    models = sorted({str(spec.model) for spec in recipe.policies.values() if spec.head and not spec.outside})
    reports = ray_nodes.ask_machines(
        engine, models, patience=cluster.deadline, gpus=all(process.gpus for process in hosts)
    )
    here = ray_nodes.inspect_python(sys.executable)
    wrong = [line for machine in reports for line in ray_nodes.machine_problems(machine, here, engine)]
    wrong += ray_nodes.machine_differences(reports)
    if wrong:
        more = f" (and {len(wrong) - 1} more: `cotrain doctor --cluster FILE` tells them)" if wrong[1:] else ""
        raise ConfigError(f"{where}: {wrong[0]}{more}", code="E_MACHINES_DIFFER")
    check_memory(estimate.processes, reports, backend.device, where)
    return []


def _this_machine() -> dict[str, Any]:
    import torch

    from cotrain.distributed.ray_nodes import memory_here

    cards = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
    return {"memory": memory_here(), "gpus": [(card.name, card.total_memory) for card in cards]}
