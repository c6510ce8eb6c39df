"""The least seconds that each part of a GRPO step can take on a machine: by its multiplications and by its bytes.

    floor = max(FLOPs / rate of matrix products, Σ bytes / bandwidth)

Counted is what the task needs and not what a program does: each distinct prompt goes through the model once, causal
attention sees half of the square, the output layer runs where a token is predicted, a backward pass is twice its
forward pass. Of bytes: weights once a pass, keys and values once a step, AdamW's state. Activations, softmax,
normalisation and sampling are free, so a floor is a bound and no forecast. Float32, as everything measured here.

Bandwidth depends on how much is gone through: a model of 3 MiB stays in a cache. A part's bytes are charged at the
rate that was measured for a working set of their size (the next larger one that was).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

FLOAT = 4  # bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A Llama with tied embeddings."""

    depth: int
    width: int
    heads: int
    kv_heads: int
    feed_forward: int
    vocabulary: int

    @property
    def layers(self) -> int:
        """Weights of all layers' matrices."""
        kv_width = self.width * self.kv_heads // self.heads
        return self.depth * (2 * self.width**2 + 2 * self.width * kv_width + 3 * self.width * self.feed_forward)

    @property
    def output(self) -> int:
        return self.width * self.vocabulary

    @property
    def parameters(self) -> int:
        return self.layers + self.output + (2 * self.depth + 1) * self.width

    def attention(self, pairs: float) -> float:
        """FLOPs of so many (query, key) pairs in every layer: two products of one multiplication and addition each."""
        return 4.0 * self.depth * self.width * pairs

    def kept(self, tokens: float) -> float:
        """Bytes of keys and values of so many tokens."""
        return 2.0 * FLOAT * self.depth * self.width * self.kv_heads / self.heads * tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Ceilings:
    """What a machine reaches when nothing else is asked of it."""

    flops: float  # a second, of float32 matrix products
    bandwidth: Mapping[int, float]  # working set in bytes → bytes a second, read and written


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What a part needs."""

    flops: float
    traffic: float  # bytes
    held: float  # bytes gone through again and again

    def floor(self, ceilings: Ceilings) -> float:
        """Seconds."""
        sizes = sorted(ceilings.bandwidth)
        size = next((size for size in sizes if size >= self.held), sizes[-1])
        return max(self.flops / ceilings.flops, self.traffic / ceilings.bandwidth[size])


def costs(shape: Shape, *, prompts: int, prompt: int, answers: Sequence[int]) -> dict[str, Cost]:
    """Prefill, decode, scoring and update of a step: ``prompts`` distinct ones of ``prompt`` tokens, and the sampled
    tokens of each answer."""
    weights = FLOAT * shape.parameters
    asked = prompts * prompt
    asking = prompts * prompt * (prompt + 1) / 2  # pairs
    prefill = Cost(
        flops=2.0 * (shape.layers * asked + shape.output * prompts) + shape.attention(asking),
        traffic=weights + shape.kept(asked),
        held=weights,
    )
    fed = sum(length - 1 for length in answers)  # the last token is never an input
    pairs = sum((length - 1) * prompt + (length - 1) * length / 2 for length in answers)
    steps = max(answers) - 1
    most = sum(prompt + length for length in answers)
    decode = Cost(
        flops=2.0 * (shape.layers + shape.output) * fed + shape.attention(pairs),
        traffic=steps * weights + shape.kept(pairs),
        held=weights + shape.kept(most),
    )
    forward = 2.0 * (shape.layers * (asked + fed) + shape.output * sum(answers)) + shape.attention(asking + pairs)
    scoring = Cost(flops=forward, traffic=weights, held=weights)
    # gradients written and read for the norm; AdamW reads weights, gradients and two moments, and writes three of them
    update = Cost(flops=3.0 * forward, traffic=11.0 * weights, held=4.0 * weights)
    return {"prefill": prefill, "decode": decode, "scoring": scoring, "update": update}
