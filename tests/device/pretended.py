"""A second device on the CPU: tensors that say they lie on ``pretended:0``, hold CPU memory, and obey a GPU's rules.

- An operation on tensors of both devices raises; a CPU tensor of no dimensions may take part in arithmetic, as on
  CUDA.
- ``numpy()`` raises, and so do random draws from a generator of the CPU.
- Whatever crosses is counted by the line of code that caused it (``counted``): "sent" to the device, and "waits", for
  which a GPU's host would stand still: a value read, a copy to the CPU, a result whose size hangs on values.
- Bytes that tensors hold are counted, now and at most (``memory``).
- ``torch.autocast("pretended")`` casts by CUDA's rules: products to bfloat16, what loses by it to float32, and what
  joins tensors to the widest of them.

It rests on PyTorch's own hook for backends in Python, which is experimental. Left out: kernels of their own and their
rounding, streams, pinned memory, graphs, memory that runs out, several devices.
"""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import torch
from torch.utils import _pytree as pytree
from torch.utils.backend_registration import _DummyBackendModule, _setup_privateuseone_for_python_backend

NAME = "pretended"
HERE = torch.device("cpu")
aten = torch.ops.aten
_COPIES = {aten.copy_.default, aten._to_copy.default}
_WAITS = {aten._local_scalar_dense.default, aten.equal.default, aten.nonzero.default, aten.masked_select.default}
_WAITS |= {aten._unique2.default, aten.unique_dim.default, aten.bincount.default, aten.repeat_interleave.Tensor}
_INDEXED = {aten.index.Tensor, aten.index_put_.default, aten.index_put.default, aten._index_put_impl_.default}
_NUMBERS = {aten.fill_.Tensor, aten.masked_fill.Tensor, aten.masked_fill_.Tensor, *_INDEXED}  # take one of the CPU
_WHOLE = {aten.linear.default, aten.matmul.default}  # copy nothing, so need not be divided
_NARROW = "_convolution mm mv bmm addmm addmv addr baddbmm addbmm linear matmul prelu scaled_dot_product_attention"
_WIDE = """exp expm1 log log1p log2 log10 reciprocal rsqrt pow.Tensor_Scalar pow.Tensor_Tensor pow.Scalar softplus
layer_norm native_layer_norm group_norm nll_loss mse_loss l1_loss huber_loss smooth_l1_loss kl_div logsumexp
binary_cross_entropy_with_logits cosine_similarity cdist dist"""
_SUMMED = """prod prod.dim_int softmax.int log_softmax.int cumsum cumprod sum sum.dim_IntList
linalg_vector_norm linalg_matrix_norm"""  # in float32, where no dtype is asked for
_WIDEST = "addcdiv addcmul atan2 dot cross scatter_add index_put cat stack tensordot"
_SKIPPED = (str(Path(torch.__file__).parent), __file__, "<")  # not the line that caused a copy
_ROOT = str(Path(__file__).parents[2]) + "/"


class _Module(_DummyBackendModule):
    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16]

    def get_rng_state(self, device: object = None) -> torch.Tensor:
        return torch.get_rng_state()

    def set_rng_state(self, state: torch.Tensor, device: object = None) -> None:
        torch.set_rng_state(state)


class Count:
    """What crossed, by the line that caused it: "waits" and "sent"."""

    def __init__(self) -> None:
        self.waits, self.sent = Counter[str](), Counter[str]()


_counts: list[Count] = []
_lock = threading.RLock()  # garbage may be collected while it is held


@contextmanager
def counted() -> Iterator[Count]:
    """Count what crosses within the block, in any thread."""
    _counts.append(Count())
    try:
        yield _counts[-1]
    finally:
        _counts.pop()


def _note(kind: str) -> None:
    if not _counts:
        return
    frame = sys._getframe(2)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_SKIPPED):
        frame = frame.f_back
    where = f"{frame.f_code.co_filename.removeprefix(_ROOT)}:{frame.f_code.co_qualname}"
    with _lock:
        for count in _counts:
            getattr(count, kind)[where] += 1


class Memory:
    """Bytes of the device that tensors hold."""

    def __init__(self) -> None:
        self.now = self.peak = 0
        self.holders = Counter[int]()  # of each storage, by its address

    def reset_peak(self) -> None:
        self.peak = self.now


memory = Memory()


class _Hold:
    """A tensor's part in its storage, for as long as the tensor is there."""

    __slots__ = ("at", "size")

    def __init__(self, storage: torch.UntypedStorage) -> None:
        self.at, self.size = storage.data_ptr(), storage.nbytes()
        with _lock:
            memory.holders[self.at] += 1
            if memory.holders[self.at] == 1:
                memory.now += self.size
                memory.peak = max(memory.peak, memory.now)

    def __del__(self) -> None:
        with _lock:
            memory.holders[self.at] -= 1
            if not memory.holders[self.at]:
                del memory.holders[self.at]
                memory.now -= self.size


class Pretended(torch.Tensor):
    """A tensor of the pretended device; ``raw`` is its memory."""

    raw: torch.Tensor
    hold: _Hold

    @staticmethod
    def __new__(cls, raw: torch.Tensor) -> Pretended:
        made = torch.Tensor._make_wrapper_subclass(
            cls,
            raw.size(),
            strides=raw.stride(),
            storage_offset=raw.storage_offset(),
            dtype=raw.dtype,
            device=torch.device(NAME, 0),
        )
        made.raw, made.hold = raw, _Hold(raw.untyped_storage())
        return made

    def numpy(self, *args: object, **kwargs: object) -> None:  # type: ignore[override]
        raise TypeError(f"can't convert {NAME}:0 device type tensor to numpy. Use Tensor.cpu() first")

    def __array__(self, *args: object) -> None:  # type: ignore[override]
        self.numpy()

    def tolist(self) -> list:
        _note("waits")
        return self.raw.tolist()

    def data_ptr(self) -> int:
        return self.raw.data_ptr()

    def untyped_storage(self) -> torch.UntypedStorage:
        return self.raw.untyped_storage()

    def __repr__(self, **kwargs: object) -> str:  # type: ignore[override]
        return f"{NAME}({self.raw!r})"

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        if _composite(func):  # in inference mode these come undivided, and hide what crosses
            return func.decompose(*args, **(kwargs or {}))
        return _run(func, args, kwargs or {})


@cache
def _composite(func) -> bool:
    return func not in _WHOLE and torch._C._dispatch_has_kernel_for_dispatch_key(
        func.name(), "CompositeImplicitAutograd"
    )


def _run(func, args, kwargs):
    mine, foreign = [], []
    raw_args = [_raw(a, mine, foreign) for a in args]
    raw_kwargs = {name: _raw(a, mine, foreign) for name, a in kwargs.items()}
    if func in _COPIES:
        return _copy(func, args, kwargs, raw_args, raw_kwargs)
    if func in _INDEXED:
        foreign = _look_at_indices(args, foreign)
    elif func in _WAITS:
        _note("waits")
    _check(func, args, kwargs, foreign)
    target = kwargs.get("device")
    if target is not None:
        raw_kwargs["device"] = HERE
    out = func(*raw_args, **raw_kwargs)
    if target is not None and target.type != NAME:
        return out
    wrap = {id(a.raw): a for a in mine} if func._schema.is_mutable else {}
    return _wrapped(out, wrap)


def _raw(value, mine, foreign):
    if isinstance(value, Pretended):
        mine.append(value)
        return value.raw
    if isinstance(value, torch.Tensor):
        foreign.append(value)
    elif isinstance(value, list | tuple):
        return [_raw(one, mine, foreign) for one in value]
    return value


def _wrapped(out, same):
    if isinstance(out, torch.Tensor):
        found = same.get(id(out))
        if found is None:
            return Pretended(out)
        if found.shape != out.shape:
            raise NotImplementedError(f"{NAME}: a tensor cannot change its shape in place")
        return found
    if isinstance(out, list | tuple):
        return type(out)(_wrapped(one, same) for one in out)
    return out


def _check(func, args, kwargs, foreign) -> None:
    """Raise as CUDA does for tensors and generators of another device."""
    strict = not (torch.Tag.pointwise in func.tags or func in _NUMBERS)
    strict = strict or (func._schema.is_mutable and bool(foreign) and foreign[0] is args[0])
    if any(a.dim() > 0 or strict for a in foreign):
        raise RuntimeError(
            f"Expected all tensors to be on the same device, but found at least two devices, {NAME}:0 and cpu! ({func})"
        )
    generator = kwargs.get("generator")
    if generator is not None and generator.device.type != NAME:
        raise RuntimeError(f"Expected a '{NAME}:0' generator device but found '{generator.device}' ({func})")


def _look_at_indices(args, foreign):
    """Indices of the CPU are sent, as CUDA does unasked, and a mask makes it wait; returns what else is foreign."""
    given = [index for index in args[1] if index is not None]
    for index in given:
        if not isinstance(index, Pretended) and isinstance(args[0], Pretended):
            _note("sent")
        if index.dtype in (torch.bool, torch.uint8):
            _note("waits")
    if not isinstance(args[0], Pretended):
        return foreign
    return [a for a in foreign if not any(a is index for index in given)]


def _copy(func, args, kwargs, raw_args, raw_kwargs):
    if func is aten.copy_.default:
        return _copy_from(args[1], args[0])
    target = kwargs.get("device")
    if target is not None:
        raw_kwargs["device"] = HERE
    raw_kwargs.pop("pin_memory", None)
    out = func(*raw_args, **raw_kwargs)
    if target is not None and target.type != NAME:
        _note("waits")
        return out
    return Pretended(out)


def _empty(size, dtype=None, layout=None, device=None, pin_memory=None, memory_format=None):
    return Pretended(torch.empty(size, dtype=dtype, device=HERE))


def _empty_strided(size, stride, dtype=None, layout=None, device=None, pin_memory=None):
    return Pretended(torch.empty_strided(size, stride, dtype=dtype, device=HERE))


def _copy_from(source, to, non_blocking=False):
    """Where torch copies without dispatch, as in ``torch.tensor(…, device=…)``."""
    if isinstance(to, Pretended) != isinstance(source, Pretended):
        _note("sent" if isinstance(to, Pretended) else "waits")
    with torch.no_grad():
        _raw(to, [], []).copy_(_raw(source, [], []))
    return to


def _overload(name: str):
    packet, _, which = name.partition(".")
    return getattr(getattr(aten, packet), which or "default")


def _made_here(name: str):
    def make(*args, **kwargs):
        return Pretended(_overload(name)(*args, **{**kwargs, "device": HERE, "pin_memory": None}))

    return make


def _casting(name: str, rule: str):
    """An operation under autocast."""
    key = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastPrivateUse1)
    function = _overload(name)

    def run(*args, **kwargs):
        with torch._C._ExcludeDispatchKeyGuard(key):
            kinds = [a.dtype for a in pytree.tree_leaves((args, kwargs)) if _castable(a)]
            if rule == "summed" and kinds and kwargs.get("dtype") is None:
                return function(*args, **{**kwargs, "dtype": torch.float32})
            wide = rule == "wide" or torch.float32 in kinds
            to = torch.get_autocast_dtype(NAME) if rule == "narrow" else torch.float32 if wide else None
            if to is None or rule == "summed":
                return function(*args, **kwargs)
            cast = pytree.tree_map(lambda a: a.to(to) if _castable(a) else a, (args, kwargs))
            return function(*cast[0], **cast[1])

    return run


def _castable(value) -> bool:
    return isinstance(value, Pretended) and value.is_floating_point() and value.dtype != torch.float64


_library = torch.library.Library("aten", "IMPL")
_autocast = torch.library.Library("_", "IMPL", "AutocastPrivateUse1")


def install() -> None:
    """Make the device known to torch; once in a process."""
    _setup_privateuseone_for_python_backend(NAME, backend_module=_Module())
    _library.impl("empty.memory_format", _empty, "PrivateUse1")
    _library.impl("_copy_from", _copy_from, "PrivateUse1")
    _library.impl("empty_strided", _empty_strided, "PrivateUse1")
    for name in ("arange", "arange.start", "arange.start_step", "eye", "eye.m", "linspace"):
        _library.impl(name, _made_here(name), "PrivateUse1")
    _autocast.fallback(torch.library.fallthrough_kernel)
    for rule, names in (("narrow", _NARROW), ("wide", _WIDE), ("summed", _SUMMED), ("widest", _WIDEST)):
        for name in names.split():
            _library.impl(name, _casting(name, rule), "AutocastPrivateUse1")
