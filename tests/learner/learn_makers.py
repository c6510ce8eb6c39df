"""Small traces, samples and models for the tests of this folder."""

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from cotrain.algorithms.contract import Batch, Sample
from cotrain.algorithms.samples import sample_of
from cotrain.core.seeding import Address
from cotrain.core.types import Reward, Trace

VOCABULARY = 24


def trace(*, length=4, group="g", role="solver", call=0, signals=(), prompt=(1, 2), logprobs=None):
    """``signals``: (name, value) or (name, value, (start, end))."""
    return Trace(
        address=Address(step=0, task=0, member=0, role=role, call=call),
        role=role,
        policy="p",
        version=0,
        group=group,
        prompt_ids=tuple(prompt),
        token_ids=tuple((3 + call + t) % VOCABULARY for t in range(length)),
        logprobs=tuple(logprobs or [-1.0] * length),
        text="",
        finish="stop",
        rewards=tuple(Reward(name=s[0], value=s[1], tokens=s[2] if len(s) > 2 else None) for s in signals),
    )


def sampled(*args, values=None, temperature=1.0, scores=None, **settings):
    return sample_of(trace(*args, **settings), values=values, temperature=temperature, scores=scores)


def outcomes(*rewards, group="g", length=4):
    return [sampled(signals=[("outcome", r)], group=group, length=length, call=i) for i, r in enumerate(rewards)]


def credit(algorithm, samples, updates=0, planned=10, state=None):
    """What the algorithm makes of its first batch, or of one after ``state``."""
    return credit_and_state(algorithm, samples, updates, planned, state)[0]


def credit_and_state(algorithm, samples, updates=0, planned=10, state=None):
    batch = Batch(samples=tuple(samples), updates=updates, planned=planned)
    return algorithm.credit(batch, state or {})


def advantages(credit):
    return [sample.advantages.tolist() for sample in credit.samples]


def tiny_model(dtype=torch.float64, seed=0, tie=True):
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=64,
        tie_word_embeddings=tie,
    )
    model = LlamaForCausalLM(config).to(dtype).eval()
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(8.0 if p.ndim > 1 else 1.0)  # far from uniform, so that mistakes show
    return model


def random_samples(count=7, seed=0, reference=False, weight=False, temperature=False):
    g = torch.Generator().manual_seed(seed)
    samples = []
    for i in range(count):
        p, t = (int(torch.randint(1, 7, (), generator=g)) for _ in range(2))
        ids = torch.randint(0, VOCABULARY, (p + t,), generator=g).tolist()
        sampler_logprobs = -3.0 + 0.1 * torch.randn(t, generator=g)
        samples.append(
            Sample(
                key=str(i),
                prompt_ids=tuple(ids[:p]),
                token_ids=tuple(ids[p:]),
                sampler_logprobs=sampler_logprobs,
                advantages=torch.randn(t, generator=g),
                weight=float(torch.rand((), generator=g)) + 0.5 if weight else 1.0,
                temperature=0.75 if temperature and i % 2 else 1.0,
                reference=sampler_logprobs + 0.2 if reference else None,
            )
        )
    return tuple(samples)


def plain_logprobs(model, sample):
    """The slow reference: one sequence, the model's own forward, no padding. ``[T]``."""
    ids = torch.tensor([sample.prompt_ids + sample.token_ids])
    logits = model(input_ids=ids).logits[0] / sample.temperature
    start = len(sample.prompt_ids)
    table = logits.log_softmax(-1)[start - 1 : -1]
    return table.gather(-1, ids[0, start:, None]).squeeze(-1)
