"""What ``gpu.py`` checks before it measures: is the fast way the slow way, up to a stated rounding, and the same
again?"""

from __future__ import annotations

import gc
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import mean

import torch
from decode import completions_of, request_of
from transformers import PreTrainedModel
from update import learner_of, samples_of
from work import Work

from cotrain.backend.local import LocalBackend
from cotrain.core.signals import OUTCOME
from cotrain.engine.embedded import EmbeddedEngine
from cotrain.engine.reference import complete_request
from cotrain.learn.contract import LossTerm
from cotrain.learn.policy_gradient import PolicyGradient
from cotrain.learn.scorer import Scorer
from cotrain.methods.grpo import grpo
from cotrain.train.trainer import CoTrainer

HALF = torch.bfloat16
EXACT = {"cuda": 2e-3, "cpu": 1e-4}  # of a log-probability, engine and reference in float32


@dataclass(frozen=True, slots=True)
class Line:
    """One row of the table."""

    what: str
    found: str
    beside: str  # what it is held against
    verdict: str  # a share, a ratio, "ok" or "FAILED"

    def row(self) -> str:
        return f"| {self.what} | {self.found} | {self.beside} | {self.verdict} |"


def check(what: str, found: float, limit: float) -> Line:
    return Line(what, f"{found:.3g}", f"at most {limit:.3g}", "ok" if found <= limit else "FAILED")


def told(what: str, same: bool) -> Line:
    """What is worth knowing and no failure: it hangs on which kernels the libraries choose."""
    return Line(what, "yes" if same else "no", "", "")


def against_the_reference(model: PreTrainedModel, work: Work, device: str) -> Iterator[Line]:
    """Float32: the tokens of the slow reference. bfloat16: as near to float32 as a plain forward pass in bfloat16."""
    prompts = [prompt for prompt in work.prompts(work.tasks) for _ in range(work.group)]
    kinds = ({"temperature": 0.0}, {"temperature": 1.0}, {"temperature": 0.7}, {"top_p": 0.9})
    asked = [
        request_of(i, prompt, work, max_tokens=work.new - i % 3, **kinds[i % 4]) for i, prompt in enumerate(prompts)
    ]
    engine = EmbeddedEngine({"a": model}, device=device, static=True)
    pairs = [(a, complete_request(model, r)) for r, a in zip(asked, completions_of(engine, asked), strict=True)]
    same = [(a, b) for a, b in pairs if a.token_ids == b.token_ids]
    yield check("float32: answers with other tokens than the reference's", len(pairs) - len(same), len(pairs) // 16)
    far = [abs(p - q) for a, b in same for p, q in zip(a.logprobs, b.logprobs, strict=True)]
    yield check("float32: largest difference of a log-probability", max(far), EXACT[torch.device(device).type])
    yield from recorded("float32", engine, device)

    plain = [request_of(i, prompt, work, max_tokens=work.new) for i, prompt in enumerate(prompts)]
    engine = EmbeddedEngine({"a": model}, device=device, static=True, autocast=HALF)
    said = completions_of(engine, plain)
    texts = [(r.prompt_ids, a.token_ids) for r, a in zip(plain, said, strict=True)]
    exact, rounded = (
        torch.cat(Scorer(model, autocast=autocast).logprobs(texts)).tolist() for autocast in (False, True)
    )
    mine = [value for a in said for value in a.logprobs]
    off, limit = (mean(abs(p - q) for p, q in zip(x, exact, strict=True)) for x in (mine, rounded))
    yield check("bfloat16: mean distance of log-probabilities from float32's", off, 1.5 * limit + 1e-3)
    yield from recorded("bfloat16", engine, device)

    again = completions_of(engine, plain)
    yield check("bfloat16: answers that differ when asked again", float(again != said), 0)
    other = EmbeddedEngine({"a": model}, device=device, static=True, autocast=HALF, recorded=False)
    yield told("bfloat16: the same unrecorded, to the last bit", completions_of(other, plain) == said)


def recorded(where: str, engine: EmbeddedEngine, device: str) -> Iterator[Line]:
    if device != "cpu":
        yield check(f"{where}: decode steps that could not be recorded", engine.counts()["a/unrecorded_steps"], 0)


def layouts(model: PreTrainedModel, work: Work, micro: int) -> Iterator[Line]:
    """Gradient of shared prompts against padded rows, in float32, and of bfloat16 against float32."""
    norms = {}
    start = {name: p.detach().clone() for name, p in model.named_parameters()}
    samples = samples_of(work, 0, learner_of(model, "shared"))
    for layout, autocast in (("shared", False), ("padded", False), ("shared", True)):
        learner = learner_of(model, layout, micro, autocast)
        report = learner.update([LossTerm(name="a", algorithm=PolicyGradient(rewards={OUTCOME: 1.0}), samples=samples)])
        norms[layout, autocast] = report.metrics["grad_norm"]
        with torch.no_grad():
            for name, p in model.named_parameters():
                p.copy_(start[name])
    exact = norms["shared", False]
    yield check("update: gradient norm, padded against shared", abs(norms["padded", False] / exact - 1), 1e-3)
    yield check("update: gradient norm, bfloat16 against float32", abs(norms["shared", True] / exact - 1), 5e-2)


def twice(device: str) -> Iterator[Line]:
    """Two runs of two GRPO steps on the embedded base, from the same seed; on a GPU also with PyTorch's own choice of
    kernels, some of which add up in any order."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        first, second = digest_of(device), digest_of(device)
    finally:
        torch.use_deterministic_algorithms(False)
    verdict = "ok" if first == second else "FAILED"
    yield Line("a run again, deterministic kernels: digest", second, first, verdict)
    if device != "cpu":
        yield told("a run again, PyTorch's choice of kernels: the same digest", digest_of(device) == digest_of(device))


def digest_of(device: str) -> str:
    """Of the metrics and the weights of a short run."""
    trainer = CoTrainer(grpo(steps=2, tasks_per_step=4, group_size=4), backend=LocalBackend(device))
    digest = hashlib.sha256()
    for _ in range(2):
        digest.update(repr(sorted(trainer.step().row.items())).encode())
    for tensors in trainer.policies.tensors().values():
        for _, tensor in sorted(tensors.items()):
            digest.update(tensor.cpu().numpy().tobytes())
    return digest.hexdigest()[:12]


def release() -> None:
    """Give back a GPU's memory that nobody holds."""
    if torch.cuda.is_available():
        gc.collect()
        torch.cuda.empty_cache()
