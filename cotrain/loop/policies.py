"""What a policy is: whose weights, and whether and how they are trained; or a program, which has none."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any, Literal, TypedDict, Unpack

from cotrain.core.errors import ConfigError, UnknownName

DTYPES = ("float32", "bfloat16")
ATTENTIONS = ("sdpa", "eager", "flash_attention_2", "flash_attention_3", "flex_attention")
PICKS = ("newest", "oldest", "random")
Program = Callable[[Mapping[str, Any], Random], str]  # (the call's fields, addressed draws) → what it says


@dataclass(frozen=True, slots=True, kw_only=True)
class Ema:
    """Weights that move towards those of policy ``of`` after each of its updates, by the share ``rate``."""

    of: str
    rate: float = 0.01
    rate_end: float | None = None  # at the last planned update, half a cosine away; None: constant

    def __post_init__(self) -> None:
        for rate in (self.rate, self.rate_end):
            if rate is not None and not 0.0 <= rate <= 1.0:
                raise ConfigError(f"ema of {self.of!r}: rate {rate} must be in [0, 1], the share of the new weights")


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Earlier weights of policy ``of``: a pool of ``keep``, one more every ``every`` of its updates, and which is played."""

    of: str
    every: int
    keep: int = 1
    pick: Literal["newest", "oldest", "random"] = "newest"

    def __post_init__(self) -> None:
        if self.every < 1 or self.keep < 1:
            raise ConfigError(f"snapshot of {self.of!r}: every {self.every} and keep {self.keep} must be 1 or more")
        if self.pick not in PICKS:
            raise UnknownName("pick of a snapshot", self.pick, PICKS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lora:
    """The adapter of a policy (``models/adapters.py``). With ``path``, rank, alpha and targets are those of the saved one."""

    rank: int = 16
    alpha: int = 32  # what the adapter adds is scaled by alpha / rank
    targets: str | tuple[str, ...] = "all-linear"  # or names of linear layers, such as "q_proj"
    path: str | None = None  # directory of an adapter saved by PEFT, to begin with

    def __post_init__(self) -> None:
        if self.rank < 1 or self.alpha < 1 or not self.targets:
            raise ConfigError(
                f"adapter: rank {self.rank}, alpha {self.alpha}, targets {self.targets!r}; expected 1 or more of each"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicySpec:
    """One set of weights, or a program. ``kind`` is "trainable", "adapter", "frozen", "ema", "snapshot" or "program";
    ``head`` is "lm", "value" for a critic, or "reward" for a policy that scores what it is shown instead of speaking."""

    kind: str
    model: str  # directory, Hub name, or the name of an embedded model
    head: str = "lm"
    lr: float = 1e-4  # of AdamW, after warm-up
    lr_warmup: int = 5  # updates over which the learning rate rises linearly
    clip_norm: float = 1.0  # global gradient norm is clipped to this
    weight_decay: float = 0.0
    micro_tokens: int = 2048  # tokens of one forward and backward pass, prompts and padding counted
    follow: Ema | Snapshot | None = None  # of the kinds "ema" and "snapshot"
    program: Program | None = None  # of the kind "program"
    tokens_of: str | None = None  # of the kind "program": a policy, whose tokens its text is cut into; None: bytes
    lora: Lora | None = None  # of the kind "adapter"
    dtype: str = "float32"  # of weights that no gradient changes; "bfloat16": half of the memory
    autocast: bool | None = (
        None  # bfloat16 arithmetic over float32 weights, of sampler and learner alike; None: on CUDA
    )
    attn_implementation: str | None = None  # of transformers; None: "sdpa", or the model's own where it has no other.
    # Prompts that samples share are computed once under "sdpa" only
    gradient_checkpointing: bool = False  # compute layers again in the backward pass: less memory, a third more time
    trust_remote_code: bool = False  # run Python files that come with the model

    def __post_init__(self) -> None:
        where = f"policy of kind {self.kind!r} on {self.model!r}"
        if self.dtype not in DTYPES:
            raise ConfigError(f"{where}: dtype {self.dtype!r}; expected one of {', '.join(DTYPES)}")
        if self.dtype != "float32" and self.kind in ("trainable", "ema"):
            raise ConfigError(
                f"{where}: dtype {self.dtype!r} loses small changes of weights; expected float32; set autocast=true for "
                "bfloat16 arithmetic, or train an adapter"
            )
        if self.attn_implementation not in (None, *ATTENTIONS):
            raise ConfigError(
                f"{where}: attn_implementation {self.attn_implementation!r}; expected one of {', '.join(ATTENTIONS)}"
            )
        if self.micro_tokens < 1:
            raise ConfigError(f"{where}: micro_tokens is {self.micro_tokens}, expected at least 1")
        if self.trained:
            self._check_optimiser(where)
        if self.gradient_checkpointing and not self.trained:
            raise ConfigError(f"{where}: gradient_checkpointing without a gradient; expected a policy that is trained")

    def _check_optimiser(self, where: str) -> None:
        if not 0.0 < self.lr < math.inf:
            raise ConfigError(f"{where}: lr is {self.lr}, expected a learning rate above 0")
        for name, least in (("lr_warmup", 0), ("weight_decay", 0.0)):
            value = getattr(self, name)
            if not least <= value < math.inf:
                raise ConfigError(f"{where}: {name} is {value}, expected at least {least}")
        if not self.clip_norm > 0.0:
            raise ConfigError(
                f"{where}: clip_norm is {self.clip_norm}, expected a norm above 0, to which gradients are cut"
            )

    @property
    def loading(self) -> dict[str, Any]:
        """How its weights are loaded: arguments of ``load_model``."""
        return {name: getattr(self, name) for name in ("dtype", "attn_implementation", "trust_remote_code")}

    @property
    def trained(self) -> bool:
        return self.kind in ("trainable", "adapter")


class Numerics(TypedDict, total=False):
    """How a model is held and computed; fields of ``PolicySpec``, which see."""

    dtype: str
    autocast: bool | None
    attn_implementation: str | None
    gradient_checkpointing: bool
    trust_remote_code: bool


def trainable(
    model: str,
    *,
    lr: float = 1e-4,
    head: str = "lm",
    clip_norm: float = 1.0,
    lr_warmup: int = 5,
    **numerics: Unpack[Numerics],
) -> PolicySpec:
    """A policy with an optimiser of its own."""
    return PolicySpec(
        kind="trainable", model=model, lr=lr, head=head, clip_norm=clip_norm, lr_warmup=lr_warmup, **numerics
    )


def adapter(
    model: str,
    *,
    rank: int = 16,
    alpha: int = 32,
    targets: str | tuple[str, ...] = "all-linear",
    lr: float = 1e-4,
    clip_norm: float = 1.0,
    lr_warmup: int = 5,
    path: str | None = None,
    **numerics: Unpack[Numerics],
) -> PolicySpec:
    """A policy whose weights are an adapter on ``model``, which stands in memory once for all adapters and frozen policies
    on it; they must agree in how it is loaded. Fields: see ``Lora``."""
    lora = Lora(rank=rank, alpha=alpha, targets=targets, path=path)
    return PolicySpec(
        kind="adapter", model=model, lr=lr, clip_norm=clip_norm, lr_warmup=lr_warmup, lora=lora, **numerics
    )


def frozen(model: str, **numerics: Unpack[Numerics]) -> PolicySpec:
    """Weights that never change: a reference, a fixed opponent, a fixed judge."""
    return PolicySpec(kind="frozen", model=model, **numerics)


def ema(model: str, *, of: str, rate: float = 0.01, rate_end: float | None = None) -> PolicySpec:
    """A slow copy of policy ``of``, beginning with the weights of ``model``: a teacher, a steady reference."""
    return PolicySpec(kind="ema", model=model, follow=Ema(of=of, rate=rate, rate_end=rate_end))


def snapshot(
    model: str, *, of: str, every: int, keep: int = 1, pick: Literal["newest", "oldest", "random"] = "newest"
) -> PolicySpec:
    """Earlier weights of policy ``of``, beginning with those of ``model``: a past opponent, an iterated reference."""
    return PolicySpec(kind="snapshot", model=model, follow=Snapshot(of=of, every=every, keep=keep, pick=pick))


def reward_model(model: str, *, lr: float = 1e-4, clip_norm: float = 1.0) -> PolicySpec:
    """A scalar head on the body of a language model: a role that it plays is answered with one number for the whole
    prompt (``Turn.score``), 0 for everything before it has learned. Trained by ``learn.rating``."""
    return PolicySpec(kind="trainable", model=model, lr=lr, head="reward", clip_norm=clip_norm)


def program(speak: Program, *, tokens_of: str | None = None) -> PolicySpec:
    """A function as a policy: an oracle, a rule, a corruptor. It is given all fields of a call, those that the prompt does
    not show included, and a random generator of the call's address; its text is a turn like any other. A teacher speaks
    in the tokens of another policy, which can then learn its turns (``learn.sft``)."""
    name = f"{speak.__module__}.{getattr(speak, '__qualname__', type(speak).__qualname__)}"
    return PolicySpec(kind="program", model=name, program=speak, tokens_of=tokens_of)


def critic(model: str, *, lr: float = 1e-4, clip_norm: float = 1.0) -> PolicySpec:
    """A value function on the body of a language model: a policy that learns without speaking."""
    return PolicySpec(kind="trainable", model=model, lr=lr, head="value", clip_norm=clip_norm)
