"""Products of linear layers by MKL, which torch takes for them, and by oneDNN (``cotrain/models/linear.py``).

    python benchmarks/products.py [--threads 1] [--rows 256 1024 4096] [--seconds 0.2]

GFLOP/s of y = x Wᵀ, dx = dy W and dW = dyᵀ x in float32, for layers of the shipped base and of a model of 135M. Each is
the best of its tries; ``first`` is the first call of oneDNN with a new number of rows, for which it makes a program,
the product itself included.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from cotrain.models.linear import is_mkl_slow, multiply

LAYERS = ((384, 128), (547, 128), (576, 576), (1536, 576))  # columns of y and of x


def best_seconds(compute: Callable[[], Tensor], seconds: float) -> float:
    """Least seconds of one call, of as many as fit."""
    compute()
    until = time.perf_counter() + seconds
    least = float("inf")
    while time.perf_counter() < until:
        began = time.perf_counter()
        compute()
        least = min(least, time.perf_counter() - began)
    return least


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rows", type=int, nargs="+", default=[256, 1024, 4096])
    parser.add_argument("--seconds", type=float, default=0.2, help="of each product")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    print(f"oneDNN is taken on this machine: {'yes' if is_mkl_slow() else 'no'}; GFLOP/s, MKL / oneDNN\n")
    print("| rows | layer | y = x Wᵀ | dx = dy W | dW = dyᵀ x | first, ms |\n|---|---|---|---|---|---|")
    for rows in given.rows:
        for out, width in LAYERS:
            x = torch.randn(rows, width)
            weight = torch.randn(out, width)
            gradient = torch.randn(rows, out)
            pairs = (
                (partial(F.linear, x, weight), partial(multiply, x, weight)),
                (partial(torch.mm, gradient, weight), partial(multiply, gradient, weight.t())),
                (partial(torch.mm, gradient.t(), x), partial(multiply, gradient.t(), x.t())),
            )
            began = time.perf_counter()
            multiply(x, weight)
            first = time.perf_counter() - began
            rates = []
            for pair in pairs:
                gflops = [2e-9 * rows * out * width / best_seconds(compute, given.seconds) for compute in pair]
                rates.append(" / ".join(f"{rate:.0f}" for rate in gflops))
            print(f"| {rows} | {width} → {out} | {' | '.join(rates)} | {1000 * first:.1f} |")


if __name__ == "__main__":
    main()
