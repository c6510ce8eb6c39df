"""A model of the package, taught on: what ``bases/habits.py``, ``bases/proposing.py`` and ``bases/gaming.py`` share.

    start, its logits divided by the factor that sharpened them → supervised → sharpened again, stored as bfloat16

A loss on logits that were doubled would first learn to halve them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from bases.base import BATCH, LENGTH, mark_terse_prompts, metrics_line
from bases.sharpen import sharpen
from cotrain.models.load import describe_model, load_model, save_model
from cotrain.pretraining.corpora import Corpus
from cotrain.pretraining.sft import sft


@dataclass(frozen=True, slots=True, kw_only=True)
class Lesson:
    """What such a model depends on, beside what it is taught."""

    seed: int = 0
    start: str  # the model that is taught on
    tokens: int
    lr: float = 0.004  # of Muon
    sharpened: float = 2.0  # factor of the logits, of the start too


def teach_on(
    out: Path,
    name: str,
    lesson: Lesson,
    conversations: list[tuple[Corpus, int]],
    *,
    taught: Sequence[str] = (),
    resume: bool = False,
    report: Callable[[str], None] = print,
) -> dict[str, Any]:
    """Train ``lesson.start`` on ``conversations`` into ``out/name``, described in ``out/name.json``. ``taught``:
    methods whose formats are among them."""
    out.mkdir(parents=True, exist_ok=True)
    start_dir, taught_dir = out / "start", out / "taught"
    if not (start_dir / "model.safetensors").exists():
        network, tokenizer = load_model(lesson.start)
        sharpen(network, 1 / lesson.sharpened)
        save_model(network, tokenizer, start_dir)
    if not (taught_dir / "model.safetensors").exists():
        report(f"{name} on {lesson.tokens:,} tokens …")
        outcome = sft(
            start_dir,
            taught_dir,
            conversations=conversations,
            tokens=lesson.tokens,
            batch_tokens=BATCH,
            length=LENGTH,
            lr=lesson.lr,
            optimizer="muon",
            validation=64,
            seed=lesson.seed,
            resume=resume and taught_dir.exists(),
            plan={"autocast": False},  # float32: at this size twice as fast as bfloat16
            report=lambda row: report(metrics_line(row)),
        )
        if not outcome.finished:
            return {"finished": False, "stage": name}
    network, tokenizer = load_model(taught_dir)
    sharpen(network, lesson.sharpened)
    save_model(network, tokenizer, out / name, torch.bfloat16)
    mark_terse_prompts(out / name, taught)
    result = {"finished": True, "settings": asdict(lesson), "models": {name: describe_model(out / name)}}
    (out / f"{name}.json").write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    return result
