"""Supervised fine-tuning: next-token prediction on conversations, with loss on what the assistant says.

    python: sft("base", "tuned", conversations=jsonl_file("dialogues.jsonl"), tokens=2_000_000)

The same loop as pretraining with another mask. The result is a plain model directory.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from cotrain.core.verbosity import print_progress
from cotrain.distributed.local import check_device
from cotrain.models.load import load_model
from cotrain.models.lora import Lora
from cotrain.pretraining.corpora import Corpus
from cotrain.pretraining.pretrain import Parts, check_fits_context, make_plan, train_and_save, weighted_parts
from cotrain.pretraining.ranks import ALONE, Ranks
from cotrain.pretraining.trainer import SAMPLING, TrainingOutcome
from cotrain.rollout.common_roles import is_terse, keep_taught_roles, mark_terse_prompts, taught_roles

ADAPTER = "sft"  # name of the adapter that is trained


def sft(
    model: str | os.PathLike[str],
    out: str | Path,
    *,
    conversations: Corpus | Parts,
    tokens: int,
    batch_tokens: int = 8192,
    length: int = 512,
    lr: float = 1e-3,
    warmup: int = 20,
    decay_fraction: float = 1.0,
    shape: str = "linear",
    optimizer: str = "adamw",
    weight_decay: float = 0.0,
    validation: int = 128,
    seed: int = 0,
    resume: bool = False,
    save_dtype: torch.dtype | None = None,
    report: Callable[[dict[str, Any]], None] | None = None,
    plan: Mapping[str, Any] | None = None,
    device: str = "cpu",
    taught: Mapping[str, Any] | None = None,
    sampling: Mapping[str, Any] | None = None,
    say: Callable[[str], None] = print_progress,
    lora: Lora | None = None,
    write_more: Callable[[], None] | None = None,
    ranks: Ranks = ALONE,
) -> TrainingOutcome:
    """Fine-tune ``model`` on ``tokens`` tokens of conversations (prompts and padding counted) and write it to ``out``.

    ``conversations`` is one corpus or several with integer weights. Running text in a corpus is learned whole.
    ``taught`` says what for, in JSON, and is written next to the figures into ``result.json``. Where it names a
    ``role``, the model keeps how that role is asked and read (``common_roles.keep_taught_roles``), next to what
    ``model`` had kept. ``sampling`` says how conversations were drawn that the model itself wrote; it is saved for
    ``check_resumed`` (``trainer.py``).
    A conversation longer than ``length`` is left out, and ``say`` hears how many; if most are, it is a DataError.
    With ``lora`` an adapter is trained, and what is written is the model with the adapter in its weights.
    Other arguments and errors as in ``pretrain``; the default rate is for the shipped base, larger models want 1e-5 to
    1e-4.
    """
    full = make_plan(
        tokens, batch_tokens, plan, length=length, lr=lr, seed=seed, optimizer=optimizer, weight_decay=weight_decay,
        warmup=warmup, decay_fraction=decay_fraction, shape=shape,
    )  # fmt: skip
    check_device(device)
    check_fits_context(model, full.length, out)
    about: dict[str, Any] = {}
    if lora is not None:
        about["lora"] = asdict(lora)
    if sampling is not None:
        about[SAMPLING] = dict(sampling)
    network, tokenizer, merge = _open_model(model, lora, seed)
    nn.Module.to(network, device)

    def write_roles_and_more() -> None:
        """Write how the model's roles are asked and read. One that knew the terse prompts still does."""
        if is_terse(os.fspath(model)):
            mark_terse_prompts(Path(out))
        keep_taught_roles(Path(out), taught_roles(os.fspath(model)) | _role_of(taught or {}))
        if write_more is not None:
            write_more()

    return train_and_save(
        network, tokenizer, weighted_parts(conversations), out, full, replies_only=True, validation=validation,
        start=str(model), resume=resume, save_dtype=save_dtype, report=report,
        taught=taught, say=say, about=about, merge=merge,
        write_more=write_roles_and_more, ranks=ranks,
    )  # fmt: skip


def _open_model(
    model: str | os.PathLike[str], lora: Lora | None, seed: int
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase, Callable[[], PreTrainedModel] | None]:
    """Return the model to train, its tokenizer and, for an adapter, the function that merges it into its base at the
    end."""
    if lora is None:
        return *load_model(model), None
    from cotrain.models.adapters import AdapterBase, merge_into_base  # with PEFT, which only adapters need

    base = AdapterBase(model)
    base.add(ADAPTER, rank=lora.rank, alpha=lora.alpha, targets=lora.targets, seed=seed)
    base.activate(ADAPTER)
    return base.module, base.tokenizer, lambda: merge_into_base(base, ADAPTER)


def _role_of(taught: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The role that was taught, by its name; {} for none."""
    if "role" not in taught:
        return {}
    return {str(taught["role"]): {name: value for name, value in taught.items() if name != "role"}}
