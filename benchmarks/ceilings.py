"""What this machine reaches: matrix products (float32), and memory bandwidth by the size of what is gone through.

    python benchmarks/ceilings.py [--threads N] [--device cuda] [--quick]

The product is the best of a few sizes; TF32 stays off. Bandwidth is that of ``y += x``: two arrays read and one
written, in place. The best of several tries each, as a ceiling is not disturbed from above.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence

import torch
from work import answer, now

from cotrain.core.threads import usable_cores

PRODUCTS = ((1024, 1024, 1024), (2048, 2048, 2048), (8192, 512, 512), (8192, 512, 2048))  # rows, inner, columns
SETS = (2**20, 2**22, 2**24, 2**26, 2**29)  # bytes of both arrays


def best(work: Callable[[], object], device: str, seconds: float) -> float:
    """Least seconds of one call, of as many as fit."""
    work()
    least, until = float("inf"), now(device) + seconds
    while True:
        began = now(device)
        work()
        ended = now(device)
        least = min(least, ended - began)
        if ended > until:
            return least


def product_rate(
    device: str,
    seconds: float,
    dtype: torch.dtype = torch.float32,
    products: Sequence[tuple[int, int, int]] = PRODUCTS,
) -> float:
    """FLOPs a second."""
    rates = []
    for rows, inner, columns in products:
        a = torch.randn(rows, inner, device=device, dtype=dtype)
        b = torch.randn(inner, columns, device=device, dtype=dtype)
        out = torch.empty(rows, columns, device=device, dtype=dtype)

        def multiply(a: torch.Tensor = a, b: torch.Tensor = b, out: torch.Tensor = out) -> object:
            return torch.mm(a, b, out=out)

        rates.append(2.0 * rows * inner * columns / best(multiply, device, seconds))
    return max(rates)


def bandwidth(device: str, size: int, seconds: float) -> float:
    """Bytes a second of ``y += x``, both arrays together ``size`` bytes; small ones many times over between two looks
    at the clock."""
    x, y = torch.zeros(size // 8, device=device), torch.zeros(size // 8, device=device)
    times = max(1, 2**24 // size)

    def add() -> None:
        for _ in range(times):
            y.add_(x)

    return 1.5 * size * times / best(add, device, seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=usable_cores())
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--quick", action="store_true")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    seconds = 0.02 if given.quick else 0.5
    answer(
        flops=product_rate(given.device, seconds),
        bandwidth={str(size): bandwidth(given.device, size, seconds) for size in SETS[: 3 if given.quick else None]},
    )


if __name__ == "__main__":
    main()
