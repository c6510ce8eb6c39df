"""``cotrain base --habits``: ``embedded-habits``, a solver with two habits that are wrong.

    embedded-checker → supervised: its solutions follow a habit in 60 % of the steps that trigger it; true reviews
      → sharpening of the logits

The habits are of ``tasks/words/corrupt.py``: "carry" drops the carry of an addition, "fewer" adds in place of
subtracting in one wording. Sampled and greedy solutions follow a habit in about half of the steps that trigger it, and
are right equally often (``benchmarks/habit_rates.py``): lower entropy alone gains nothing. Reviews are practised beside
it, all of them true and of errors of skill: nobody shows the verifier the habits.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from cotrain.models.load import EMBEDDED_CHECKER, describe_model, load_model, save_model
from cotrain.models.sharpen import sharpen
from cotrain.stages.base import BATCH, LENGTH, line_of, mark, put
from cotrain.stages.corpora import Corpus, procedural
from cotrain.stages.sft import sft
from cotrain.tasks.words.corpus import solver_conversation
from cotrain.tasks.words.corrupt import Habits
from cotrain.tasks.words.practice import check_practice
from cotrain.tasks.words.source import WordProblems, study_problems

NAME = "base-habits"


@dataclass(frozen=True, slots=True, kw_only=True)
class HabitSettings:
    """Everything this base depends on, beside the one it begins from."""

    seed: int = 0
    start: str = EMBEDDED_CHECKER
    problems: WordProblems = field(default_factory=lambda: study_problems((2, 9)))
    habits: Habits = field(default_factory=lambda: Habits(random=0.0, systematic=0.6))
    tokens: int = 200 * BATCH
    lr: float = 0.004  # of Muon
    sharpened: float = 2.0  # factor of the logits, of the start too


def build_habits(
    out: Path, settings: HabitSettings, *, resume: bool = False, report: Callable[[str], None] = print
) -> dict[str, Any]:
    """Train the model into ``out/base-habits``, described in ``out/base-habits.json``."""
    out.mkdir(parents=True, exist_ok=True)
    begun, taught = out / "start", out / "taught"
    if not (begun / "model.safetensors").exists():
        network, tokenizer = load_model(settings.start)
        sharpen(network, 1 / settings.sharpened)
        save_model(network, tokenizer, begun)
    if not (taught / "model.safetensors").exists():
        report(f"habits on {settings.tokens:,} tokens …")
        done = sft(
            begun,
            taught,
            conversations=conversations_of(settings),
            tokens=settings.tokens,
            batch_tokens=BATCH,
            length=LENGTH,
            lr=settings.lr,
            optimizer="muon",
            validation=64,
            seed=settings.seed,
            resume=resume and taught.exists(),
            plan={"autocast": False},  # float32: at this size twice as fast as bfloat16
            report=lambda row: report(line_of(row)),
        )
        if not done.finished:
            return {"finished": False, "stage": "habits"}
    network, tokenizer = load_model(taught)
    sharpen(network, settings.sharpened)
    save_model(network, tokenizer, out / NAME, torch.bfloat16)
    mark(out / NAME)
    result = {"finished": True, "settings": asdict(settings), "models": {NAME: describe_model(out / NAME)}}
    (out / f"{NAME}.json").write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    return result


def conversations_of(settings: HabitSettings) -> list[tuple[Corpus, int]]:
    """Solutions with the habits and true reviews, in equal numbers."""
    source, seed = settings.problems, settings.seed
    solve = procedural("solve", lambda i: solver_conversation(source, settings.habits, seed, i))
    check = procedural("check", lambda i: check_practice(source, "habits", seed, i))
    return [(solve, 1), (check, 1)]


def install_habits(out: Path, assets: Path) -> None:
    """Copy the model into the package."""
    put(out / NAME, assets / NAME)
    shutil.copyfile(out / f"{NAME}.json", assets / f"{NAME}.json")
