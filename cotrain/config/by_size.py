"""Defaults for large models, where the user gave none.

The defaults of ``Settings`` are for the models that ship, of a million parameters. A model of 100 million and more
wants smaller steps: full weights are usually trained by RL at 1e-6 to 1e-5, adapters ten times and more above that
(Schulman et al. 2025, "LoRA Without Regret"; TRL's GRPO begins at 1e-6), and its memory is filled by fewer tokens.

::

    learning rates     1e-5 from 100 million parameters on, 5e-6 from 1, 1e-6 from 3 billion; of adapters 1e-4
    tasks_per_step     8
    micro_tokens       1024

What was changed stands in the recipe's origin, and is said as a run begins. LoRA stays the user's choice; a model whose
size nobody can tell before it is downloaded has the usual defaults, and that is said. Left out: how far the rates are
from the best ones of a model, which ``cotrain compare --rates`` finds.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from typing import Any

LARGE = 100_000_000  # parameters
FULL = ((3_000_000_000, 1e-6), (1_000_000_000, 5e-6), (LARGE, 1e-5))  # from so many parameters on
ADAPTER = 1e-4
WHOLE = ("critic_lr", "rm_lr", "prm_lr")  # of policies that are trained whole beside adapters
TASKS, MICRO = 8, 1024


def by_size(arguments: Mapping[str, Any], given: Collection[str]) -> dict[str, Any]:
    """New values of arguments of a recipe that were not ``given``; {} for small models."""
    model = arguments.get("model")
    if not isinstance(model, str):
        return {}
    found: dict[str, Any] = {}
    for name, whose in _rates(arguments, given).items():
        rate = rate_of(_size(whose), bool(arguments.get("lora")), name)
        if rate is not None and rate < arguments[name]:
            found[name] = rate
    tasks = arguments.get("tasks_per_step")
    if "tasks_per_step" not in given and isinstance(tasks, int) and tasks > TASKS and _size(model) >= LARGE:
        found["tasks_per_step"] = TASKS
    return found


def settings_by_size(policies: Mapping[str, Any]) -> list[str]:
    """The same for policies whose recipe leaves ``micro_tokens`` as it is: settings as ``--set`` has them."""
    usual = {
        name: field.default
        for name, spec in policies.items()
        for field in dataclasses.fields(spec)
        if field.name == "micro_tokens"
    }
    return [
        f"policies.{name}.micro_tokens={MICRO}"
        for name, tokens in usual.items()
        if policies[name].micro_tokens == tokens and _size(policies[name].model) >= LARGE
    ]


def rate_of(size: int, lora: bool, name: str = "lr") -> float | None:
    """The learning rate for a model of so many parameters; None for a small one, which has its recipe's."""
    if size < LARGE:
        return None
    return ADAPTER if lora and name not in WHOLE else next(rate for least, rate in FULL if size >= least)


def line_of(arguments: Mapping[str, Any], changed: Mapping[str, Any]) -> str:
    """What is said as a run begins."""
    size = _size(arguments["model"])
    plain = {name.rpartition(".")[2]: value for name, value in changed.items()}
    told = ", ".join(f"{name} {value:g}" for name, value in plain.items())
    flags = ", ".join(f"--{name.replace('_', '-')}" for name in changed if "." not in name)
    shown = f"{size / 1e9:.1f} billion" if size >= 1e9 else f"{size / 1e6:.0f} million"
    more = f"; {flags} {'chooses' if ', ' not in flags else 'choose'} otherwise" if flags else ""
    return f"note: defaults for a model of {shown} parameters: {told}{more}"


def unknown_lines(arguments: Mapping[str, Any], given: Collection[str]) -> list[str]:
    """What is said as a run begins of models whose size nobody can tell, where their rates were not ``given``."""
    rates = _rates(arguments, given) if isinstance(arguments.get("model"), str) else {}
    flags: dict[str, list[str]] = {}
    for name, model in rates.items():
        if _known_size(model) is None:
            flags.setdefault(model, []).append(f"--{name.replace('_', '-')} {arguments[name]:g}")
    return [
        f"note: the size of {model} is not known; defaults are those of a small model: {', '.join(mine)}"
        for model, mine in flags.items()
    ]


def _rates(arguments: Mapping[str, Any], given: Collection[str]) -> dict[str, str]:
    """The learning rates that were not ``given``, and the model of each."""
    found = {}
    for name, value in arguments.items():
        if name not in given and isinstance(value, float) and (name == "lr" or name.endswith("_lr")):
            whose = arguments.get(f"{name.removesuffix('lr')}model")
            found[name] = whose if isinstance(whose, str) else arguments["model"]
    return found


def _size(model: str) -> int:
    return _known_size(model) or 0


def _known_size(model: str) -> int | None:
    from cotrain.rollout.common_roles import EMBEDDED  # no model library for those that ship

    if model in EMBEDDED or model.startswith("embedded"):
        return 0
    from cotrain.models.sizes import parameters_of

    return parameters_of(model)
