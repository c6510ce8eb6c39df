"""The commands ``cotrain tokenizer``, ``pretrain``, ``sft`` and ``base``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from cotrain.core.errors import ConfigError
from cotrain.core.flags import Parser
from cotrain.core.threads import usual_threads


def _common(parser: Parser, *, lr: float, tokens: int) -> None:
    parser.add_argument("--out", required=True, metavar="DIR", help="where the model goes")
    parser.add_argument("--tokens", type=int, default=tokens, help="tokens to train on, padding counted")
    parser.add_argument("--batch-tokens", type=int, default=8192)
    parser.add_argument("--length", type=int, default=512, help="tokens of one row")
    parser.add_argument("--lr", type=float, default=lr)
    parser.add_argument("--optimizer", choices=("adamw", "muon"), default="adamw")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--save-every", type=int, default=500, help="steps between checkpoints")
    parser.add_argument("--resume", action="store_true", help="go on from the last checkpoint in --out")
    parser.add_argument("--threads", type=int, help="CPU threads (default: OMP_NUM_THREADS, or all cores)")


def _begin(threads: int | None) -> None:
    import torch

    torch.set_num_threads(threads or usual_threads())


def _show(row: dict[str, Any]) -> None:
    print("  ".join(f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in row.items()), flush=True)


def _ended(outcome: Any, out: str, command: str) -> int:
    if outcome.finished:
        print(f"model: {out}  (loss {outcome.loss:.3f}, validation {dict(outcome.validation)})")
        return 0
    print(f"stopped at step {outcome.step}; nothing is lost. Go on with the same command and --resume")
    return 130


def tokenizer(words: Sequence[str]) -> int:
    """Train a byte-level BPE tokenizer with single-token digits."""
    parser = Parser(prog="cotrain tokenizer", description=tokenizer.__doc__)
    parser.add_argument("--out", required=True, metavar="DIR")
    parser.add_argument("--data", metavar="FILE", help=".txt or .jsonl (default: the procedural corpus)")
    parser.add_argument("--vocab-size", type=int, default=640)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.strict(words)
    from cotrain.stages.pretrain import sample_texts
    from cotrain.stages.tokenizer import train_tokenizer

    made = train_tokenizer(sample_texts(_vocabulary(given.data, given.seed)), given.vocab_size)
    made.save_pretrained(given.out)
    print(f"tokenizer: {given.out}  ({len(made)} tokens)")
    return 0


def _text(file: str | None, seed: int) -> list[tuple[Any, int]]:
    from cotrain.stages.corpora import corpus_file, procedural
    from cotrain.tasks.words.corpus import pretraining_text
    from cotrain.tasks.words.source import WordProblems

    if file is not None:
        return [(corpus_file(file), 1)]
    source = WordProblems(operations=(2, 7))
    return [(procedural("words", lambda i: pretraining_text(source, seed, i)), 1)]


def _vocabulary(file: str | None, seed: int) -> list[tuple[Any, int]]:
    """What a tokenizer learns from: the text, and for the procedural one also what roles say to each other."""
    from cotrain.stages.base import BaseSettings, conversations_of

    text = _text(file, seed)
    return text if file is not None else [(text[0][0], 4), *conversations_of(BaseSettings(seed=seed), "clean")]


def pretrain(words: Sequence[str]) -> int:
    """Train a language model from nothing, or go on with one, on running text."""
    parser = Parser(prog="cotrain pretrain", description=pretrain.__doc__)
    _common(parser, lr=3e-3, tokens=4_000_000)
    parser.add_argument("--data", metavar="FILE", help=".txt or .jsonl (default: the procedural corpus)")
    parser.add_argument("--model", help="go on from this model")
    parser.add_argument("--tokenizer", metavar="DIR", help="tokenizer of a new model (default: one is trained)")
    parser.add_argument("--kind", choices=("llama", "qwen3"), default="llama")
    parser.add_argument("--depth", type=int, default=4)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--vocab-size", type=int, default=640)
    given = parser.strict(words)
    if given.model and given.tokenizer:
        raise ConfigError("cotrain pretrain: --model brings its own tokenizer; leave out --tokenizer")
    _begin(given.threads)
    from cotrain.models.load import load_tokenizer
    from cotrain.stages import pretrain as stage
    from cotrain.stages.tokenizer import train_tokenizer

    corpus = _text(given.data, given.seed)
    chosen = config = None
    if not given.model:
        chosen = (
            load_tokenizer(given.tokenizer)
            if given.tokenizer
            else train_tokenizer(stage.sample_texts(_vocabulary(given.data, given.seed)), given.vocab_size)
        )
        config = stage.config_for(chosen, depth=given.depth, width=given.width, kind=given.kind)
    outcome = stage.pretrain(
        given.out,
        corpus=corpus,
        tokens=given.tokens,
        model=given.model,
        config=config,
        tokenizer=chosen,
        batch_tokens=given.batch_tokens,
        length=given.length,
        lr=given.lr,
        optimizer=given.optimizer,
        seed=given.seed,
        resume=given.resume,
        report=_show,
        plan={"save_every": given.save_every},
    )
    return _ended(outcome, given.out, "pretrain")


def sft(words: Sequence[str]) -> int:
    """Fine-tune a model on conversations: JSONL rows {"messages": [{"role", "content"}, …]}."""
    parser = Parser(prog="cotrain sft", description=sft.__doc__)
    _common(parser, lr=1e-3, tokens=1_000_000)
    parser.add_argument("--model", required=True, help="directory, Hub name or embedded model to start from")
    parser.add_argument("--data", metavar="FILE", help=".jsonl (default: procedural solutions and reviews)")
    parser.add_argument(
        "--reviews", default="0.3", help="without --data: 'format', 'clean', or the share of flipped verdicts"
    )
    given = parser.strict(words)
    _begin(given.threads)
    from cotrain.stages import sft as stage
    from cotrain.stages.base import BaseSettings, conversations_of, mark
    from cotrain.stages.corpora import corpus_file

    if given.data is not None:
        parts = [(corpus_file(given.data), 1)]
    else:
        start: Any = given.reviews if given.reviews in ("format", "clean") else ("noisy", _share(given.reviews))
        parts = conversations_of(BaseSettings(seed=given.seed), start)
    outcome = stage.sft(
        given.model,
        given.out,
        conversations=parts,
        tokens=given.tokens,
        batch_tokens=given.batch_tokens,
        length=given.length,
        lr=given.lr,
        optimizer=given.optimizer,
        seed=given.seed,
        resume=given.resume,
        report=_show,
        plan={"save_every": given.save_every},
    )
    if outcome.finished and given.data is None:
        mark(Path(given.out))
    return _ended(outcome, given.out, "sft")


def _share(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ConfigError(f"--reviews {text!r}: expected 'format', 'clean' or a share such as 0.3") from None


def base(words: Sequence[str]) -> int:
    """Make the embedded models from nothing: tokenizer, pretraining, three supervised starts."""
    parser = Parser(prog="cotrain base", description=base.__doc__)
    parser.add_argument("--out", required=True, metavar="DIR")
    parser.add_argument("--tokens", type=int, help="pretraining tokens (default: those of the shipped models)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--install", action="store_true", help="copy the result into the installed package")
    parser.add_argument("--threads", type=int, help="CPU threads (default: OMP_NUM_THREADS, or all cores)")
    given = parser.strict(words)
    _begin(given.threads)
    import cotrain
    from cotrain.stages.base import BaseSettings, build_base, install

    settings = BaseSettings(seed=given.seed)
    if given.tokens is not None:
        settings = replace(settings, pretraining_tokens=given.tokens)
    made = build_base(Path(given.out), settings, resume=given.resume, report=lambda text: print(text, flush=True))
    if not made["finished"]:
        print(f"stopped during {made['stage']}; nothing is lost. Go on with the same command and --resume")
        return 130
    if given.install:
        install(Path(given.out), Path(cotrain.__file__).parent / "assets")
    print(f"models: {given.out}/base, {given.out}/base-format and {given.out}/base-roles")
    return 0
