"""``python -m bases``: ``shipped-checker``, a base without taught errors, from nothing, by one command.

    tokenizer → practice: exact solutions and true reviews in equal numbers, lengths rising to 9 steps, a constant rate
      → settling: more of the same at all lengths, the rate falling to zero
      → mending: the same, but half of the errors to be found are two values that changed places
      → sharpening of the logits

The base solves ("Solve:") and checks ("Review:"). No error was ever taught to it (``data/word_problems/practice.py``):
where it is wrong, it lacks skill. The rate stays constant in practice so that settling can begin at any time: stop the
practice (SIGTERM leaves a checkpoint), and ``--settle`` goes on from there (warm-up, stable, decay; arXiv 2404.06395).
What a model of a size can do is measured by ``benchmarks/base_table.py``. ``shipped`` and the models of further roles
come from ``bases/noisy.py``.
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from bases.sharpen import sharpen
from cotrain.core.errors import RunDirectoryError
from cotrain.data.word_problems.source import WordProblems, study_problems
from cotrain.models.from_scratch import new_model
from cotrain.models.load import describe_model, load_model, save_model
from cotrain.pretraining.corpora import practice_of
from cotrain.pretraining.pretrain import config_for, make_plan, sample_texts, train_and_save
from cotrain.pretraining.tokenizer import train_tokenizer
from cotrain.pretraining.trainer import CHECKPOINTS
from cotrain.rollout.common_roles import FORMAT_MARK, mark_terse_prompts
from cotrain.storage import checkpoints

NAME = "base-checker"
LENGTH = 512  # tokens of a row: every conversation of practice fits
BATCH = 8192  # tokens of one optimiser step
SIZES = {
    "0.1M": {"depth": 3, "width": 40, "heads": 4, "kv_heads": 2, "feed_forward": 120},
    "0.3M": {"depth": 3, "width": 80, "heads": 4, "kv_heads": 2, "feed_forward": 240},
    "1M": {"depth": 4, "width": 128, "heads": 4, "kv_heads": 2, "feed_forward": 384},
    "3M": {"depth": 6, "width": 192, "heads": 6, "kv_heads": 3, "feed_forward": 576},
    "8M": {"depth": 10, "width": 256, "heads": 8, "kv_heads": 4, "feed_forward": 768},
}  # name → the sizes of ``small_config``
MODEL_FILES = (
    FORMAT_MARK,
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
)  # of a model that ships

Report = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseSettings:
    """Everything the base depends on."""

    seed: int = 0
    size: str = "1M"  # of ``SIZES``
    vocabulary: int = 640
    problems: WordProblems = field(default_factory=lambda: study_problems((1, 9)))
    practice_tokens: int = 1433 * BATCH
    settle_tokens: int = 1100 * BATCH
    mend_tokens: int = 450 * BATCH
    lr: float = 0.01  # of Muon
    mend_lr: float = 0.006  # of Muon
    rise: int = 2500  # problems of a kind after which practice brings one step more
    sharpened: float = 2.0  # factor of the logits


def build_base(out: Path, settings: BaseSettings, *, resume: bool = False, report: Report = print) -> dict[str, Any]:
    """Train the base into ``out/base-checker``, described in ``out/base-checker.json``. A stage whose model is
    there already is passed over."""
    practised = out / "practised"
    out.mkdir(parents=True, exist_ok=True)
    if not (practised / "model.safetensors").exists():
        report("tokenizer …")
        network, tokenizer = new_network(settings)
        report(f"practice on {settings.practice_tokens:,} tokens …")
        if not _train_stage(network, tokenizer, practised, settings, "practice", "new", resume, report):
            return {"finished": False, "stage": "practice"}
    return settle(out, settings, resume=resume, report=report)


def settle(out: Path, settings: BaseSettings, *, resume: bool = False, report: Report = print) -> dict[str, Any]:
    """All after the practice, from its end in ``out`` or from its newest checkpoint."""
    start, practice_steps = practised_so_far(out / "practised", settings)
    for stage, name, tokens in (
        ("settle", "settled", settings.settle_tokens),
        ("mend", "mended", settings.mend_tokens),
    ):
        if not (out / name / "model.safetensors").exists():
            report(f"{stage} on {tokens:,} tokens …")
            if not _train_stage(*load_model(start), out / name, settings, stage, start.name, resume, report):
                return {"finished": False, "stage": stage}
        start = out / name
    network, tokenizer = load_model(start)
    sharpen(network, settings.sharpened)
    save_model(network, tokenizer, out / NAME, torch.bfloat16)
    mark_terse_prompts(out / NAME)
    result = {
        "finished": True,
        "settings": asdict(settings),
        "tokens": {"practice": practice_steps * BATCH, "settle": settings.settle_tokens, "mend": settings.mend_tokens},
        "models": {NAME: describe_model(out / NAME)},
    }
    (out / f"{NAME}.json").write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    return result


def practised_so_far(practised: Path, settings: BaseSettings) -> tuple[Path, int]:
    """The model directory of a practice and its optimiser steps: the result, or what its newest checkpoint gives."""
    if (practised / "model.safetensors").exists():
        return practised, math.ceil(settings.practice_tokens / BATCH)
    checkpoint = checkpoints.latest_checkpoint(practised / CHECKPOINTS)
    if checkpoint is None:
        raise RunDirectoryError(f"{practised}: no practice that could be settled; leave out --settle first")
    tensors, documents = checkpoint.load()
    step = int(documents["state"]["step"])
    model_dir = practised.with_name(f"practised-{step}")
    if not (model_dir / "model.safetensors").exists():
        network, tokenizer = new_network(settings)
        with torch.no_grad():
            for name, parameter in network.named_parameters():
                parameter.copy_(tensors["model"][name])
        save_model(network, tokenizer, model_dir)
    return model_dir, step


def new_network(settings: BaseSettings) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """New weights, and the tokenizer, which is learned from what will be practised."""
    tokenizer = train_tokenizer(
        sample_texts(practice_of(settings.problems, settings.seed, "settle")), settings.vocabulary
    )
    return new_model(config_for(tokenizer, **SIZES[settings.size]), settings.seed), tokenizer


def _train_stage(
    network: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    out: Path,
    settings: BaseSettings,
    stage: str,
    start: str,
    resume: bool,
    report: Report,
) -> bool:
    """One stage of training; False when it was interrupted."""
    is_practice = stage == "practice"
    tokens = {"practice": settings.practice_tokens, "settle": settings.settle_tokens, "mend": settings.mend_tokens}
    plan = make_plan(
        tokens[stage],
        BATCH,
        {"autocast": False, "save_every": 100},  # float32: at this size twice as fast as bfloat16
        length=LENGTH,
        lr=settings.mend_lr if stage == "mend" else settings.lr,
        seed=settings.seed,
        optimizer="muon",
        weight_decay=0.0,
        warmup=50 if is_practice else 20,
        decay_fraction=0.0 if is_practice else 1.0,
    )
    outcome = train_and_save(
        network,
        tokenizer,
        practice_of(settings.problems, settings.seed, stage, settings.rise if is_practice else 0),
        out,
        plan,
        replies_only=True,
        validation=0 if is_practice else 64,  # the first items of practice are short ones
        start=start,
        resume=resume and out.exists(),
        save_dtype=None,
        report=lambda row: report(metrics_line(row)),
    )
    return outcome.finished


def install_base(out: Path, assets: Path, name: str = NAME) -> None:
    """Copy a model and its description to where those that ship lie: ``cotrain.core.shipped: CHECKOUT_MODELS``."""
    replace_model_files(out / name, assets / name)
    shutil.copyfile(out / f"{name}.json", assets / f"{name}.json")


def replace_model_files(model: Path, target: Path) -> None:
    """A model's files in the place of those in ``target``."""
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    for file in MODEL_FILES:
        if (model / file).exists():
            shutil.copyfile(model / file, target / file)


def metrics_line(row: dict[str, Any]) -> str:
    """A row of metrics in one line."""
    return "  ".join(
        f"{key} {value:.4g}" if isinstance(value, float) else f"{key} {value}" for key, value in row.items()
    )
