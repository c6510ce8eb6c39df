"""``cotrain doctor``: what is installed, what device there is, and what a run would use."""

from __future__ import annotations

import platform
import shutil
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

from cotrain.core.errors import ConfigError, install_extra
from cotrain.core.shipped import SHIPPED, how_to_get, shipped_folder
from cotrain.core.threads import usable_cores, usual_threads
from cotrain.core.verbosity import count_of, tell_result
from cotrain.grading.isolation import ABOUT, ways_out, working_sandbox
from cotrain.models.load import describe_model, resolve_model

NEEDED = (
    "torch", "transformers", "tokenizers", "safetensors", "huggingface-hub", "httpx2", "peft", "rich",
    "lazy-loader", "math-verify", "latex2sympy2-extended", "sympy", "numpy", "jinja2",
)  # fmt: skip
OPTIONAL = {  # package → extra
    "reasoning-gym": "gym",
    "verifiers": "verifiers",
    "openenv": "openenv",
    "datasets": "hub",
    "bm25s": "search",
    "bitsandbytes": "4bit",
    "starlette": "serve",
    "ray": "ray",
    "tensorboard": "tensorboard",
    "wandb": "wandb",
    "trackio": "trackio",
}


def examine_installation(models: Sequence[str] = ()) -> int:
    """Print the findings. The exit code is 0 if a run can work, 1 if a package that it needs is missing.

    ``models``: models to describe besides the shipped ones. Raises ModelError for one that cannot be used.
    """
    import torch

    installed = [name for name in SHIPPED if shipped_folder(name).is_dir()]
    not_installed = [name for name in SHIPPED if name not in installed]
    descriptions = {name: describe_model(resolve_model(name)) for name in (*installed, *models)}
    versions = {name: _installed_version(name) for name in (*NEEDED, *OPTIONAL)}
    gpus = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
    facts = {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "packages": versions,
        "missing": [name for name in NEEDED if versions[name] is None],
        "cores": usable_cores(),
        "threads": usual_threads(),
        "gpus": [{"name": gpu.name, "gib": round(gpu.total_memory / 2**30, 1)} for gpu in gpus],
        "programs": isolation_text(),  # those that models write
        "disk_free_gib": round(shutil.disk_usage(Path.cwd()).free / 2**30, 1),
        "models": descriptions,
        "models_elsewhere": not_installed,
    }
    tell_result(facts)
    print(f"python        {facts['python']} on {facts['system']}")
    for name in NEEDED:
        print(f"{name:13s} {versions[name] or 'MISSING: pip install ' + name}")
    for name, extra in OPTIONAL.items():
        print(f"{name:13s} {versions[name] or f'not installed (optional: {install_extra(extra)})'}")
    cores = count_of(usable_cores(), "core")
    threads = count_of(usual_threads(), "thread")
    print(f"cpu           {cores}; a run uses {threads}, `--threads N` changes that")
    for index, gpu in enumerate(gpus):
        print(f"cuda:{index}        {gpu.name}, {gpu.total_memory / 2**30:.0f} GiB; use it with --device cuda:{index}")
    if not gpus:
        print("cuda          none; runs use the CPU")
    print(f"programs      {facts['programs']}")
    print(f"disk          {facts['disk_free_gib']} GiB free here")
    for name, model in descriptions.items():
        size = f"{model['parameters']:,} parameters"
        weights = model["sha256"][:12]
        print(f"model         {name}: {model['class']}, {size}, sha256 {weights}…")

    if not_installed:
        print(f"not here      {', '.join(not_installed)}; {how_to_get(not_installed[-1])}")
    return 1 if facts["missing"] else 0


def isolation_text() -> str:
    """Describe the sandbox in which programs that models write would run."""
    try:
        sandbox = working_sandbox()
    except ConfigError as error:
        return str(error)
    open_ways = ways_out(sandbox)
    limits = "no other files, no network, no Unix sockets"
    if open_ways:
        limits = f"still open to them: {', '.join(open_ways)}"
    return f"run in {sandbox}: {ABOUT[sandbox]}; {limits}"


def _installed_version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
