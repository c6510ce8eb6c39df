"""The learner against slow loops, and its promises: nothing half done, and the same bits after a resume."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from learn_makers import plain_logprobs, random_samples, tiny_model
from peft import LoraConfig, get_peft_model

from cotrain.algorithms.contract import LossTerm
from cotrain.algorithms.grpo import GRPO
from cotrain.algorithms.policy_gradient import KLPenalty, PPOClip
from cotrain.algorithms.ppo import ValueRegression
from cotrain.algorithms.sft import SFT
from cotrain.core.errors import StateError
from cotrain.core.signals import OUTCOME
from cotrain.learner.learner import TorchLearner, _gradient_metrics
from cotrain.models.heads import ValueModel
from tests.sentences import refuses

ALGORITHM = GRPO(reward_weights={OUTCOME: 1.0}, kl=KLPenalty("reference", 0.05), entropy=0.01, loss=PPOClip(0.2, 0.28))


def term(samples, algorithm=ALGORITHM, name="gen"):
    return LossTerm(name=name, algorithm=algorithm, samples=samples)


def batch(seed, count=7):
    return random_samples(count, seed=seed, reference=True, weight=True, temperature=True)


def weights(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def plain_grpo_step(model, optimizer, samples, clip_norm):
    """Twenty lines, one sequence at a time: what the learner must equal."""
    total = sum(len(s.token_ids) for s in samples)
    optimizer.zero_grad()
    for s in samples:
        logp = plain_logprobs(model, s)
        ids = torch.tensor([s.prompt_ids + s.token_ids])
        p = (model(input_ids=ids).logits[0, len(s.prompt_ids) - 1 : -1] / s.temperature).softmax(-1)
        entropy = -(p * p.log()).sum(-1)
        ratio = (logp - s.sampler_logprobs).exp()
        surrogate = torch.minimum(ratio * s.advantages, ratio.clamp(0.8, 1.28) * s.advantages)
        log_r = s.reference - logp
        kl = log_r.exp() - 1 - log_r
        loss = (-s.weight * surrogate + 0.05 * kl - 0.01 * entropy).sum() / total
        loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), clip_norm)
    optimizer.step()
    return norm.item()


@pytest.mark.whole
@pytest.mark.parametrize(
    ("decay", "rates"),
    [
        ("constant", [0.5] + [1.0] * 9),
        ("linear", [0.5, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1]),
        ("cosine", [0.5, 0.975528, 0.904508, 0.793893, 0.654508, 0.5, 0.345492, 0.206107, 0.095492, 0.024472]),
        ("wsd", [0.5] + [1.0] * 8 + [1.0 - 0.5**0.5]),
    ],
)
def test_learning_rates_rise_and_fall_over_the_planned_updates(decay, rates):
    learner = TorchLearner(tiny_model(), lr=1e-2, warmup=2, decay=decay)
    terms = [replace(term(batch(0)), planned=10)]
    found = [learner.update(terms).metrics["lr"] / 1e-2 for _ in range(10)]
    assert found == pytest.approx(rates, abs=1e-6)


def test_equals_a_plain_loop():
    model, plain = tiny_model(), tiny_model()
    learner = TorchLearner(model, lr=1e-2, clip_norm=0.5, micro_tokens=24)
    optimizer = torch.optim.AdamW(plain.parameters(), lr=1e-2, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.0)
    for seed in range(3):
        report = learner.update([term(batch(seed))])
        norm = plain_grpo_step(plain, optimizer, batch(seed), 0.5)
        assert report.stepped
        assert report.metrics["grad_norm"] == pytest.approx(norm, rel=1e-6)
    torch.testing.assert_close(weights(model), weights(plain), rtol=0, atol=1e-6)  # behaviour is float32
    assert (weights(model) - weights(tiny_model())).abs().max() > 1e-2


@pytest.mark.parametrize("normalise", ["token", "sequence", "constant"])
def test_micro_batches_change_nothing(normalise):
    algorithm = replace(ALGORITHM, normalise=normalise, constant=8.0 if normalise == "constant" else None)
    results = []
    for micro_tokens in (1, 20, 10_000):
        model = tiny_model()
        report = TorchLearner(model, lr=1e-2, micro_tokens=micro_tokens).update([term(batch(0), algorithm)])
        results.append((weights(model), {k: v for k, v in report.metrics.items() if not k.endswith("seconds")}))
    for found, metrics in results[1:]:
        torch.testing.assert_close(found, results[0][0], rtol=0, atol=1e-8)  # norms compute in float32
        assert metrics == pytest.approx(results[0][1], rel=1e-6)


def test_order_of_samples_changes_nothing():
    results = []
    for order in (1, -1):
        model = tiny_model()
        TorchLearner(model, lr=1e-2, micro_tokens=30).update([term(batch(0)[::order])])
        results.append(weights(model))
    torch.testing.assert_close(*results, rtol=0, atol=1e-9)


def test_terms_are_normalised_each_by_its_own_count_and_added():
    def gradient(terms):
        model = tiny_model()
        before = weights(model)
        learner = TorchLearner(model, lr=1e-3, clip_norm=None, optimizer=plain_sgd)
        learner.update(terms)
        return (before - weights(model)) / 1e-3

    short, long = term(batch(0, 2)), term(batch(1, 9), SFT(), name="gold")
    torch.testing.assert_close(gradient([short, long]), gradient([short]) + gradient([long]), rtol=0, atol=1e-6)


def test_gradient_norms_and_cosine_of_terms_are_those_of_each_alone():
    made = [term(batch(0, 4)), term(batch(1, 5), SFT(), "gold"), term(batch(2, 3), name="other")]

    def told(terms):
        return TorchLearner(tiny_model(), lr=1e-3, clip_norm=None).update(terms).metrics

    together, alone = told(made), [told([one])["grad_norm"] for one in made]
    assert [together[f"{one.name}/grad_norm"] for one in made] == pytest.approx(alone, rel=1e-6)
    assert [together[f"{one.name}/grad_share"] for one in made] == pytest.approx(
        [n / sum(alone) for n in alone], rel=1e-6
    )
    for i, j in ((0, 1), (0, 2), (1, 2)):  # |a + b|² = |a|² + |b|² + 2 |a| |b| cos
        pair, a, b = told([made[i], made[j]])["grad_norm"], alone[i], alone[j]
        cosine = (pair**2 - a**2 - b**2) / (2 * a * b)
        assert together[f"cosine/{made[i].name}/{made[j].name}"] == pytest.approx(cosine, abs=1e-6)


def test_a_term_without_a_gradient_has_no_angle_to_others():
    """Gradients of length 3, 0 and 4, the first and the last at a right angle."""
    products = torch.diag(torch.tensor([9.0, 0.0, 16.0], dtype=torch.float64))
    found = _gradient_metrics(("a", "none", "b"), products)
    assert found["none/grad_norm"] == found["none/grad_share"] == 0.0 and found["b/grad_share"] == pytest.approx(4 / 7)
    assert {name: value for name, value in found.items() if name.startswith("cosine")} == {"cosine/a/b": 0.0}


class plain_sgd:
    """A stand-in optimiser whose step shows the gradient."""

    def __init__(self, model, lr, weight_decay):
        self.parameters, self.lr = list(model.parameters()), lr

    def zero_grad(self):
        for p in self.parameters:
            p.grad = None

    def step(self, multiplier):
        with torch.no_grad():
            for p in self.parameters:
                p -= self.lr * multiplier * p.grad


def test_metrics():
    model = tiny_model()
    samples = batch(0)
    on_policy = tuple(replace(s, sampler_logprobs=plain_logprobs(model, s).detach().float()) for s in samples)
    gold = tuple(replace(s, weight=1.0) for s in on_policy)
    report = TorchLearner(model, lr=1e-2, warmup=4, term_norms=True).update(
        [term(on_policy), term(gold, SFT(), "gold")]
    )
    m = report.metrics
    assert m["gen/ratio"] == pytest.approx(1.0, abs=1e-6)
    assert m["gen/clip_fraction"] == 0.0
    assert m["gen/sampler_trainer_diff"] == pytest.approx(0.0, abs=1e-6)
    assert m["gen/surprisal"] == m["gold/surprisal"] == pytest.approx(m["gold/loss"], rel=1e-9)
    assert {"gen/kl", "gen/entropy", "gen/grad_norm", "gold/grad_norm", "gen/forward_seconds"} <= set(m)
    assert "gold/entropy" not in m
    assert m["lr"] == pytest.approx(1e-2 / 4)
    assert m["tokens"] == 2 * sum(len(s.token_ids) for s in samples) == m["gen/tokens"] + m["gold/tokens"]
    assert m["grad_norm"] <= m["gen/grad_norm"] + m["gold/grad_norm"]
    parts = [m[f"{name}/{way}_seconds"] for name in ("gen", "gold") for way in ("forward", "backward")]
    assert min(parts) > 0.0 and sum(parts) <= m["seconds"]
    assert all(p.grad is None for p in model.parameters())


def test_nothing_to_learn_from():
    report = TorchLearner(tiny_model(), lr=1e-2).update([term(()), term((), SFT(), "gold")])
    assert (report.stepped, report.skipped, dict(report.metrics)) == (False, "no samples", {})


@pytest.mark.parametrize("poison", [float("inf"), float("nan")])
def test_a_gradient_that_is_not_finite_changes_nothing(poison):
    learner = TorchLearner(tiny_model(), lr=1e-2)
    learner.update([term(batch(0))])
    before, state = learner.tensors(), learner.state()
    samples = batch(1)
    bad = (replace(samples[0], advantages=torch.full_like(samples[0].advantages, poison)), *samples[1:])
    report = learner.update([term(bad)])
    assert (report.stepped, report.skipped) == (False, "non-finite")
    assert all(abs(v) < float("inf") for v in report.metrics.values())
    assert learner.state() == state
    after = learner.tensors()
    assert all(torch.equal(before[k], after[k]) for k in before)
    assert learner.update([term(batch(1))]).stepped


def test_a_forward_that_fails_leaves_no_gradient_behind():
    model = tiny_model()
    learner = TorchLearner(model, lr=1e-2)
    bad = replace(batch(0)[0], reference=None)
    with refuses("E_REFERENCE_LOGPROBS_MISSING", names="'reference'"):
        learner.update([term(batch(1), SFT(), "gold"), term((bad,))])
    assert all(p.grad is None for p in model.parameters())
    assert learner.version == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_resumed_learner_goes_on_bit_by_bit(dtype):
    def run(learner, seeds):
        return [
            {k: v for k, v in learner.update([term(batch(s))]).metrics.items() if not k.endswith("seconds")}
            for s in seeds
        ]

    whole = TorchLearner(tiny_model(dtype), lr=1e-2, warmup=3, micro_tokens=40)
    reports = run(whole, range(4))
    first = TorchLearner(tiny_model(dtype), lr=1e-2, warmup=3, micro_tokens=40)
    assert run(first, range(2)) == reports[:2]
    second = TorchLearner(tiny_model(dtype, seed=9), lr=1e-2, warmup=3, micro_tokens=40)
    second.load(first.state(), first.tensors())
    assert second.state() == first.state() and second.version == 2
    assert run(second, range(2, 4)) == reports[2:]
    one, two = whole.tensors(), second.tensors()
    assert set(one) == set(two)
    assert all(torch.equal(one[k], two[k]) for k in one)
    assert {k.split(".")[0] for k in one} == {"model", "optimizer"}


def test_load_takes_all_or_nothing():
    learner = TorchLearner(tiny_model(), lr=1e-2)
    learner.update([term(batch(0))])
    state, tensors = learner.state(), learner.tensors()
    fresh = TorchLearner(tiny_model(seed=5), lr=1e-2)
    untouched = fresh.tensors()
    some = next(k for k in tensors if k.startswith("model."))
    moment = next(k for k in tensors if k.startswith("optimizer.") and k.endswith("exp_avg"))
    wrong = {
        "E_LEARNER_TENSORS_MISFIT: missing": {k: v for k, v in tensors.items() if k != some},
        "E_LEARNER_TENSORS_MISFIT: 1 missing": {k: v for k, v in tensors.items() if k != moment},
        "E_LEARNER_TENSORS_MISFIT: unknown": tensors | {"model.nothing": torch.zeros(1)},
        "E_LEARNER_TENSORS_MISFIT": tensors | {some: torch.zeros(1)},
        "E_OPTIMIZER_MISFIT": tensors | {moment: torch.zeros(1)},
    }
    for code, broken in wrong.items():
        with refuses(code):
            fresh.load(state, broken)
    with pytest.raises(StateError):
        fresh.load({"updates": 1}, tensors)
    after = fresh.tensors()
    assert set(after) == set(untouched)
    assert all(torch.equal(after[k], untouched[k]) for k in after)
    assert fresh.version == 0


def test_only_the_adapter_learns_and_is_saved():
    torch.manual_seed(0)
    base = tiny_model()
    before = {k: v.clone() for k, v in base.state_dict().items()}
    model = get_peft_model(base, LoraConfig(target_modules=["q_proj", "down_proj"], r=2)).double()
    learner = TorchLearner(model, lr=1e-2)
    learner.update([term(batch(0))])
    assert all("lora" in name for name in learner.tensors())
    after = {
        k.replace("base_model.model.", "").replace(".base_layer", ""): v
        for k, v in model.state_dict().items()
        if "lora" not in k
    }
    assert all(torch.equal(before[k], after[k]) for k in before)
    twin_base = tiny_model()
    twin = TorchLearner(
        get_peft_model(twin_base, LoraConfig(target_modules=["q_proj", "down_proj"], r=2)).double(), lr=1e-2
    )
    twin.load(learner.state(), learner.tensors())
    pairs = [(s.prompt_ids, s.token_ids) for s in batch(3)]
    assert all(torch.equal(a, b) for a, b in zip(learner.logprobs(pairs), twin.logprobs(pairs), strict=True))


def test_adapters_of_one_base_learn_apart():
    model = get_peft_model(tiny_model(), LoraConfig(target_modules=["q_proj"], r=2), adapter_name="one")
    model.add_adapter("two", LoraConfig(target_modules=["q_proj"], r=2))
    learners = {
        n: TorchLearner(model.double(), lr=1e-2, activate=partial(model.set_adapter, n)) for n in ("one", "two")
    }
    for name, other in (("one", "two"), ("two", "one"), ("one", "two")):
        still, before = learners[other].tensors(), learners[name].tensors()
        assert learners[name].update([term(batch(0))]).stepped
        assert all(torch.equal(v, learners[other].tensors()[k]) for k, v in still.items())
        assert any(not torch.equal(v, learners[name].tensors()[k]) for k, v in before.items())
        assert all(f".{name}." in key for key in before)


def test_bfloat16_arithmetic_over_float32_weights():
    model, samples = tiny_model(torch.float32), random_samples()
    pairs = [(s.prompt_ids, s.token_ids) for s in samples]
    exact = TorchLearner(model, lr=1e-3).logprobs(pairs)
    learner = TorchLearner(model, lr=1e-3, autocast=True)
    rounded = learner.logprobs(pairs)
    gap = (torch.cat(exact) - torch.cat(rounded)).abs().max().item()
    assert 0.0 < gap < 0.5
    assert rounded[0].dtype == torch.float32
    assert learner.update([term(batch(0))]).stepped
    assert all(p.dtype == torch.float32 for p in model.parameters())


def test_a_critic_learns_its_targets():
    critic = ValueModel(tiny_model(torch.float32).model)
    learner = TorchLearner(critic, lr=1e-2, head="value")
    algorithm = ValueRegression(reward_weights={OUTCOME: 1.0}, values=None)
    samples = tuple(replace(s, targets=s.advantages * 0 + len(s.token_ids) / 6) for s in random_samples(6))
    first = learner.update([term(samples, algorithm, "critic")]).metrics["critic/loss"]
    for _ in range(30):
        last = learner.update([term(samples, algorithm, "critic")]).metrics["critic/loss"]
    assert last < 0.1 * first
    values = learner.logprobs([(s.prompt_ids, s.token_ids) for s in samples])
    assert values[0][-1].item() == pytest.approx(samples[0].targets[-1].item(), abs=0.3)


def test_reinforces_what_was_good():
    model = tiny_model()
    learner = TorchLearner(model, lr=1e-3)
    samples = random_samples(2)
    pairs = [(s.prompt_ids, s.token_ids) for s in samples]
    before = learner.logprobs(pairs)
    signed = tuple(
        replace(s, sampler_logprobs=b, advantages=torch.full_like(b, a))
        for s, b, a in zip(samples, before, (1.0, -1.0), strict=True)
    )
    learner.update([term(signed, GRPO(reward_weights={OUTCOME: 1.0}))])
    after = learner.logprobs(pairs)
    assert after[0].sum() > before[0].sum()
    assert after[1].sum() < before[1].sum()


def test_refusals():
    with refuses("E_LEARNER_RANGE", names="lr 0"):
        TorchLearner(tiny_model(), lr=0)
    with refuses("E_DTYPE_TRAINED"):
        TorchLearner(tiny_model(torch.bfloat16), lr=1e-3)
    with refuses("E_HEAD_MISMATCH", names="'value'"):
        TorchLearner(tiny_model(), lr=1e-3).update([term(batch(0), ValueRegression(reward_weights={OUTCOME: 1.0}))])
