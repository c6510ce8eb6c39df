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
    """Open what a run would open, and print what it would be."""
    from cotrain.cli.cluster_checks import estimate_processes
    from cotrain.config.recipe import check_due
    from cotrain.distributed.local import check_policy_devices, check_shared_bases, policies_by_device
    from cotrain.runs.device_plan import memory_size, plan_devices, plan_json, plan_lines
    from cotrain.runs.directory import recipe_json
    from cotrain.runs.fitting import check_decoding
    from cotrain.runs.memory_plan import estimate_run

    check_due(recipe, warmup_flag=warmup_flag)
    sizes = [memory_size(text) for text in arguments.memory]
    if backend is None:
        check_policy_devices(recipe.policies)
        if sizes:
            check_shared_bases(recipe.policies)
            device = "cuda"
        else:
            device = device_of(arguments.device)
            for group in policies_by_device(recipe.policies, device).values():
                check_shared_bases(group)
        estimate = estimate_run(recipe, device=device, here=not sizes)
        if not sizes:
            check_decoding(recipe)
    else:
        estimate = estimate_processes(backend, recipe)

    saved = recipe_json(
        recipe,
        checkpoint_every=arguments.checkpoint_every,
        keep_every=arguments.keep_every,
        async_steps=arguments.async_steps,
    )
    plans = plan_devices(estimate, sizes) if sizes else None
    if arguments.json:
        shown = saved | {"estimate": estimate.to_json()}
        if plans:
            shown["plan"] = plan_json(*plans)
        print(json_text(shown))
        return 0

    if plans:
        notes = [*notes, *plan_lines(*plans)]
    print_lines(flags)
    print_lines(comment for line in ("", *estimate.summary_lines(), *notes) for comment in as_comments(line))
    print('#\n# every setting that can be given as set = ["path=value"]')
    for path, value in setting_leaves(saved["settings"]):
        setting = f"{path}={json.dumps(value, ensure_ascii=False)}"
        if is_changeable(recipe, setting):
            print_lines([f"# {setting}"])
    return 0


def as_comments(line: str) -> list[str]:
    """A line as comments of a TOML file that fit a terminal; what is too long goes on with a margin."""
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
    """Whether ``--set`` takes it: functions, and what the problems were made of, are no settings."""
    from cotrain.config.override import override

    try:
        override(recipe, [setting])
    except ConfigError:
        return False
    return True


def setting_leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted path and value of everything plain in the settings."""
    parts: Iterable[tuple[Any, Any]] = ()
    if isinstance(value, Mapping):
        parts = value.items()
    elif isinstance(value, list):
        parts = enumerate(value)
    if not parts or not value:
        yield path, value
        return
    for key, part in parts:
        if key != "is":
            yield from setting_leaves(part, f"{path}.{key}".lstrip("."))
