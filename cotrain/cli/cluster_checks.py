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
    """Check the cluster, and give notes on it. If the body of the ``with`` fails, the connection to Ray is closed.

    Raises ConfigError, one line, for the first thing that is missing.
    """
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
    wanted_gpus = []  # (kind for messages, GPUs) of each process
    for process in estimate.processes:
        if process.gpus:
            kind = "learner" if process.what.startswith("the learners") else "engine"
            wanted_gpus.append((kind, process.gpus))

    ray_nodes.await_gpus(wanted_gpus, f"at {cluster.address}")
    engine_python = cluster.pythons.get("VllmHost") if backend.kind == "vllm" else None
    model_processes = [process for process in estimate.processes if process.memory]  # the others hold no weights
    models = sorted({str(spec.model) for spec in recipe.policies.values() if spec.head and not spec.outside})
    machines = ray_nodes.ask_machines(
        engine_python,
        models,
        patience=cluster.deadline,
        gpus=all(process.gpus for process in model_processes),
    )
    own_python = ray_nodes.inspect_python(sys.executable)
    problems = []
    for machine in machines:
        problems += ray_nodes.machine_problems(machine, own_python, engine_python)
    problems += ray_nodes.machine_differences(machines)
    if problems:
        n_others = len(problems) - 1
        others = f" (and {n_others} more: `cotrain doctor --cluster FILE` tells them)" if n_others else ""
        raise ConfigError(f"{where}: {problems[0]}{others}", code="E_MACHINES_DIFFER")
    check_memory(estimate.processes, machines, backend.device, where)
    return []


def _this_machine() -> dict[str, Any]:
    import torch

    from cotrain.distributed.ray_nodes import memory_here

    cards = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
    return {"memory": memory_here(), "gpus": [(card.name, card.total_memory) for card in cards]}
