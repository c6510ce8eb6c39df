"""A check before a run begins that new weights reach an engine that holds weights of its own.

For each policy that changes: its weights are changed strongly and published, a prompt that the engine has answered
before is answered again, and the engine's log-probabilities are held against the learner's. Then the weights are put
back, bit for bit. Weak changes would hide what is wrong: an output layer that keeps its old weights moves
log-probabilities of a run's first steps by 1e-4, less than rounding in bfloat16. A policy that does not change is asked
once.

Mean distances of log-probabilities over the answer's tokens: g₀ and g of engine and learner before and after the
change, c of the learner before and after. Demanded are g₀ ≤ 0.2 nats, far above rounding, and g ≤ 4 g₀ + c / 200: what
is left out of the new weights moves the engine as the learner was moved. The engine's other policies answer in the same
batch, and the same is demanded of them. For a policy that stays there is g₀ alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from cotrain.core.errors import ConfigError
from cotrain.core.seeding import Address, seed_of
from cotrain.core.types import Completion, Sampling
from cotrain.distributed.policy_handles import PolicyHandle
from cotrain.inference.contract import ContextLimitedEngine, Request
from cotrain.rollout.event_loop import EngineEventLoop, gather

PROMPT = 256  # tokens: several blocks of a prefix cache
ANSWER = 16  # tokens
ANSWERS = 4
STRENGTH = 0.3  # strength of the change, in standard deviations of each tensor

# Thresholds of the comparison, explained at the top of this file.
MULTIPLE = 4.0
SHARE = 1 / 200
STAYS = 0.2

MODEL = "model."  # prefix of a learner's weights among its tensors
Publish = Callable[[str, int], None]  # (policy, version): the engine has the learner's weights from here on
Tensors = Mapping[str, torch.Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishCheck:
    """The result of the test of one policy, in nats a token."""

    policy: str
    before: float  # g₀
    after: float | None  # g; None for a policy that does not change
    change: float | None  # c


def check_publishing(
    policies: Sequence[PolicyHandle], engines: Sequence[ContextLimitedEngine], publish: Publish
) -> list[PublishCheck]:
    """``policies``: those of one engine; ``engines``: it, or its replicas, each of which is asked. The worst replica
    counts. Raises ConfigError, one line, where weights do not arrive; the old ones are back in any case but that of a
    lost process."""
    for handle in policies:
        if handle.changes:
            publish(handle.name, handle.version)  # adapters have no weights there yet
    starts = []
    for handle in policies:
        starts.append([_check_start(handle, engine) for engine in engines])
    checks = []
    for handle, per_engine in zip(policies, starts, strict=True):
        if handle.changes:
            others = [other for other in policies if other is not handle]
            checks.append(_check_changed_weights(handle, others, per_engine, engines, publish))
        else:
            before = max(distance for _, distance in per_engine)
            checks.append(PublishCheck(policy=handle.name, before=before, after=None, change=None))
    return checks


def _check_start(handle: PolicyHandle, engine: ContextLimitedEngine) -> tuple[list[Completion], float]:
    """Its answers with the weights of the start, and their distance from the learner's log-probabilities."""
    prompt = _test_prompt(handle, engine.context(handle.name))
    completions = _sample_answers(handle, prompt, engine)
    before = _mean_distance(_engine_logprobs(completions), _learner_logprobs(handle, prompt, completions))
    if not before <= STAYS:
        raise _mismatch_error(handle, f"differ by {before:.3g} nats a token at the start; expected {STAYS} at most")
    return completions, before


def _check_changed_weights(
    handle: PolicyHandle,
    others: Sequence[PolicyHandle],
    starts: Sequence[tuple[Sequence[Completion], float]],
    engines: Sequence[ContextLimitedEngine],
    publish: Publish,
) -> PublishCheck:
    """``starts``: what ``_check_start`` found, of each of the engines."""
    prompt = _test_prompt(handle, engines[0].context(handle.name))
    for engine in engines:
        _sample_answers(handle, prompt, engine)  # it may stay in a cache
    state = handle.state()
    old_tensors = handle.tensors()
    version = handle.version
    handle.load(state, perturb_weights(old_tensors, handle.name))
    try:
        publish(handle.name, version)
        perturbed = []
        for engine in engines:
            new, *other_completions = _sample_each([handle, *others], prompt, engine)
            other_distances = {
                h: _mean_distance(_engine_logprobs(s), _learner_logprobs(h, prompt, s))
                for h, s in zip(others, other_completions, strict=True)
            }
            perturbed.append((new, _learner_logprobs(handle, prompt, new), other_distances))
    finally:
        handle.load(state, old_tensors)
        publish(handle.name, version)

    checks = []
    for engine, (old, before), (new, learner_logprobs, other_distances) in zip(engines, starts, perturbed, strict=True):
        after = _mean_distance(_engine_logprobs(new), learner_logprobs)
        change = _mean_distance(_learner_logprobs(handle, prompt, new), learner_logprobs)
        most = MULTIPLE * before + SHARE * change
        for policy, distance in {handle: after, **other_distances}.items():
            if not distance <= most:
                raise _mismatch_error(
                    policy,
                    f"differ by {distance:.3g} nats a token after a change of the weights of {handle.name!r}, which "
                    f"moved the learner's by {change:.3g}; expected {most:.2g} at most",
                )
        if _sample_answers(handle, prompt, engine) != list(old):
            raise _mismatch_error(
                handle, "are others than before, once the weights were put back; expected the same bits"
            )
        checks.append(PublishCheck(policy=handle.name, before=before, after=after, change=change))
    return max(checks, key=lambda one: one.after or 0.0)


def perturb_weights(tensors: Tensors, name: str) -> dict[str, torch.Tensor]:
    """The same tensors with other weights; the noise of each follows from the policy's and its own name."""
    perturbed = dict(tensors)
    for key in sorted(tensors):
        weight = tensors[key]
        if key.startswith(MODEL) and weight.is_floating_point():
            noise = torch.Generator().manual_seed(seed_of("shaken", name, key))
            scale = float(weight.float().std(correction=0)) or float(weight.shape[-1] ** -0.5)  # zeros of adapters
            unit_noise = torch.randn(weight.shape, generator=noise)
            perturbed[key] = (weight + STRENGTH * scale * unit_noise.to(weight)).contiguous()
    return perturbed


def _test_prompt(handle: PolicyHandle, context: int) -> tuple[int, ...]:
    """Tokens of a text, again and again; half of a short context."""
    assert handle.renderer is not None
    text = hashlib.sha256(handle.name.encode()).hexdigest() + " What is 12 + 30? Say how you found it. "
    ids = handle.renderer.encode(text)
    return (ids * PROMPT)[: min(PROMPT, context // 2)]


def _sample_answers(handle: PolicyHandle, prompt: tuple[int, ...], engine: ContextLimitedEngine) -> list[Completion]:
    return _sample_each([handle], prompt, engine)[0]


def _sample_each(
    handles: Sequence[PolicyHandle], prompt: tuple[int, ...], engine: ContextLimitedEngine
) -> list[list[Completion]]:
    """Several answers of each to the prompt; all are asked at once."""
    requests = [
        Request(
            policy=handle.name,
            prompt_ids=prompt,
            sampling=Sampling(max_tokens=ANSWER),
            stop_ids=(),
            seed=seed_of("publishing", number),
            address=Address(step=0, task=place, member=number, role="publishing", call=0),
        )
        for place, handle in enumerate(handles)
        for number in range(ANSWERS)
    ]
    loop = EngineEventLoop()
    try:
        completions = loop.run_to_end(gather([engine.sample(request) for request in requests]), engine.advance)
    finally:
        loop.close()
    return [list(completions[i : i + ANSWERS]) for i in range(0, len(completions), ANSWERS)]


def _engine_logprobs(completions: Sequence[Completion]) -> torch.Tensor:
    return torch.tensor([value for completion in completions for value in completion.logprobs])


def _learner_logprobs(handle: PolicyHandle, prompt: tuple[int, ...], completions: Sequence[Completion]) -> torch.Tensor:
    """The learner's present log-probabilities of the same tokens."""
    return torch.cat(handle.logprobs([(prompt, completion.token_ids) for completion in completions]))


def _mean_distance(one: torch.Tensor, other: torch.Tensor) -> float:
    return float((one - other).abs().mean())


def _mismatch_error(handle: PolicyHandle, how: str) -> ConfigError:
    return ConfigError(
        f"policy {handle.name!r}: log-probabilities of engine and learner {how}; weights do not arrive in the engine "
        "as they are: take another version of it, or the local engine",
        code="E_WEIGHTS_NOT_SYNCED",
    )
