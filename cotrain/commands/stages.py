"""The commands ``cotrain tokenizer``, ``pretrain``, ``sft`` and ``base``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cotrain.commands.common import add_device, add_threads, device_of, prompt_of, threads
from cotrain.core.errors import ConfigError, RunDirectoryError
from cotrain.core.flags import Parser, real, whole
from cotrain.core.verbosity import progress
from cotrain.disk.files import replace_file
from cotrain.disk.jsonl import encode_row
from cotrain.stages.telling import ended, progress_of
from cotrain.tasks.reading import NAME as QUARANTINE
from cotrain.tasks.reading import Quarantine

SFT_LR = " (default: 1e-3 for the package's own models, else 2e-5)"


def _common(parser: Parser, *, lr: float | None, tokens: int) -> None:
    parser.add_argument("--out", required=True, metavar="DIR", help="where the model goes")
    parser.add_argument(
        "--tokens", type=whole(1), default=tokens, metavar="N", help="tokens to train on, padding counted"
    )
    parser.add_argument("--batch-tokens", type=whole(1), default=8192, metavar="N", help="tokens of one step")
    parser.add_argument("--length", type=whole(1), default=512, metavar="N", help="tokens of one row")
    parser.add_argument(
        "--lr", type=real(above=0.0), default=lr, metavar="X", help="learning rate" + ("" if lr else SFT_LR)
    )
    parser.add_argument("--optimizer", choices=("adamw", "muon"), default="adamw", help="adamw or muon")
    parser.add_argument("--seed", type=whole(), default=0, metavar="N", help="of weights and of the order of the text")
    parser.add_argument("--save-every", type=whole(0), default=500, metavar="N", help="steps between checkpoints")
    parser.add_argument("--resume", action="store_true", help="go on from the last checkpoint in --out")
    add_device(parser)
    add_threads(parser)


def _file(parser: Parser, what: str) -> None:
    parser.add_argument("--data", metavar="FILE", help=what)
    parser.add_argument("--lenient", action="store_true", help="set malformed rows aside, in OUT/quarantine.jsonl")


def _aside(given: Any) -> Quarantine | None:
    """Where malformed rows go; None where the first one is an error."""
    if given.lenient and given.data is None:
        raise ConfigError("--lenient is about the rows of --data FILE; leave it out")
    return Quarantine() if given.lenient else None


def _say(aside: Quarantine | None, out: str) -> None:
    if aside is not None and aside.refused:
        print(f"note: {aside.line()}; all in {Path(out) / QUARANTINE} at the end", flush=True)


def _keep(aside: Quarantine | None, out: str) -> None:
    """Write what was set aside beside the result."""
    if aside is not None and aside.refused:
        aside.write(Path(out) / QUARANTINE)


def _begin(given: Any) -> None:
    """Threads and device, before anything is read. Raises ConfigError for a device that is not there."""
    threads(given.threads)
    given.device = device_of(given.device)


def tokenizer(argv: Sequence[str]) -> int:
    """Train a byte-level BPE tokenizer with single-token digits."""
    parser = Parser(prog="cotrain tokenizer", description=tokenizer.__doc__)
    parser.add_argument("--out", required=True, metavar="DIR", help="a new directory")
    _file(parser, ".txt, .jsonl or .parquet (default: the procedural corpus)")
    parser.add_argument("--vocab-size", type=whole(1), default=640, metavar="N", help="tokens")
    parser.add_argument("--seed", type=whole(), default=0, metavar="N", help="of the procedural corpus")
    given = parser.strict(argv)
    refuse_used(given.out)
    from cotrain.stages.pretrain import sample_texts
    from cotrain.stages.tokenizer import train_tokenizer

    aside = _aside(given)
    made = train_tokenizer(sample_texts(_vocabulary(given.data, given.seed, aside)), given.vocab_size)
    _say(aside, given.out)
    made.save_pretrained(given.out)
    _keep(aside, given.out)
    print(f"tokenizer: {given.out}  ({len(made)} tokens)")
    return 0


def refuse_used(out: str, *, resumable: bool = False) -> None:
    path = Path(out)
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        more = ", or go on with --resume" if resumable and path.is_dir() else ""
        raise RunDirectoryError(f"{out} is not an empty directory; choose another --out{more}")


def _text(file: str | None, seed: int, aside: Quarantine | None) -> list[tuple[Any, int]]:
    from cotrain.stages.corpora import corpus_file, procedural
    from cotrain.tasks.words.corpus import pretraining_text
    from cotrain.tasks.words.source import WordProblems

    if file is not None:
        return [(corpus_file(file, aside), 1)]
    source = WordProblems(operations=(2, 7))
    return [(procedural("words", lambda i: pretraining_text(source, seed, i)), 1)]


def _vocabulary(file: str | None, seed: int, aside: Quarantine | None) -> list[tuple[Any, int]]:
    """What a tokenizer learns from: the text, and for the procedural one also what roles say to each other."""
    from cotrain.stages.corpora import practice_of
    from cotrain.tasks.words.source import study_problems

    text = _text(file, seed, aside)
    return text if file is not None else [(text[0][0], 4), *practice_of(study_problems((1, 9)), seed, "settle")]


def pretrain(argv: Sequence[str]) -> int:
    """Train a language model from nothing, or go on with one, on running text."""
    parser = Parser(prog="cotrain pretrain", description=pretrain.__doc__)
    _common(parser, lr=3e-3, tokens=4_000_000)
    _file(parser, ".txt, .jsonl or .parquet (default: the procedural corpus)")
    parser.add_argument("--model", help="go on from this model")
    parser.add_argument("--tokenizer", metavar="DIR", help="tokenizer of a new model (default: one is trained)")
    parser.add_argument("--kind", choices=("llama", "qwen3"), default="llama", help="llama or qwen3")
    parser.add_argument("--depth", type=whole(1), default=4, metavar="N", help="layers of a new model")
    parser.add_argument("--width", type=whole(1), default=128, metavar="N", help="of its layers")
    parser.add_argument(
        "--vocab-size", type=whole(1), default=640, metavar="N", help="of its tokenizer, if one is trained"
    )
    given = parser.strict(argv)
    if given.model and given.tokenizer:
        raise ConfigError("cotrain pretrain: --model brings its own tokenizer; leave out --tokenizer")
    _begin(given)
    from cotrain.models.load import load_tokenizer
    from cotrain.stages import pretrain as stage
    from cotrain.stages.pretrain import steps_of
    from cotrain.stages.tokenizer import train_tokenizer

    aside = _aside(given)
    corpus = _text(given.data, given.seed, aside)
    _say(aside, given.out)
    chosen = config = None
    if not given.model:
        chosen = (
            load_tokenizer(given.tokenizer)
            if given.tokenizer
            else train_tokenizer(
                stage.sample_texts(_vocabulary(given.data, given.seed, _aside(given))), given.vocab_size
            )
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
        report=progress_of(steps_of(given.tokens, given.batch_tokens, given.length)),
        plan={"save_every": given.save_every},
        device=given.device,
    )
    _keep(aside, given.out)
    return ended(outcome, given.out)


def sft(argv: Sequence[str]) -> int:
    """Fine-tune a model on conversations: rows {"messages": [{"role", "content"}, …]}, or with --role those that a run
    will hold. For a solver solutions of problems: question and answer, prompt and completion, messages, or
    conversations (ShareGPT). For a verifier reviews of solutions: problem, steps and label, the first wrong step or -1.
    As .jsonl, .json, .csv or .parquet."""
    parser = Parser(prog="cotrain sft", description=sft.__doc__)
    _common(parser, lr=None, tokens=1_000_000)
    parser.add_argument("--model", required=True, help="directory, Hub name or embedded model to start from")
    _file(parser, ".jsonl or .parquet (default: procedural solutions and reviews)")
    parser.add_argument(
        "--role", choices=("solver", "verifier"), help="build what this role will see and say from --data"
    )
    parser.add_argument("--answer", metavar="FORMAT", help="with --role: tags, boxed, hash, phrase … (default: tags)")
    parser.add_argument(
        "--steps-as",
        metavar="WAY",
        help="with --role: tags, lines, numbered, sentences, paragraphs (default: lines; of a verifier's "
        "--from-samples as the solver writes)",
    )
    parser.add_argument("--prompt", metavar="FILE", help="with --role: how it is asked, a text with the mark {problem}")
    parser.add_argument(
        "--from-samples",
        action="store_true",
        help="with --role: learn the model's own right answers or reviews; --data has problems and answers",
    )
    parser.add_argument(
        "--verdict", metavar="FORM", help="with --role verifier: tags, words, boxed, first-wrong (default: tags)"
    )
    parser.add_argument(
        "--verifier-prompt", metavar="FILE", help="with --role verifier: how it is asked, with {problem}, {solution}"
    )
    parser.add_argument("--judge", choices=("steps", "genrm"), help="with --role verifier: its format (default: steps)")
    parser.add_argument(
        "--reviews",
        type=whole(0),
        metavar="K",
        help="with --role verifier --from-samples: reviews of a solution; 0: written from the truth (default: 4)",
    )
    parser.add_argument(
        "--samples", type=whole(1), default=4, metavar="K", help="with --from-samples: tries of a problem"
    )
    parser.add_argument("--max-tokens", type=whole(1), metavar="N", help="with --from-samples: tokens of an answer")
    given = parser.strict(argv)
    _check_role(parser, given)
    _begin(given)
    from cotrain.rollout.common_roles import mark_short_prompts, speaks_short
    from cotrain.stages import sft as stage
    from cotrain.stages.corpora import corpus_file, practice_of
    from cotrain.stages.pretrain import steps_of
    from cotrain.tasks.words.source import study_problems

    aside, samples = _aside(given), list[dict[str, Any]]()
    if given.role is not None:
        parts, samples = _of_role(given, aside)
        _say(aside, given.out)
    elif given.data is not None:
        parts = [(corpus_file(given.data, aside), 1)]
        _say(aside, given.out)
    else:
        parts = practice_of(study_problems((1, 9)), given.seed, "settle")
    outcome = stage.sft(
        given.model,
        given.out,
        conversations=parts,
        tokens=given.tokens,
        batch_tokens=given.batch_tokens,
        length=given.length,
        lr=given.lr or (1e-3 if speaks_short(given.model) else 2e-5),
        optimizer=given.optimizer,
        seed=given.seed,
        resume=given.resume,
        report=progress_of(steps_of(given.tokens, given.batch_tokens, given.length)),
        plan={"save_every": given.save_every},
        device=given.device,
    )
    if outcome.finished and given.data is None:
        mark_short_prompts(Path(given.out))
    if outcome.finished and samples:
        replace_file(Path(given.out) / "samples.jsonl", b"".join(map(encode_row, samples)))
    _keep(aside, given.out)
    return ended(outcome, given.out)


def _check_role(parser: Parser, given: Any) -> None:
    if given.role is not None and given.data is None:
        parser.error("--role needs the problems; add --data FILE")
    if given.role is None and (given.answer or given.steps_as or given.prompt or given.from_samples):
        parser.error("--answer, --steps-as, --prompt and --from-samples go with --role solver; add it")
    if given.role != "verifier" and (
        given.judge or given.verdict or given.verifier_prompt or given.reviews is not None
    ):
        parser.error("--judge, --verdict, --verifier-prompt and --reviews go with --role verifier; add it")
    if given.judge == "genrm" and (given.verdict or given.verifier_prompt):
        parser.error("--verdict and --verifier-prompt go with --judge steps; leave out --judge")
    if given.reviews is not None and not given.from_samples:
        parser.error("--reviews goes with --from-samples; add it, or leave it out")
    if given.role == "verifier" and (given.answer or given.steps_as or given.prompt) and not given.from_samples:
        parser.error(
            "--answer, --steps-as and --prompt are about the solver of --from-samples; add it, or leave them out"
        )


def _of_role(given: Any, aside: Quarantine | None) -> tuple[Any, list[dict[str, Any]]]:
    """The conversations of ``--role``, and those of them that the model made itself."""
    from cotrain.stages.reviews import gold_reviews, own_reviews, verifier_of
    from cotrain.stages.solutions import cut_as_written, gold_solutions, own_solutions, solver_of

    form: Any = given.judge or "steps"
    judging = {"verdict": given.verdict, "prompt": prompt_of(given.verifier_prompt, "--verifier-prompt")}
    if given.role == "verifier" and not given.from_samples:
        return [(gold_reviews(given.data, verifier_of(given.model, form, **judging), form, aside, say=progress), 1)], []
    prompt = prompt_of(given.prompt)
    role = solver_of(given.model, given.answer, prompt, given.max_tokens, given.steps_as)
    if not given.from_samples:
        return [(gold_solutions(given.data, role, aside), 1)], []
    how: dict[str, Any] = {"samples": given.samples, "seed": given.seed, "aside": aside, "say": progress}
    how["device"] = given.device
    if given.role == "verifier":
        looked = {key: value for key, value in how.items() if key != "samples"}
        role = cut_as_written(role, given.model, given.data, **looked)
        drawn = 4 if given.reviews is None else given.reviews
        corpus, rows = own_reviews(
            given.model, given.data, role, form, reviews=drawn, max_tokens=given.max_tokens, **judging, **how
        )
    else:
        corpus, rows = own_solutions(given.model, given.data, role, **how)
    return [(corpus, 1)], rows
