"""Counter-based uniforms and the inverse of the distribution."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cotrain.inference import decode_batch as rows_module
from cotrain.inference.decode_batch import draw_tokens, hash_counter, uniform_numbers

LEAST, MOST = 2.0**-53, 1 - 2.0**-53  # the extreme values of ``uniform_numbers``


def splitmix(seed: int, position: int) -> int:
    """SplitMix64 as published, in Python's integers."""
    mask = 2**64 - 1
    z = (seed + (position + 1) * 0x9E3779B97F4A7C15) & mask
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
    return z ^ (z >> 31)


def hashed(seed: int, position: int) -> int:
    return int(hash_counter(torch.tensor([seed]), torch.tensor([position]))) % 2**64


def rows(values: list[float]) -> torch.Tensor:
    return torch.tensor([values])


def draw_one(logits: list[float], uniform: float, temperature: float = 1.0, top_p: float = 1.0) -> tuple[int, float]:
    token, logprob, _ = draw_tokens(
        rows(logits), torch.tensor([uniform], dtype=torch.float64), torch.tensor([temperature]), torch.tensor([top_p])
    )
    return int(token), float(logprob)


def test_the_published_outputs_of_splitmix64():
    expected = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431]
    assert [hashed(1234567, t) for t in range(4)] == expected


@given(st.integers(0, 2**63 - 1), st.integers(0, 2**20))
def test_the_hash_wraps_around_like_unsigned_integers(seed, position):
    assert hashed(seed, position) == splitmix(seed, position)


def test_uniforms_are_in_the_open_interval_even():
    u = uniform_numbers(torch.full((20_000,), 7), torch.arange(20_000))
    assert float(u.min()) > 0 and float(u.max()) < 1
    counts = torch.histc(u.float(), bins=20, min=0, max=1)
    assert float(((counts - 1000) ** 2 / 1000).sum()) < 43.8  # chi-square, 19 degrees of freedom, p = 0.001
    pairs = torch.corrcoef(torch.stack([u[:-1], u[1:]]))
    assert abs(float(pairs[0, 1])) < 0.03


def test_extreme_uniforms_stay_inside():
    assert float((torch.tensor([2**52 - 1]).double() + 0.5) * 2.0**-52) == MOST < 1


@pytest.mark.parametrize("size", [8191, 8192, 8193, 9000])  # looked through whole; in blocks, and what is left of one
def test_a_large_vocabulary_is_searched_as_a_small_one(size, monkeypatch):
    logits = torch.randn(40, size, generator=torch.Generator().manual_seed(size)) * 4
    logits[:, ::7] = -math.inf
    uniform = uniform_numbers(torch.arange(40), torch.zeros(40, dtype=torch.int64))
    uniform[0], uniform[1] = LEAST, MOST
    found = draw_tokens(logits, uniform, torch.ones(40), torch.ones(40))
    monkeypatch.setattr(rows_module, "_LARGE", 10**6)
    whole = draw_tokens(logits, uniform, torch.ones(40), torch.ones(40))
    assert all(torch.equal(a, b) for a, b in zip(found, whole, strict=True))


def test_many_logits_are_drawn_from_some_rows_at_a_time(monkeypatch):
    """Bit for bit as all at once, greedy rows and cut ones among them."""
    generator = torch.Generator().manual_seed(5)
    logits = torch.randn(50, 9000, generator=generator) * 3
    u = torch.rand(50, dtype=torch.float64, generator=generator)
    temperature = torch.tensor([0.0, 0.5, 1.0, 1.0, 1.0]).repeat(10)
    top_p = torch.tensor([1.0, 0.8, 1.0, 1.0, 0.5]).repeat(10)
    whole = draw_tokens(logits, u, temperature, top_p)
    for rows_at_once in (1, 7, 49):
        monkeypatch.setattr(rows_module, "_AT_ONCE", 9000 * rows_at_once + 1)
        found = draw_tokens(logits, u, temperature, top_p)
        assert all(torch.equal(a, b) for a, b in zip(found, whole, strict=True))


def test_draws_follow_the_softmax():
    count, logits = 40_000, torch.randn(13, generator=torch.Generator().manual_seed(1)) * 2
    for temperature in (1.0, 0.6):
        tokens, logprobs, entropies = draw_tokens(
            logits.expand(count, -1),
            uniform_numbers(torch.arange(count), torch.zeros(count, dtype=torch.int64)),
            torch.full((count,), temperature),
            torch.ones(count),
        )
        p = torch.softmax(logits / temperature, -1)
        expected = p * count
        observed = torch.bincount(tokens, minlength=13).float()
        assert float(((observed - expected) ** 2 / expected).sum()) < 32.9  # 12 degrees of freedom, p = 0.001
        torch.testing.assert_close(logprobs, p.log()[tokens], atol=1e-5, rtol=0)
        torch.testing.assert_close(entropies, -(p * p.log()).sum().expand(count), atol=1e-5, rtol=0)


def test_the_inverse_by_hand():
    logits = [math.log(p) for p in (0.125, 0.5, 0.25, 0.125)]  # cumulative: 0.125, 0.625, 0.875, 1
    cases = {LEAST: 0, 0.12: 0, 0.13: 1, 0.62: 1, 0.63: 2, 0.87: 2, 0.88: 3, MOST: 3}
    for uniform, token in cases.items():
        assert draw_one(logits, uniform) == (token, pytest.approx(logits[token], abs=1e-6))


def test_top_p_by_hand():
    logits = [math.log(p) for p in (0.125, 0.5, 0.25, 0.125)]
    for top_p, kept in (
        (0.49, {1: 1.0}),
        (0.51, {1: 2 / 3, 2: 1 / 3}),
        (0.01, {1: 1.0}),
        (0.8, {0: 1 / 7, 1: 4 / 7, 2: 2 / 7}),
    ):
        drawn = {draw_one(logits, (i + 0.5) / 64, top_p=top_p) for i in range(64)}
        assert {token for token, _ in drawn} == set(kept)
        for token, logprob in drawn:
            assert logprob == pytest.approx(math.log(kept[token]), abs=1e-6)


def test_entropies_by_hand():
    logits = torch.tensor([[0.5, 0.25, 0.25, 0.0]]).log()  # 3/2 ln 2
    two_thirds = -(2 / 3 * math.log(2 / 3) + 1 / 3 * math.log(1 / 3))
    cooler = -(2 / 3 * math.log(2 / 3) + 1 / 3 * math.log(1 / 6))  # squares: 4, 1 and 1 of 6
    cases = {(1.0, 1.0): 1.5 * math.log(2), (1.0, 0.49): 0.0, (1.0, 0.7): two_thirds, (0.5, 1.0): cooler,
             (0.0, 0.1): 1.5 * math.log(2)}  # greedy: of the plain softmax  # fmt: skip
    for (temperature, top_p), expected in cases.items():
        _, _, entropy = draw_tokens(
            logits, torch.tensor([0.5]).double(), torch.tensor([temperature]), torch.tensor([top_p])
        )
        assert float(entropy) == pytest.approx(expected, abs=1e-6)


def test_greedy_takes_the_largest_with_its_plain_logprob():
    token, logprob = draw_one([0.0, 3.0, 1.0], MOST, temperature=0.0, top_p=0.1)
    assert token == 1
    assert logprob == pytest.approx(3 - math.log(1 + math.exp(3) + math.exp(1)), abs=1e-6)


@pytest.mark.whole
@settings(max_examples=200)
@given(
    st.lists(st.one_of(st.just(-math.inf), st.floats(-60, 60, width=32)), min_size=1, max_size=30).filter(
        lambda values: max(values) > -math.inf
    ),
    st.sampled_from([LEAST, 0.3, 0.999, MOST]),
    st.sampled_from([0.0, 0.5, 1.0, 3.0]),
    st.sampled_from([1e-6, 0.5, 0.999, 1.0]),
)
def test_the_impossible_is_never_drawn(logits, uniform, temperature, top_p):
    token, logprob = draw_one(logits, uniform, temperature, top_p)
    assert logits[token] > -math.inf
    assert -200 < logprob <= 1e-6


def test_rows_do_not_depend_on_each_other():
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(64, 50, generator=generator) * 3
    u = torch.rand(64, dtype=torch.float64, generator=generator)
    temperature = torch.tensor([0.0, 0.5, 1.0, 1.0]).repeat(16)
    top_p = torch.tensor([1.0, 0.8, 1.0, 0.5]).repeat(16)
    tokens, logprobs, entropies = draw_tokens(logits, u, temperature, top_p)
    for i in range(64):
        token, logprob, entropy = draw_tokens(logits[i : i + 1], u[i : i + 1], temperature[i : i + 1], top_p[i : i + 1])
        assert int(token) == int(tokens[i])
        assert float(logprob) == pytest.approx(float(logprobs[i]), abs=1e-6)
        assert float(entropy) == float(entropies[i])  # bit for bit: levels of it are in the ledger


def test_logits_that_are_not_numbers_show():
    _, logprob = draw_one([0.0, math.nan], 0.5)
    assert math.isnan(logprob)


@pytest.mark.parametrize("temperature", [0.0, 5e-324, 1e-320, 1e-45, 1e-40, 1e-38, 1e-37, 1e-12, 9e-7])
def test_temperatures_near_zero_are_greedy(temperature):
    logits = [1.0, 5.0e4, 2.0, -5.0e4]
    token, logprob = draw_one(logits, MOST, temperature)
    assert (token, logprob) == draw_one(logits, LEAST, 0.0) and math.isfinite(logprob)


@pytest.mark.parametrize("top_p", [5e-324, 1e-320, 1e-45, 1e-40, 1e-38, 1e-9])
def test_the_smallest_top_p_keeps_the_likeliest_token(top_p):
    assert draw_one([1.0, 5.0, 2.0], MOST, 1.0, top_p) == (1, 0.0)
    assert draw_one([3.0, 3.0, 3.0], MOST, 1e-4, top_p) == (0, 0.0)
