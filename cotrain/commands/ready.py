"""What a run by Ray must find, asked before anything is loaded: memory, GPUs, and on a Ray that runs already the same
versions, files and models on every machine."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from cotrain.core.errors import ConfigError

if TYPE_CHECKING:
    from cotrain.backend.several import Several


def split_of(backend: Several, recipe: Any, cluster: Any) -> Any:
    """How ``estimate.looked_at`` divides the run. Raises ConfigError for models that its engines do not run."""
    import torch

    from cotrain.backend.local import settled
    from cotrain.preflight.processes import split_by

    policies = settled(recipe.policies, backend.device)
    places = backend.placing(policies, recipe.seed, backend.device, torch.get_num_threads())
    return split_by(cluster, places, backend.world)


@contextmanager
def ready(backend: Any, recipe: Any) -> Iterator[list[str]]:
    """Notes on what is there. Raises ConfigError, one line, for the first thing that is missing; a Ray that runs is
    left again where the work within fails. Nothing is asked for ``backend`` None."""
    if backend is None:
        yield []
        return
    try:
        yield check(backend, recipe)
    except BaseException:
        backend.launcher.stop()
        raise


def check(backend: Several, recipe: Any) -> list[str]:
    """See ``ready``."""
    from cotrain.backend import environments, machines
    from cotrain.backend.joining import check_here
    from cotrain.preflight.estimate import looked_at
    from cotrain.preflight.processes import check_memory, models_of, note_of

    launcher: Any = backend.launcher
    cluster = launcher.cluster
    split = split_of(backend, recipe, cluster)
    seen = looked_at(recipe, device=backend.device, checkpoint_every=1, split=split)
    if cluster.address is None:
        check_here(cluster)
        check_memory(seen.processes, [_here()], backend.device, "this machine")
        note = note_of(seen.processes, cluster)
        return [] if note is None else [note]
    launcher.start()
    where = f"the Ray at {cluster.address}"
    wanted = [("learner" if p.what.startswith("the learners") else "engine", p.gpus) for p in seen.processes if p.gpus]
    machines.await_gpus(wanted, f"at {cluster.address}")
    engine = cluster.pythons.get("VllmHost") if backend.kind == "vllm" else None
    hosts = [process for process in seen.processes if process.memory]
    found = machines.ask_machines(
        engine, models_of(recipe.policies), patience=cluster.deadline, gpus=all(process.gpus for process in hosts)
    )
    here = environments.look(sys.executable)
    wrong = [line for machine in found for line in machines.wrongs(machine, here, engine)]
    wrong += machines.differences(found)
    if wrong:
        more = f" (and {len(wrong) - 1} more: `cotrain doctor --cluster FILE` tells them)" if wrong[1:] else ""
        raise ConfigError(f"{where}: {wrong[0]}{more}")
    check_memory(seen.processes, found, backend.device, where)
    return []


def _here() -> dict[str, Any]:
    import torch

    from cotrain.backend.machines import memory_here

    cards = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
    return {"memory": memory_here(), "gpus": [(card.name, card.total_memory) for card in cards]}
