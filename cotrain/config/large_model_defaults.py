"""Defaults of arguments for large models.

The defaults of ``RunConfig`` are for the shipped models, which have a million parameters. A model of 100 million and
more needs smaller steps: full weights are usually trained by RL at 1e-6 to 1e-5, adapters at ten times that and more
(Schulman et al. 2025, "LoRA Without Regret"; TRL's GRPO has 1e-6). Its memory also holds fewer tokens.

::

    learning rates     1e-5 from 100 million parameters on, 5e-6 from 1, 1e-6 from 3 billion; of adapters 1e-4
    tasks_per_step     8
    micro_tokens       1024

Changed defaults are recorded in the recipe's origin, and printed when a run starts. LoRA stays the user's choice. A
model whose size is not known before it is downloaded gets the usual defaults, which is printed, too. Left out: the best
rates for a model, which ``cotrain compare --rates`` finds.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from cotrain.config.policies import Policy, Weights, is_address
from cotrain.core.shipped import SHIPPED_LANGUAGE_MODELS

if TYPE_CHECKING:
    from cotrain.config.recipe import Origin

LARGE = 100_000_000  # parameters
PACKED_FROM = 10_000_000  # parameters from which weights may be packed for decoding (``runs/memory_plan.py``)
FULL_RATES = ((3_000_000_000, 1e-6), (1_000_000_000, 5e-6), (LARGE, 1e-5))  # (least parameters, learning rate)
ADAPTER_RATE = 1e-4
WHOLE_POLICY_RATES = ("critic_lr", "rm_lr", "prm_lr")  # rates of policies that are trained whole next to adapters
LARGE_TASKS = 8
LARGE_MICRO_TOKENS = 1024


def size_defaults(arguments: Mapping[str, Any], user_arguments: Collection[str]) -> dict[str, Any]:
    """New values for arguments of a recipe that the user did not give; {} for small models. ``user_arguments``: names
    of those that the user gave."""
    if not isinstance(arguments.get("model"), str):
        return {}
    defaults: dict[str, Any] = {}
    for name, model in _default_rates(arguments, user_arguments).items():
        rate = rate_of(_known_size(model) or 0, bool(arguments.get("lora")), name)
        if rate is not None and rate < arguments[name]:
            defaults[name] = rate
    tasks = arguments.get("tasks_per_step")
    if "tasks_per_step" in user_arguments or not isinstance(tasks, int) or tasks <= LARGE_TASKS:
        return defaults
    if not are_small([arguments["model"]], unknown=True):
        defaults["tasks_per_step"] = LARGE_TASKS
    return defaults


def defaults_by_size(defaults: Mapping[str, Any]) -> dict[str, str]:
    """Name of each argument whose default depends on the size of the model → what the help of its flag says about
    it."""
    from_size = f"from {LARGE // 1_000_000}M parameters"
    texts: dict[str, str] = {}
    for name, value in defaults.items():
        if name == "tasks_per_step" and isinstance(value, int) and value > LARGE_TASKS:
            texts[name] = f"{LARGE_TASKS} {from_size}"
        is_rate = name == "lr" or name.endswith("_lr")
        largest = FULL_RATES[-1][1]
        if is_rate and isinstance(value, float) and value > largest:
            adapters = "" if name in WHOLE_POLICY_RATES else f", {ADAPTER_RATE:g} of adapters"
            texts[name] = f"{largest:g} or less {from_size}{adapters}"
    return texts


def large_policies(policies: Mapping[str, Policy]) -> list[str]:
    """Policies of large models with the default ``micro_tokens``; they get ``LARGE_MICRO_TOKENS`` instead."""
    return [
        name
        for name, spec in policies.items()
        if isinstance(spec, Weights) and _has_usual_micro_tokens(spec) and not are_small([spec.model], unknown=True)
    ]


def _has_usual_micro_tokens(spec: Weights) -> bool:
    defaults = {field.name: field.default for field in dataclasses.fields(spec)}
    return bool(spec.micro_tokens == defaults["micro_tokens"])


def rate_of(size: int, lora: bool, name: str = "lr") -> float | None:
    """The learning rate for a model with ``size`` parameters; None for a small one, which has its recipe's."""
    if size < LARGE:
        return None
    if lora and name not in WHOLE_POLICY_RATES:
        return ADAPTER_RATE
    return next(rate for least_size, rate in FULL_RATES if size >= least_size)


def size_notes(origin: Origin | None, overrides: Sequence[str] = (), user_arguments: Collection[str] = ()) -> list[str]:
    """Notes for the start of a run: the defaults that depend on the size of its model, without those in ``overrides``;
    and, for models of unknown size, the learning rates that the user did not give. ``user_arguments``: names of
    the arguments that the user gave."""
    if origin is None:
        return []
    notes: list[str] = []
    arguments = origin.arguments

    overridden = {override.partition("=")[0] for override in overrides}
    by_size = {name: value for name, value in origin.by_size.items() if name not in overridden}
    if by_size:
        notes.append(_defaults_note(_known_size(arguments["model"]) or 0, by_size))

    rates_by_model: dict[str, list[str]] = {}
    for name, model in _default_rates(arguments, user_arguments).items():
        if not is_address(model) and _known_size(model) is None:  # a server's model is not trained
            rates_by_model.setdefault(model, []).append(f"{_flag(name)} {arguments[name]:g}")
    for model, rates in rates_by_model.items():
        notes.append(f"note: the size of {model} is not known; defaults are those of a small model: {', '.join(rates)}")
    return notes


def _defaults_note(size: int, by_size: Mapping[str, float]) -> str:
    """A note of the defaults for a model with ``size`` parameters, and of the flags that change them."""
    size_text = f"{size / 1e9:.1f} billion" if size >= 1e9 else f"{size / 1e6:.0f} million"
    values = dict.fromkeys(f"{name.rpartition('.')[2]} {value:g}" for name, value in by_size.items())
    note = f"note: defaults for a model of {size_text} parameters: {', '.join(values)}"

    flags = [_flag(name) for name in by_size if "." not in name]
    if not flags:
        return note
    verb = "chooses" if len(flags) == 1 else "choose"
    return f"{note}; {', '.join(flags)} {verb} otherwise"


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _default_rates(arguments: Mapping[str, Any], user_arguments: Collection[str]) -> dict[str, str]:
    """Name of each learning rate that the user did not give → the model that it is for."""
    if not isinstance(arguments.get("model"), str):
        return {}
    rate_models = {}
    for name, value in arguments.items():
        is_rate = isinstance(value, float) and (name == "lr" or name.endswith("_lr"))
        if not is_rate or name in user_arguments:
            continue
        model_name = arguments.get(f"{name.removesuffix('lr')}model")  # verifier_lr goes with verifier_model
        rate_models[name] = model_name if isinstance(model_name, str) else arguments["model"]
    return rate_models


def are_small(models: Iterable[str], *, unknown: bool = False, least: int = LARGE) -> bool:
    """Whether all models have fewer than ``least`` parameters. ``unknown`` is the answer for one of unknown size."""
    for model in models:
        size = _known_size(model)
        is_small = unknown if size is None else size < least
        if not is_small:
            return False
    return True


def _known_size(model: str) -> int | None:
    if model in SHIPPED_LANGUAGE_MODELS or model.startswith("shipped"):
        return 0
    from cotrain.models.sizes import parameter_count

    return parameter_count(model)
