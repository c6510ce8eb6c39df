"""The pretended device refuses and counts what a GPU refuses and waits for."""

import pytest
import torch
import torch.nn.functional as F

from cotrain.config.override import override
from cotrain.learner.logprobs import Scorer
from tests.device.beside import DEVICE, rows_on, small
from tests.device.pretended import counted
from tests.helpers import tiny_model

pytestmark = pytest.mark.whole


def here(*shape):
    return torch.arange(float(torch.Size(shape).numel())).reshape(shape)


@pytest.mark.parametrize(
    "fault, words",
    {
        "two devices": (lambda x: x + here(3), "two devices"),
        "index_select": (lambda x: x.index_select(0, torch.tensor([0])), "two devices"),
        "a number's place": (lambda x: torch.zeros(()).add_(x.sum()), "two devices"),
        "a mask": (lambda x: torch.where(here(3) > 1, x, x), "two devices"),
        "indices of the device": (lambda x: here(3)[x.long()], "two devices"),
        "numpy": (lambda x: x.numpy(), "can't convert pretended:0"),
        "numpy, unasked": (lambda x: __import__("numpy").asarray(x), "can't convert pretended:0"),
        "a generator": (lambda x: x.uniform_(generator=torch.Generator()), "generator device but found 'cpu'"),
        "multinomial": (lambda x: torch.multinomial(x + 1, 1, generator=torch.Generator()), "generator device"),
    }.values(),
)
def test_what_a_gpu_refuses_is_refused(fault, words):
    with pytest.raises((RuntimeError, TypeError), match=words):
        fault(here(3).to(DEVICE))


@pytest.mark.parametrize("undivided", [False, True])  # in inference mode operations come as they were called
def test_what_crosses_is_counted(undivided):
    with torch.inference_mode(undivided):
        x = here(3).to(DEVICE)
        waits = [
            *(lambda: bool(x[0] > 1), lambda: float(x.sum()), lambda: x.tolist(), lambda: x.cpu(), lambda: x.to("cpu")),
            *(lambda: x[x > 1], lambda: x.nonzero(), lambda: torch.empty(3).copy_(x), lambda: torch.equal(x, x)),
            *(lambda: x.masked_select(x > 1), lambda: x.unique(), lambda: int(x[1]), lambda: x[1].item()),
        ]
        sent = [
            *(lambda: here(3).to(DEVICE), lambda: torch.tensor([1], device=DEVICE), lambda: x.copy_(here(3))),
            *(lambda: x[torch.tensor([0])], lambda: x[[0, 1]]),
        ]
        free = [
            *(lambda: x + 1, lambda: x * torch.tensor(2.0), lambda: torch.zeros(3, device=DEVICE), lambda: x[1:]),
            *(lambda: torch.arange(3, device=DEVICE), lambda: x.to(DEVICE), lambda: x.masked_fill(x > 1, 0.0)),
        ]
        for actions, expected in ((waits, (1, 0)), (sent, (0, 1)), (free, (0, 0))):
            for number, action in enumerate(actions):
                with counted() as count:
                    action()
                assert (count.waits.total(), count.sent.total()) == expected, number
    assert all(place.startswith("tests/device/test_pretended.py:") for place in count.waits)


def test_tied_weights_stay_tied():
    model = tiny_model().to(DEVICE)
    assert model.get_input_embeddings().weight is model.get_output_embeddings().weight
    assert model.get_input_embeddings().weight.device.type == "pretended"


def test_autocast_follows_the_rules_of_cuda():
    x, half = here(3, 3).to(DEVICE), here(3, 3).to(DEVICE).bfloat16()
    with torch.autocast("pretended", torch.bfloat16):
        narrow = [x @ x, F.linear(x, x), torch.bmm(x[None], x[None])]
        narrow += [F.scaled_dot_product_attention(x[None, None], x[None, None], x[None, None]), half * 2, half.relu()]
        wide = [half.softmax(-1), half.log_softmax(-1), half.exp(), half.pow(2), half.sum(), half.cumsum(0)]
        wide += [half.rsqrt(), F.layer_norm(half, (3,)), torch.cat([x, half]), half + x, half.logsumexp(-1)]
        assert {t.dtype for t in narrow} == {torch.bfloat16} and {t.dtype for t in wide} == {torch.float32}
        assert (x.double() @ x.double()).dtype == torch.float64
        with torch.autocast("pretended", enabled=False):
            assert (x @ x).dtype == torch.float32
    weight = here(3, 3).to(DEVICE).requires_grad_()
    with torch.autocast("pretended", torch.bfloat16):
        F.linear(x, weight).sum().backward()
    assert weight.grad.dtype == torch.float32 and weight.grad.tolist() == [[9.0, 12.0, 15.0]] * 3


def test_scores_in_half_precision_are_near_and_not_equal():
    texts = [((1, 2, 3), (4, 5, 6, 7)), ((9, 8), (7, 6))]
    exact = torch.cat(Scorer(tiny_model()).logprobs(texts))
    same, half = (torch.cat(Scorer(tiny_model().to(DEVICE), autocast=a).logprobs(texts)) for a in (False, True))
    assert (same - exact).abs().max() < 1e-5
    assert 1e-4 < (half - exact).abs().mean() < 0.1


def test_a_run_in_half_precision_is_near_that_of_the_cpu():
    """Engine and learner both in bfloat16, by the rules of CUDA and by those of the CPU."""
    recipe = override(small("grpo"), ["policies.generator.autocast=true"])
    for mine, theirs in zip(rows_on(DEVICE, recipe), rows_on("cpu", recipe), strict=True):
        for name in ("grad_norm", "generator/surprisal"):
            assert mine[f"generator/{name}"] == pytest.approx(theirs[f"generator/{name}"], rel=0.1)
        assert mine["generator/generator/sampler_trainer_diff"] < 1e-2
