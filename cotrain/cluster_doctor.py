"""``cotrain doctor --cluster``: what each machine has, whether they agree, and whether new weights arrive.

Each machine is asked for the Python of this command and that of vLLM, and for the hash of a model's weights as it would
load them there, from a directory or its cache. Then the processes of a small run are begun, and the self-test of
publishing (``backend/publishing.py``) is made as at the start of a run.
"""

from __future__ import annotations

import asyncio
import os
import platform
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from cotrain.backend import environments
from cotrain.backend.cluster_file import Cluster, check_room, read
from cotrain.backend.on_ray import Ray
from cotrain.backend.places import ByVllm, embedded_alone
from cotrain.backend.publishing import Arrival
from cotrain.backend.several import Several
from cotrain.core.errors import CotrainError, ModelError, UserError
from cotrain.loop.policies import adapter, trainable

Machine = dict[str, Any]  # what one machine says of itself
PATIENCE = 300.0  # seconds for all machines to answer


def examine_cluster(target: str, model: str, device: str) -> int:
    """Print the findings; 0 when a run can work, 1 when something is missing or differs. ``target``: see
    ``cluster_file.read``; ``model``: a directory or Hub name. Raises ConfigError for a wrong file."""
    cluster = read(target)
    check_room(cluster, device, 1)
    engine = cluster.pythons.get("VllmHost")
    launcher = Ray(cluster)
    where = cluster.address or f"Ray begins here, with {cluster.cpus} cores to deal out"
    print(f"cluster       {where}; engine {'vllm, by ' + engine if engine else 'embedded'}")
    here = environments.look(sys.executable)
    launcher.start()
    try:
        machines = ask_machines(engine, model)
        wrong = [line for machine in machines for line in told(machine, here, engine)]
        wrong += differences(machines)
        for line in wrong:
            print(f"WRONG         {line}")
        if wrong:
            print("publishing    not tried")
            return 1
        return tried(cluster, launcher, model, device)
    finally:
        launcher.stop()


def ask_machines(engine: str | None, model: str) -> list[Machine]:
    """What each machine of Ray's says of itself, in the order of their addresses."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    asked = []
    for node in sorted((n for n in ray.nodes() if n["Alive"]), key=lambda n: str(n["NodeManagerAddress"])):
        there = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
        task: Any = ray.remote(look_here).options(num_cpus=0, scheduling_strategy=there)
        asked.append(task.remote(engine, model))
    return list(ray.get(asked, timeout=PATIENCE))


def look_here(engine: str | None, model: str) -> Machine:
    """One machine, said by itself. ``engine``: the Python of vLLM."""
    import torch

    from cotrain.models.load import describe_model, model_directory

    try:
        weights = describe_model(model_directory(model))["sha256"][:12]
    except ModelError as error:
        weights = f"missing: {error}"
    gpus = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
    return {
        "name": platform.node(),
        "cores": len(os.sched_getaffinity(0)),
        "memory": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30),
        "gpus": [f"{gpu.name}, {gpu.total_memory / 2**30:.0f} GiB" for gpu in gpus],
        "python": environments.look(sys.executable),
        "engine": None if engine is None else environments.look(engine),
        "model": model,
        "weights": weights,
    }


def told(machine: Machine, here: Mapping[str, Any], engine: str | None) -> list[str]:
    """Print one machine; what is wrong with it."""
    gpus = ", ".join(machine["gpus"]) or "no GPU"
    print(f"machine       {machine['name']}: {machine['cores']} cores, {machine['memory']} GiB, {gpus}")
    print(f"  run         {versions(machine['python'])}")
    wrong = []
    if versions(machine["python"]) != versions(here):
        wrong.append(f"{machine['name']} has {versions(machine['python'])}, this machine {versions(here)}")
    if engine is not None:
        print(f"  vLLM        {versions(machine['engine'])}")
        problem = environments.problem(machine["engine"], dict(here))
        wrong += [f"{machine['name']}: {engine}: {problem}"] if problem else []
    print(f"  model       {machine['model']}: sha256 {machine['weights']}")
    if machine["weights"].startswith("missing"):
        wrong.append(f"{machine['name']}: {machine['weights'].removeprefix('missing: ')}")
    return wrong


def versions(found: Mapping[str, Any]) -> str:
    """In one line: ``python 3.11.7, cotrain 0.1.0 (files 341c883e990a), ray 2.60.0``."""
    if "error" in found:
        return str(found["error"])
    names = [name for name in ("python", *environments.PACKAGES) if name in found]
    files = {"cotrain": f" (files {found.get('code')})"}
    return ", ".join(f"{name} {found[name]}{files.get(name, '')}" for name in names)


def differences(machines: Sequence[Machine]) -> list[str]:
    """In what machines differ from the first."""
    first, wrong = machines[0], []
    for other in machines[1:]:
        if other["weights"] != first["weights"]:
            wrong.append(f"weights of {first['model']!r} on {other['name']} are others than on {first['name']}")
        one, two = (versions(m["engine"] or {}) for m in (first, other))
        if one != two:
            wrong.append(f"vLLM's Python on {other['name']} has {two}, on {first['name']} {one}")
    return wrong


def tried(cluster: Cluster, launcher: Ray, model: str, device: str) -> int:
    """The self-test of publishing, with a model that is trained whole and then one with two adapters on it."""
    by_vllm = "VllmHost" in cluster.pythons
    placing = ByVllm(settings=cluster.vllm) if by_vllm else partial(embedded_alone, tested=True)
    for what, policies in (
        ("weights", {"learner": trainable(model)}),
        ("adapters", {"learner": adapter(model, rank=8), "other": adapter(model, rank=8)}),
    ):
        backend = Several(
            _Standing(launcher),
            device,
            placing=placing,
            replicas=cluster.replicas,
            kind="vllm" if by_vllm else "embedded",
        )
        try:
            backend.open(policies, seed=0)
        except (UserError, CotrainError) as error:
            print(f"publishing    {what}: WRONG: {error}")
            return 1
        finally:
            asyncio.run(backend.close())
        print(f"publishing    {what} arrive: {found(backend.arrivals)}")
    return 0


def found(arrivals: Sequence[Arrival]) -> str:
    return "; ".join(
        f"{one.policy} off by {one.before:.1e} nats a token, {one.after:.1e} after a change of {one.change:.1f}"
        for one in arrivals
    )


class _Standing:
    """A launcher that has been started, and goes on when a backend is closed."""

    def __init__(self, launcher: Ray) -> None:
        self.begin, self.describe = launcher.begin, launcher.describe
        self.here, self.deadline = launcher.here, launcher.deadline

    def start(self) -> None: ...

    def stop(self) -> None: ...
