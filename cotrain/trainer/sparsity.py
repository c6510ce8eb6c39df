"""``{policy}/update_sparsity``: the share of a policy's weights that a run has left unchanged.

The start is read from where the run took it, in bfloat16, once for policies that begin with one model, and only when
the run is over: nothing is kept in memory for it while the run goes on.

Left out, with a note in the log: policies whose ranks hold shards (no process has all of their weights), and those
whose start is not there any more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

import torch

from cotrain.config.policies import Adapter, Critic, Learning, RewardModel
from cotrain.core.errors import UserError
from cotrain.core.statistics import Estimate
from cotrain.distributed.policy_handles import PolicyHandle
from cotrain.models.memory import MEMORY_ERRORS, out_of_memory

# -- How much of a model a run has changed: the share of its weights that are the same number before and after.


TOLERANCE = 1e-5  # largest distance of two numbers that count as equal


@dataclass(frozen=True, slots=True, kw_only=True)
class UnchangedCount:
    """How many of ``weights`` numbers are the same as before."""

    weights: int
    same: int  # in bfloat16
    near: int  # in bfloat16, within ``TOLERANCE``

    def __add__(self, other: UnchangedCount) -> UnchangedCount:
        return UnchangedCount(
            weights=self.weights + other.weights, same=self.same + other.same, near=self.near + other.near
        )


NOTHING = UnchangedCount(weights=0, same=0, near=0)


@torch.no_grad()
def compare_tensors(before: torch.Tensor, after: torch.Tensor) -> UnchangedCount:
    """Compare two tensors of one shape, any device and dtype; on the CPU. Raises ValueError for another shape."""
    if before.shape != after.shape:
        raise ValueError(f"unchanged needs one shape, found {tuple(before.shape)} and {tuple(after.shape)}")
    distance = (_as_bfloat16(before) - _as_bfloat16(after)).abs()
    return UnchangedCount(
        weights=distance.numel(), same=int((distance == 0).sum()), near=int((distance <= TOLERANCE).sum())
    )


def _as_bfloat16(tensor: torch.Tensor) -> torch.Tensor:
    """The numbers that bfloat16 has for these, on the CPU."""
    return tensor.detach().cpu().to(torch.bfloat16).float()


def compare_pairs(pairs: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> UnchangedCount:
    """Compare (before, after) of several tensors, one pair after the other."""
    return sum((compare_tensors(before, after) for before, after in pairs), NOTHING)


def compare_models(
    before: Iterator[tuple[str, torch.Tensor]], after: Mapping[str, torch.Tensor]
) -> UnchangedCount | None:
    """Compare all weights of a model, by name; None where the two do not have the same names and shapes."""
    known = dict(before)
    if known.keys() != after.keys() or any(known[name].shape != tensor.shape for name, tensor in after.items()):
        return None
    return compare_pairs((known[name], tensor) for name, tensor in after.items())


SAME = "update_sparsity"
NEAR = "update_sparsity_1e-5"


def update_sparsity(
    policies: Iterable[PolicyHandle], *, seed: int, say: Callable[[str], None] = lambda line: None
) -> dict[str, Estimate]:
    """The shares of unchanged weights of every policy that is trained by a gradient. ``seed``: the run's, by which
    fresh adapters were drawn."""
    starts: dict[tuple[object, ...], dict[str, torch.Tensor]] = {}  # one start at a time
    shares: dict[str, Estimate] = {}
    trained = [policy for policy in policies if policy.spec.is_trained]
    for policy in sorted(trained, key=lambda policy: (policy.spec.model, policy.spec.kind, policy.name)):
        try:
            counted = None if policy.sharded else _count_unchanged(policy, seed, starts)
        except (UserError, *MEMORY_ERRORS) as error:
            if not isinstance(error, UserError) and not out_of_memory(error):
                raise
            why = error if isinstance(error, UserError) else "memory ran out"
            say(f"note: {policy.name}/{SAME} is not measured: {why}")
            continue
        if counted is None:
            say(f"note: {policy.name}/{SAME} is not measured: its weights are in shards, or have other names now")
            continue
        for name, count in ((SAME, counted.same), (NEAR, counted.near)):
            share = count / counted.weights
            shares[f"{policy.name}/{name}"] = Estimate(value=share, low=share, high=share, n=counted.weights)
    return dict(sorted(shares.items()))


def _count_unchanged(
    policy: PolicyHandle, seed: int, starts: dict[tuple[object, ...], dict[str, torch.Tensor]]
) -> UnchangedCount | None:
    """Compare a policy's weights with its initial ones; None where they cannot be held against each other."""
    spec = policy.spec
    assert isinstance(spec, Learning)
    now = dict(policy.weights())
    if isinstance(spec, Adapter):
        return _count_merged(policy.name, spec, seed, now)
    key = (spec.kind, spec.model, spec.trust_remote_code)
    if key not in starts:
        starts.clear()
        starts[key] = _start_weights(spec)
    return compare_models(iter(starts[key].items()), now)


def _start_weights(spec: Learning) -> dict[str, torch.Tensor]:
    """The weights with which it began, by name."""
    loading = {**spec.load_options, "dtype": "bfloat16"}
    model: torch.nn.Module
    if isinstance(spec, Critic):
        from cotrain.models.heads import value_model

        model = value_model(spec.model, **loading)
    elif isinstance(spec, RewardModel):
        from cotrain.models.heads import reward_model

        model = reward_model(spec.model, **loading)
    else:
        from cotrain.models.load import load_model

        model, _ = load_model(spec.model, **loading)
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


def _count_merged(policy: str, spec: Adapter, seed: int, now: Mapping[str, torch.Tensor]) -> UnchangedCount | None:
    """Compare an adapter in its base: merged before, merged now."""
    from cotrain.models.adapters import AdapterBase, merged_pairs  # imports PEFT, which only adapters need

    base = AdapterBase(spec.model, **spec.load_options)
    lora = spec.lora
    weights = sum(parameter.numel() for parameter in base.module.parameters())
    if lora.path is not None:
        base.load(policy, lora.path)
    else:
        base.add(policy, rank=lora.rank, alpha=lora.alpha, targets=lora.targets, seed=seed)
    pairs = merged_pairs(base, policy, now)
    if pairs is None:
        return None
    reached = compare_pairs(pairs)
    beyond = weights - reached.weights
    return UnchangedCount(weights=weights, same=reached.same + beyond, near=reached.near + beyond)
