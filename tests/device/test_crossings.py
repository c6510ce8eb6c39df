"""How often a step waits for the device and copies to it: at most what docs/gpus.md says, nor much less."""

import json
import re
from pathlib import Path

import pytest

from cotrain.core.types import Sampling
from cotrain.distributed.local import LocalBackend
from cotrain.inference.cuda_graphs import LOOK
from cotrain.inference.local import LocalEngine
from cotrain.trainer.trainer import CoTrainer
from tests.device.beside import DEVICE, small
from tests.device.pretended import counted
from tests.helpers import answers, request, tiny_model

pytestmark = pytest.mark.whole
PAGE = Path(__file__).parents[2] / "docs" / "gpus.md"
STEPS = {
    "grpo": lambda: small("grpo"),
    "grpo --lora 4": lambda: small("grpo", lora=4),
    "tango": lambda: small("tango", warmup=0, ratio=(1, 1)),
    "rise": lambda: small("rise"),
    "cooper": lambda: small("cooper"),
    "spin": lambda: small("spin"),
}
ROW = re.compile(r"^\| `(.+)` \| (\d+) \| (\d+) \| (\d+) \| (\d\.\d\d) \|$", re.MULTILINE)


@pytest.mark.parametrize("name", STEPS)
def test_a_step_crosses_as_often_as_the_page_says(name):
    stated = {row[0]: row[1:] for row in ROW.findall(PAGE.read_text())}
    trainer = CoTrainer(STEPS[name](), backend=LocalBackend(DEVICE))
    trainer.step()
    with counted() as count:
        played = trainer.step()
    tokens = sum(len(trace.token_ids) for episode in played.episodes for trace in episode.traces)
    waits, sent = count.waits.total(), count.sent.total()
    line = f"| `{name}` | {tokens} | {waits} | {sent} | {waits / tokens:.2f} |"
    most = [int(n) for n in stated[name][1:3]] if name in stated else [0, 0]
    where = f"{line}; waits {dict(count.waits)}, sent {dict(count.sent)}"
    assert all(0.7 * limit <= found <= limit for found, limit in zip((waits, sent), most, strict=True)), where


def test_a_sampled_token_waits_for_nothing_between_looks():
    """Eight rows of 64 tokens: two looks are two waits, and nothing is sent in between."""
    engine, found = LocalEngine({"a": tiny_model()}, device=DEVICE), []
    for tokens in (2 * LOOK + 1, 6 * LOOK + 1):
        asked = [request(sampling=Sampling(max_tokens=tokens, temperature=1.0), task=i) for i in range(8)]
        with counted() as count:
            assert all(len(said.token_ids) == tokens for said in answers(engine, asked))
        found.append((count.waits.total(), count.sent.total()))
    (few, sent), (many, sent_too) = found
    assert many - few == 4 and sent == sent_too, found


def test_a_resumed_learner_waits_no_more_often():
    """What the optimiser remembers comes back to where it was."""
    trainers = [CoTrainer(small("grpo", steps=3), backend=LocalBackend(DEVICE)) for _ in range(2)]
    trainers[0].step()
    state = json.loads(json.dumps(trainers[0].state()))
    trainers[1].load(
        state, {name: {k: t.cpu() for k, t in ts.items()} for name, ts in trainers[0].policies.tensors().items()}
    )
    waits = []
    for trainer in trainers:
        # A model is looked at before it scores for the first time. That is over here, in both.
        trainer.policies["reference"].logprobs([((5, 6), (7,))])
        with counted() as count:
            trainer.step()
        waits.append(count.waits)
    assert waits[0] == waits[1]
