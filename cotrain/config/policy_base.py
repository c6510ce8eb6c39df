"""``Policy``: what all kinds of policy have in common (``policies.py``, ``remote.py``)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Self

from cotrain.models.lora import Lora

if TYPE_CHECKING:
    from cotrain.distributed import policy_handles
    from cotrain.distributed.local import PolicyFactory


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """The base of all kinds of policies."""

    kind: ClassVar[str]  # name of the kind in messages
    head: ClassVar[str] = "lm"  # what it predicts: "lm", "value" or "reward"; "" if this run has no model of it
    is_trained: ClassVar[bool] = False  # True if gradients train it
    generates: ClassVar[bool] = True  # True if its tokens are sampled from a language model of this run
    scores: ClassVar[bool] = False  # True if it answers with one number
    plays: ClassVar[bool] = True  # True if a role may be played by it
    shares_base: ClassVar[bool] = False  # True if it shares its weights in memory with the adapters on its model
    outside: ClassVar[bool] = False  # True if another server answers, which may answer differently the next time
    lora: ClassVar[Lora | None] = None

    model: str  # directory, Hub name, or the name of a shipped model

    @property
    def source_policy(self) -> str | None:
        """The policy from which it takes over weights; None if there is none."""
        return None

    @property
    def is_constant(self) -> bool:
        """Whether it is the same at the end of a run as at its start."""
        return not self.is_trained and self.source_policy is None and not self.outside

    def with_device_defaults(self, *, autocast: bool) -> Self:
        """A copy with the device's defaults; ``autocast``: bfloat16 arithmetic if the recipe does not say."""
        return self

    def build(self, name: str, factory: PolicyFactory) -> policy_handles.PolicyHandle:
        """The handle of this policy, made with the factory of a backend."""
        raise NotImplementedError
