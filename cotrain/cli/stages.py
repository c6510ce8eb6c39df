"""What ``cotrain pretrain``, ``sft``, ``teach solver`` and ``teach verifier`` share. Each of them is a stage: it trains
a model before RL.

In the order of a command: its flags; checks before the work; malformed rows of the data; ranks that train together;
what is printed about the training.
"""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from cotrain.cli.common import add_device_flag, add_json_flag, add_threads_flag, device_of, load_libraries, set_threads
from cotrain.cli.flags import Parser, add_count, one_of, real_number
from cotrain.core.errors import ConfigError, RunDirectoryError
from cotrain.core.verbosity import (
    QUIET_SECONDS,
    clock_text,
    count_of,
    escape_terminal,
    print_progress,
    remind_of,
    shows_notes,
    tell_result,
)
from cotrain.data.malformed_rows import Quarantine
from cotrain.storage.file_ops import can_be_filled
from cotrain.storage.kept_work import claim_place
from cotrain.storage.schemas import QUARANTINE

if TYPE_CHECKING:
    from cotrain.cli.stage_ranks import StageCommand
    from cotrain.pretraining.ranks import Ranks

SAMPLES = "samples.jsonl"  # what the model wrote itself and learned


# -- Flags.


def add_stage_flags(parser: Parser, *, tokens: int, lr: float | None, lr_default: str = "") -> None:
    """The flags of every stage: where its model goes, how it is trained, and by which machine. If ``lr`` is None,
    ``lr_default`` describes the default for the help."""
    places = parser.add_argument_group("where it goes")
    places.add_argument("--out", required=True, metavar="DIR", help="where the model goes")
    places.add_argument("--resume", action="store_true", help="go on from the last checkpoint in --out")
    add_count(places, "--save-every", "steps between checkpoints", least=0, default=500)
    places.add_argument(
        "--tracker",
        action="append",
        default=[],
        metavar="NAME",
        help="tracker that is sent the figures: tensorboard, wandb, trackio",
    )
    add_json_flag(places)

    training = parser.add_argument_group("how it is trained")
    add_count(training, "--tokens", "tokens to train on, padding counted", default=tokens)
    add_count(training, "--batch-tokens", "tokens of one step", default=8192)
    add_count(training, "--length", "tokens of one row", default=512)
    lr_help = f"learning rate{lr_default}"
    training.add_argument("--lr", type=real_number(above=0.0), default=lr, metavar="X", help=lr_help)
    training.add_argument("--optimizer", **one_of("optimizer", "adamw", "muon"), default="adamw", help="the optimizer")
    add_count(training, "--seed", "random seed of weights and of the order of the text", least=0, default=0)

    machine = parser.add_argument_group("where it is computed")
    add_device_flag(machine)
    add_threads_flag(machine)
    backend_help = "where it runs: in this process, or in more by Ray (default: local)"
    machine.add_argument("--backend", **one_of("backend", "local", "ray"), default="local", help=backend_help)
    add_count(machine, "--world", "with --backend ray: ranks, each with the whole model and a share of each batch")


def add_lenient_flag(parser: Any) -> None:
    """``--lenient``, of the rows of ``--data``."""
    parser.add_argument("--lenient", action="store_true", help="set malformed rows aside, in OUT/quarantine.jsonl")


# -- What is refused before the work begins.


def prepare_stage(parser: Parser, arguments: Any, ranks: Ranks | None) -> None:
    """Check the arguments as far as possible without data and weights. Load the libraries, choose threads and device.

    ``ranks``: the rank that this process was started as, None for rank 0. Raises ConfigError, RunDirectoryError,
    DiskError, UnknownName, and ModelError for a model that is not there.
    """
    _check_world(parser, arguments)
    if ranks is None and not arguments.resume:
        check_unused(arguments.out, resumable=True)
    claim_place(Path(arguments.out).parent)
    set_up_machine(arguments, ranks)

    from cotrain.pretraining.pretrain import check_fits_context, check_sizes
    from cotrain.trackers.observer import check_trackers

    check_sizes(arguments.tokens, arguments.batch_tokens, arguments.length)
    check_trackers(arguments.tracker)
    if arguments.model:  # none of a new model
        check_fits_context(arguments.model, arguments.length, arguments.out)


def check_settings_unchanged(
    arguments: Any, *, start: str, lr: float, about: Mapping[str, Any], sampling: Mapping[str, Any] | None = None
) -> None:
    """Raise RunDirectoryError where ``--resume`` goes on with other settings than the training in ``--out`` was begun
    with, before the texts are read or drawn. ``start``: the model that it began with; ``about``: what is saved beside
    it; ``sampling``: the flags by which texts are drawn that the model itself writes."""
    if not arguments.resume:
        return
    from cotrain.pretraining.pretrain import step_count
    from cotrain.pretraining.trainer import check_resumed

    plan = {
        "steps": step_count(arguments.tokens, arguments.batch_tokens, arguments.length),
        "rows": arguments.batch_tokens // arguments.length,
        "length": arguments.length,
        "lr": lr,
        "optimizer": arguments.optimizer,
        "seed": arguments.seed,
    }
    check_resumed(arguments.out, plan, {"start": start, **about}, sampling)


def _check_world(parser: Parser, arguments: Any) -> None:
    world = arguments.world or 1
    has_several_ranks = world > 1
    if has_several_ranks != (arguments.backend == "ray"):
        parser.error("--backend ray and --world N, 2 or more, go together; give both, or neither")

    rows = arguments.batch_tokens // arguments.length
    if 0 < rows < world:
        parser.error(
            f"a batch of {rows} rows on {world} ranks: each wants a row; raise --batch-tokens, or lower --world"
        )


def check_unused(out: str, *, resumable: bool = False) -> None:
    """Raise RunDirectoryError where ``out`` is no new or empty directory."""
    path = Path(out)
    if not can_be_filled(path):
        resume_hint = ", or go on with --resume" if resumable and path.is_dir() else ""
        raise RunDirectoryError(
            f"{out} is not an empty directory; choose another --out{resume_hint}", code="E_OUT_NOT_EMPTY"
        )


def set_up_machine(arguments: Any, ranks: Ranks | None = None) -> None:
    """Load the libraries, and set ``arguments.threads`` and ``arguments.device``. Each of several ranks has its share
    of the cores and a GPU of its own. Raises ConfigError for a device that this machine lacks."""
    from cotrain.core.threads import usable_cores

    world = getattr(arguments, "world", None) or 1
    has_several_ranks = world > 1
    if has_several_ranks and arguments.threads is None:
        arguments.threads = max(1, usable_cores() // world)
    load_libraries()
    set_threads(arguments.threads)

    device = device_of(arguments.device, must_exist=not has_several_ranks)
    if has_several_ranks and device.startswith("cuda"):
        own_rank = 0 if ranks is None else ranks.rank
        device = device_of(f"cuda:{own_rank}")
    arguments.device = device


# -- Malformed rows of the data.


def quarantine_of(arguments: Any) -> Quarantine | None:
    """Collects malformed rows, with ``--lenient``. None without: then the first malformed row is an error."""
    if not arguments.lenient:
        return None
    if arguments.data is None:
        raise ConfigError("--lenient is about the rows of --data FILE; leave it out", code="E_LENIENT_WITHOUT_DATA")
    return Quarantine()


def note_quarantine(quarantine: Quarantine | None, out: str) -> None:
    """Say how many rows were set aside."""
    if quarantine is not None and quarantine.refused:
        place = Path(out) / QUARANTINE
        _print_note(f"note: {quarantine.summary_line()}; all in {place} at the end")


def write_quarantine(quarantine: Quarantine | None, out: str) -> None:
    """Write what was set aside next to the result."""
    if quarantine is not None and quarantine.refused:
        quarantine.write(Path(out) / QUARANTINE)


def note_columns(parts: Sequence[tuple[Any, int]]) -> None:
    """Say which columns of the data were not read."""
    for corpus, _ in parts:
        for note in corpus.notes:
            _print_note(note)


def _print_note(text: str) -> None:
    if shows_notes():
        print(escape_terminal(text), flush=True)


# -- Ranks, and what is said of a training.


def say_plan(arguments: Any, parts: Sequence[tuple[Any, int]], lr: float) -> None:
    """Say how long is trained, and on what."""
    from cotrain.pretraining.pretrain import step_count

    steps = step_count(arguments.tokens, arguments.batch_tokens, arguments.length)
    rows = arguments.batch_tokens // arguments.length
    sizes = f"{count_of(steps, 'step')} of {count_of(rows, 'row')} of {arguments.length:,} tokens"
    print_progress(f"plan: {sizes}, {arguments.optimizer} with learning rate {lr:g}")
    total_weight = sum(weight for _, weight in parts)
    for corpus, weight in parts:
        share = f"{weight} of {total_weight} parts: " if len(parts) > 1 else ""
        is_procedural = corpus.size is None
        size = "made as it is read, without an end" if is_procedural else count_of(corpus.size, "item")
        print_progress(f"  learns from {share}{corpus.name}, {size}")


@contextmanager
def ranks_of(command: StageCommand, argv: Sequence[str], arguments: Any, ranks: Ranks | None) -> Iterator[Ranks]:
    """Yield the rank of this process. Rank 0 starts the other ranks of ``--world`` here; ``ranks``: any other rank."""
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
def report_to(arguments: Any, stage: str, ranks: Ranks) -> Iterator[Callable[[Any], None]]:
    """Yield the function that is called with each row of metrics. It prints the row and passes it to the trackers of
    ``--tracker``; on ranks other than 0 it does nothing."""
    if not ranks.is_first:
        yield lambda row: None
        return

    from cotrain.pretraining.pretrain import step_count
    from cotrain.trackers.observer import TrackingObserver, check_trackers

    steps = step_count(arguments.tokens, arguments.batch_tokens, arguments.length)
    printer = StepPrinter(steps, is_new=not arguments.resume)
    terminal = SimpleNamespace(message=print_progress, update=printer.show_row)
    about: dict[str, str | int] = {"recipe": stage, "seed": arguments.seed, "steps": steps}
    with TrackingObserver(terminal, arguments.out, check_trackers(arguments.tracker), about=about) as observer:
        yield observer.update


class StepPrinter:
    """Prints each row of metrics, with the number of steps and the time left. After a silent minute it prints that the
    training goes on."""

    def __init__(self, steps: int, *, is_new: bool = False) -> None:
        """``is_new``: whether the training begins with step 1. A resumed one begins anywhere, and its first row says
        where; so the time left is printed from the second row on."""
        self._steps = steps
        self._row_time = time.monotonic()  # when the last row came
        # (step, time when it was over) from which the speed is measured; None until the first row of a resumed training
        self._start: tuple[int, float] | None = (0, self._row_time) if is_new else None
        self._print_time = self._row_time  # when the last line was printed
        self._step: int | None = None  # of the last row
        remind_of(self)  # calls ``remind`` every few seconds

    def show_row(self, row: dict[str, Any]) -> None:
        """Print one row."""
        now = time.monotonic()
        step = int(row["step"])
        if self._start is None:
            self._start = (step, now)
        self._row_time = now
        self._print_time = now
        self._step = step

        row_to_print = {**row, "step": f"{step} of {self._steps}"}
        words = [_figure_words(name, value) for name, value in row_to_print.items()]
        start_step, start_time = self._start
        if start_step < step < self._steps:
            step_seconds = (now - start_time) / (step - start_step)
            words.append(f"{_duration_text(step_seconds * (self._steps - step))} left")
        print("  ".join(words), flush=True)

    def remind(self) -> None:
        """Print that the training goes on, if nothing was printed for a minute."""
        now = time.monotonic()
        if now - self._print_time < QUIET_SECONDS:
            return
        self._print_time = now
        what = "the first step" if self._step is None else f"what follows step {self._step} of {self._steps}"
        print_progress(f"{what} goes on, after {clock_text(now - self._row_time)}")


def _figure_words(name: str, value: Any) -> str:
    return f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}"


def _duration_text(seconds: float) -> str:
    """``48 s``, ``12 min``, ``2 h 05 min``."""
    minutes = round(seconds / 60)
    if minutes >= 60:
        return f"{minutes // 60} h {minutes % 60:02d} min"
    if minutes >= 1:
        return f"{minutes} min"
    return f"{seconds:.0f} s"


def report_outcome(outcome: Any, out: str) -> int:
    """Print the result of a training, and return the exit code."""
    has_loss = math.isfinite(outcome.loss)  # not where a finished training is resumed
    tell_result(
        {
            "model": out,
            "step": outcome.step,
            "finished": outcome.finished,
            "seconds": outcome.seconds,
            "sample": outcome.sample,
            "loss": outcome.loss if has_loss else None,  # JSON has no NaN
            "validation": dict(outcome.validation),
            "bits_per_byte": dict(outcome.bits_per_byte),
        }
    )
    if not outcome.finished:
        print(f"stopped at step {outcome.step}; nothing is lost. Go on with the same command and --resume")
        return 128 + (outcome.signal or signal.SIGINT)

    held_out = ", ".join(f"{name} {value:.3f}" for name, value in outcome.validation.items())
    figures = ["finished before" if outcome.was_finished else f"loss {outcome.loss:.3f}; held out: {held_out}"]
    figures += [f"{bits:.3f} bits per byte" for bits in outcome.bits_per_byte.values()]
    if outcome.sample:
        print(f"a sample: {escape_terminal(outcome.sample)}")
    print(f"model: {out}  ({'; '.join(figures)})")
    return 0


def was_finished(arguments: Any) -> bool:
    """Whether ``--out`` holds a finished training on what the model wrote, with all that is written beside it."""
    from cotrain.pretraining.trainer import training_is_finished

    return training_is_finished(arguments.out) and (Path(arguments.out) / SAMPLES).is_file()


def report_finished(arguments: Any) -> int:
    """Print that the training was finished before, and return the exit code."""
    from cotrain.pretraining.pretrain import step_count
    from cotrain.pretraining.trainer import finished_before

    steps = step_count(arguments.tokens, arguments.batch_tokens, arguments.length)
    return report_outcome(finished_before(arguments.out, steps), arguments.out)
