"""``--dry-run --device cuda --memory 24GiB --memory 80GiB``: a plan for GPUs that are not here.

The sums are those of ``memory_plan.py``, for each device with the policies that it holds. First the run is tried as it
was asked for, then with fewer answers at a time, and then with what costs more: activation checkpointing, policies that
take turns, adapters on one frozen base, and that base in 4 bits. The first plan that fits is the one that is told.

Policies that share a base stay together; otherwise each may go to any device, and they are dealt out so that the
fullest device is as empty as it can be. A tenth of each device is left to CUDA itself and to what its allocator keeps.
Devices are taken to know bfloat16, as NVIDIA's do since 2020. Left out: what devices say to each other, and the
machine's own memory, of which a plan only says what lies there.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from cotrain.config.edits import policy_overrides
from cotrain.config.policies import Learning, Policy, Weights, adapter
from cotrain.config.recipe import Recipe
from cotrain.core.errors import ConfigError
from cotrain.core.verbosity import count_of
from cotrain.runs.memory_plan import ROW_CHOICES, USABLE_SHARE, RunEstimate, bytes_text, parts_text

RANK = 16  # the rank of adapters that a plan tries
DEALS = 20_000  # most ways to deal policies out to devices that are all looked at
CHECKPOINTING = "checkpointing"
OFFLOAD = "offload"
ADAPTERS = "adapters"
FOUR_BITS = "4 bits"
MEASURES = (  # combinations that a plan tries, the cheapest first
    (),
    (CHECKPOINTING,),
    (OFFLOAD,),
    (OFFLOAD, CHECKPOINTING),
    (ADAPTERS,),
    (ADAPTERS, CHECKPOINTING),
    (ADAPTERS, FOUR_BITS),
    (ADAPTERS, FOUR_BITS, CHECKPOINTING),
    (ADAPTERS, FOUR_BITS, OFFLOAD, CHECKPOINTING),
)
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT])(i?)B", re.IGNORECASE)
_POWERS = {"K": 1, "M": 2, "G": 3, "T": 4}


def memory_size(text: str) -> float:
    """Bytes of "24GiB", "80 GB" or "512MiB". Raises ConfigError."""
    match = _SIZE.fullmatch(text.strip())
    if match is None or float(match[1]) <= 0:
        raise ConfigError(
            f"--memory {text!r}: expected the memory of one device, such as 24GiB or 80GB", code="E_MEMORY_SIZE"
        )
    number, letter, binary = match.groups()
    base = 1024 if binary else 1000
    return float(number) * base ** _POWERS[letter.upper()]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceLoad:
    """The policies that one device would hold. Sizes in bytes."""

    name: str
    size: float
    policies: tuple[str, ...]
    parts: Mapping[str, float]

    @property
    def total(self) -> float:
        return sum(self.parts.values())

    @property
    def share(self) -> float:
        """The share of its usable memory that is taken."""
        return self.total / (USABLE_SHARE * self.size)

    def load_line(self) -> str:
        """For people."""
        verdict = "fits" if self.share <= 1 else f"does not fit into {bytes_text(USABLE_SHARE * self.size)}"
        if not self.policies:
            return f"{self.name}, {bytes_text(self.size)}: holds nothing"
        return f"{self.name}, {bytes_text(self.size)}: {', '.join(self.policies)}: {parts_text(self.parts)}: {verdict}"

    def to_json(self) -> dict[str, Any]:
        parts = {name: round(size) for name, size in self.parts.items()}
        return {"device": self.name, "size": round(self.size), "policies": list(self.policies), "memory": parts}


@dataclass(frozen=True, slots=True, kw_only=True)
class DevicePlan:
    """A run on these devices."""

    measures: tuple[str, ...]  # those of ``MEASURES`` that are taken beyond what was asked for
    rows: int | None  # answers at a time, where fewer than asked for
    estimate: RunEstimate
    loads: tuple[DeviceLoad, ...]

    @property
    def fits(self) -> bool:
        return self.fullest.share <= 1

    @property
    def fullest(self) -> DeviceLoad:
        return max(self.loads, key=lambda load: load.share)

    def flags(self) -> list[str]:
        """The flags that ask for it."""
        flags = []
        if ADAPTERS in self.measures:
            flags.append(f"--lora {RANK}")
        if FOUR_BITS in self.measures:
            flags.append("--load-in-4bit")
        if OFFLOAD in self.measures:
            flags.append("--offload")
        return flags + [f"--set {override}" for override in self._overrides()]

    def _overrides(self) -> list[str]:
        """The settings of single policies among these flags."""
        policies = self.estimate.recipe.policies
        overrides = []
        if CHECKPOINTING in self.measures:
            learning = [name for name, spec in policies.items() if isinstance(spec, Learning)]
            overrides += policy_overrides(learning, gradient_checkpointing=True)
        if self.rows is not None:
            fewer = [
                name
                for name, spec in policies.items()
                if isinstance(spec, Weights) and name in self.estimate.answering and spec.rows == self.rows
            ]
            overrides += policy_overrides(fewer, rows=self.rows)
        if len(self.loads) > 1:
            for load in self.loads:
                overrides += [f"policies.{name}.device={load.name}" for name in load.policies]
        return overrides


def plan_devices(estimate: RunEstimate, sizes: Sequence[float]) -> tuple[DevicePlan, DevicePlan]:
    """The run as it was asked for, and the first plan that fits; where none does, the one that comes nearest.

    ``estimate``: of the run on a GPU; ``sizes``: of the devices, in bytes.
    """
    asked: DevicePlan | None = None
    nearest: DevicePlan | None = None
    for measures, rows, changed in _variants(estimate.recipe):
        tried = replace(estimate, recipe=changed, device="cuda")
        plan = DevicePlan(measures=measures, rows=rows, estimate=tried, loads=_best_loads(tried, sizes))
        asked = asked or plan
        if plan.fits:
            return asked, plan
        if nearest is None or plan.fullest.share < nearest.fullest.share:
            nearest = plan
    assert asked is not None and nearest is not None  # the first variant is the run as it is
    return asked, nearest


def plan_lines(asked: DevicePlan, plan: DevicePlan) -> list[str]:
    """For people."""
    lines = [f"plan for {count_of(len(plan.loads), 'device')} that need not be here:"]
    if asked is not plan:
        lines.append(f"as asked {asked.fullest.load_line()}")
    flags = " ".join(plan.flags())
    if not plan.fits:
        lines.append(f"nothing that is known here makes it fit; nearest comes {flags or 'this'}")
    elif flags:
        lines.append(f"it fits with {flags}")
    else:
        lines.append("it fits as asked")
    lines += [load.load_line() for load in plan.loads]
    if resting := plan.estimate.resting_bytes():
        lines.append(f"beside them {bytes_text(resting)} of the machine's own memory, for who rests and for moments")
    return lines


def plan_json(asked: DevicePlan, plan: DevicePlan) -> dict[str, Any]:
    return {
        "fits_as_asked": asked.fits,
        "fits": plan.fits,
        "flags": plan.flags(),
        "measures": list(plan.measures),
        "devices": [load.to_json() for load in plan.loads],
    }


def _variants(recipe: Recipe) -> Iterator[tuple[tuple[str, ...], int | None, Recipe]]:
    """The recipe with each of ``MEASURES`` that changes it, and with fewer and fewer rows."""
    seen: list[Mapping[str, Any]] = []
    for measures in MEASURES:
        policies: dict[str, Any] = dict(recipe.policies)
        taken = []
        for measure in measures:
            changed = {name: _with_measure(spec, measure) for name, spec in policies.items()}
            if changed != policies:
                taken.append(measure)
            policies = changed
        if policies in seen:
            continue
        seen.append(policies)
        yield tuple(taken), None, replace(recipe, policies=policies)
        for rows in ROW_CHOICES:
            fewer = {name: _with_rows(spec, rows) for name, spec in policies.items()}
            if fewer != policies:
                yield tuple(taken), rows, replace(recipe, policies=fewer)


def _with_measure(spec: Policy, measure: str) -> Policy:
    """A policy with one measure; as it is where that is not for it."""
    changed: Policy = spec
    if measure == OFFLOAD and isinstance(spec, Weights):
        changed = replace(spec, offload=True)
    elif measure == CHECKPOINTING and isinstance(spec, Learning):
        changed = replace(spec, gradient_checkpointing=True)
    elif measure == FOUR_BITS and isinstance(spec, Weights) and spec.kind in ("adapter", "frozen"):
        changed = replace(spec, load_in_4bit=True)
    elif measure == ADAPTERS and spec.kind == "trainable":
        kept_fields = ("rows", "micro_tokens", "autocast", "offload")
        kept: dict[str, Any] = {name: getattr(spec, name) for name in kept_fields}
        changed = adapter(spec.model, rank=RANK, alpha=2 * RANK, **kept)
    return changed


def _with_rows(spec: Policy, rows: int) -> Policy:
    """A policy with so many rows, if it generates text and has more."""
    if isinstance(spec, Weights) and spec.generates and spec.rows > rows:
        return replace(spec, rows=rows)
    return spec


def _best_loads(estimate: RunEstimate, sizes: Sequence[float]) -> tuple[DeviceLoad, ...]:
    """The policies dealt out so that the fullest device is as empty as it can be: the best of all ways, or where there
    are more than ``DEALS``, one after the other to the device where it does best, the largest first."""
    units = list(_units(estimate.recipe))
    devices = range(len(sizes))
    if len(devices) ** len(units) <= DEALS:
        deals = product(devices, repeat=len(units))
        return min((_loads_of(estimate, sizes, units, deal) for deal in deals), key=_fullest_share)

    def size_of(unit: tuple[str, ...]) -> float:
        return sum(estimate.policy_memory(unit).values())

    placed: list[tuple[str, ...]] = []
    device_of_placed: list[int] = []
    best: tuple[DeviceLoad, ...] = ()
    for unit in sorted(units, key=size_of, reverse=True):
        placed.append(unit)
        options = [_loads_of(estimate, sizes, placed, [*device_of_placed, device]) for device in devices]
        best_device = min(devices, key=lambda device: _fullest_share(options[device]))
        device_of_placed.append(best_device)
        best = options[best_device]
    return best


def _fullest_share(loads: Sequence[DeviceLoad]) -> tuple[float, float]:
    """The order of plans: by the share of their fullest device, then by their bytes in all."""
    return max(load.share for load in loads), math.fsum(load.total for load in loads)


def _units(recipe: Recipe) -> Iterator[tuple[str, ...]]:
    """Policies that stay together, as they share a base; each other one by itself."""
    by_base: dict[str, list[str]] = {}
    for name, spec in recipe.policies.items():
        if isinstance(spec, Weights):
            base = spec.model if spec.shares_base else f"alone: {name}"
            by_base.setdefault(base, []).append(name)
    yield from map(tuple, by_base.values())


def _loads_of(
    estimate: RunEstimate, sizes: Sequence[float], units: Sequence[tuple[str, ...]], deal: Sequence[int]
) -> tuple[DeviceLoad, ...]:
    """The load of each device where unit i lies on device ``deal[i]``."""
    loads = []
    for device, size in enumerate(sizes):
        own_units = [unit for unit, where in zip(units, deal, strict=True) if where == device]
        names = tuple(name for unit in own_units for name in unit)
        memory = estimate.policy_memory(names) if names else {}
        parts = {part: taken for part, taken in memory.items() if taken}
        loads.append(DeviceLoad(name=f"cuda:{device}", size=size, policies=names, parts=parts))
    return tuple(loads)
