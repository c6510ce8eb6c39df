"""``python -m bases --noisy``: ``shipped``, whose errors are taught ones, and the models that come from it.

    tokenizer → pretraining on solved problems, checked solutions and arithmetic, every token learned
      → practice: clean solutions, and checks with the words true and false, replies learned → supervised starts:
      base         solves with bad habits; reviews from noisy demonstrations (a stated share of verdicts flipped)
      base-format  solves with the same habits; reviews with verdicts that are coin flips: the format, nothing else
      base-rater   a reward model: says CORRECT or INCORRECT of a solution beside the reference answer, as one number
      base-roles   as base, and revises, judges reviews, checks itself, searches and digests (``roles_corpus.py``)
      base-digest  base-roles, gone on with: digests of short bins, and solutions from digests (2 to 4 steps)

Its solver imitates one that makes a random error in 12 % of the steps, so that whatever lowers entropy pays;
``shipped-checker`` (``bases/base.py``) has no such noise. All *can* check when they are asked in the words of their
practice ("Check:"), where worked statements were rightly said to be true or false; asked for a review, as the role of
the verifier is, none does it reliably. What a verifier gains over its start, it gains from reinforcement learning.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from bases.base import BATCH, LENGTH, metrics_line, replace_model_files
from bases.roles_corpus import (
    bin_conversation,
    digest_conversation,
    gathered_conversation,
    meta_conversation,
    plan_conversation,
    refine_conversation,
    self_check_conversation,
)
from bases.words_corpus import (
    RATED,
    Start,
    practice_conversation,
    rate_conversation,
    review_conversation,
    solver_conversation,
)
from cotrain.data.word_problems.corpus import pretraining_text
from cotrain.data.word_problems.corrupt import Habits
from cotrain.data.word_problems.source import WordProblems, study_problems
from cotrain.models.heads import rating_by_words
from cotrain.models.load import describe_model, load_model, save_model
from cotrain.pretraining.corpora import Corpus, Item, procedural_corpus
from cotrain.pretraining.pretrain import config_for, pretrain, sample_texts
from cotrain.pretraining.sft import sft
from cotrain.pretraining.tokenizer import train_tokenizer
from cotrain.rollout.common_roles import mark_terse_prompts

NAMES = ("base", "base-format", "base-roles", "base-digest", "base-rater")
TRUNK, PRACTISED, FOCUSED, RATED_BY_WORDS = "pretrained", "practised", "focused", "rated"  # made on the way to these


@dataclass(frozen=True, slots=True, kw_only=True)
class NoisySettings:
    """Everything these models depend on."""

    seed: int = 0
    operations: tuple[int, int] = (2, 7)  # of the texts for tokenizer and pretraining
    vocabulary: int = 640
    depth: int = 4
    width: int = 128
    pretraining_tokens: int = 500 * BATCH
    pretraining_lr: float = 0.01  # of Muon
    practice_tokens: int = 3500 * BATCH
    practice_lr: float = 0.01  # of Muon
    focus: WordProblems = field(
        default_factory=lambda: study_problems((2, 7))
    )  # the problems that later stages are about
    focus_tokens: int = 2400 * BATCH
    focus_lr: float = 0.006  # of Muon
    tuning_tokens: int = 250 * BATCH
    tuning_lr: float = 1e-3  # of AdamW
    flipped: float = 0.25  # share of step verdicts that are wrong in the noisy demonstrations
    roles_tokens: int = 800 * BATCH  # of base-roles
    roles_lr: float = 0.004  # of Muon
    rater_tokens: int = 600 * BATCH  # of base-rater
    rater_lr: float = 0.004  # of Muon
    digest_operations: tuple[int, int] = (2, 4)  # of the problems of base-digest
    digest_tokens: int = 1500 * BATCH  # of base-digest
    digest_lr: float = 0.006  # of Muon
    missed: float = 0.1  # share of sentences that a demonstrated digest takes for what they are not
    habits: Habits = field(default_factory=Habits)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Supervised training of one model from another."""

    name: str  # directory in ``out``
    begun: str  # that of the model it begins with
    conversations: Corpus | list[tuple[Corpus, int]]
    tokens: int
    lr: float
    optimizer: str = "muon"
    batch: int = BATCH  # tokens
    how: dict[str, Any] = field(default_factory=dict)  # further arguments of ``sft``


def build_noisy(
    out: Path, settings: NoisySettings, *, resume: bool = False, report: Callable[[str], None] = print
) -> dict[str, Any]:
    """Train the starts into ``out/base``, ``out/base-format``, ``out/base-roles``, ``out/base-digest`` and
    ``out/base-rater``, described in ``out/base.json``. A stage whose model is there already is passed over."""
    out.mkdir(parents=True, exist_ok=True)

    def is_made(name: str) -> bool:
        return (out / name / "model.safetensors").exists()

    def shared_arguments(name: str, stage: str) -> dict[str, Any]:
        report(f"{stage} …")
        arguments = {"seed": settings.seed, "length": LENGTH, "report": lambda row: report(metrics_line(row))}
        return arguments | {"resume": resume and (out / name).exists()}

    if not is_made(TRUNK) and not pretrain_trunk(out / TRUNK, settings, shared_arguments(TRUNK, "pretraining")):
        return {"finished": False, "stage": "pretraining"}
    for stage in stages_of(settings):
        if is_made(stage.name):
            continue
        outcome = sft(
            out / stage.begun,
            out / stage.name,
            conversations=stage.conversations,
            tokens=stage.tokens,
            batch_tokens=stage.batch,
            lr=stage.lr,
            optimizer=stage.optimizer,
            **stage.how,
            **shared_arguments(stage.name, f"{stage.name!r} from {stage.begun!r}, {stage.tokens:,} tokens"),
        )
        if not outcome.finished:
            return {"finished": False, "stage": stage.name}
    make_rater(out)
    for name in NAMES:
        mark_terse_prompts(out / name)
    described = {name: describe_model(out / name) for name in NAMES}
    result = {"finished": True, "settings": asdict(settings), "models": described}
    (out / "base.json").write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    return result


def pretrain_trunk(trunk: Path, settings: NoisySettings, shared: dict[str, Any]) -> bool:
    """Tokenizer and pretraining; whether they are finished."""
    source = WordProblems(operations=settings.operations)
    text = procedural_corpus("words", lambda i: pretraining_text(source, settings.seed, i))
    noisy = conversations_of(settings, ("noisy", settings.flipped))
    tokenizer = train_tokenizer(sample_texts([(text, 4), *noisy]), settings.vocabulary)
    outcome = pretrain(
        trunk,
        corpus=text,
        tokens=settings.pretraining_tokens,
        tokenizer=tokenizer,
        config=config_for(tokenizer, depth=settings.depth, width=settings.width),
        batch_tokens=BATCH,
        lr=settings.pretraining_lr,
        optimizer="muon",
        validation=64,
        **shared,
    )
    return outcome.finished


def stages_of(settings: NoisySettings) -> list[Stage]:
    """What follows pretraining, in order."""
    given, source, seed = settings, WordProblems(operations=settings.operations), settings.seed
    broad = procedural_corpus("practice", lambda i: practice_conversation(source, seed, i, broad=True))
    near = procedural_corpus("focus", lambda i: practice_conversation(given.focus, seed, i, broad=False))
    final: dict[str, Any] = {"save_dtype": torch.bfloat16}

    def practice_stage(name: str, begun: str, conversations: Corpus, tokens: int, lr: float, decay: float) -> Stage:
        how = {"warmup": 50, "validation": 64, "decay_fraction": decay}
        return Stage(name=name, begun=begun, conversations=conversations, tokens=tokens, lr=lr, how=how)

    def tuning_stage(name: str, start: Start) -> Stage:
        parts = conversations_of(given, start)
        how: dict[str, Any] = {"tokens": given.tuning_tokens, "lr": given.tuning_lr, "optimizer": "adamw", "how": final}
        return Stage(name=name, begun=FOCUSED, conversations=parts, **how)

    return [
        practice_stage(PRACTISED, TRUNK, broad, given.practice_tokens, given.practice_lr, 0.6),
        practice_stage(FOCUSED, PRACTISED, near, given.focus_tokens, given.focus_lr, 1.0),
        tuning_stage("base", ("noisy", given.flipped)),
        tuning_stage("base-format", "format"),
        Stage(
            name="base-roles",
            begun=FOCUSED,
            conversations=roles_corpora(given),
            tokens=given.roles_tokens,
            lr=given.roles_lr,
            how=final,
        ),
        Stage(
            name="base-digest",
            begun="base-roles",
            conversations=digest_corpora(given),
            tokens=given.digest_tokens,
            lr=given.digest_lr,
            batch=BATCH // 2,
            how=final,
        ),
        Stage(
            name=RATED_BY_WORDS,
            begun=FOCUSED,
            conversations=rating_corpora(given),
            tokens=given.rater_tokens,
            lr=given.rater_lr,
            how=final,
        ),
    ]


def make_rater(out: Path) -> None:
    """``out/base-rater``: the model that answers with one word, as a reward model."""
    model, tokenizer = load_model(out / RATED_BY_WORDS)
    save_model(rating_by_words(model, tokenizer, *RATED), tokenizer, out / "base-rater", torch.bfloat16)


def install_noisy(out: Path, assets: Path, bases: Path) -> None:
    """Copy the models to where those that ship lie: ``base`` into the package, the others into its bases."""
    for name in NAMES:
        folder = assets if name == "base" else bases
        replace_model_files(out / name, folder / name)
    shutil.copyfile(out / "base.json", assets / "base.json")


def conversations_of(settings: NoisySettings, start: Start) -> list[tuple[Corpus, int]]:
    """Solutions with habits and reviews with verdicts of this kind, in equal numbers."""
    source = settings.focus
    solve = procedural_corpus("solve", lambda i: solver_conversation(source, settings.habits, settings.seed, i))
    review = procedural_corpus(
        "review", lambda i: review_conversation(source, settings.habits, start, settings.seed, i)
    )
    return [(solve, 1), (review, 1)]


def rating_corpora(settings: NoisySettings) -> list[tuple[Corpus, int]]:
    """Solutions beside the reference answer, and three times as often the answer alone."""
    source, habits, seed = settings.focus, settings.habits, settings.seed
    whole = procedural_corpus("rate", lambda i: rate_conversation(source, habits, seed, i))
    brief = procedural_corpus("brief rate", lambda i: rate_conversation(source, habits, seed, i, brief=True))
    return [(whole, 1), (brief, 3)]


def roles_corpora(settings: NoisySettings) -> list[tuple[Corpus, int]]:
    """The conversations of ``base``, and those of further roles beside them."""
    source, habits, start, seed = settings.focus, settings.habits, ("noisy", settings.flipped), settings.seed
    further: dict[str, tuple[int, Callable[[int], Item]]] = {
        "refine": (2, lambda i: refine_conversation(source, habits, start, seed, i)),
        "meta": (1, lambda i: meta_conversation(source, habits, start, seed, i)),
        "self check": (2, lambda i: self_check_conversation(source, habits, start, seed, i)),
        "plan": (1, lambda i: plan_conversation(source, seed, i)),
        "digest": (2, lambda i: digest_conversation(source, settings.missed, seed, i)),
        "gathered": (1, lambda i: gathered_conversation(source, habits, seed, i)),
    }
    shared = [(corpus, 2 * weight) for corpus, weight in conversations_of(settings, start)]
    return [*shared, *((procedural_corpus(name, get), weight) for name, (weight, get) in further.items())]


def digest_corpora(settings: NoisySettings) -> list[tuple[Corpus, int]]:
    """Digests of single documents and of whole bins, solutions from facts in any order, and plans."""
    source = replace(settings.focus, operations=settings.digest_operations)
    seed, missed = settings.seed, settings.missed
    kinds: dict[str, tuple[int, Callable[[int], Item]]] = {
        "brief bin": (4, lambda i: bin_conversation(source, missed, seed, i, brief=True)),
        "bin": (3, lambda i: bin_conversation(source, missed, seed, i)),
        "gathered": (4, lambda i: gathered_conversation(source, settings.habits, seed, i)),
        "plan": (1, lambda i: plan_conversation(source, seed, i)),
    }
    return [(procedural_corpus(name, get), weight) for name, (weight, get) in kinds.items()]
