"""Every figure of ``RESULTS.md``: ratios of cotrain beside others, and its parts beside the machine's limits.

    python benchmarks/run.py --trl-python TRL_ENV/bin/python            the whole table, written to RESULTS.md
    python benchmarks/run.py --quick [--trl-python …] [--device cuda]   tiny and in a minute or two; only printed

TRL lives in an environment of its own (``python -m venv TRL_ENV; TRL_ENV/bin/pip install "torch>=2.9,<2.14"
"trl==1.16.*"``); without ``--trl-python`` its rows are left out. The two halves of a ratio run in turn
(``harness.py``). Before a GRPO ratio is taken, TRL runs once with each of a few numbers of rows a pass, and keeps the
fastest. The machine's ceilings are measured between the comparisons, and the best of each counts. Wants a machine that
does nothing else.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from floors import Ceilings, costs
from harness import Answer, alternate, ask, check_same, ratio
from models import SIZES, make
from table import Floor, Line, Results, Same, markdown
from work import LENGTHS, Work

from cotrain.core.threads import usable_cores

HERE = Path(__file__).resolve().parent


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How much is measured."""

    work: Work
    sizes: dict[str, tuple[int, int]]  # model → rounds, measured steps of each run
    rows: tuple[int, ...]  # that TRL may put through in one pass
    rounds: int  # of everything else


FULL = Plan(
    work=Work(tasks=32, group=8, prompt=48, new=64),
    sizes={"1M": (5, 3), "5M": (3, 2), "25M": (3, 1)},
    rows=(32, 128),
    rounds=5,
)
QUICK = Plan(work=Work(tasks=4, group=4, prompt=12, new=8), sizes={"tiny": (1, 1)}, rows=(8,), rounds=1)


class Bench:
    """The commands of one run, and what they found."""

    def __init__(self, plan: Plan, *, quick: bool, threads: int, device: str, trl: str | None, models: Path) -> None:
        self.plan, self.trl, self.quick = plan, trl, quick
        self.places = ["--threads", str(threads), "--device", device]
        self.models = {size: make(size, models / size) for size in plan.sizes}
        self.results = Results(threads=threads, device=device, quick=quick)
        self.flops = 0.0
        self.bandwidth: dict[int, float] = {}

    def command(self, script: str, *words: str, size: str | None = None, steps: int = 3, python: str = "") -> list[str]:
        """A side, at the plan's sizes."""
        work = self.plan.work
        sizes = [("tasks", work.tasks), ("group", work.group), ("prompt", work.prompt), ("new", work.new)]
        flags = [word for name, value in [*sizes, ("steps", steps)] for word in (f"--{name}", str(value))]
        model = ["--model", str(self.models[size])] if size else []
        return [python or sys.executable, str(HERE / f"{script}.py"), *model, *flags, *self.places, *words]

    def note(self, line: Line) -> None:
        self.results.lines.append(line)
        print(line.row(), file=sys.stderr, flush=True)

    def ceilings(self) -> Ceilings:
        """Measured once more; the best so far."""
        words = ["--quick"] if self.quick else []
        found = ask([sys.executable, str(HERE / "ceilings.py"), *self.places, *words])
        self.flops = max(self.flops, found["flops"])
        for size, rate in found["bandwidth"].items():
            self.bandwidth[int(size)] = max(self.bandwidth.get(int(size), 0.0), rate)
        return Ceilings(flops=self.flops, bandwidth=self.bandwidth)

    def decode(self, size: str) -> None:
        for lengths in LENGTHS:
            words = ("--lengths", lengths)
            pairs = alternate(
                self.command("decode", "--side", "engine", *words, size=size),
                self.command("decode", "--side", "generate", *words, size=size),
                self.plan.rounds,
            )
            rows, new = self.plan.work.rows, self.plan.work.new
            what = f"{rows} rows, {lengths} lengths, mean {new}, {size}"
            self.note(Line(f"decode alone: {what}", "engine", "`generate`", ratio(pairs, "decode_seconds")))
            self.note(Line(f"with the prompts: {what}", "engine", "`generate`", ratio(pairs, "seconds")))

    def grpo(self, size: str) -> None:
        """A step of both, and the parts of ours beside their floors."""
        rounds, steps = self.plan.sizes[size]
        for lengths in LENGTHS:
            words = ("--lengths", lengths)
            ours = self.command("grpo_step", *words, size=size, steps=steps)
            if self.trl:
                rows = str(self.fastest_rows(size, words))
                theirs = self.command("trl_step", *words, "--rows", rows, size=size, steps=steps, python=self.trl)
                pairs = alternate(ours, theirs, rounds)
                for a, b in pairs:
                    check_same(a, b)
                own, other = pairs[0]
                self.results.same.append(Same(size, lengths, own, other))
                self.results.versions = {**other["versions"], **own["versions"]}
                what = f"{size}, {lengths} lengths"
                self.note(Line(f"GRPO step: {what}", "cotrain", "TRL", ratio(pairs, "seconds")))
                self.note(Line(f"of it, generation: {what}", "cotrain", "TRL", ratio(pairs, "generate_seconds")))
                whole, growth = ratio(pairs, "step_peak_mib"), ratio(pairs, "growth_mib")
                self.note(Line(f"peak memory: {what}", "cotrain", "TRL", whole, unit="MiB"))
                self.note(Line(f"of it, since before the first step: {what}", "cotrain", "TRL", growth, unit="MiB"))
                answers: Sequence[Answer] = [a for a, _ in pairs]
            else:
                answers = [ask(ours) for _ in range(rounds)]
                self.results.versions = answers[0]["versions"]
            self.floors(size, lengths, answers)

    def fastest_rows(self, size: str, words: Sequence[str]) -> int:
        assert self.trl
        if len(self.plan.rows) == 1:
            return self.plan.rows[0]
        seconds = {
            rows: ask(self.command("trl_step", *words, "--rows", str(rows), size=size, steps=1, python=self.trl))[
                "seconds"
            ]
            for rows in self.plan.rows
        }
        return min(seconds, key=seconds.__getitem__)

    def floors(self, size: str, lengths: str, answers: Sequence[Answer]) -> None:
        work, ceilings = self.plan.work, self.ceilings()
        drawn = Work(tasks=work.tasks, group=work.group, prompt=work.prompt, new=work.new, lengths=lengths)
        needed = costs(SIZES[size], prompts=work.tasks, prompt=work.prompt, answers=drawn.answers(1))
        least = {part: cost.floor(ceilings) for part, cost in needed.items()} | {"between": 0.0}
        least["whole step"] = least["prefill"] + least["decode"] + least["update"]
        for part, floor in least.items():
            key = "seconds" if part == "whole step" else f"{part}_seconds"
            self.results.floors.append(Floor(size, lengths, part, floor, median(a[key] for a in answers)))

    def recipes(self) -> None:
        pairs = alternate(
            self.command("recipe_step", "--recipe", "grpo"),
            self.command("recipe_step", "--recipe", "tango"),
            self.plan.rounds,
        )
        self.note(Line("generator step, shipped base", "GRPO", "Tango", ratio(pairs, "seconds")))
        self.note(Line("tokens sampled in it", "GRPO", "Tango", ratio(pairs, "sampled_tokens"), unit="tokens"))

    def update(self, size: str) -> None:
        words = ("--lengths", "drawn")
        for layout, name in (("padded", "padded rows, sorted"), ("drawn", "padded rows, as drawn")):
            pairs = alternate(
                self.command("update", "--layout", "shared", *words, size=size),
                self.command("update", "--layout", layout, *words, size=size),
                self.plan.rounds,
            )
            for a, b in pairs:
                if abs(a["grad_norm"] / b["grad_norm"] - 1) > 1e-3 or a["learned_tokens"] != b["learned_tokens"]:
                    raise RuntimeError(f"the layouts did not compute the same: {a} and {b}")
            self.note(Line(f"update: {size}, drawn lengths", "shared prompts", name, ratio(pairs, "seconds")))

    def first_token(self) -> None:
        self.results.first_token = ask(self.command("first_token", steps=self.plan.rounds))


def chosen(plan: Plan, sizes: Sequence[str] | None, rounds: int | None) -> Plan:
    """Part of a plan: some of its sizes, fewer or more rounds."""
    kept = {
        size: (rounds or each, steps) for size, (each, steps) in plan.sizes.items() if sizes is None or size in sizes
    }
    return replace(plan, sizes=kept, rounds=rounds or plan.rounds)


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="tiny sizes; checks that everything runs")
    parser.add_argument("--trl-python", metavar="PATH", help="the interpreter of an environment with TRL")
    parser.add_argument("--threads", type=int, default=usable_cores())
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--size", action="append", choices=list(FULL.sizes), help="only this model (default: all)")
    parser.add_argument("--rounds", type=int, help="pairs of each comparison (default: 3 to 5)")
    parser.add_argument("--out", type=Path, help="where to write (default: RESULTS.md here; with --quick, nowhere)")
    given = parser.parse_args(words)
    plan = QUICK if given.quick else chosen(FULL, given.size, given.rounds)
    with tempfile.TemporaryDirectory() as models:
        bench = Bench(
            plan,
            quick=given.quick,
            threads=given.threads,
            device=given.device,
            trl=given.trl_python,
            models=Path(models),
        )
        sizes = list(plan.sizes)
        bench.ceilings()
        bench.decode(sizes[0])
        for size in sizes:
            bench.grpo(size)
        bench.recipes()
        for size in sizes[:2]:
            bench.update(size)
        bench.first_token()
        bench.results.ceilings = bench.ceilings()
    text = markdown(bench.results, plan.work)
    print(text)
    out = given.out or (None if given.quick else HERE / "RESULTS.md")
    if out is not None:
        out.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
