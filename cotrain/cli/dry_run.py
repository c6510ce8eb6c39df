"""``cotrain run --dry-run``: what a run would open, hold and write, without beginning it."""

from __future__ import annotations

import argparse
import json
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from cotrain.cli.common import device_of
from cotrain.core.errors import ConfigError
from cotrain.core.verbosity import json_text, print_lines

WIDTH = 98  # characters of a comment


def dry_run(
    recipe: Any,
    arguments: argparse.Namespace,
    backend: Any,
    flags: Sequence[str],
    notes: Sequence[str] = (),
    warmup_flag: str = "",
) -> int:
    """Open what a run would open, and print its flags, its estimate and its settings.

    Args:
        backend: where its processes run; None for this process.
        flags: lines of a file for ``--config``.
        notes: further lines that are printed behind the estimate.
        warmup_flag: see ``check_due``.
    """
    from cotrain.cli.cluster_checks import estimate_processes
    from cotrain.config.recipe import check_due
    from cotrain.distributed.local import check_policy_devices, check_shared_bases, policies_by_device
    from cotrain.runs.device_plan import memory_size, plan_devices, plan_json, plan_lines
    from cotrain.runs.directory import recipe_json
    from cotrain.runs.fitting import check_decoding
    from cotrain.runs.memory_plan import estimate_run

    check_due(recipe, warmup_flag=warmup_flag)
    gpu_sizes = [memory_size(text) for text in arguments.memory]  # of a machine that is planned; [] for this one
    if backend is None:
        check_policy_devices(recipe.policies)
        if gpu_sizes:
            check_shared_bases(recipe.policies)
            estimate = estimate_run(recipe, device="cuda", here=False)
        else:
            device = device_of(arguments.device)
            for policies_there in policies_by_device(recipe.policies, device).values():
                check_shared_bases(policies_there)
            estimate = estimate_run(recipe, device=device, here=True)
            check_decoding(recipe)
    else:
        estimate = estimate_processes(backend, recipe)

    saved = recipe_json(
        recipe,
        checkpoint_every=arguments.checkpoint_every,
        keep_every=arguments.keep_every,
        async_steps=arguments.async_steps,
    )
    plans = plan_devices(estimate, gpu_sizes) if gpu_sizes else None
    if arguments.json:
        result = saved | {"estimate": estimate.to_json()}
        if plans:
            result["plan"] = plan_json(*plans)
        print(json_text(result))
        return 0

    print_lines(flags)
    remarks = ["", *estimate.summary_lines(), *notes]
    if plans:
        remarks += plan_lines(*plans)
    for remark in remarks:
        print_lines(as_comments(remark))
    print('#\n# every setting that can be given as set = ["path=value"]')
    for path, value in setting_leaves(saved["settings"]):
        setting = f"{path}={json.dumps(value, ensure_ascii=False)}"
        if is_changeable(recipe, setting):
            print_lines([f"# {setting}"])
    return 0


def as_comments(line: str) -> list[str]:
    """A line as TOML comments that fit a terminal. Continuation lines are indented."""
    margin = line[: len(line) - len(line.lstrip())]
    parts = textwrap.wrap(
        line.strip(),
        WIDTH,
        initial_indent=margin,
        subsequent_indent=f"{margin}    ",
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [f"# {part}".rstrip() for part in parts or [""]]


def is_changeable(recipe: Any, setting: str) -> bool:
    """Whether ``--set`` takes this ``path=value``. It refuses functions and the task source, which recipe.json has."""
    from cotrain.config.override import override

    try:
        override(recipe, [setting])
    except ConfigError:
        return False
    return True


def setting_leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """The dotted path and the value of each leaf of the settings. An empty table or list is a leaf."""
    is_branch = isinstance(value, Mapping | list) and len(value) > 0
    if not is_branch:
        yield path, value
        return
    children: Iterable[tuple[Any, Any]] = value.items() if isinstance(value, Mapping) else enumerate(value)
    for key, child in children:
        if key == "is":  # the name of the dataclass, which cannot be set
            continue
        child_path = f"{path}.{key}" if path else str(key)
        yield from setting_leaves(child, child_path)
