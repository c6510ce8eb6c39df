"""The ``--cluster`` file: which machines and processes a run uses. It changes nothing of the recipe.

::

    address = "auto"              # of a Ray that runs; left out: Ray begins on this machine
    cpus = 4                      # that Ray may deal out here
    object_store_mb = 1024        # of shared memory, through which weights pass; Ray writes to the disk beyond
    deadline_seconds = 600        # for each answer of a process; who is silent longer is killed and replaced

    [learner]
    gpus = 1

    [learner.verifier]            # a policy with learners of its own, which is updated next to the others
    gpus = 1                      # of each of its processes
    world = 1                     # ranks that hold it in shards

    [engine]
    replicas = 1                  # processes of each engine, among which requests are dealt
    gpus = 1                      # of each process
    python = "/env/bin/python"    # of --engine vllm: an environment that has vLLM, Ray and cotrain; left out: this one
    cache_mb = 1024               # of vLLM: memory of keys and values, of each process
    context = 4096                # of vLLM: tokens of prompt and answer together; left out: the model's own
    rows = 256                    # of vLLM: that decode at a time

``--cluster local`` is such a file with nothing in it.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cotrain.core.errors import ConfigError, DataError, unknown_message
from cotrain.core.input_files import read_toml
from cotrain.core.threads import usable_cores
from cotrain.distributed.placement import EnginePlacement, PlacementRule, PolicySpecs, learners_label, process_names
from cotrain.inference.vllm import DEFAULT_SETTINGS, VllmSettings

LOCAL = "local"


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnLearners:
    """A table [learner.NAME]."""

    gpus: float = 0.0  # GPUs of each process
    world: int = 1  # processes, which hold the policy in shards where they are several


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """See the module for the fields."""

    address: str | None = None
    cpus: int = usable_cores()
    object_store_mb: int = 1024
    deadline: float = 600.0
    replicas: int = 1
    gpus: Mapping[str, float] = field(default_factory=dict)  # by host: those of one process
    pythons: Mapping[str, str] = field(default_factory=dict)  # by host: of its process, where it is not the command's
    vllm: VllmSettings = DEFAULT_SETTINGS
    learners: Mapping[str, OwnLearners] = field(default_factory=dict)  # by policy: those with learners of their own

    @property
    def worlds(self) -> dict[str, int]:
        """Ranks of each policy that has learners of its own."""
        return {policy: own.world for policy, own in self.learners.items()}

    def gpus_of(self, what: str, host: str) -> float:
        """GPUs of a process. ``what``: as messages name it; ``host``: the class that it holds."""
        for policy, own in self.learners.items():
            if what in process_names(learners_label(policy), own.world):
                return own.gpus
        return self.gpus.get(host, 0.0)

    @property
    def engine_python(self) -> str:
        """The Python of the processes of vLLM."""
        return self.pythons.get("VllmHost", sys.executable)


def read_cluster_file(target: str) -> Cluster:
    """The cluster that ``--cluster`` names: "local" or a TOML file. Raises ConfigError, one line, for what is wrong in
    it."""
    if target == LOCAL:
        return Cluster()
    try:
        document = read_toml(Path(target))
    except DataError as error:
        raise ConfigError(f"--cluster {error}; expected {LOCAL!r} or a TOML file", code=error.code) from None
    whole = _Table(target, "", document)
    learner = _Table(target, "learner", document.get("learner", {}))
    engine = _Table(target, "engine", document.get("engine", {}))
    for table, keys in (
        (whole, ("address", "cpus", "object_store_mb", "deadline_seconds", "learner", "engine")),
        (engine, ("replicas", "gpus", "python", "cache_mb", "context", "rows")),
    ):
        table.check_unknown(keys)

    tables = learner.subtables()
    learner.check_unknown(("gpus", *tables))
    learners = {name: _own_learners(table) for name, table in tables.items()}
    defaults = Cluster()
    python = engine.get_text("python")
    has_context = engine.has_key("context")
    vllm = VllmSettings(
        cache_mb=int(engine.get_number("cache_mb", defaults.vllm.cache_mb, least=1, whole=True)),
        context=int(engine.get_number("context", 0, least=1, whole=True)) if has_context else None,
        rows=int(engine.get_number("rows", defaults.vllm.rows, least=1, whole=True)),
    )
    return Cluster(
        address=whole.get_text("address"),
        cpus=int(whole.get_number("cpus", defaults.cpus, least=1, whole=True)),
        object_store_mb=int(whole.get_number("object_store_mb", defaults.object_store_mb, least=80, whole=True)),
        deadline=whole.get_number("deadline_seconds", defaults.deadline, least=1),
        replicas=int(engine.get_number("replicas", defaults.replicas, least=1, whole=True)),
        gpus={
            "LearnerHost": learner.get_number("gpus", 0.0, least=0),
            "RankHost": learner.get_number("gpus", 0.0, least=0),
            "EngineHost": engine.get_number("gpus", 0.0, least=0),
            "VllmHost": engine.get_number("gpus", 0.0, least=0),
        },
        pythons={} if python is None else {"VllmHost": python},
        vllm=vllm,
        learners=learners,
    )


def _own_learners(table: _Table) -> OwnLearners:
    table.check_unknown(("gpus", "world"))
    return OwnLearners(
        gpus=table.get_number("gpus", 0.0, least=0), world=int(table.get_number("world", 1, least=1, whole=True))
    )


def check_world(cluster: Cluster, device: str, world: int) -> None:
    """Raise ConfigError, one line, for more ranks of learners, replicas of an engine or GPUs than this machine has.
    Left out: what a Ray that runs already has to give, which it is asked when it is joined (``ray_processes.py``)."""
    if world > 1 and cluster.address is None and world > cluster.cpus:
        raise ConfigError(
            f"--world {world}: there are {cluster.cpus} CPUs here for as many ranks; give --world {cluster.cpus} or "
            "fewer, or `cpus` in the --cluster file",
            code="E_TOO_FEW_CPUS",
        )
    if cluster.address is None and device == "cpu" and cluster.replicas > max(1, cluster.cpus):
        raise ConfigError(
            f"engine.replicas is {cluster.replicas} in the --cluster file, and there are {cluster.cpus} CPUs here for "
            f"as many processes; give {cluster.cpus} or fewer, or more `cpus`",
            code="E_TOO_FEW_CPUS",
        )
    _check_rank_gpus(f"--world {world}", world, device, cluster.gpus.get("RankHost", 0.0), "learner")
    for policy, own in cluster.learners.items():
        table = f"learner.{policy}"
        if cluster.address is None and own.world > cluster.cpus:
            raise ConfigError(
                f"[{table}] world = {own.world} in the --cluster file: there are {cluster.cpus} CPUs here for as many "
                "ranks; give fewer, or more `cpus`",
                code="E_TOO_FEW_CPUS",
            )
        _check_rank_gpus(f"[{table}] world = {own.world}", own.world, device, own.gpus, table)

    _check_gpus(cluster, gpus_wanted(cluster, world))


def _check_rank_gpus(where: str, world: int, device: str, each: float, table: str) -> None:
    """Raise ConfigError where ranks on GPUs have none of their own."""
    if world > 1 and device.startswith("cuda") and each < 1:
        raise ConfigError(
            f"{where} on {device}: each rank needs a GPU of its own, and the --cluster file gives it {each:g}; "
            f"set gpus = 1 under [{table}], or give --device cpu",
            code="E_RANK_WITHOUT_GPU",
        )


def gpus_wanted(cluster: Cluster, world: int = 1, engines: Sequence[str] = ("EngineHost",)) -> list[tuple[str, float]]:
    """GPUs of the learners and of each replica of the engines: by the table of the file, for each process.
    ``engines``: their hosts."""
    learner = cluster.gpus.get("RankHost" if world > 1 else "LearnerHost", 0.0)
    per_engine = [("engine", cluster.gpus.get(host, 0.0)) for host in engines]
    own = [(f"learner.{policy}", one.gpus) for policy, one in cluster.learners.items() for _ in range(one.world)]
    return [*[("learner", learner)] * world, *own, *per_engine * cluster.replicas]


def with_gpu_check(cluster: Cluster, world: int, placing: PlacementRule) -> PlacementRule:
    """The placing; raises ConfigError, one line, where the replicas of all its engines want more GPUs than there are
    here."""

    def place_and_check(policies: PolicySpecs, seed: int, device: str, threads: int) -> list[EnginePlacement]:
        places = placing(policies, seed, device, threads)
        _check_gpus(cluster, gpus_wanted(cluster, world, [place.host.__name__ for place in places]))
        return places

    return place_and_check


def _check_gpus(cluster: Cluster, wanted: Sequence[tuple[str, float]]) -> None:
    if cluster.address is None and any(each for _, each in wanted):
        import torch

        from cotrain.distributed.ray_nodes import check_gpus

        check_gpus(wanted, [torch.cuda.device_count()], "here")


class _Table:
    """One table of the file."""

    def __init__(self, file: str, name: str, values: object) -> None:
        self._file = file
        self._where = f"--cluster {file}"
        self._prefix = f"{name}." if name else ""
        if not isinstance(values, Mapping):
            raise ConfigError(
                f"{self._where}: {name} is {values!r}, expected a table [{name}]", code="E_CLUSTER_FILE_VALUE"
            )
        self._values = values

    def check_unknown(self, keys: tuple[str, ...]) -> None:
        for name in self._values:
            if name not in keys:
                raise ConfigError(f"{self._where}: {unknown_message('key', name, keys)}", code="E_CLUSTER_FILE_KEY")

    def subtables(self) -> dict[str, _Table]:
        """The tables in it, by name."""
        tables = {name: value for name, value in self._values.items() if isinstance(value, Mapping)}
        return {name: _Table(self._file, f"{self._prefix}{name}", table) for name, table in tables.items()}

    def has_key(self, name: str) -> bool:
        return name in self._values

    def get_text(self, name: str) -> str | None:
        value = self._values.get(name)
        if value is not None and not isinstance(value, str):
            raise ConfigError(
                f"{self._where}: {self._prefix}{name} is {value!r}, expected a text", code="E_CLUSTER_FILE_VALUE"
            )
        return value

    def get_number(self, name: str, usual: float, *, least: float, whole: bool = False) -> float:
        value = self._values.get(name, usual)
        kinds = int if whole else (int, float)
        if isinstance(value, bool) or not isinstance(value, kinds) or not least <= value < math.inf:
            kind = "a whole number" if whole else "a number"
            raise ConfigError(
                f"{self._where}: {self._prefix}{name} is {value!r}, expected {kind} of at least {least:g}",
                code="E_CLUSTER_FILE_VALUE",
            )
        return float(value)
