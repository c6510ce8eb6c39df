"""Pretraining: next-token prediction on running text, from new weights or from a model that is there already.

    python: pretrain("base", corpus=text_file("book.txt"), tokens=10_000_000)

The result is a plain model directory. Defaults fit the shipped base: 0.9 million parameters on a laptop.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from cotrain.core.errors import ConfigError
from cotrain.core.verbosity import print_progress
from cotrain.distributed.local import check_device
from cotrain.models.from_scratch import new_model, small_config
from cotrain.models.load import load_config, load_model, save_model
from cotrain.pretraining.corpora import Corpus, Item, digest_of_corpus, interleave, split_corpus
from cotrain.pretraining.documents import (
    Examined,
    all_documents,
    document_reader,
    examine,
    in_parts,
    renderer_at,
    running_documents,
)
from cotrain.pretraining.packing import Document
from cotrain.pretraining.ranks import ALONE, Ranks
from cotrain.pretraining.tokenizer import train_tokenizer
from cotrain.pretraining.trainer import (
    SETTINGS,
    TrainingOutcome,
    TrainingPlan,
    begin_time,
    check_plan,
    read_result,
    train,
)
from cotrain.prompts.render import Renderer, generation_config_of
from cotrain.storage.file_ops import replace_file
from cotrain.storage.schemas import RESULT

Parts = Sequence[tuple[Corpus, int]]  # corpora with integer weights
SAMPLE_BEGINS, SAMPLE_TOKENS = 8, 96  # length of the text that is shown at the end
CONTEXT = 1024  # tokens that a new model is made for, where its rows are not longer
TOKENIZER_SAMPLE = 5_000  # items that a new tokenizer learns from


def pretrain(
    out: str | Path,
    *,
    corpus: Corpus | Parts,
    tokens: int,
    model: str | os.PathLike[str] | None = None,
    config: PretrainedConfig | None = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
    vocab_size: int = 640,
    batch_tokens: int = 8192,
    length: int = 512,
    lr: float = 3e-3,
    warmup: int = 100,
    decay_fraction: float = 0.5,
    shape: str = "linear",
    optimizer: str = "adamw",
    weight_decay: float = 0.1,
    validation: int = 256,
    seed: int = 0,
    resume: bool = False,
    save_dtype: torch.dtype | None = None,
    report: Callable[[dict[str, Any]], None] | None = None,
    plan: Mapping[str, Any] | None = None,
    device: str = "cpu",
    say: Callable[[str], None] = print_progress,
    write_more: Callable[[], None] | None = None,
    ranks: Ranks = ALONE,
) -> TrainingOutcome:
    """Train on ``tokens`` tokens of text (padding counted) and write the model to ``out``.

    Args:
        corpus: text, or several corpora with integer weights: ``[(corpus, 3), (other, 1)]``.
        model: go on from this directory or Hub name. Without it a new one is made from ``config``
            (default: ``config_for(tokenizer)`` with a context of ``length`` or more) and ``seed``.
        tokenizer: of a new model; without it one of ``vocab_size`` is learned from the corpus.
        batch_tokens, length: tokens of one optimiser step, and of one row of it.
        validation: items of each corpus held out of training.
        save_dtype: of the weights written at the end (default: as trained, float32).
        plan: further fields of ``TrainingPlan`` by name, such as ``{"save_every": 100, "micro": 8}``.
        device: "cpu", "cuda" or "cuda:1", where it is trained.
        say: hears what of the corpus is left out, or learned in parts.
        write_more: writes further files into ``out``, before the training counts as finished.
        ranks: of several processes that train together, this one; all are called alike.

    Interrupted (``finished=False``), it has left a checkpoint: call again with ``resume=True``.
    Raises ConfigError, DataError, ModelError, RunDirectoryError.
    """
    parts = weighted_parts(corpus)
    if model is not None and (config is not None or tokenizer is not None):
        raise ConfigError(
            "pretrain: model brings its own config and tokenizer; give either model or those",
            code="E_MODEL_WITH_TOKENIZER",
        )
    full = make_plan(
        tokens, batch_tokens, plan, length=length, lr=lr, seed=seed, optimizer=optimizer, weight_decay=weight_decay,
        warmup=warmup, decay_fraction=decay_fraction, shape=shape,
    )  # fmt: skip
    check_device(device)
    if model is not None:
        check_fits_context(model, full.length, out)
        network, tokenizer = load_model(model)
    else:
        tokenizer = tokenizer or train_tokenizer(sample_texts(parts), vocab_size)
        network = new_model(config or config_for(tokenizer, context=max(CONTEXT, length)), seed)
        _check_length(full.length, network.config)
    nn.Module.to(network, device)
    return train_and_save(
        network, tokenizer, parts, out, full, replies_only=False, validation=validation,
        start=str(model) if model is not None else "new", resume=resume, save_dtype=save_dtype, report=report, say=say,
        write_more=write_more, ranks=ranks,
    )  # fmt: skip


def config_for(tokenizer: PreTrainedTokenizerBase, **sizes: Any) -> PretrainedConfig:
    """``small_config`` with vocabulary and ids of a tokenizer; ``sizes`` are those of ``small_config``."""
    names = {"pad_id": tokenizer.pad_token_id, "bos_id": tokenizer.bos_token_id, "eos_id": tokenizer.eos_token_id}
    return small_config(len(tokenizer), **sizes, **{name: i for name, i in names.items() if i is not None})


def step_count(tokens: int, batch_tokens: int, length: int) -> int:
    """Optimiser steps for so many tokens: each takes as many whole rows as ``batch_tokens`` hold."""
    return math.ceil(tokens / max(length, batch_tokens // length * length))


def make_plan(
    tokens: int, batch_tokens: int, more: Mapping[str, Any] | None, *, length: int, **fields: Any
) -> TrainingPlan:
    """A plan of as many steps and rows as these numbers of tokens need. Raises ConfigError for unknown fields, and for
    settings that are out of their range."""
    check_sizes(tokens, batch_tokens, length)
    steps = step_count(tokens, batch_tokens, length)
    warmup = min(fields.pop("warmup"), steps // 5)
    plan = TrainingPlan(steps=steps, rows=batch_tokens // length, length=length, warmup=warmup, **fields)

    changes = dict(more or {})
    known_fields = TrainingPlan.__dataclass_fields__
    unknown = sorted(changes.keys() - known_fields.keys())
    if unknown:
        raise ConfigError(f"plan: no field {unknown[0]!r} (there are: {', '.join(known_fields)})", code="E_PLAN_FIELD")
    plan = replace(plan, **changes)
    check_plan(plan)
    return plan


def check_sizes(tokens: int, batch_tokens: int, length: int) -> None:
    """Raise ConfigError where a batch holds no row, or the training no batch."""
    if batch_tokens < length or tokens < batch_tokens:
        raise ConfigError(
            f"length {length}, batch_tokens {batch_tokens}, tokens {tokens}: expected none above the next; lower "
            "--length or --batch-tokens, or raise --tokens",
            code="E_LENGTHS_ORDER",
        )


def train_and_save(
    network: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    parts: Parts,
    out: str | Path,
    plan: TrainingPlan,
    *,
    replies_only: bool,
    validation: int,
    start: str,
    resume: bool,
    save_dtype: torch.dtype | None,
    report: Callable[[dict[str, Any]], None] | None,
    say: Callable[[str], None] = print_progress,
    taught: Mapping[str, Any] | None = None,
    about: Mapping[str, Any] | None = None,
    merge: Callable[[], PreTrainedModel] | None = None,
    write_more: Callable[[], None] | None = None,
    ranks: Ranks = ALONE,
) -> TrainingOutcome:
    """Hold out, tokenize, train, write: what pretraining and supervised training have in common. ``taught`` is written
    into ``result.json`` next to the figures. ``about``: more of what a run must have in common with the one that it
    goes on with. ``merge`` makes the model that is written; by default it is ``network``. ``write_more`` writes further
    files beside the model, before its training counts as finished."""
    batch = plan.rows * plan.length
    longest = plan.length if replies_only else batch
    resumed = (Path(out) / SETTINGS).is_file()
    if plan.rows < ranks.world:
        raise ConfigError(
            f"a batch of {plan.rows} rows on {ranks.world} ranks: each wants a row; raise --batch-tokens, or lower "
            "--world",
            code="E_ROWS_FOR_RANKS",
        )

    about = {"start": start, "held_out": validation, "replies_only": replies_only, **(about or {})}
    about["texts"] = [digest_of_corpus(corpus) for corpus, _ in parts]  # a training that goes on has the same
    ends = generation_config_of(network)
    begun = None
    if Renderer(tokenizer, ends).asks_time:
        begun = _begin_time(out, network.device, ranks)
        about["begun"] = begun.isoformat(timespec="seconds")

    renderer = renderer_at(tokenizer, begun, ends)
    row_length = plan.length if replies_only else 0
    findings = [examine(corpus, renderer, row_length, batch, replies_only) for corpus, _ in parts]
    if ranks.is_first:
        for finding in findings:
            for note in finding.notes(longest, batch):
                say(note)

    training, held_out = _divide(parts, findings, tokenizer, validation, plan.seed, batch)
    held_documents = {}
    if validation:
        for name, corpus in held_out.items():
            documents = all_documents(corpus, tokenizer, replies_only, longest, begun, ends)
            if documents:
                held_documents[name] = documents

    def write_all(outcome: TrainingOutcome) -> TrainingOutcome:
        """Write the model, and what came of its training."""
        save_model(network if merge is None else merge(), tokenizer, out, save_dtype)
        if not replies_only:
            bits = {
                name: bits_per_byte(held_out[name], held_documents[name], nats)
                for name, nats in outcome.validation.items()
                if isinstance(held_out[name].get(0), str)
            }
            outcome = replace(outcome, bits_per_byte=bits, sample=sample_text(network, tokenizer, held_out))
        result = {
            "stage": "sft" if replies_only else "pretrain",
            "start": start,
            **(taught or {}),
            "parameters": sum(parameter.numel() for parameter in network.parameters()),
            "steps": plan.steps,
            "tokens": plan.steps * batch,
            "resumed": resumed,
            "seconds": outcome.seconds,
            "loss": outcome.loss if math.isfinite(outcome.loss) else None,  # JSON has no NaN
            "validation": dict(outcome.validation),
            "bits_per_byte": dict(outcome.bits_per_byte),
            "sample": outcome.sample,
            "left_out": {finding.name: finding.left_out for finding in findings if finding.left_out},
            "in_parts": {finding.name: finding.in_parts for finding in findings if finding.in_parts},
        }
        replace_file(Path(out) / RESULT, json.dumps(result, indent=2, ensure_ascii=False).encode())
        if write_more is not None:
            write_more()
        return outcome

    outcome = train(
        network,
        document_reader(training, tokenizer, plan.seed, replies_only, longest, begun, ends, batch),
        out,
        plan,
        pad_id=0,  # any that the model knows
        validation=held_documents,
        about={**about, "corpus": training.name},
        resume=resume,
        finish=write_all,
        report=report,
        say=say,
        ranks=ranks,
    )
    if outcome.was_finished:
        saved = read_result(out)
        outcome = replace(outcome, **{name: saved[name] for name in ("bits_per_byte", "sample") if name in saved})
    return outcome


def check_fits_context(model: str | os.PathLike[str], length: int, out: str | Path) -> None:
    """Raise ConfigError for rows that are longer than the model's context, before its weights are loaded. A training
    that ``out`` holds already goes on with the length that it was begun with."""
    is_begun = (Path(out) / SETTINGS).is_file()
    if not is_begun:
        _check_length(length, load_config(model))


def _check_length(length: int, config: PretrainedConfig) -> None:
    """Raise ConfigError for rows that are longer than the context of a model with this configuration."""
    context = getattr(config.get_text_config(), "max_position_embeddings", None)  # None: it has no limit
    if context is not None and length > context:
        raise ConfigError(
            f"length {length}: longer than the context of the model, {context} tokens; lower --length",
            code="E_LENGTH_ABOVE_CONTEXT",
        )


def _begin_time(out: str | Path, device: torch.device, ranks: Ranks) -> datetime:
    """The time for chat templates: now, or the beginning of a training that is resumed; the same on every
    rank."""
    saved_time = begin_time(out)
    moment = datetime.fromisoformat(saved_time) if saved_time else datetime.now()
    return datetime.fromtimestamp(ranks.as_first(int(moment.timestamp()), device))


def _divide(
    parts: Parts,
    findings: Sequence[Examined],
    tokenizer: PreTrainedTokenizerBase,
    validation: int,
    seed: int,
    batch: int,
) -> tuple[Corpus, dict[str, Corpus]]:
    """Return the training corpus and, by the name of each corpus, its held-out part; texts that are longer than a batch
    are in parts."""
    training: list[tuple[Corpus, int]] = []
    held_out: dict[str, Corpus] = {}
    for (corpus, weight), finding in zip(parts, findings, strict=True):
        kept, held = split_corpus(corpus, validation, seed)
        if finding.in_parts:
            kept = in_parts(kept, tokenizer, batch)
            held = in_parts(held, tokenizer, batch) if held.size else held
        training.append((kept, weight))
        held_out[corpus.name] = held
    if len(training) == 1:
        return training[0][0], held_out
    return interleave(training), held_out


def bits_per_byte(texts: Corpus, documents: Sequence[Document], nats: float) -> float:
    """``nats`` per learned token as bits per byte of UTF-8, which models with different tokenizers have in common. The
    end of each text counts as a token and has no byte."""
    size = sum(len(str(texts.get(index)).encode()) for index in range(texts.size or 0))
    learned = sum(sum(document.learn[1:]) for document in documents)
    return nats * learned / math.log(2) / max(1, size)


@torch.no_grad()
def sample_text(network: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, texts: Mapping[str, Corpus]) -> str:
    """The first tokens of a held-out text, and how the model goes on, at temperature 1 and from one seed."""
    first = next((item for held in texts.values() if isinstance(item := held.get(0), str)), None)
    if first is None:
        return ""
    (document,) = running_documents([first], tokenizer)
    ids = torch.tensor([document.ids[:SAMPLE_BEGINS]], device=network.device)
    limit = getattr(network.config, "max_position_embeddings", None) or SAMPLE_TOKENS
    with torch.random.fork_rng():
        torch.manual_seed(0)
        token_ids = network.generate(  # type: ignore[operator]
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=min(SAMPLE_TOKENS, max(1, limit - SAMPLE_BEGINS)),
            do_sample=True,
            temperature=1.0,
            pad_token_id=tokenizer.pad_token_id or 0,
        )
    return str(tokenizer.decode(token_ids[0], skip_special_tokens=True))


def sample_texts(parts: Parts) -> list[str]:
    """Return the texts that a new tokenizer learns from: items of every part in proportion to its weight, from past the
    held-out ones."""
    whole = sum(weight for _, weight in parts)
    texts: list[str] = []
    for corpus, weight in parts:
        count = math.ceil(TOKENIZER_SAMPLE * weight / whole)
        for index in range(count if corpus.size is None else min(count, corpus.size)):
            texts += _texts_of_item(corpus.get(index))
    return texts


def _texts_of_item(item: Item) -> list[str]:
    return [item] if isinstance(item, str) else [message["content"] for message in item]


def weighted_parts(corpus: Corpus | Parts) -> Parts:
    """One corpus or several, as several."""
    return [(corpus, 1)] if isinstance(corpus, Corpus) else list(corpus)
