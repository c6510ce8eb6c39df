"""The commands that make and teach a model before RL: ``cotrain tokenizer``, ``pretrain`` and ``sft``; that write data
with a model: ``paraphrase``; and ``dpo`` and ``reward``, which are runs."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from cotrain import __version__
from cotrain.cli.common import (
    add_column_flags,
    add_device_flag,
    add_json_flag,
    add_threads_flag,
    device_of,
    load_libraries,
    prompt_of,
    set_threads,
)
from cotrain.cli.flags import Parser, add_count, real_number
from cotrain.core.errors import ConfigError, RunDirectoryError
from cotrain.core.verbosity import (
    QUIET_SECONDS,
    clock_text,
    escape_terminal,
    print_progress,
    remind_of,
    tell_result,
)
from cotrain.data.malformed_rows import Quarantine
from cotrain.storage.file_ops import filled_directory, replace_file
from cotrain.storage.jsonl import encode_row
from cotrain.storage.kept_work import KeptWork, claim_place, stamp_of
from cotrain.storage.schemas import QUARANTINE

if TYPE_CHECKING:
    from cotrain.cli.stage_ranks import StageCommand
    from cotrain.pretraining.ranks import Ranks

SMALL_RATE, LARGE_RATE = 1e-3, 2e-5  # of sft, below and from 100 million parameters on
SFT_LR = " (default: 1e-3 below 100 million parameters, else 2e-5, of sft --lora 1e-4)"


def _add_common_flags(parser: Parser, *, lr: float | None, tokens: int) -> None:
    parser.add_argument("--out", required=True, metavar="DIR", help="where the model goes")
    add_count(parser, "--tokens", "tokens to train on, padding counted", default=tokens)
    add_count(parser, "--batch-tokens", "tokens of one step", default=8192)
    add_count(parser, "--length", "tokens of one row", default=512)
    parser.add_argument(
        "--lr", type=real_number(above=0.0), default=lr, metavar="X", help="learning rate" + ("" if lr else SFT_LR)
    )
    parser.add_argument("--optimizer", choices=("adamw", "muon"), default="adamw", help="adamw or muon")
    add_count(parser, "--seed", "of weights and of the order of the text", least=0, default=0)
    add_count(parser, "--save-every", "steps between checkpoints", least=0, default=500)
    parser.add_argument("--resume", action="store_true", help="go on from the last checkpoint in --out")
    parser.add_argument("--tracker", action="append", default=[], metavar="NAME", help="tensorboard, wandb, trackio")
    parser.add_argument(
        "--backend", default="local", choices=("local", "ray"), help="this process, or more by Ray (default: local)"
    )
    add_count(parser, "--world", "with --backend ray: ranks, each with the whole model and a share of each batch")
    add_json_flag(parser)
    add_device_flag(parser)
    add_threads_flag(parser)


def _check_world(parser: Parser, arguments: Any) -> None:
    if (arguments.backend == "ray") != ((arguments.world or 1) > 1):
        parser.error("--backend ray and --world N, 2 or more, go together; give both, or neither")
    rows = arguments.batch_tokens // arguments.length
    if 0 < rows < (arguments.world or 1):
        parser.error(
            f"a batch of {rows} rows on {arguments.world} ranks: each wants a row; raise --batch-tokens, or lower "
            "--world"
        )


@contextmanager
def _ranks_of(command: StageCommand, argv: Sequence[str], arguments: Any, ranks: Ranks | None) -> Iterator[Ranks]:
    """The rank that this process is: the one that it was begun as, or else the first one, with others beside it where
    ``--world`` says so."""
    from cotrain.pretraining.ranks import ALONE

    if ranks is not None:
        yield ranks
    elif (arguments.world or 1) == 1:
        yield ALONE
    else:
        from cotrain.cli.stage_ranks import other_ranks

        with other_ranks(command, argv, arguments.world, arguments.device) as first:
            yield first


@contextmanager
def _report_to(arguments: Any, stage: str, ranks: Ranks) -> Iterator[Callable[[Any], None]]:
    """Who hears the rows of a training: the terminal, and the trackers of ``--tracker``; of another rank than the first
    nobody."""
    if not ranks.is_first:
        yield lambda row: None
        return
    from cotrain.pretraining.pretrain import step_count
    from cotrain.reports.trackers import TrackingObserver, check_trackers

    steps = step_count(arguments.tokens, arguments.batch_tokens, arguments.length)
    printer = StepPrinter(steps)
    about: dict[str, str | int] = {"recipe": stage, "seed": arguments.seed, "steps": steps}
    terminal = SimpleNamespace(message=print_progress, update=printer.show_row)
    with TrackingObserver(terminal, arguments.out, check_trackers(arguments.tracker), about=about) as watch:
        yield watch.update


def _report_outcome(outcome: Any, out: str) -> int:
    """Print what became of a training; returns the exit code."""
    loss = None if math.isnan(outcome.loss) else outcome.loss  # done before: JSON has no NaN
    found = {name: getattr(outcome, name) for name in ("step", "finished", "seconds", "sample")} | {"loss": loss}
    found |= {name: dict(getattr(outcome, name)) for name in ("validation", "bits_per_byte")}
    tell_result({"model": out, **found})
    if outcome.finished:
        held_out = ", ".join(f"{name} {value:.3f}" for name, value in outcome.validation.items())
        losses = "finished before" if math.isnan(outcome.loss) else f"loss {outcome.loss:.3f}; held out: {held_out}"
        losses += "".join(f"; {bits:.3f} bits per byte" for bits in outcome.bits_per_byte.values())
        if outcome.sample:
            print(f"a sample: {escape_terminal(outcome.sample)}")
        print(f"model: {out}  ({losses})")
        return 0
    print(f"stopped at step {outcome.step}; nothing is lost. Go on with the same command and --resume")
    return 130


def _add_data_flags(parser: Parser, what: str) -> None:
    parser.add_argument("--data", metavar="FILE", help=what)
    parser.add_argument("--lenient", action="store_true", help="set malformed rows aside, in OUT/quarantine.jsonl")


def _quarantine_of(arguments: Any) -> Quarantine | None:
    """Where malformed rows go; None where the first one is an error."""
    if arguments.lenient and arguments.data is None:
        raise ConfigError("--lenient is about the rows of --data FILE; leave it out", code="E_LENIENT_WITHOUT_DATA")
    return Quarantine() if arguments.lenient else None


def _note_quarantine(quarantine: Quarantine | None, out: str) -> None:
    if quarantine is not None and quarantine.refused:
        print(f"note: {quarantine.summary_line()}; all in {Path(out) / QUARANTINE} at the end", flush=True)


def _note_columns(parts: Sequence[tuple[Any, int]]) -> None:
    """Say which columns of the data were not read."""
    for corpus, _ in parts:
        for note in corpus.notes:
            print(escape_terminal(note), flush=True)


def _write_quarantine(quarantine: Quarantine | None, out: str) -> None:
    """Write what was set aside beside the result."""
    if quarantine is not None and quarantine.refused:
        quarantine.write(Path(out) / QUARANTINE)


def _set_up_machine(arguments: Any, ranks: Ranks | None = None) -> None:
    """Threads and device, before anything is read: of several ranks its share of the cores, and a GPU of its own.
    Raises ConfigError for a device that is not there."""
    from cotrain.core.threads import usable_cores

    world = getattr(arguments, "world", None) or 1
    if world > 1 and arguments.threads is None:
        arguments.threads = max(1, usable_cores() // world)
    load_libraries()
    set_threads(arguments.threads)
    device = device_of(arguments.device, here=world == 1)
    if world > 1 and device.startswith("cuda"):
        device = device_of(f"cuda:{ranks.rank if ranks is not None else 0}")
    arguments.device = device


def tokenizer(argv: Sequence[str]) -> int:
    """Train a byte-level BPE tokenizer with single-token digits."""
    parser = Parser(prog="cotrain tokenizer", description=tokenizer.__doc__)
    parser.add_argument("--out", required=True, metavar="DIR", help="a new directory")
    _add_data_flags(parser, ".txt, .jsonl, .json, .csv or .parquet (default: the procedural corpus)")
    add_count(parser, "--vocab-size", "tokens", default=640)
    add_count(parser, "--seed", "of the procedural corpus", least=0, default=0)
    arguments = parser.parse_strictly(argv)
    check_unused(arguments.out)
    claim_place(Path(arguments.out).parent)
    load_libraries()
    from cotrain.pretraining.pretrain import sample_texts
    from cotrain.pretraining.tokenizer import train_tokenizer

    quarantine = _quarantine_of(arguments)
    texts = _tokenizer_text(arguments.data, arguments.seed, quarantine)
    _note_quarantine(quarantine, arguments.out)
    _note_columns(texts)
    trained = train_tokenizer(sample_texts(texts), arguments.vocab_size)
    with filled_directory(Path(arguments.out)):
        trained.save_pretrained(arguments.out)
    _write_quarantine(quarantine, arguments.out)
    print(f"tokenizer: {arguments.out}  ({len(trained)} tokens)")
    return 0


def check_unused(out: str, *, resumable: bool = False) -> None:
    path = Path(out)
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        more = ", or go on with --resume" if resumable and path.is_dir() else ""
        raise RunDirectoryError(f"{out} is not an empty directory; choose another --out{more}", code="E_OUT_NOT_EMPTY")


def _training_text(file: str | None, seed: int, quarantine: Quarantine | None) -> list[tuple[Any, int]]:
    from cotrain.data.word_problems.corpus import pretraining_text
    from cotrain.data.word_problems.source import WordProblems
    from cotrain.pretraining.corpora import corpus_file, procedural_corpus

    if file is not None:
        return [(corpus_file(file, quarantine), 1)]
    source = WordProblems(operations=(2, 7))
    return [(procedural_corpus("words", lambda i: pretraining_text(source, seed, i)), 1)]


def _tokenizer_text(file: str | None, seed: int, quarantine: Quarantine | None) -> list[tuple[Any, int]]:
    """What a tokenizer learns from: the text, and for the procedural one also what roles say to each other."""
    from cotrain.data.word_problems.source import study_problems
    from cotrain.pretraining.corpora import practice_of

    text = _training_text(file, seed, quarantine)
    return text if file is not None else [(text[0][0], 4), *practice_of(study_problems((1, 9)), seed, "settle")]


def pretrain(argv: Sequence[str], ranks: Ranks | None = None) -> int:
    """Train a language model from nothing, or go on with one, on running text."""
    parser = Parser(prog="cotrain pretrain", description=pretrain.__doc__)
    _add_common_flags(parser, lr=3e-3, tokens=4_000_000)
    _add_data_flags(parser, ".txt, .jsonl, .json, .csv or .parquet (default: the procedural corpus)")
    parser.add_argument("--model", help="go on from this model")
    parser.add_argument("--tokenizer", metavar="DIR", help="tokenizer of a new model (default: one is trained)")
    parser.add_argument("--kind", choices=("llama", "qwen3"), default="llama", help="llama or qwen3")
    add_count(parser, "--depth", "layers of a new model", default=4)
    add_count(parser, "--width", "of its layers", default=128)
    add_count(parser, "--vocab-size", "of its tokenizer, if one is trained", default=640)
    arguments = parser.parse_strictly(argv)
    _check_world(parser, arguments)
    if arguments.model and arguments.tokenizer:
        raise ConfigError(
            "cotrain pretrain: --model brings its own tokenizer; leave out --tokenizer", code="E_MODEL_WITH_TOKENIZER"
        )
    claim_place(Path(arguments.out).parent)
    _set_up_machine(arguments, ranks)
    from cotrain.models.load import load_tokenizer
    from cotrain.pretraining import pretrain as stage
    from cotrain.pretraining.tokenizer import train_tokenizer

    quarantine = _quarantine_of(arguments)
    corpus = _training_text(arguments.data, arguments.seed, quarantine)
    if ranks is None:
        _note_quarantine(quarantine, arguments.out)
        _note_columns(corpus)
    chosen = config = None
    if not arguments.model:
        chosen = (
            load_tokenizer(arguments.tokenizer)
            if arguments.tokenizer
            else train_tokenizer(
                stage.sample_texts(_tokenizer_text(arguments.data, arguments.seed, _quarantine_of(arguments))),
                arguments.vocab_size,
            )
        )
        sizes = {"depth": arguments.depth, "width": arguments.width, "kind": arguments.kind}
        config = stage.config_for(chosen, context=max(stage.CONTEXT, arguments.length), **sizes)
    with _ranks_of(pretrain, argv, arguments, ranks) as own, _report_to(arguments, "pretrain", own) as report:
        outcome = stage.pretrain(
            arguments.out,
            corpus=corpus,
            tokens=arguments.tokens,
            model=arguments.model,
            config=config,
            tokenizer=chosen,
            batch_tokens=arguments.batch_tokens,
            length=arguments.length,
            lr=arguments.lr,
            optimizer=arguments.optimizer,
            seed=arguments.seed,
            resume=arguments.resume,
            report=report,
            plan={"save_every": arguments.save_every},
            device=arguments.device,
            ranks=own,
        )
    if not own.is_first:
        return 0
    _write_quarantine(quarantine, arguments.out)
    return _report_outcome(outcome, arguments.out)


def sft(argv: Sequence[str], ranks: Ranks | None = None) -> int:
    """Fine-tune a model on conversations: rows {"messages": [{"role", "content"}, …]}, or with --role those that a run
    will hold. For a solver solutions of problems: question and answer, prompt and completion, messages, or
    conversations (ShareGPT). For a verifier reviews of solutions: problem, steps and label, the first wrong step or -1.
    As .jsonl, .json, .csv or .parquet."""
    parser = Parser(prog="cotrain sft", description=sft.__doc__)
    _add_common_flags(parser, lr=None, tokens=1_000_000)
    parser.add_argument("--model", required=True, help="directory, Hub name or shipped model to start from")
    _add_data_flags(parser, ".jsonl, .json, .csv or .parquet (default: procedural solutions and reviews)")
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
    add_count(
        parser,
        "--reviews",
        "with --role verifier --from-samples: reviews of a solution; 0: written from the truth (default: 4)",
        least=0,
        metavar="K",
    )
    add_count(parser, "--samples", "with --from-samples: tries of a problem", default=4, metavar="K")
    add_count(parser, "--max-tokens", "with --from-samples: tokens of an answer")
    add_count(parser, "--lora", "train an adapter of this rank; the model that is written has it in its weights")
    arguments = parser.parse_strictly(argv)
    _check_world(parser, arguments)
    _check_role(parser, arguments)
    _set_up_machine(arguments, ranks)
    from cotrain.data.word_problems.source import study_problems
    from cotrain.models.lora import Lora
    from cotrain.pretraining import sft as stage
    from cotrain.pretraining.corpora import corpus_file, practice_of
    from cotrain.rollout.common_roles import mark_terse_prompts

    quarantine, samples, taught = _quarantine_of(arguments), list[dict[str, Any]](), dict[str, Any]()
    claim_place(Path(arguments.out).parent)
    keeps_work = arguments.from_samples and ranks is None
    work = KeptWork(Path(arguments.out), _sampling_settings(arguments)) if keeps_work else None
    if arguments.role is not None:
        parts, samples, taught = _role_conversations(arguments, quarantine, work)
        if ranks is None:
            _note_quarantine(quarantine, arguments.out)
    elif arguments.data is not None:
        parts = [(corpus_file(arguments.data, quarantine), 1)]
        if ranks is None:
            _note_quarantine(quarantine, arguments.out)
    else:
        parts = practice_of(study_problems((1, 9)), arguments.seed, "settle")
    if ranks is None:
        _note_columns(parts)
    with _ranks_of(sft, argv, arguments, ranks) as own, _report_to(arguments, "sft", own) as report:
        outcome = stage.sft(
            arguments.model,
            arguments.out,
            conversations=parts,
            tokens=arguments.tokens,
            batch_tokens=arguments.batch_tokens,
            length=arguments.length,
            lr=arguments.lr or _usual_rate(arguments),
            optimizer=arguments.optimizer,
            seed=arguments.seed,
            resume=arguments.resume,
            report=report,
            plan={"save_every": arguments.save_every},
            device=arguments.device,
            taught=taught,
            lora=None if arguments.lora is None else Lora(rank=arguments.lora),
            ranks=own,
        )
    if not own.is_first:
        return 0
    if outcome.finished and arguments.data is None:
        mark_terse_prompts(Path(arguments.out))
    if outcome.finished and work is not None:
        work.finish()
    if outcome.finished and samples:
        replace_file(Path(arguments.out) / "samples.jsonl", b"".join(map(encode_row, samples)))
    _write_quarantine(quarantine, arguments.out)
    return _report_outcome(outcome, arguments.out)


def _usual_rate(arguments: Any) -> float:
    """The learning rate where none is given."""
    from cotrain.config.large_model_defaults import ADAPTER_RATE, are_small

    if are_small([arguments.model]):
        return SMALL_RATE
    return LARGE_RATE if arguments.lora is None else ADAPTER_RATE


def _check_role(parser: Parser, arguments: Any) -> None:
    if arguments.role is not None and arguments.data is None:
        parser.error("--role needs the problems; add --data FILE")
    if arguments.role is None and (
        arguments.answer or arguments.steps_as or arguments.prompt or arguments.from_samples
    ):
        parser.error("--answer, --steps-as, --prompt and --from-samples go with --role solver or verifier; add it")
    if arguments.role != "verifier" and (
        arguments.judge or arguments.verdict or arguments.verifier_prompt or arguments.reviews is not None
    ):
        parser.error("--judge, --verdict, --verifier-prompt and --reviews go with --role verifier; add it")
    if arguments.judge == "genrm" and (arguments.verdict or arguments.verifier_prompt):
        parser.error("--verdict and --verifier-prompt go with --judge steps; leave out --judge")
    if arguments.from_samples and arguments.world is not None:
        parser.error("--from-samples draws in one process; do without --world, or learn its OUT/samples.jsonl with it")
    if arguments.reviews is not None and not arguments.from_samples:
        parser.error("--reviews goes with --from-samples; add it, or leave it out")
    if (
        arguments.role == "verifier"
        and (arguments.answer or arguments.steps_as or arguments.prompt)
        and not arguments.from_samples
    ):
        parser.error(
            "--answer, --steps-as and --prompt are about the solver of --from-samples; add it, or leave them out"
        )


SAMPLED_BY = (  # flags on which the samples of --from-samples depend
    *("role", "answer", "steps_as", "prompt", "verdict", "verifier_prompt", "judge", "reviews", "samples"),
    *("max_tokens", "seed", "lenient", "data", "model"),
)


def _sampling_settings(arguments: Any) -> dict[str, Any]:
    """All that the samples of ``--from-samples`` depend on."""
    settings = {name: getattr(arguments, name) for name in SAMPLED_BY}
    files = (arguments.prompt, arguments.verifier_prompt, arguments.data, arguments.model)
    return settings | {"files": [stamp_of(file) for file in files if file], "cotrain": __version__}


def _role_conversations(
    arguments: Any, quarantine: Quarantine | None, work: KeptWork | None
) -> tuple[Any, list[dict[str, Any]], dict[str, Any]]:
    """The conversations of ``--role``, those of them that the model made itself, and how the role is asked and read."""
    from cotrain.pretraining.reviews import gold_reviews, own_reviews, verifier_of
    from cotrain.pretraining.solutions import choose_step_format, gold_solutions, own_solutions

    form: Any = arguments.judge or "steps"
    judging = {"verdict": arguments.verdict, "prompt": prompt_of(arguments.verifier_prompt, "--verifier-prompt")}
    reviewer = verifier_of(arguments.model, form, **judging)
    taught_verifier = {"role": "verifier", "form": form, "verdict": reviewer.verdict_format, "prompt": reviewer.prompt}
    if arguments.role == "verifier" and not arguments.from_samples:
        corpus = gold_reviews(arguments.data, reviewer, form, quarantine, say=print_progress)
        return [(corpus, 1)], [], taught_verifier
    role = _solver_to_teach(arguments)
    taught_solver = {
        "role": "solver",
        "answer": role.answer_format,
        "steps_as": role.step_format,
        "prompt": role.prompt,
    }
    if not arguments.from_samples:
        return [(gold_solutions(arguments.data, role, quarantine), 1)], [], taught_solver
    sampling_options: dict[str, Any] = {
        "seed": arguments.seed,
        "aside": quarantine,
        "say": print_progress,
        "device": arguments.device,
    }
    if arguments.role == "solver":
        corpus, rows = own_solutions(
            arguments.model, arguments.data, role, samples=arguments.samples, work=work, **sampling_options
        )
        return [(corpus, 1)], rows, taught_solver
    corpus, rows = own_reviews(
        arguments.model,
        arguments.data,
        choose_step_format(role, arguments.model, arguments.data, **sampling_options),
        form,
        reviews=4 if arguments.reviews is None else arguments.reviews,
        samples=arguments.samples,
        max_tokens=arguments.max_tokens,
        work=work,
        **judging,
        **sampling_options,
    )
    return [(corpus, 1)], rows, taught_verifier


def _solver_to_teach(arguments: Any) -> Any:
    """The solver as the flags say; what they leave open of a solver whose own answers are learned, as it was taught."""
    from cotrain.pretraining.solutions import solver_of
    from cotrain.rollout.common_roles import taught_roles

    answer, steps, prompt = arguments.answer, arguments.steps_as, prompt_of(arguments.prompt)
    known = taught_roles(arguments.model).get("solver") if arguments.from_samples and answer is None else None
    if known:
        answer, steps, prompt = known.get("answer"), steps or known.get("steps_as"), prompt or known.get("prompt")
        print_progress(f"note: {arguments.model} was taught to answer as {answer!r}, and is asked and read so")
    return solver_of(arguments.model, answer, prompt, arguments.max_tokens, steps)


def paraphrase(argv: Sequence[str]) -> int:
    """Have a model say the problems of a file in other words, as `cotrain run co_rewarding --variant I` needs them."""
    parser = Parser(prog="cotrain paraphrase", description=paraphrase.__doc__)
    parser.add_argument("--data", required=True, metavar="FILE", help="problems: .jsonl, .json, .csv or .parquet")
    parser.add_argument("--model", required=True, help="the writer: directory or Hub name of a chat model")
    parser.add_argument("--out", required=True, metavar="FILE", help="a new .jsonl file")
    add_count(parser, "--tries", "of a problem, until one is kept", default=4, metavar="K")
    add_count(parser, "--seed", "of what is written", least=0, default=0)
    add_column_flags(parser)
    add_json_flag(parser)
    add_device_flag(parser)
    add_threads_flag(parser)
    arguments = parser.parse_strictly(argv)
    _set_up_machine(arguments)
    from cotrain.data.columns import ANY
    from cotrain.pretraining.paraphrases import paraphrase_file

    columns = (arguments.question_column or ANY.question, arguments.answer_column or ANY.answer)
    options = {"tries": arguments.tries, "device": arguments.device, "seed": arguments.seed, "say": print_progress}
    result = paraphrase_file(arguments.model, arguments.data, Path(arguments.out), columns=columns, **options)
    tell_result(result)
    print(
        "paraphrases: {written} written, {present} were there; {held_out} held-out problems need none".format(**result)
    )
    for reason, count in result["refused"].items():
        print(f"  {count} left out: {reason}")
    print(f"problems: {arguments.out}" + (f"; what was left out: {result['quarantine']}" if result["refused"] else ""))
    return 0


def dpo(argv: Sequence[str]) -> int:
    from cotrain.cli.run import run

    return run(["dpo", *argv])


def reward(argv: Sequence[str]) -> int:
    from cotrain.cli.run import run

    return run(["reward", *argv])


class StepPrinter:
    """Prints rows of a training with how many steps there are, and from the second row on the time that is left; and
    once a minute that a step goes on."""

    def __init__(self, steps: int) -> None:
        self._steps = steps
        self._first: tuple[int, float] | None = None  # the first row's step, and when it came
        self._last = self._said = time.monotonic()  # when the last row came, and the last line was printed
        self._step: int | None = None
        remind_of(self)

    def show_row(self, row: dict[str, Any]) -> None:
        """Print one row."""
        now, step = time.monotonic(), int(row["step"])
        self._first = self._first or (step, now)
        self._last, self._said, self._step = now, now, step
        begun, since = self._first
        left = ""
        if begun < step < self._steps:
            left = f"  {_duration_text((now - since) / (step - begun) * (self._steps - step))} left"
        shown = {**row, "step": f"{step} of {self._steps}"}
        print(
            "  ".join(f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in shown.items()) + left,
            flush=True,
        )

    def remind(self) -> None:
        """Say that what is under way goes on, where nothing was said for a minute."""
        now = time.monotonic()
        if now - self._said < QUIET_SECONDS:
            return
        self._said = now
        what = "the first step" if self._step is None else f"what follows step {self._step} of {self._steps}"
        print_progress(f"{what} goes on, after {clock_text(now - self._last)}")


def _duration_text(seconds: float) -> str:
    minutes = round(seconds / 60)
    return (
        f"{minutes // 60} h {minutes % 60:02d} min"
        if minutes >= 60
        else f"{minutes} min"
        if minutes
        else f"{seconds:.0f} s"
    )
