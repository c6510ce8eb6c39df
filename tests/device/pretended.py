"""A second device on the CPU: tensors that say they lie on ``pretended:0``, hold CPU memory, and obey a GPU's rules.

- An operation on tensors of both devices raises; a CPU number of no dimensions may take part in arithmetic, as on CUDA.
- ``numpy()`` raises, and so do random draws from a generator of the CPU.
- Whatever crosses is counted by the line of code that caused it (``counted``): "sent" to the device, and "waits", for
  which a GPU's host would stand still: a value read, a copy to the CPU, a result whose size hangs on values.
- ``torch.autocast("pretended")`` casts by CUDA's rules (``autocast.py``).

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
from torch.utils.backend_registration import _DummyBackendModule, _setup_privateuseone_for_python_backend

NAME = "pretended"
HERE = torch.device("cpu")
aten = torch.ops.aten
_COPIES = {aten.copy_.default, aten._to_copy.default}
_WAITS = {aten._local_scalar_dense.default, aten.equal.default, aten.nonzero.default, aten.masked_select.default}
_WAITS |= {aten._unique2.default, aten.unique_dim.default, aten.bincount.default, aten.repeat_interleave.Tensor}
_INDEXED = {aten.index.Tensor, aten.index_put_.default, aten.index_put.default, aten._index_put_impl_.default}
_STRICT = {aten.index_select.default, aten.gather.default, aten.scatter_.value, aten.embedding.default}  # no CPU number
_WHOLE = {aten.linear.default, aten.matmul.default}  # copy nothing, so need not be divided
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
_lock = threading.Lock()


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


class Pretended(torch.Tensor):
    """A tensor of the pretended device; ``raw`` is its memory."""

    raw: torch.Tensor

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
        made.raw = raw
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
    strict = func in _STRICT or (func._schema.is_mutable and foreign and foreign[0] is args[0])
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


def _made_here(name: str):
    overload = getattr(aten, name.split(".")[0])
    overload = getattr(overload, name.split(".")[1] if "." in name else "default")

    def make(*args, **kwargs):
        return Pretended(overload(*args, **{**kwargs, "device": HERE, "pin_memory": None}))

    return make


_library = torch.library.Library("aten", "IMPL")


def install() -> None:
    """Make the device known to torch; once in a process."""
    _setup_privateuseone_for_python_backend(NAME, backend_module=_Module())
    _library.impl("empty.memory_format", _empty, "PrivateUse1")
    _library.impl("_copy_from", _copy_from, "PrivateUse1")
    _library.impl("empty_strided", _empty_strided, "PrivateUse1")
    for name in ("arange", "arange.start", "arange.start_step", "eye", "eye.m", "linspace"):
        _library.impl(name, _made_here(name), "PrivateUse1")
