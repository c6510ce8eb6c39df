"""Does a run fit into this machine's memory? Said in one line before it begins; refused where it certainly does not.

What ``estimate.py`` sums up is held against what the machine has. Weights and their optimisers cannot be smaller, so a
run is refused whose these alone exceed all memory there is. Otherwise fewer answers are decoded at a time
(``policies.NAME.rows``) where the run then fits and the user did not choose. What does not fit is told with the flags
that help. Left out: small models, which fit; machines of a cluster; memory that other programs will want.
"""

from __future__ import annotations

from cotrain.backend.memory import Memory, memory_of
from cotrain.config.by_size import LARGE
from cotrain.config.override import override
from cotrain.config.policies import Weights
from cotrain.config.recipe import Recipe
from cotrain.core.errors import ConfigError, UserError
from cotrain.preflight.estimate import RunEstimate, bytes_text, estimate_run

ROW_CHOICES = (128, 64, 32, 16, 8)  # answers at a time
USABLE_SHARE = 0.9  # of what is available
CERTAIN = ("weights", "optimiser")


def fit_to_memory(recipe: Recipe, device: str, memory: Memory | None = None) -> tuple[Recipe, list[str]]:
    """The recipe with as many rows as fit, and what is to be said of that. ``memory``: by default the machine's. Raises
    ConfigError for a run that certainly does not fit; whatever else is wrong with models and data the run says."""
    try:
        estimate = estimate_run(recipe, device=device, checkpoint_every=1)
    except UserError:
        return recipe, []
    memory = memory or memory_of(device)
    if memory is None or estimate.largest_model < LARGE:
        return recipe, []
    refuse_too_large(estimate, memory)
    if estimate.total_memory > USABLE_SHARE * memory.available:
        for rows in ROW_CHOICES:
            fewer = override(recipe, _row_settings(recipe, rows))
            if estimate.with_settings_of(fewer).total_memory <= USABLE_SHARE * memory.available:
                note = (
                    f"note: at most {rows} answers at a time, as {bytes_text(memory.available)} are available; "
                    "--set policies.NAME.rows=N chooses otherwise"
                )
                return fewer, [note]
    return recipe, memory_warnings(estimate, memory)


def _row_settings(recipe: Recipe, rows: int) -> list[str]:
    """Settings of policies that speak, have more rows, and whose rows the user did not choose."""
    chosen = {one.partition("=")[0] for one in (recipe.origin.settings if recipe.origin else ())}
    speaking = {name: spec for name, spec in recipe.policies.items() if isinstance(spec, Weights) and spec.speaks}
    paths = {f"policies.{name}.rows": spec.rows for name, spec in speaking.items()}
    return [f"{path}={rows}" for path, has in paths.items() if has > rows and path not in chosen]


def refuse_too_large(seen: RunEstimate, memory: Memory) -> None:
    """Raise ConfigError where weights and optimisers alone are more than all memory."""
    least = sum(seen.memory.get(part, 0.0) for part in CERTAIN)
    if least > memory.total:
        raise ConfigError(
            f"weights and optimisers alone take {bytes_text(least)}, and {seen.device} has {bytes_text(memory.total)}; "
            "train adapters on one frozen base with --lora 16, or take a smaller model"
        )


def memory_warnings(seen: RunEstimate, memory: Memory) -> list[str]:
    """A line where the estimate exceeds what is available."""
    if seen.total_memory <= memory.available:
        return []
    part = max(seen.memory, key=lambda name: seen.memory[name])
    return [
        f"note: this run is estimated to take {bytes_text(seen.total_memory)}, and {bytes_text(memory.available)} are "
        f"available on {seen.device}; most of it is {part}: {_memory_advice(part)}"
    ]


def _memory_advice(part: str) -> str:
    """The flags that make a part smaller."""
    if part in ("weights", "optimiser"):
        return "--lora 16 trains adapters on one base, or take a smaller model"
    if part.startswith("gradients"):
        return "--lora 16, --set policies.NAME.micro_tokens=512 or --set policies.NAME.gradient_checkpointing=true"
    if part == "the program itself":
        return "end other programs, or take a machine with more memory"
    return (
        "fewer answers at a time with --set policies.NAME.rows=8, shorter ones with --set "
        "roles.NAME.sampling.max_tokens=N, or --set policies.NAME.autocast=true"
    )
