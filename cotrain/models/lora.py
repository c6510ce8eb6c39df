"""Settings of a LoRA adapter, without importing PEFT."""

from __future__ import annotations

from dataclasses import dataclass

from cotrain.core.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Lora:
    """The adapter of a policy (``adapters.py``). With ``path``, rank, alpha and targets are those of the saved one."""

    rank: int = 16
    alpha: int = 32  # what the adapter adds is scaled by alpha / rank
    targets: str | tuple[str, ...] = "all-linear"  # or names of linear layers, such as "q_proj"
    path: str | None = None  # directory of an adapter saved by PEFT, with which this one starts

    def __post_init__(self) -> None:
        if self.rank < 1 or self.alpha < 1 or not self.targets:
            raise ConfigError(
                f"adapter: rank {self.rank}, alpha {self.alpha}, targets {self.targets!r}; expected 1 or more of each",
                code="E_LORA_RANGE",
            )
