"""Everything that wants a GPU, in one call and under ten minutes: is it right, and how near the machine's limits.

    python benchmarks/gpu.py [--trl-python TRL_ENV/bin/python]    prints one table and writes RESULTS-gpu.md
    python benchmarks/gpu.py --tiny --device cpu                  tiny sizes, some minutes: shows that the script runs
    python benchmarks/gpu.py --tiny --device pretended:0          the same on the device of tests/device

It needs torch, transformers, peft, a folder of what else cotrain imports (7 MiB), and no installation:

    pip install --target card --no-deps math-verify latex2sympy2_extended antlr4-python3-runtime==4.13.2 \\
        httpx2 httpcore2 truststore
    PYTHONPATH=.:card python benchmarks/gpu.py

In this order: the machine's rates; checks (fast decoding against the slow reference, the layouts of the update,
recipes beside the CPU, Tango twice, a kill and a resume); then figures, on a random Qwen2 of 0.5B parameters in
bfloat16 arithmetic: decoding with and without CUDA graphs, one update, a GRPO step (beside TRL's, if its interpreter is
named), a Tango step beside a GRPO step, and peak memory of one role, of two with weights of their own, and of two
adapters on one base, without and with --offload.

A section that fails is a row that says why; a failed check or section ends the command with 1 after everything else
has run. It ends in ten minutes: the section that is at work then is a row too, as are those that never began. Page and
what is done (``.json`` beside it) are written after each section: the same command goes on where it was cut off, with
the same sizes, device and commit; failed sections run again.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import astuple, dataclass, field
from pathlib import Path
from statistics import median

import torch
from ceilings import bandwidth, product_rate
from decode import sampler_of
from floors import FLOAT, Ceilings, Cost, costs
from gpu_checks import HALF, Line, against_the_reference, as_on_the_cpu, kill_and_resume, layouts, release, twice
from harness import alternate, ask, check_same, ratio
from models import GPU_SIZES, make, qwen
from table import Results, machine, number
from transformers import PreTrainedModel
from update import learner_of, samples_of
from work import Work, now, process_age, use_device, versions

from cotrain.algorithms.contract import LossTerm
from cotrain.algorithms.grpo import GRPO
from cotrain.core.input_files import parse_json
from cotrain.core.signals import OUTCOME
from cotrain.core.threads import usable_cores
from cotrain.inference.local import LocalEngine
from cotrain.models.from_scratch import new_model

HERE = Path(__file__).resolve().parent
PRODUCTS = ((8192, 8192, 8192), (16384, 896, 4864))  # rows, inner, columns: the best any, and a layer of the model
SECONDS, LIMIT = 540.0, 575.0  # after which nothing is begun, and what is at work is cut off
CUT = "run it again"  # verdict of a section for which there was no time
RATES = "the machine's rates"  # measured in each call: floors are by them


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How much is measured."""

    model: str  # in ``models.GPU_SIZES``
    decode: Sequence[Work]
    update: Work
    step: Work  # of a GRPO step
    held: Work  # of peak memory
    recipe: Work
    check: Work  # of the comparison with the slow reference
    micro: int  # tokens of one forward and backward pass
    trl_rows: int
    rounds: int
    products: Sequence[tuple[int, int, int]]
    memory: int  # bytes of the arrays whose bandwidth is measured


FULL = Plan(
    model="0.5B",
    decode=(Work(tasks=32, group=8, prompt=256, new=256), Work(tasks=128, group=8, prompt=256, new=256)),
    update=Work(tasks=16, group=8, prompt=256, new=512),
    step=Work(tasks=64, group=8, prompt=128, new=250),
    held=Work(tasks=32, group=8, prompt=128, new=250),  # as many rows as are decoded at a time
    recipe=Work(tasks=32, group=8, prompt=48, new=64),
    check=Work(tasks=4, group=4, prompt=24, new=24),
    micro=16384,
    trl_rows=32,
    rounds=2,
    products=PRODUCTS,
    memory=2**31,
)
_TINY = Work(tasks=2, group=4, prompt=12, new=8)
QUICK = Plan(
    model="wide",
    decode=(_TINY,),
    update=_TINY,
    step=_TINY,
    held=_TINY,
    recipe=_TINY,
    check=Work(tasks=2, group=2, prompt=6, new=6),
    micro=512,
    trl_rows=8,
    rounds=1,
    products=((256, 256, 256),),
    memory=2**22,
)


@dataclass(slots=True, kw_only=True)
class Bench:
    """One call: what is measured, where, and what was found."""

    plan: Plan
    device: str
    directory: Path
    trl: str | None = None
    rates: Ceilings = field(default_factory=lambda: Ceilings(flops=0.0, bandwidth={}))
    checks: list[Line] = field(default_factory=list)
    lines: list[Line] = field(default_factory=list)

    # -- how fast?

    def machine_rates(self) -> None:
        seconds = 0.02 if self.plan is QUICK else 0.5
        half = product_rate(self.device, seconds, HALF, self.plan.products)
        full = product_rate(self.device, seconds, torch.float32, self.plan.products)
        speed = bandwidth(self.device, self.plan.memory, seconds)
        self.rates = Ceilings(flops=half, bandwidth={self.plan.memory: speed})
        self.lines.append(Line("matrix products, bfloat16", f"{half / 1e12:.4g} TFLOP/s", "", ""))
        self.lines.append(Line("matrix products, float32 (no TF32)", f"{full / 1e12:.4g} TFLOP/s", "", ""))
        self.lines.append(Line("memory", f"{speed / 1e9:.4g} GB/s", "", ""))

    def floor(self, part: str, work: Work) -> tuple[Cost, float]:
        """What a part needs in bfloat16, and the least seconds for it."""
        needed = costs(GPU_SIZES[self.plan.model], prompts=work.tasks, prompt=work.prompt, answers=work.answers(0))[
            part
        ]
        half = Cost(flops=needed.flops, traffic=needed.traffic * 2 / FLOAT, held=needed.held * 2 / FLOAT)
        return half, half.floor(self.rates)

    def decoding(self, model: PreTrainedModel) -> None:
        for work in self.plan.decode:
            prompts = [prompt for prompt in work.prompts(work.tasks) for _ in range(work.group)]
            least, rates = self.floor("decode", work)[1], {}
            for recorded in (True, False) if work is self.plan.decode[0] else (True,):
                engine = LocalEngine(
                    {"a": model}, max_rows=work.rows, device=self.device, static=True, autocast=HALF, recorded=recorded
                )
                sample, spent, first = sampler_of(engine, work), [], []
                for round_ in range(1 + self.plan.rounds if recorded else 1):  # the first loads kernels, and records
                    began = now(self.device)
                    tokens = sample(prompts, work.answers(0))
                    middle = now(self.device)
                    sample(prompts, [1] * work.rows)
                    if round_ or not recorded:
                        first.append(now(self.device) - middle)
                        spent.append(middle - began - first[-1])
                seconds = median(spent)
                rates[recorded] = (tokens - work.rows) / seconds
                graphs = "" if recorded else ", without CUDA graphs"
                name = f"decoding, {work.rows} rows, {work.prompt} + {work.new} tokens{graphs}"
                found = f"{number(rates[recorded])} tokens/s, {number(seconds)} s"
                share = f"{least / seconds:.1%} of the floor's rate"
                self.lines.append(Line(name, found, f"floor {number(least)} s", share))
                if recorded:
                    counts = engine.counts()
                    steps = f"{counts['a/recordings']:.0f} recordings for {counts['a/recorded_steps']:.0f} steps"
                    self.lines.append(Line("prompts and first tokens", f"{number(median(first))} s", "", steps))
                del engine, sample
                release()
            if len(rates) == 2:
                gain = rates[True] / rates[False]
                self.lines.append(
                    Line("CUDA graphs", f"{gain:.2f} times the rate", "worth their code from 1.2 on", f"{gain >= 1.2}")
                )

    def updating(self, model: PreTrainedModel) -> None:
        work, spent = self.plan.update, []
        learner = learner_of(model, "shared", self.plan.micro, autocast=True)
        samples = samples_of(work, 0, learner)
        for round_ in range(1 + self.plan.rounds):
            began = now(self.device)
            report = learner.update(
                [LossTerm(name="a", algorithm=GRPO(reward_weights={OUTCOME: 1.0}), samples=samples)]
            )
            if round_:
                spent.append(now(self.device) - began)
        assert report.stepped
        needed, seconds = self.floor("update", work)[0], median(spent)
        rate = needed.flops / seconds
        name = f"one update, {work.rows} rows, {work.prompt} + {work.new} tokens, packed"
        found = f"{number(work.rows * work.new / seconds)} tokens/s, {number(seconds)} s, {rate / 1e12:.4g} TFLOP/s"
        self.lines.append(Line(name, found, "matrix products", f"{rate / self.rates.flops:.1%} of their rate"))

    # -- beside others, in processes of their own

    def command(self, script: str, work: Work, *words: str, python: str = "") -> list[str]:
        sizes = {"tasks": work.tasks, "group": work.group, "prompt": work.prompt, "new": work.new, "steps": 1}
        flags = [word for name, value in sizes.items() for word in (f"--{name}", str(value))]
        places = ["--device", self.device, "--threads", str(torch.get_num_threads())]
        return [python or sys.executable, str(HERE / f"{script}.py"), *flags, *places, *words]

    def grpo(self) -> None:
        words = ("--model", str(self.directory), "--bf16")
        ours = self.command("grpo_step", self.plan.step, *words)
        if self.trl:
            rows = ("--rows", str(self.plan.trl_rows))
            pairs = alternate(ours, self.command("trl_step", self.plan.step, *words, *rows, python=self.trl), 1)
            for a, b in pairs:
                check_same(a, b)
            found = ratio(pairs, "seconds")
            self.lines.append(
                Line(
                    "a GRPO step",
                    f"{number(found.a)} s",
                    f"TRL {number(found.b)} s",
                    f"TRL / cotrain {found.middle:.2f}, one pair",
                )
            )
            return
        alone = ask(ours)
        parts = f"sample {number(alone['generate_seconds'])} s, update {number(alone['update_seconds'])} s"
        self.lines.append(Line("a GRPO step", f"{number(alone['seconds'])} s", parts, ""))

    def tango(self) -> None:
        sides = [self.command("recipe_step", self.plan.recipe, "--recipe", name) for name in ("grpo", "tango")]
        found = ratio(alternate(sides[0], sides[1], 1), "seconds")
        name = "a generator step of Tango, shipped base"
        self.lines.append(
            Line(
                name, f"{number(found.b)} s", f"GRPO {number(found.a)} s", f"Tango / GRPO {found.middle:.2f}, one pair"
            )
        )

    def memory(self, lora: int) -> None:
        """Of one role, of two, and of two that take turns."""
        what = "adapters on one base" if lora else "weights of their own"
        first: dict[str, float] = {}
        for roles, words in ((1, []), (2, []), (2, ["--offload"])):
            words = ["--model", str(self.directory), "--bf16", "--roles", str(roles), "--lora", str(lora), *words]
            found = ask(self.command("memory", self.plan.held, *words))
            first = first or {key: found[key] for key in ("peak_mib", "seconds")}
            turns = ", --offload" if "--offload" in words else ""
            name = f"peak memory: {('one role', 'two roles')[roles - 1]}, {what}{turns}"
            share = f"{found['peak_mib'] / first['peak_mib']:.2f} times one role's"
            self.lines.append(
                Line(name, f"{number(found['peak_mib'])} MiB", f"{number(found['seconds'])} s a step", share)
            )


class Kept:
    """What a call has done, in a file that the next one goes on with."""

    def __init__(self, file: Path, key: str) -> None:
        """``key``: sizes, device and commit; what a file holds of another one is dropped."""
        self._file, self._key = file, key
        try:
            saved = parse_json(file.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            saved = {}
        self._sections: dict[str, list[list[str]]] = saved.get("sections", {}) if saved.get("key") == key else {}

    def lines_of(self, section: str) -> list[Line] | None:
        """None where it is to be run: never done, or failed."""
        lines = [Line(*line) for line in self._sections.get(section, ())]
        return None if not lines or any(line.verdict in ("FAILED", CUT) for line in lines) else lines

    def keep(self, section: str, lines: Sequence[Line]) -> None:
        self._sections[section] = [list(astuple(line)) for line in lines]
        self._file.write_text(json.dumps({"key": self._key, "sections": self._sections}), encoding="utf-8")


def commit() -> str:
    """Of this checkout, where git knows it."""
    said = subprocess.run(["git", "rev-parse", "HEAD"], cwd=HERE, capture_output=True, text=True, check=False)
    return said.stdout.strip()


class OutOfTime(BaseException):
    """Nobody on the way handles it as an error of his own."""


def stop_section(*_: object) -> None:
    raise OutOfTime("no time was left for the rest of it")


def run(bench: Bench, kept: Kept | None = None, page: Path | None = None, only: Sequence[str] = ()) -> bool:
    """Everything in its order; was all of it right? ``kept``: what an earlier call did, and where this one's goes;
    ``page``: written after each section; ``only``: these sections alone, and none of what was done before."""
    signal.signal(signal.SIGALRM, stop_section)
    began = time.perf_counter() - process_age()
    model = new_model(qwen(GPU_SIZES[bench.plan.model]), seed=0).to(bench.device)
    plan = bench.plan
    inside = (
        (RATES, bench.machine_rates, bench.lines),
        ("against the reference", lambda: against_the_reference(model, plan.check, bench.device), bench.checks),
        ("layouts of the update", lambda: layouts(model, plan.check, plan.micro), bench.checks),
        ("recipes beside the CPU", lambda: as_on_the_cpu(bench.device), bench.checks),
        ("Tango again", lambda: twice(bench.device), bench.checks),
        ("a kill", lambda: kill_and_resume(bench.device), bench.checks),
        ("decoding", lambda: bench.decoding(model), bench.lines),
        ("one update", lambda: bench.updating(model), bench.lines),
    )
    outside = (
        ("a GRPO step", bench.grpo, bench.lines),
        ("a generator step of Tango", bench.tango, bench.lines),
        ("peak memory", lambda: bench.memory(0), bench.lines),
        ("peak memory of adapters", lambda: bench.memory(16), bench.lines),
    )
    for name, work, where in (*inside, *outside):
        if only and name not in (RATES, *only):
            continue
        spent = time.perf_counter() - began
        if name == outside[0][0]:
            del inside, model  # the other processes need its memory
            release()
        print(f"{spent:5.0f} s  {name}", file=sys.stderr, flush=True)
        done = kept.lines_of(name) if kept and name != RATES else None
        if done is not None:
            where.extend(done)
            continue
        if spent > SECONDS:
            where.append(Line(name, "–", "left out: no time", CUT))
            continue
        before = len(where)
        signal.setitimer(signal.ITIMER_REAL, LIMIT - spent)
        try:
            where.extend(work() or ())
        except OutOfTime as error:
            where.append(Line(name, "–", str(error), CUT))
        except (RuntimeError, AssertionError, ValueError, TypeError, KeyError, OSError) as error:
            print(error, file=sys.stderr, flush=True)
            lines = [line.strip() for line in str(error).splitlines() if line.strip()] or ["without a word"]
            where.append(Line(name, type(error).__name__, lines[-1][:120].replace("|", "/"), "FAILED"))
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        if kept:
            kept.keep(name, where[before:])
        if page:
            page.write_text(markdown(bench), encoding="utf-8")
        release()
    return not any(line.verdict in ("FAILED", CUT) for line in (*bench.checks, *bench.lines))


def markdown(bench: Bench) -> str:
    """The page."""
    about = machine(
        Results(threads=torch.get_num_threads(), device=bench.device, quick=bench.plan is QUICK, versions=versions())
    )
    head = ["", "| what | found | beside | |", "|---|---|---|---|"]
    lines = [
        "# Measured on a GPU" if bench.device.startswith("cuda") else "# A dry run",
        "",
        "`python benchmarks/gpu.py [--trl-python PATH]`. A random Qwen2 of the sizes of Qwen2.5-0.5B (in the GRPO "
        "step and",
        "the figures of memory a Llama of these sizes, that is without biases); float32 weights, bfloat16 arithmetic.",
        "Floors are by the rates of this table: bytes of weights and of keys and values, or multiplications",
        "(`benchmarks/floors.py`). Memory is the most that was held at once, PyTorch's caches left out.",
        *(["", "**Tiny sizes: it shows that everything runs, and nothing else.**"] * (bench.plan is QUICK)),
        "",
        f"Machine: {about}.",
        "",
        "## Is it right",
        *head,
        *(line.row() for line in bench.checks),
        "",
        "## How fast, and how large",
        *head,
        *(line.row() for line in bench.lines),
    ]
    return "\n".join(lines) + "\n"


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tiny", "--quick", action="store_true", help="tiny sizes; checks that everything runs")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--threads", type=int, default=usable_cores())
    parser.add_argument("--trl-python", metavar="PATH", help="the interpreter of an environment with TRL")
    parser.add_argument("--out", type=Path, help="where to write (default: RESULTS-gpu.md here; with --tiny, nowhere)")
    parser.add_argument("--only", nargs="+", metavar="SECTION", default=[], help="e.g. decoding 'one update'")
    given = parser.parse_args(words)
    if given.device.startswith("cuda") and not torch.cuda.is_available():
        parser.error(f"--device {given.device}: no CUDA device; --tiny --device cpu tries the script without one")
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # deterministic products are asked for below
    torch.set_num_threads(given.threads)
    use_device(given.device)
    plan = QUICK if given.tiny else FULL
    out = given.out or (None if given.tiny else HERE / "RESULTS-gpu.md")
    name = torch.cuda.get_device_name(given.device) if given.device.startswith("cuda") else given.device
    kept = Kept(out.with_suffix(".json"), f"{commit()} {name} {plan}") if out else None
    with tempfile.TemporaryDirectory() as directory:
        model = make(plan.model, Path(directory) / plan.model)
        bench = Bench(plan=plan, device=given.device, directory=model, trl=given.trl_python)
        right = run(bench, kept, out, given.only)
    text = markdown(bench)
    print(text)
    if out is not None:
        out.write_text(text, encoding="utf-8")
    if not right:
        raise SystemExit(f"not all of it was done, or right: see the rows that say {CUT!r} or FAILED")


if __name__ == "__main__":
    main()
