"""What a run of the benchmarks found, as ``RESULTS.md``: the machine, the ratios, the proof of equal work, the
floors."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from floors import Ceilings
from harness import Answer, Ratio
from work import CUT, SPREAD, Work

from cotrain.core.threads import usable_cores

INSTRUCTIONS = ("avx2", "avx512f", "avx512_bf16", "amx_bf16")  # that matter to matrix products


@dataclass(frozen=True, slots=True)
class Line:
    """One ratio: ``b`` over ``a``."""

    what: str
    a: str
    b: str
    found: Ratio
    unit: str = "s"

    def row(self) -> str:
        f, unit = self.found, self.unit
        spread = f"{f.low:.2f}–{f.high:.2f}, {f.pairs} pairs"
        return (
            f"| {self.what} | {self.a} {number(f.a)} {unit} | {self.b} {number(f.b)} {unit} | **{f.middle:.2f}** | "
            f"{spread} |"
        )


@dataclass(frozen=True, slots=True)
class Same:
    """What both sides of a GRPO ratio say that they did."""

    size: str
    lengths: str
    ours: Answer
    theirs: Answer

    def row(self) -> str:
        cells = [
            f"{self.ours[key]:,} / {self.theirs[key]:,}"
            for key in ("parameters", "sampled_tokens", "learned_tokens", "optimizer_steps")
        ]
        return f"| {self.size}, {self.lengths} | {' | '.join(cells)} | {self.theirs['rows']} |"


@dataclass(frozen=True, slots=True)
class Floor:
    """One part of a step of ours: the least seconds that the machine allows, and what it took."""

    size: str
    lengths: str
    part: str
    least: float
    spent: float

    def row(self) -> str:
        times = f"{self.spent / self.least:.1f}" if self.least else "–"
        return f"| {self.size}, {self.lengths} | {self.part} | {number(self.least)} | {number(self.spent)} | {times} |"


@dataclass(slots=True, kw_only=True)
class Results:
    """Everything that one run found, filled in as it goes on."""

    threads: int
    device: str
    quick: bool
    lines: list[Line] = field(default_factory=list)
    same: list[Same] = field(default_factory=list)
    floors: list[Floor] = field(default_factory=list)
    first_token: Answer = field(default_factory=dict)
    ceilings: Ceilings | None = None
    versions: Mapping[str, str] = field(default_factory=dict)


def number(value: float) -> str:
    """Three digits that count."""
    return "0" if not value else f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def markdown(results: Results, work: Work) -> str:
    ceilings, first = results.ceilings, results.first_token
    assert ceilings
    sets = ", ".join(f"{rate / 1e9:.0f} ({size / 2**20:.0f} MiB)" for size, rate in sorted(ceilings.bandwidth.items()))
    lines = [
        "# Measured",
        "",
        "`python benchmarks/run.py --trl-python PATH`: two commands in turn (A B A B …), the ratio within each pair, "
        "its",
        "median and range. Above 1, the second column takes that many times as much as the first. Absolute figures are",
        "of this machine; the ratios and the distance from its ceilings are what is meant to be read.",
        *(["", "**A quick run at tiny sizes: it shows that everything works, and nothing else.**"] * results.quick),
        "",
        f"Machine: {machine(results)}.",
        f"Ceilings, measured in the same run: float32 matrix products {ceilings.flops / 1e9:.0f} GFLOP/s; memory, "
        "GB/s by",
        f"working set: {sets}.",
        "",
        f"Work of a step: {work.tasks} prompts × {work.group} answers, {work.prompt} prompt tokens, {work.new} new "
        "tokens:",
        "every answer (fixed), or log-normal lengths with that mean (drawn: standard deviation of the logarithm",
        f"{SPREAD}, cut at {CUT} times the mean). Random Llamas with the shipped base's vocabulary; 1M is its shape.",
        "Float32, no KL term, one optimiser step. The generator steps are of the shipped recipes, with KL, on real",
        f"problems, {work.tasks} × {work.group} as well.",
        "",
        "## Ratios",
        "",
        "| what | first | second | second / first | range |",
        "|---|---|---|---|---|",
        *(line.row() for line in results.lines),
        "",
        f"From the start of `cotrain run` to the first sampled token: {number(first['seconds'])} s "
        f"({number(first['low'])}–{number(first['high'])}).",
    ]
    if results.same:
        lines += [
            "",
            "## The same work",
            "",
            "Summed over all steps of one run, warm-up included, cotrain / TRL. A ratio is refused when they differ. "
            "TRL",
            "computes the entropy of every token besides, which cannot be switched off.",
            "",
            "| | parameters | sampled tokens | learned tokens | optimiser steps | TRL's rows a pass |",
            "|---|---|---|---|---|---|",
            *(same.row() for same in results.same),
        ]
    lines += [
        "",
        "## Parts of a GRPO step and their floors",
        "",
        "Seconds of cotrain; the floor is what multiplications or bytes alone would take at the ceilings",
        "(`benchmarks/floors.py`). Scoring is a reference pass, which this step without KL does not make. Between are",
        "coroutines, rendering, rewards, credit and metrics. Prefill is measured beside the step.",
        "",
        "| | part | floor, s | takes, s | times the floor |",
        "|---|---|---|---|---|",
        *(floor.row() for floor in results.floors),
    ]
    return "\n".join(lines) + "\n"


def machine(results: Results) -> str:
    """Processor, cores, threads, memory, versions; no date and no name."""
    names, flags = set(), set()
    about = Path("/proc/cpuinfo")  # of Linux
    for line in about.read_text(encoding="utf-8").splitlines() if about.exists() else ():
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            names.add(value.strip())
        elif key.strip() == "flags":
            flags |= set(value.split())
    known = ", ".join(flag for flag in INSTRUCTIONS if flag in flags)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    cores = usable_cores()
    versions = ", ".join(f"{name} {found}" for name, found in sorted(results.versions.items()))
    device = ""
    if results.device.startswith("cuda"):
        import torch

        device = f"; {torch.cuda.get_device_name(results.device)}"
    processor = ", ".join(sorted(names)) or platform.processor() or platform.machine()
    return (
        f"{cores} cores of {processor} ({known}), {results.threads} threads, {memory:.0f} GiB{device}. "
        f"Python {platform.python_version()}, {versions}"
    )
