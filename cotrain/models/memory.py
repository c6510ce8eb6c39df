"""Telling out-of-memory errors from others, so that the work can be done again in smaller parts.

A GPU says so by ``torch.OutOfMemoryError``, or by an error of CUDA or cuBLAS where memory is taken next to torch's
allocator. On a CPU torch's allocator raises a plain RuntimeError, Python a MemoryError. Who sees one drops what it
holds first, and begins again only after the ``except`` block, as the traceback keeps tensors alive.

Left out: a kernel that ends the process before an allocation fails (Linux overcommits), which nobody can catch.
"""

from __future__ import annotations

import torch

WITHOUT_FLOAT64 = ("mps",)  # kinds of devices that cannot compute in 64 bits

# Words in errors of torch's allocator, of CUDA and of cuBLAS, when memory has run out.
_TEXTS = ("DefaultCPUAllocator: ", "CUDA error: out of memory", "CUBLAS_STATUS_ALLOC_FAILED")
MEMORY_ERRORS = (RuntimeError, MemoryError)  # what to catch; then ask ``out_of_memory``


def out_of_memory(error: BaseException) -> bool:
    """Was it memory that was missing?"""
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or (
        isinstance(error, RuntimeError) and any(text in str(error) for text in _TEXTS)
    )


def release_gpu_cache(device: torch.device) -> None:
    """Return the GPU memory that torch keeps for later, so that there is some for parts of another size."""
    if device.type == "cuda":
        torch.cuda.empty_cache()


def float64_device(device: torch.device) -> torch.device:
    """Where numbers of 64 bits are computed for a device: on it, or on the CPU for one that has none, such as Apple's
    GPUs."""
    return torch.device("cpu") if device.type in WITHOUT_FLOAT64 else device
