"""``cotrain doctor --cluster``: what each machine has, whether they agree, and whether new weights arrive.

What each machine is asked stands in ``distributed/ray_nodes.py``. Then the processes of a small run are begun, and the
self-test of publishing (``distributed/weight_sync_check.py``) is made as at the start of a run.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from functools import partial

from cotrain.config.policies import adapter, trainable
from cotrain.core.errors import CotrainError, UserError
from cotrain.core.verbosity import count_of
from cotrain.distributed.cluster_file import Cluster, check_world, read_cluster_file
from cotrain.distributed.multi_process import MultiProcessBackend
from cotrain.distributed.placement import VllmPlacement, one_local_engine
from cotrain.distributed.ray_nodes import (
    PATIENCE,
    Machine,
    ask_machines,
    inspect_python,
    machine_differences,
    machine_problems,
    versions_line,
)
from cotrain.distributed.ray_processes import RayLauncher
from cotrain.distributed.weight_sync_check import PublishCheck


def examine_cluster(target: str, model: str, device: str) -> int:
    """Print the findings; 0 when a run can work, 1 when something is missing or differs. ``target``: see
    ``cluster_file.read_cluster_file``; ``model``: a directory or Hub name. Raises ConfigError for a wrong file."""
    cluster = read_cluster_file(target)
    check_world(cluster, device, world=1)
    engine_python = cluster.pythons.get("VllmHost")
    launcher = RayLauncher(cluster)
    where = cluster.address or f"Ray begins here, with {count_of(cluster.cpus, 'core')} to deal out"
    print(f"cluster       {where}; engine {'vllm, by ' + engine_python if engine_python else 'local'}")
    own_python = inspect_python(sys.executable)
    try:
        launcher.start()
        machines = ask_machines(engine_python, [model], patience=PATIENCE)
        problems = []
        for machine in machines:
            print_machine(machine, has_engine=engine_python is not None)
            problems += machine_problems(machine, own_python, engine_python)
        problems += machine_differences(machines)
        for problem in problems:
            print(f"WRONG         {problem}")
        if problems:
            print("publishing    not tried")
            return 1
        return try_publishing(cluster, launcher, model, device)
    finally:
        launcher.stop()


def print_machine(machine: Machine, *, has_engine: bool) -> None:
    """Print what a machine has. Prints nothing about one that did not answer: that is among its problems."""
    if "error" in machine:
        return
    gpus = ", ".join(f"{name}, {size / 2**30:.0f} GiB" for name, size in machine["gpus"]) or "no GPU"
    memory = machine["memory"] / 2**30
    print(f"machine       {machine['name']}: {count_of(machine['cores'], 'core')}, {memory:.0f} GiB, {gpus}")
    print(f"  run         {versions_line(machine['python'])}")
    if has_engine:
        print(f"  vLLM        {versions_line(machine['engine'])}")
    for model, weights in machine["weights"].items():
        print(f"  model       {model}: sha256 {weights}")


def try_publishing(cluster: Cluster, launcher: RayLauncher, model: str, device: str) -> int:
    """Run the self-test of publishing twice: with a model that is trained whole, then with two adapters on one model.

    Returns the exit code.
    """
    by_vllm = "VllmHost" in cluster.pythons
    placing = VllmPlacement(settings=cluster.vllm) if by_vllm else partial(one_local_engine, tested=True)
    for what, policies in (
        ("weights", {"learner": trainable(model)}),
        ("adapters", {"learner": adapter(model, rank=8), "other": adapter(model, rank=8)}),
    ):
        backend = MultiProcessBackend(
            _StartedLauncher(launcher),
            device,
            placing=placing,
            replicas=cluster.replicas,
            kind="vllm" if by_vllm else "local",
        )
        try:
            backend.open(policies, seed=0)
        except (UserError, CotrainError) as error:
            print(f"publishing    {what}: WRONG: {error}")
            return 1
        finally:
            asyncio.run(backend.close())

        print(f"publishing    {what} arrive: {arrivals_text(backend.arrivals)}")
    return 0


def arrivals_text(arrivals: Sequence[PublishCheck]) -> str:
    return "; ".join(
        f"{arrival.policy} off by {arrival.before:.1e} nats a token, "
        f"{arrival.after:.1e} after a change of {arrival.change:.1f}"
        for arrival in arrivals
    )


class _StartedLauncher:
    """A launcher that runs already, without the methods that start and stop it: two backends share it in turn, and each
    would stop it when it is closed."""

    def __init__(self, launcher: RayLauncher) -> None:
        self.begin = launcher.begin
        self.describe = launcher.describe
        self.here = launcher.here
        self.deadline = launcher.deadline

    def start(self) -> None: ...

    def stop(self) -> None: ...
