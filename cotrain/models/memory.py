"""Recognises out-of-memory errors, so that work can be repeated in smaller parts.

On a GPU this is ``torch.OutOfMemoryError``, or an error of CUDA or cuBLAS for memory that torch's allocator does not
manage. On a CPU torch's allocator raises a plain RuntimeError, and Python a MemoryError. Callers must free what they
hold and repeat the work after the ``except`` block has ended, as the traceback keeps tensors alive.

Left out: Linux ending the process before an allocation fails (overcommitment), which cannot be caught.
"""

from __future__ import annotations

import torch

WITHOUT_FLOAT64 = ("mps",)  # kinds of devices that cannot compute in 64 bits

# Words in errors of torch's allocator, of CUDA and of cuBLAS, when memory has run out.
_TEXTS = ("DefaultCPUAllocator: ", "CUDA error: out of memory", "CUBLAS_STATUS_ALLOC_FAILED")
MEMORY_ERRORS = (RuntimeError, MemoryError)  # types to catch; then check with ``out_of_memory``


def out_of_memory(error: BaseException) -> bool:
    """Whether an error means that memory ran out."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(text in str(error) for text in _TEXTS)


def release_gpu_cache(device: torch.device) -> None:
    """Free the GPU memory in torch's cache, so that blocks of other sizes can be allocated."""
    if device.type == "cuda":
        torch.cuda.empty_cache()


def float64_device(device: torch.device) -> torch.device:
    """The device for float64 computations: the same one, or the CPU if it has no float64, such as Apple's GPUs."""
    return torch.device("cpu") if device.type in WITHOUT_FLOAT64 else device
