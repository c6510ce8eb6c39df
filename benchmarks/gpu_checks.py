"""What ``gpu.py`` checks before it measures: is the fast way the slow way, up to a stated rounding, and the same
again?"""

from __future__ import annotations

import gc
import hashlib
import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from tempfile import TemporaryDirectory

import torch
from decode import completions_of, request_of
from transformers import PreTrainedModel
from update import learner_of, samples_of
from work import Work, now, use_device

from cotrain.algorithms.contract import LossTerm
from cotrain.algorithms.policy_gradient import PolicyGradient
from cotrain.config.recipe import Recipe
from cotrain.core.signals import OUTCOME
from cotrain.distributed.local import LocalBackend
from cotrain.inference.local import LocalEngine
from cotrain.inference.reference import complete_request
from cotrain.learner.logprobs import Scorer
from cotrain.recipes.cooper import cooper
from cotrain.recipes.grpo import grpo
from cotrain.recipes.tango import tango
from cotrain.trainer.trainer import CoTrainer

HALF = torch.bfloat16
EXACT = {"cuda": 2e-3, "cpu": 1e-4, "pretended": 1e-4}  # of a log-probability, engine and reference in float32


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
    engine = LocalEngine({"a": model}, device=device, static=True)
    pairs = [(a, complete_request(model, r)) for r, a in zip(asked, completions_of(engine, asked), strict=True)]
    same = [(a, b) for a, b in pairs if a.token_ids == b.token_ids]
    yield check("float32: answers with other tokens than the reference's", len(pairs) - len(same), len(pairs) // 16)
    far = [abs(p - q) for a, b in same for p, q in zip(a.logprobs, b.logprobs, strict=True)]
    yield check("float32: largest difference of a log-probability", max(far), EXACT[torch.device(device).type])
    yield from recorded("float32", engine, device)

    plain = [request_of(i, prompt, work, max_tokens=work.new) for i, prompt in enumerate(prompts)]
    engine = LocalEngine({"a": model}, device=device, static=True, autocast=HALF)
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
    other = LocalEngine({"a": model}, device=device, static=True, autocast=HALF, recorded=False)
    yield told("bfloat16: the same unrecorded, to the last bit", completions_of(other, plain) == said)


def recorded(where: str, engine: LocalEngine, device: str) -> Iterator[Line]:
    if device.startswith("cuda"):  # nowhere else are there graphs
        yield check(f"{where}: decode steps that could not be recorded", engine.counts()["a/unrecorded_steps"], 0)


def layouts(model: PreTrainedModel, work: Work, micro: int) -> Iterator[Line]:
    """Gradient of shared prompts against padded rows, in float32, and of bfloat16 against float32."""
    norms = {}
    start = {name: p.detach().clone() for name, p in model.named_parameters()}
    samples = samples_of(work, 0, learner_of(model, "shared"))
    for layout, autocast in (("shared", False), ("padded", False), ("shared", True)):
        learner = learner_of(model, layout, micro, autocast)
        report = learner.update(
            [LossTerm(name="a", algorithm=PolicyGradient(reward_weights={OUTCOME: 1.0}), samples=samples)]
        )
        norms[layout, autocast] = report.metrics["grad_norm"]
        with torch.no_grad():
            for name, p in model.named_parameters():
                p.copy_(start[name])
    exact = norms["shared", False]
    yield check("update: gradient norm, padded against shared", abs(norms["padded", False] / exact - 1), 1e-3)
    yield check("update: gradient norm, bfloat16 against float32", abs(norms["shared", True] / exact - 1), 5e-2)


SMALL = {"steps": 2, "tasks_per_step": 2, "group_size": 4}


def as_on_the_cpu(device: str) -> Iterator[Line]:
    """Two steps of some recipes: do they run, and how far are their figures from the CPU's? Tokens are drawn from the
    same numbers, so only rounding can part them; where it flips a token, everything after it differs."""
    for name, recipe in (
        ("grpo", grpo(**SMALL)),
        ("grpo, adapters", grpo(**SMALL, lora=4)),
        ("tango", tango(**SMALL, warmup=1)),
        ("cooper", cooper(**SMALL, warmup=1)),
    ):
        mine, theirs = rows_of(recipe, device), rows_of(recipe, "cpu")
        same = [key for a, b in zip(mine, theirs, strict=True) for key in b if near(a.get(key), b[key])]
        share = len(same) / sum(map(len, theirs))
        yield Line(f"{name}: figures as on the CPU, to 0.001", f"{share:.1%}", "two steps", "")


def rows_of(recipe: Recipe, device: str) -> list[dict[str, object]]:
    trainer = CoTrainer(recipe, backend=LocalBackend(device))
    rows = [dict(trainer.step().row) for _ in range(recipe.steps)]
    trainer.close()
    return rows


def near(mine: object, theirs: object) -> bool:
    if isinstance(mine, float) and isinstance(theirs, float):
        return abs(mine - theirs) <= 1e-5 + 1e-3 * abs(theirs) or (mine != mine and theirs != theirs)
    return mine == theirs


def twice(device: str) -> Iterator[Line]:
    """Two runs of two steps of Tango on the shipped base, from the same seed, with deterministic kernels; what these
    cost; and on a GPU also with PyTorch's own choice of kernels, some of which add up in any order."""
    seconds = {}
    digest_of(device)  # what is done once
    for deterministic in (False, True):
        torch.use_deterministic_algorithms(deterministic, warn_only=True)
        began = now(device)
        first, second = digest_of(device), digest_of(device)
        seconds[deterministic] = now(device) - began
        torch.use_deterministic_algorithms(False)
        if deterministic:
            yield Line("Tango again, deterministic kernels", second, first, "ok" if first == second else "FAILED")
        else:
            yield told("Tango again, PyTorch's choice of kernels: the same digest", first == second)
    yield Line("deterministic kernels, seconds", f"{seconds[True]:.3g}", f"else {seconds[False]:.3g}", "")


def digest_of(device: str) -> str:
    """Of the metrics and the weights of a short run."""
    trainer = CoTrainer(tango(steps=2, tasks_per_step=2, group_size=4, warmup=1), backend=LocalBackend(device))
    digest = hashlib.sha256()
    for _ in range(2):
        digest.update(repr(sorted(trainer.step().row.items())).encode())
    for tensors in trainer.policies.tensors().values():
        for _, tensor in sorted(tensors.items()):
            digest.update(tensor.cpu().numpy().tobytes())
    return digest.hexdigest()[:12]


KILLED = (  # flags of the run that is killed
    *("--steps", "4", "--reviews", "2", "--checkpoint-every", "1", "--tasks-per-step", "2", "--group-size", "2"),
    *("--evaluation-tasks", "2", "--set", "evaluation.splits=[]", "--warmup", "1", "--operations", "2", "2"),
)


def kill_and_resume(device: str) -> Iterator[Line]:
    """A run of four steps by command is killed after its second and resumed: the bits of one that was left alone?"""
    with TemporaryDirectory() as folder:
        alone, killed = Path(folder, "alone"), Path(folder, "killed")
        started = {
            out: by_command(device, "run", "tango", "--device", device, "--out", str(out), *KILLED)
            for out in (alone, killed)
        }
        try:
            for _ in itertools.takewhile(lambda _: started[killed].poll() is None, itertools.count()):
                rows = killed / "metrics.jsonl"
                if rows.is_file() and rows.read_bytes().count(b"\n") >= 2:
                    started[killed].send_signal(signal.SIGKILL)
                    break
                time.sleep(0.05)
            lost = started[killed].wait() == -signal.SIGKILL
            started[killed] = by_command(device, "resume", str(killed), "--device", device)
            for process in started.values():
                said = process.communicate()[0]
                if process.returncode:
                    raise RuntimeError(said[-2000:])
        finally:
            for process in started.values():
                process.kill()  # where time ran out
        mine, theirs = (digest_of_files(out) for out in (killed, alone))
        yield Line("killed and resumed: digest", mine, theirs, "ok" if mine == theirs and lost else "FAILED")


def by_command(device: str, *words: str) -> subprocess.Popen[str]:
    """The command line with deterministic kernels, in a process of its own."""
    command = [sys.executable, __file__, device, *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=os.environ)


def digest_of_files(run: Path) -> str:
    """Of a run's rows and of the weights of its last checkpoint."""
    digest = hashlib.sha256((run / "metrics.jsonl").read_bytes())
    for file in sorted(max((run / "checkpoints").iterdir()).rglob("*.safetensors")):
        digest.update(file.name.encode() + file.read_bytes())
    return digest.hexdigest()[:12]


def release() -> None:
    """Give back a GPU's memory that nobody holds."""
    if torch.cuda.is_available():
        gc.collect()
        torch.cuda.empty_cache()


if __name__ == "__main__":
    from cotrain.cli.main import main

    use_device(sys.argv[1])
    torch.use_deterministic_algorithms(True, warn_only=True)
    sys.exit(main(sys.argv[2:]))
