"""What a policy is: whose weights, and whether and how they are trained.

Left out for now: adapters, EMA and snapshot policies, and programs as policies. They are further kinds of the same
noun and change neither roles nor protocols.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicySpec:
    """One set of weights. ``kind`` is "trainable" or "frozen"; ``head`` is "lm", or "value" for a critic."""

    kind: str
    model: str  # directory, Hub name, or the name of an embedded model
    head: str = "lm"
    lr: float = 1e-4  # of AdamW, after warm-up
    lr_warmup: int = 5  # updates over which the learning rate rises linearly
    clip_norm: float = 1.0  # global gradient norm is clipped to this
    weight_decay: float = 0.0
    micro_tokens: int = 4096  # padded tokens (prompt and sampled) of one forward and backward pass

    @property
    def trained(self) -> bool:
        return self.kind == "trainable"


def trainable(
    model: str, *, lr: float = 1e-4, head: str = "lm", clip_norm: float = 1.0, lr_warmup: int = 5
) -> PolicySpec:
    """A policy with an optimiser of its own."""
    return PolicySpec(kind="trainable", model=model, lr=lr, head=head, clip_norm=clip_norm, lr_warmup=lr_warmup)


def frozen(model: str) -> PolicySpec:
    """Weights that never change: a reference, a fixed opponent, a fixed judge."""
    return PolicySpec(kind="frozen", model=model)


def critic(model: str, *, lr: float = 1e-4, clip_norm: float = 1.0) -> PolicySpec:
    """A value function on the body of a language model: a policy that learns without speaking."""
    return PolicySpec(kind="trainable", model=model, lr=lr, head="value", clip_norm=clip_norm)
