"""``cotrain doctor``: what is installed, what device there is, and what a run would use."""

from __future__ import annotations

import os
import platform
import shutil
from importlib import metadata
from pathlib import Path

from cotrain.core.errors import ConfigError
from cotrain.core.threads import usual_threads
from cotrain.grading.isolation import ABOUT, ways_out, working_cell
from cotrain.models.load import EMBEDDED_RATER, describe_model, resolve_model
from cotrain.rollout.common_roles import EMBEDDED

NEEDED = ("torch", "transformers", "tokenizers", "safetensors", "peft", "rich", "math-verify", "numpy", "jinja2")
OPTIONAL = {  # package → extra
    "reasoning-gym": "gym",
    "datasets": "hub",
    "starlette": "serve",
    "ray": "ray",
    "tensorboard": "tensorboard",
    "wandb": "wandb",
    "trackio": "trackio",
}


def examine_installation() -> int:
    """Print the findings; 0 when a run can work, 1 when something it needs is missing."""
    import torch

    missing = 0
    print(f"python        {platform.python_version()} on {platform.system()} {platform.machine()}")
    for name in NEEDED:
        version = _installed_version(name)
        missing += version is None
        print(f"{name:13s} {version or 'MISSING: pip install ' + name}")
    for name, extra in OPTIONAL.items():
        version = _installed_version(name)
        print(f"{name:13s} {version or f'not installed (optional: pip install cotrain[{extra}])'}")
    cores = len(os.sched_getaffinity(0))
    print(f"cpu           {cores} cores; a run uses {usual_threads()} threads, `--threads N` changes that")
    if torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            about = torch.cuda.get_device_properties(index)
            print(
                f"cuda:{index}        {about.name}, {about.total_memory / 2**30:.0f} GiB; use it with --device "
                f"cuda:{index}"
            )
    else:
        print("cuda          none; runs use the CPU")
    print(f"programs      {isolation_text()}")
    free = shutil.disk_usage(Path.cwd()).free / 2**30
    print(f"disk          {free:.1f} GiB free here")
    for name in (*EMBEDDED, EMBEDDED_RATER):
        description = describe_model(resolve_model(name))
        print(
            f"model         {name}: {description['class']}, {description['parameters']:,} parameters, sha256 "
            f"{description['sha256'][:12]}…"
        )
    return 1 if missing else 0


def isolation_text() -> str:
    """What programs that models wrote would run in."""
    try:
        kind = working_cell()
    except ConfigError as error:
        return str(error)
    left = ways_out(kind)
    return f"run in {kind}: {ABOUT[kind]}; " + (
        f"still open to them: {', '.join(left)}" if left else "no other files, no network, no Unix sockets"
    )


def _installed_version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
