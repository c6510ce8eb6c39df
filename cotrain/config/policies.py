"""The kinds of policies: whose weights, and whether and how they are trained; a program; or a model that another server
runs.

One frozen class for each kind. Its class variables say what the kind can do (``generates``, ``scores``, ``head``,
``is_trained``), and ``build`` makes the policy's handle with the factory of a backend (``distributed/local.py``).
Recipes use the functions at the end of this file; ``--set policies.NAME.FIELD=…`` names fields of the classes. Remote
policies: ``config/remote.py``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, TypedDict, Unpack, get_args

from cotrain.config.policy_base import Policy
from cotrain.core.errors import ConfigError, UnknownName
from cotrain.models.lora import Lora

if TYPE_CHECKING:
    from cotrain.distributed import policy_handles
    from cotrain.distributed.local import PolicyFactory

DTYPES = ("float32", "bfloat16")
ATTENTIONS = ("sdpa", "eager", "flash_attention_2", "flash_attention_3", "flex_attention")
INT8 = "int8"  # of ``pack_weights``
PICKS = ("newest", "oldest", "random")
Pick = Literal["newest", "oldest", "random"]
LrDecay = Literal["constant", "linear", "cosine", "wsd"]
Packing = bool | Literal["int8"]
DEFAULT_LR_WARMUP = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights(Policy):
    """A policy whose weights this run loads."""

    may_be_narrow: ClassVar[bool] = True  # True: weights may be bfloat16 or 4 bits, as no gradient changes them

    rows: int = 256  # most answers that are decoded at a time
    micro_tokens: int = 2048  # tokens of one forward and backward pass, prompts and padding counted
    dtype: str = "float32"  # dtype of weights that no gradient changes; "bfloat16" takes half of the memory
    load_in_4bit: bool = False  # linear layers in 4 bits, by bitsandbytes; of weights that no gradient changes
    autocast: bool | None = None  # bfloat16 arithmetic over float32 weights, sampling and learning; None: on CUDA
    offload: bool = False  # on a GPU, weights while another policy computes, and moments, in the machine's own memory
    # On a CPU, a copy of the weights laid out for decoding; "int8": in 8 bits, which changes what is sampled; None: in
    # float32 if a probe finds it faster
    pack_weights: Packing | None = None
    # Implementation in transformers; None: "sdpa", or the model's own where it has no other. Prompts that samples share
    # are computed once under "sdpa" only.
    attn_implementation: str | None = None
    trust_remote_code: bool = False  # run Python files that come with the model
    device: str | None = None  # device: "cpu", "cuda:1"; None: the run's

    def __post_init__(self) -> None:
        if is_address(self.model):
            raise ConfigError(
                f"{self.error_name}: a server runs it, so that it cannot be trained; expected a directory, a name of "
                "the Hub, or a judge that is frozen from the start (verifier=frozen, and warmup=0 where there is one)",
                code="E_REMOTE_POLICY_TRAINED",
            )
        if self.dtype not in DTYPES:
            raise ConfigError(
                f"{self.error_name}: dtype {self.dtype!r}; expected one of {', '.join(DTYPES)}", code="E_DTYPE"
            )
        if self.dtype != "float32" and not self.may_be_narrow:
            raise ConfigError(
                f"{self.error_name}: dtype {self.dtype!r} loses small changes of weights; expected float32; set "
                "autocast=true for bfloat16 arithmetic, or train an adapter",
                code="E_DTYPE_TRAINED",
            )
        if self.load_in_4bit and not self.may_be_narrow:
            raise ConfigError(
                f"{self.error_name}: load_in_4bit is for weights that never change, and all of these do; train an "
                "adapter on them (--lora 16), or leave it out",
                code="E_FOUR_BIT_TRAINED",
            )
        if self.attn_implementation not in (None, *ATTENTIONS):
            raise ConfigError(
                f"{self.error_name}: attn_implementation {self.attn_implementation!r}; expected one of "
                f"{', '.join(ATTENTIONS)}",
                code="E_ATTENTION",
            )
        if self.pack_weights not in (None, False, True, INT8):
            raise ConfigError(
                f"{self.error_name}: pack_weights {self.pack_weights!r}; expected true, false or {INT8}",
                code="E_PACK_WEIGHTS",
            )
        if self.pack_weights == INT8:
            self._check_int8()
        for name in ("micro_tokens", "rows"):
            if getattr(self, name) < 1:
                raise ConfigError(
                    f"{self.error_name}: {name} is {getattr(self, name)}, expected at least 1",
                    code="E_POLICY_SETTING_RANGE",
                )

    def _check_int8(self) -> None:
        """Raise ConfigError where its weights cannot be sampled in 8 bits, or are never sampled."""
        problem = ""
        if not self.generates:
            problem = "no tokens are sampled from it"
        elif self.autocast:
            problem = "autocast=true computes in bfloat16"
        elif self.dtype != "float32":
            problem = f"its dtype is {self.dtype}"
        elif self.load_in_4bit:
            problem = "load_in_4bit has its layers in 4 bits"
        if problem:
            raise ConfigError(
                f"{self.error_name}: {problem}; pack_weights=int8 is for sampling from float32 weights on a CPU; leave "
                "it out",
                code="E_EIGHT_BIT_ARITHMETIC",
            )

    @property
    def error_name(self) -> str:
        """A description for errors, since a policy does not know its own name."""
        return f"policy of kind {self.kind!r} on {self.model!r}"

    @property
    def load_options(self) -> dict[str, Any]:
        """Arguments of ``load_model`` for its weights."""
        options: dict[str, Any] = {
            "dtype": self.dtype,
            "attn_implementation": self.attn_implementation,
            "trust_remote_code": self.trust_remote_code,
        }
        if self.load_in_4bit:
            options["load_in_4bit"] = True
        return options

    def with_device_defaults(self, *, autocast: bool) -> Self:
        return replace(self, autocast=autocast) if self.autocast is None else self


@dataclass(frozen=True, slots=True, kw_only=True)
class Learning(Weights):
    """A model with an optimiser of its own."""

    is_trained: ClassVar[bool] = True

    lr: float = 1e-4  # learning rate of AdamW after warm-up
    lr_warmup: int = DEFAULT_LR_WARMUP  # updates over which the learning rate rises linearly
    lr_decay: LrDecay = "constant"  # shape in which it falls to 0 over all planned updates; wsd: over the last fifth of
    # them
    updates_per_batch: int = 1  # updates on the same samples, with the ratio to the policy that sampled (μ in the GRPO
    # paper)
    clip_norm: float = 1.0  # largest global gradient norm; above it, gradients are scaled down
    weight_decay: float = 0.0
    gradient_checkpointing: bool = False  # recompute layers in the backward pass: less memory, a third more time
    reset_every: int = 0  # updates of an iteration, each of which begins with a new optimizer; 0: one iteration
    reset_to_start: bool = False  # each iteration also begins with the initial weights

    def __post_init__(self) -> None:
        Weights.__post_init__(self)
        if not 0.0 < self.lr < math.inf:
            raise ConfigError(
                f"{self.error_name}: lr is {self.lr}, expected a learning rate above 0", code="E_LEARNING_RATE"
            )
        for name, least in (("lr_warmup", 0), ("weight_decay", 0.0), ("reset_every", 0), ("updates_per_batch", 1)):
            value = getattr(self, name)
            if not least <= value < math.inf:
                raise ConfigError(
                    f"{self.error_name}: {name} is {value}, expected at least {least}", code="E_POLICY_SETTING_RANGE"
                )
        if self.lr_decay not in get_args(LrDecay):
            raise UnknownName(f"lr_decay of {self.error_name}", self.lr_decay, get_args(LrDecay))
        if self.reset_to_start and not self.reset_every:
            raise ConfigError(
                f"{self.error_name}: reset_to_start without reset_every; say after how many updates",
                code="E_RESET_WITHOUT_EVERY",
            )
        if not self.clip_norm > 0.0:
            raise ConfigError(
                f"{self.error_name}: clip_norm is {self.clip_norm}, expected a norm above 0, to which gradients "
                "are cut",
                code="E_CLIP_NORM",
            )

    @property
    def learner_options(self) -> dict[str, Any]:
        """Arguments of ``TorchLearner``."""
        return {
            "lr": self.lr,
            "warmup": self.lr_warmup,
            "decay": self.lr_decay,
            "clip_norm": self.clip_norm,
            "weight_decay": self.weight_decay,
            "micro_tokens": self.micro_tokens,
            "autocast": bool(self.autocast),
            "recompute": self.gradient_checkpointing,
            "reset_every": self.reset_every,
            "reset_to_start": self.reset_to_start,
            "offload": self.offload,
            "head": self.head,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained(Learning):
    """All weights of a language model."""

    kind: ClassVar[str] = "trainable"
    may_be_narrow: ClassVar[bool] = False

    def build(self, name: str, factory: PolicyFactory) -> policy_handles.PolicyHandle:
        model, renderer = factory.language_model(self)
        return factory.build_trainable(name, self, model, renderer)


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapter(Learning):
    """An adapter on a model that other adapters and frozen policies share."""

    kind: ClassVar[str] = "adapter"
    shares_base: ClassVar[bool] = True

    lora: Lora  # type: ignore[misc]  # a class variable, None, in other kinds

    def build(self, name: str, factory: PolicyFactory) -> policy_handles.PolicyHandle:
        return factory.build_adapter(name, self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Critic(Learning):
    """A value function on the body of a language model."""

    kind: ClassVar[str] = "critic"
    head: ClassVar[str] = "value"
    generates: ClassVar[bool] = False
    plays: ClassVar[bool] = False
    may_be_narrow: ClassVar[bool] = False

    def build(self, name: str, factory: PolicyFactory) -> policy_handles.PolicyHandle:
        from cotrain.models.heads import value_model

        return factory.build_trainable(name, self, value_model(self.model, **self.load_options), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardModel(Learning):
    """A scalar head on the body of a language model."""

    kind: ClassVar[str] = "reward model"
    head: ClassVar[str] = "reward"
    generates: ClassVar[bool] = False
    scores: ClassVar[bool] = True
    may_be_narrow: ClassVar[bool] = False

    def build(self, name: str, factory: PolicyFactory) -> policy_handles.PolicyHandle:
        from cotrain.models.heads import reward_model as load

        return factory.build_trainable(
            name, self, load(self.model, **self.load_options), factory.scoring_renderer(self)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Frozen(Weights):
    """Weights that never change."""

    kind: ClassVar[str] = "frozen"
    shares_base: ClassVar[bool] = True

    def build(self, name: str, factory: PolicyFactory) -> policy_handles.PolicyHandle:
        return factory.build_frozen(name, self)


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowerPolicy(Weights):
    """A copy of policy ``of`` that takes over its weights after updates."""

    may_be_narrow: ClassVar[bool] = False

    of: str

    @property
    def source_policy(self) -> str | None:
        return self.of


@dataclass(frozen=True, slots=True, kw_only=True)
class Average(FollowerPolicy):
    """Weights that move towards those of policy ``of`` after each of its updates, by the share ``rate``."""

    kind: ClassVar[str] = "ema"

    rate: float = 0.01
    rate_end: float | None = None  # rate at the last planned update, reached along half a cosine; None: constant

    def __post_init__(self) -> None:
        Weights.__post_init__(self)
        for rate in (self.rate, self.rate_end):
            if rate is not None and not 0.0 <= rate <= 1.0:
                raise ConfigError(
                    f"ema of {self.of!r}: rate {rate} must be in [0, 1], the share of the new weights",
                    code="E_EMA_RATE",
                )

    def build(self, name: str, factory: PolicyFactory) -> policy_handles.PolicyHandle:
        from cotrain.config.followers import AverageHandle

        model, renderer = factory.language_model(self)
        model.requires_grad_(False)
        return AverageHandle(name, self, renderer, model, activate=factory.place(name, self, model))


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot(FollowerPolicy):
    """Earlier weights of policy ``of``: a pool of ``keep`` snapshots, with a new one after every ``every`` of its
    updates, beginning with update ``first``. ``pick`` says which of them the policy has."""

    kind: ClassVar[str] = "snapshot"

    every: int
    keep: int = 1
    pick: Pick = "newest"
    first: int = 0  # updates before the first snapshot, such as those of a warm-up

    def __post_init__(self) -> None:
        Weights.__post_init__(self)
        if self.every < 1 or self.keep < 1 or self.first < 0:
            text = f"every {self.every}, keep {self.keep} and first {self.first}"
            raise ConfigError(f"snapshot of {self.of!r}: {text}; expected at least 1, 1 and 0", code="E_SNAPSHOT_RANGE")
        if self.pick not in PICKS:
            raise UnknownName("pick of a snapshot", self.pick, PICKS)

    def build(self, name: str, factory: PolicyFactory) -> policy_handles.PolicyHandle:
        from cotrain.config.followers import SnapshotHandle

        model, renderer = factory.language_model(self)
        model.requires_grad_(False)
        return SnapshotHandle(
            name, self, renderer, model, factory.seed_of(name), activate=factory.place(name, self, model)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Program(Policy):
    """A Python function that plays a role. ``model`` is its name."""

    kind: ClassVar[str] = "program"
    head: ClassVar[str] = ""
    generates: ClassVar[bool] = False

    speak: policy_handles.Program
    tokens_of: str | None = None  # policy by whose tokenizer its text is tokenized; None: bytes

    def build(self, name: str, factory: PolicyFactory) -> policy_handles.PolicyHandle:
        return factory.build_program(name, self)


class Numerics(TypedDict, total=False):
    """Settings of how a model is loaded and computed; see the fields of ``Weights``."""

    dtype: str
    load_in_4bit: bool
    autocast: bool | None
    attn_implementation: str | None
    trust_remote_code: bool
    device: str | None


class TrainingNumerics(Numerics, total=False):
    """The same for a model that learns; see the fields of ``Learning``."""

    gradient_checkpointing: bool


def samples_in_int8(spec: object) -> bool:
    """Whether the sampler of a policy has weights of its own, in 8 bits."""
    return isinstance(spec, Weights) and spec.pack_weights == INT8


def is_address(model: str) -> bool:
    """Whether ``model`` is the address of a server."""
    return model.startswith(("http://", "https://"))


def trainable(
    model: str,
    *,
    lr: float = 1e-4,
    clip_norm: float = 1.0,
    lr_warmup: int = DEFAULT_LR_WARMUP,
    **numerics: Unpack[TrainingNumerics],
) -> Policy:
    """A policy with an optimiser of its own."""
    return Trained(model=model, lr=lr, clip_norm=clip_norm, lr_warmup=lr_warmup, **numerics)


def adapter(
    model: str,
    *,
    rank: int = 16,
    alpha: int = 32,
    targets: str | tuple[str, ...] = "all-linear",
    lr: float = 1e-4,
    clip_norm: float = 1.0,
    lr_warmup: int = DEFAULT_LR_WARMUP,
    path: str | None = None,
    **numerics: Unpack[TrainingNumerics],
) -> Policy:
    """A LoRA adapter on ``model``. The model is in memory once for all adapters and frozen policies on it, which must
    agree in how it is loaded. Fields: see ``Lora``."""
    lora = Lora(rank=rank, alpha=alpha, targets=targets, path=path)
    return Adapter(model=model, lr=lr, clip_norm=clip_norm, lr_warmup=lr_warmup, lora=lora, **numerics)


def frozen(model: str, **numerics: Unpack[Numerics]) -> Policy:
    """Weights that never change: a reference, a fixed opponent, a fixed verifier. ``http://HOST:PORT/v1#NAME`` is model
    NAME of an OpenAI-compatible server (``remote``)."""
    if is_address(model):
        from cotrain.config.remote import remote

        url, _, name = model.partition("#")
        return remote(url, name)
    return Frozen(model=model, **numerics)


def ema(model: str, *, of: str, rate: float = 0.01, rate_end: float | None = None) -> Policy:
    """A moving average of policy ``of``, which starts with the weights of ``model``: a teacher, a steady reference."""
    return Average(model=model, of=of, rate=rate, rate_end=rate_end)


def snapshot(model: str, *, of: str, every: int, keep: int = 1, pick: Pick = "newest", first: int = 0) -> Policy:
    """Earlier weights of policy ``of``, which start with those of ``model``: a past opponent, an iterated reference.
    Its weights after updates ``first``, ``first + every``, ``first + 2 every`` … are kept, so that a warm-up of
    ``first`` updates ends with a snapshot."""
    return Snapshot(model=model, of=of, every=every, keep=keep, pick=pick, first=first)


def reward_model(model: str, *, lr: float = 1e-4, clip_norm: float = 1.0) -> Policy:
    """A scalar head on the body of a language model. The answer of a role that it plays is one number for the whole
    prompt (``Turn.score``), which is 0 before it has learned. Trained by ``algorithms/reward_model.py``."""
    return RewardModel(model=model, lr=lr, clip_norm=clip_norm)


def critic(model: str, *, lr: float = 1e-4, clip_norm: float = 1.0) -> Policy:
    """A value function on the body of a language model: a policy that learns and is never sampled."""
    return Critic(model=model, lr=lr, clip_norm=clip_norm)


def program(speak: policy_handles.Program, *, tokens_of: str | None = None) -> Policy:
    """A Python function as a policy: an oracle, a rule, a program that corrupts solutions. It gets all fields of a
    call, also those that the prompt does not show, and a random generator seeded by the call's address. Its text is a
    turn like any other. With ``tokens_of`` another policy can learn its turns (``algorithms/sft.py``)."""
    name = f"{speak.__module__}.{getattr(speak, '__qualname__', type(speak).__qualname__)}"
    return Program(model=name, speak=speak, tokens_of=tokens_of)


def model_names(policies: Mapping[str, Policy]) -> set[str]:
    """The models and adapters with which policies start."""
    specs = [spec for spec in policies.values() if isinstance(spec, Weights)]
    return {spec.model for spec in specs} | {spec.lora.path for spec in specs if spec.lora and spec.lora.path}
