"""One loop for likelihood training of a causal LM, pretraining and supervised alike: they differ in a mask.

Loss of a step: mean over the learned tokens of the whole batch of −log p(token | what precedes it in its document),
whatever the number of micro-batches. A batch is a function of one integer, the index of the next document, so a
checkpoint is weights, optimiser state and two integers, and a resumed run equals an uninterrupted one bit for bit on a
CPU (with the same number of threads).

Left out: shards of a model that is too large for one device, and evaluation other than the loss on held-out documents.
"""

from __future__ import annotations

import json
import math
import shutil
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from transformers import PreTrainedModel

from cotrain.core.errors import (
    ConfigError,
    CotrainError,
    ModelError,
    RunDirectoryError,
    StateError,
    UnknownName,
    first_line,
)
from cotrain.core.input_files import parse_json, read_regular
from cotrain.core.seeding import seed_of
from cotrain.core.types import take_fields
from cotrain.core.verbosity import PACE_SECONDS, count_of, print_progress
from cotrain.learner.optim import (
    Optimizer,
    adamw,
    has_bfloat16,
    load_optimizer_tensors,
    lr_multiplier,
    optimizer_tensors,
    trainable_parameters,
)
from cotrain.models.attention import IMPLEMENTATION, can_isolate, isolate_documents, takes_mask
from cotrain.models.memory import out_of_memory
from cotrain.models.shared_prefix import masks_by_kind
from cotrain.pretraining.batches import Documents, batches_ahead, pack_all
from cotrain.pretraining.muon import muon
from cotrain.pretraining.packing import PADDING, Document, PackedBatch, block_mask, segment_lengths
from cotrain.pretraining.ranks import ALONE, Ranks
from cotrain.runs.out_of_room import DiskRetry
from cotrain.storage import checkpoints
from cotrain.storage.file_ops import replace_file
from cotrain.storage.jsonl import JsonlWriter, read_jsonl, truncate_after, try_read_object
from cotrain.storage.lock import RunLock
from cotrain.storage.schemas import RESULT
from cotrain.trainer.failures import Interrupted, stop_on_signal

OPTIMIZERS = {"adamw": adamw, "muon": muon}
FAR = 1e-3  # share of the logits' spread that is rounding
METRICS, SETTINGS, CHECKPOINTS = "metrics.jsonl", "training.json", "checkpoints"  # in the run's directory
TRASH = ".trash"  # what the checkpoints of a finished training are called while they are removed
VALIDATION = "validation/"  # before the name of held-out documents, in a row of metrics
THREADS = "threads"  # key of the settings: with how many the training was begun
SECONDS_UNSAVED = 1800.0  # the longest that a training with checkpoints goes on without one
SAMPLING = "sampling"  # of what is saved about a training: how texts were drawn that the model itself wrote
# Fields that may differ when a run is resumed. Texts that were drawn in another way are other texts, which differ.
CHANGEABLE_FIELDS = {"log_every", "save_every", "keep", SAMPLING}


class NonFiniteLoss(CotrainError):
    """The loss or the gradient's norm is not a number; the weights were not changed by it."""

    code = "E_LOSS_NOT_FINITE"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingPlan:
    """How to train."""

    steps: int
    rows: int  # rows of one batch
    length: int  # tokens of one row
    lr: float
    seed: int = 0
    optimizer: str = "adamw"  # or "muon"
    betas: tuple[float, float] = (0.9, 0.95)
    weight_decay: float = 0.0
    warmup: int = 0  # steps
    decay_fraction: float = 1.0  # the last share of all steps
    shape: str = "linear"  # shape of the decay: "linear", "cosine", "wsd"
    clip: float = 1.0  # largest gradient norm
    micro: int = 0  # rows of one forward pass; 0: the whole batch at once
    isolate: bool = True  # documents in one row do not see each other
    autocast: bool | None = None  # bfloat16 arithmetic; None: where the processor has it
    log_every: int = 10
    validate_every: int = 200  # and once at the end; 0: never
    save_every: int = 500  # and every half hour, and when interrupted; 0: only when interrupted
    keep: int = 2  # checkpoints


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingOutcome:
    """How a run ended."""

    step: int  # steps done and saved, of all calls
    finished: bool  # False: interrupted, go on with resume=True
    loss: float  # training loss of the last step, nats per token; NaN when no step was done
    validation: Mapping[str, float]  # by name, nats per token; empty when none was computed in this call
    seconds: float  # seconds of this call
    signal: int = 0  # number of the signal by which it was interrupted; 0: of none, or of another rank's
    was_finished: bool = False  # the training was finished before, and nothing was done
    bits_per_byte: Mapping[str, float] = field(default_factory=dict)  # bits per byte of held-out running text, by name
    sample: str = ""  # how the model goes on from the beginning of a held-out text


def finished_before(out: str | Path, steps: int) -> TrainingOutcome:
    """The outcome of a training of so many steps that was finished before, and to which nothing was added. Removes what
    a kill left of its checkpoints."""
    shutil.rmtree(Path(out) / TRASH, ignore_errors=True)
    return TrainingOutcome(step=steps, finished=True, loss=math.nan, validation={}, seconds=0.0, was_finished=True)


def train(
    model: nn.Module,
    documents: Documents,
    out: str | Path,
    plan: TrainingPlan,
    pad_id: int,
    validation: Mapping[str, Sequence[Document]] | None = None,
    about: Mapping[str, Any] | None = None,
    resume: bool = False,
    finish: Callable[[TrainingOutcome], TrainingOutcome] | None = None,
    report: Callable[[dict[str, Any]], None] | None = None,
    say: Callable[[str], None] = print_progress,
    ranks: Ranks = ALONE,
) -> TrainingOutcome:
    """Train ``model`` in place; metrics, settings and checkpoints go to ``out``.

    Args:
        documents: training documents by index, endless.
        validation: held-out documents by name; their loss is logged as ``validation/name`` (nats per learned token).
        about: JSON description of model and text, saved with the plan; a run is resumed only with the same.
        resume: go on from the newest checkpoint in ``out`` (or start, if there is none yet). When the run is finished
            already, nothing is done and ``model`` stays as it is.
        finish: called when all steps are done, to write all that is kept of the training; returns the outcome, to
            which it may add. The checkpoints are deleted after it returns: if it is killed, a resumed training calls
            it again.
        report: called with every metrics line as it is written, and with step and loss of a step that ends more than
            five seconds after the last one that was reported, before its held-out documents are measured.
        say: hears that a full disk is waited for, and that a training goes on with other threads.
        ranks: which part of each batch is computed here; ``finish`` and ``report`` are the first rank's.

    SIGINT, SIGTERM and SIGHUP save a checkpoint after the running step and return with ``finished=False``. A full disk
    is waited for, as in a run. An error ends the training with a checkpoint of the last finished step.
    Raises RunDirectoryError when ``out`` holds something else or is not to be resumed, NonFiniteLoss, DataError, and
    ModelError for a model that cannot learn to predict these tokens.
    """
    device = next(model.parameters()).device
    if plan.autocast is None:
        plan = replace(plan, autocast=has_bfloat16(device))
    check_plan(plan)
    out = Path(out)
    settings = _as_json({"plan": asdict(plan), "about": dict(about or {})})
    if ranks.is_first:
        threads = _claim_directory(out, settings, resume)
        if training_is_finished(out):
            return finished_before(out, plan.steps)
        settings[THREADS] = threads or torch.get_num_threads()
        if settings[THREADS] != torch.get_num_threads():
            say(
                f"note: this training was begun with {count_of(settings[THREADS], 'thread')} and goes on with "
                f"{torch.get_num_threads()}: sums may round differently, so it is the same training but not bit for bit"
            )

    check_causal(model)
    optimizer = OPTIMIZERS[plan.optimizer](model, plan.lr, betas=plan.betas, weight_decay=plan.weight_decay)
    held_out = {
        name: pack_all(items, plan.rows, plan.length, pad_id, device) for name, items in (validation or {}).items()
    }
    vocabulary = _embedding_count(model)
    for packed in held_out.values():
        for batch in packed:
            _check_ids(batch, vocabulary)

    start_time = time.perf_counter()
    loss = math.nan
    losses: dict[str, float] = {}
    with RunLock(out / CHECKPOINTS) if ranks.is_first else nullcontext():
        if ranks.is_first:
            replace_file(out / SETTINGS, json.dumps(settings, indent=2).encode())
        step, cursor = _load_on_each(out, model, optimizer, ranks)
        model.train()
        with (
            JsonlWriter(out / METRICS) if ranks.is_first else nullcontext() as metrics,
            stop_on_signal() as get_signal,
            isolate_documents(model) if plan.isolate and can_isolate(model) else nullcontext(),
            batches_ahead(documents, plan.rows, plan.length, pad_id, cursor, plan.steps - step, device) as batches,
        ):
            retry_when_full = DiskRetry(get_signal, say)
            saver = CheckpointSaver(out, model, optimizer, plan, metrics, retry_when_full, step=step, cursor=cursor)
            speed = SpeedMeter()
            log = StepLog(metrics, report, retry_when_full)
            with saver.saving_at_end():
                while step < plan.steps and not ranks.any_of(get_signal() != 0, device):
                    rate = lr_multiplier(step, plan.steps, plan.warmup, plan.decay_fraction, plan.shape)
                    cursor, batch = next(batches)
                    _check_ids(batch, vocabulary)
                    saver.begin_step()
                    loss, norm = update(model, optimizer, batch, plan, rate, step, ranks)
                    step += 1
                    speed.add(batch.ids.numel())

                    row: dict[str, Any] = {}
                    if _is_due(step, plan.log_every, plan.steps):
                        row = {
                            "step": step,
                            "loss": loss,
                            "norm": norm,
                            "rate": plan.lr * rate,
                            "documents": cursor,
                            "learned_tokens": int(batch.learn.sum()),
                            "filled": round((batch.segments != PADDING).float().mean().item(), 4),
                            "tokens_per_second": speed.measure(),
                        }
                    if held_out and _is_due(step, plan.validate_every, plan.steps):
                        log.tell_step(step, loss)  # what is held out may take minutes
                        with speed.pause():
                            losses = {name: evaluate(model, packed, plan, ranks) for name, packed in held_out.items()}
                        row |= {"step": step} | {VALIDATION + name: value for name, value in losses.items()}
                    if row:
                        log.write(row)
                    else:
                        log.tell_step(step, loss)
                    saver.end_step(step, cursor)
        model.eval()
        if ranks.is_first:
            step = saver.saved_step  # not the last one where the wait for a full disk was interrupted
        outcome = TrainingOutcome(
            step=step,
            finished=step == plan.steps,
            loss=loss,
            validation={name: value for name, value in losses.items() if math.isfinite(value)},
            seconds=time.perf_counter() - start_time,
            signal=get_signal(),
        )
        if ranks.is_first and outcome.finished:
            if math.isnan(loss):  # its last step was made by a call that was killed before it had written the result
                outcome = _with_saved_figures(outcome, out / METRICS)
            if finish is not None:
                outcome = finish(outcome)
            _drop_checkpoints(out)
    return outcome


class SpeedMeter:
    """Tokens a second since it was last asked, without the pauses."""

    def __init__(self) -> None:
        self._tokens = 0
        self._since = time.perf_counter()

    def add(self, tokens: int) -> None:
        """So many more tokens were trained on."""
        self._tokens += tokens

    def measure(self) -> int:
        """Tokens a second, and begin again."""
        now = time.perf_counter()
        speed = round(self._tokens / (now - self._since))
        self._tokens = 0
        self._since = now
        return speed

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Leave the seconds inside of the block out of the count."""
        start = time.perf_counter()
        yield
        self._since += time.perf_counter() - start


class StepLog:
    """Writes rows of a training and tells them; of another rank than the first, whose ``metrics`` are None, nothing."""

    def __init__(
        self,
        metrics: JsonlWriter | None,
        report: Callable[[dict[str, Any]], None] | None,
        retry_when_full: DiskRetry,
    ) -> None:
        self._metrics = metrics
        self._report = report
        self._retry_when_full = retry_when_full
        self._told_time = time.perf_counter()

    def write(self, row: dict[str, Any]) -> None:
        """Write a row, and tell it. Raises Interrupted, DiskError."""
        if self._metrics is None:
            return
        self._retry_when_full(self._metrics.append, row)
        self._tell(row)

    def tell_step(self, step: int, loss: float) -> None:
        """Report a step that is not written yet, if nothing was reported for some seconds."""
        if self._metrics is not None and time.perf_counter() - self._told_time >= PACE_SECONDS:
            self._tell({"step": step, "loss": loss})

    def _tell(self, row: dict[str, Any]) -> None:
        if self._report is not None:
            self._report(row)
            self._told_time = time.perf_counter()


class CheckpointSaver:
    """Saves the state after the last finished step; on ranks other than the first, whose ``metrics`` are None, nothing
    is saved."""

    def __init__(
        self,
        out: Path,
        model: nn.Module,
        optimizer: Optimizer,
        plan: TrainingPlan,
        metrics: JsonlWriter | None,
        retry_when_full: DiskRetry,
        *,
        step: int,
        cursor: int,
    ) -> None:
        """``step``, ``cursor``: steps done at the checkpoint that the training goes on from, and its next document."""
        self._out = out
        self._model = model
        self._optimizer = optimizer
        self._plan = plan
        self._metrics = metrics
        self._retry_when_full = retry_when_full
        self._step = step
        self._cursor = cursor
        self._is_updating = False  # True from the beginning of an update until its step is finished
        self._saved_time = time.monotonic()
        self.saved_step = step

    def begin_step(self) -> None:
        """The update of the next step begins."""
        self._is_updating = True

    def end_step(self, step: int, cursor: int) -> None:
        """So many steps are finished, and written to metrics. Saves them if a checkpoint is due. Raises Interrupted,
        DiskError."""
        self._is_updating = False
        self._step = step
        self._cursor = cursor
        every = self._plan.save_every
        seconds_unsaved = time.monotonic() - self._saved_time
        if every and (step % every == 0 or seconds_unsaved >= SECONDS_UNSAVED):
            self._save_waiting()

    @contextmanager
    def saving_at_end(self) -> Iterator[None]:
        """Save the last finished step when the block ends, also if an error ends it. If the wait for a full disk is
        interrupted, the checkpoint before stays the newest."""
        try:
            yield
            self._save_waiting()
        except Interrupted:
            return
        except Exception as error:
            has_weights_of_step = isinstance(error, NonFiniteLoss) or not self._is_updating
            if has_weights_of_step:
                with suppress(Exception):  # the first error is the one to report
                    self._save()
            raise

    def _save_waiting(self) -> None:
        """Save; while the disk is full, wait for room."""
        self._retry_when_full(self._save)

    def _save(self) -> None:
        if self._metrics is None or self._step == self.saved_step:
            return
        self._metrics.sync()
        _save_checkpoint(self._out, self._model, self._optimizer, self._step, self._cursor, self._plan.keep)
        self.saved_step = self._step
        self._saved_time = time.monotonic()


def update(
    model: nn.Module,
    optimizer: Optimizer,
    batch: PackedBatch,
    plan: TrainingPlan,
    rate: float,
    step: int,
    ranks: Ranks = ALONE,
) -> tuple[float, float]:
    """One optimiser step; returns the mean loss of the learned tokens and the gradient's norm before clipping."""
    rows = batch.ids.shape[0]
    micro = plan.micro or rows
    first, end = ranks.own_rows(rows)
    learned = batch.learn[:, 1:].sum().clamp(min=1)
    total = torch.zeros((), device=batch.ids.device)
    with torch.random.fork_rng():  # dropout, where a model has it, is drawn at this step's address
        torch.manual_seed(seed_of(plan.seed, "dropout", step))
        for start in range(first, end, micro):
            part = batch.select_rows(start, min(start + micro, end))
            losses = token_losses(model, part, plan.isolate, bool(plan.autocast))
            loss = (losses * part.learn[:, 1:]).sum() / learned
            if loss.requires_grad:  # not where no document of these rows has two tokens
                loss.backward()
            total += loss.detach()
    if ranks.world > 1:
        ranks.sum_gradients(optimizer.parameters())
        total = total.new_tensor(ranks.sum_of([total.item()], total.device)[0])
    norm = nn.utils.clip_grad_norm_(list(optimizer.parameters()), plan.clip)
    if not (math.isfinite(total.item()) and math.isfinite(norm.item())):
        optimizer.zero_grad()
        raise NonFiniteLoss(
            f"step {step + 1}: loss {total.item()}, gradient norm {norm.item()}; the weights are those of step {step}; "
            "lower lr or lengthen warmup, and look at the documents of this batch"
        )
    optimizer.step(rate)
    optimizer.zero_grad()
    return total.item(), norm.item()


def token_losses(model: nn.Module, batch: PackedBatch, isolate: bool = True, autocast: bool = False) -> torch.Tensor:
    """Negative log-likelihoods ``[B, L−1]`` in float32: place t is the loss of predicting token t+1, unmasked; 0 where
    no document goes on, for models whose documents do not run in one row."""
    rows, length = batch.ids.shape
    places: dict[str, Any] = {"position_ids": batch.positions}
    if not isolate:
        places = {"position_ids": torch.arange(length, device=batch.ids.device).expand(rows, length)}
    elif isinstance(model, PreTrainedModel) and model.config._attn_implementation == IMPLEMENTATION:
        places["document_lengths"] = segment_lengths(batch.segments)
    elif takes_mask(model):
        assert isinstance(model, PreTrainedModel)
        mask = block_mask(batch.segments)
        places["attention_mask"] = masks_by_kind(model.config, mask, batch.positions, batch.positions)
    else:
        return _losses_of_documents(model, batch, autocast)
    return _row_losses(model, batch.ids, autocast, **places)


def _row_losses(model: nn.Module, ids: torch.Tensor, autocast: bool, **places: Any) -> torch.Tensor:
    with torch.autocast(ids.device.type, torch.bfloat16, enabled=autocast):
        logits = model(input_ids=ids, use_cache=False, **places).logits
    losses = F.cross_entropy(logits[:, :-1].float().flatten(0, 1), ids[:, 1:].flatten(), reduction="none")
    return losses.view(ids.shape[0], -1)


def _losses_of_documents(model: nn.Module, batch: PackedBatch, autocast: bool) -> torch.Tensor:
    """As ``token_losses``, each document from the first place of a row on, together with those of about its length.

    No mask of ours knows windows, recurrent layers and biases; of a causal model, whatever follows a document changes
    nothing in it.
    """
    ids = batch.ids.flatten()
    segments = batch.segments.flatten().tolist()
    alike: dict[int, list[tuple[int, int]]] = {}  # (first place, tokens) of documents, at most twice as long as another
    start = 0
    for size in segment_lengths(batch.segments):
        if size > 1 and segments[start] != PADDING:
            alike.setdefault((size - 1).bit_length(), []).append((start, size))
        start += size
    losses = torch.zeros(ids.shape, device=ids.device)
    for spans in alike.values():
        starts, sizes = torch.tensor(spans, device=ids.device).T[..., None]
        offsets = torch.arange(int(sizes.max()), device=ids.device)
        places = starts + offsets
        own = (offsets < sizes)[:, 1:]
        row_losses = _row_losses(model, ids[places.clamp(max=len(ids) - 1)], autocast)
        losses = losses.index_put((places[:, 1:][own],), row_losses[own])
    return losses.view(batch.ids.shape)[:, 1:]


@torch.no_grad()
def evaluate(model: nn.Module, batches: Sequence[PackedBatch], plan: TrainingPlan, ranks: Ranks = ALONE) -> float:
    """Mean loss per learned token over all batches; NaN when nothing is to be learned in them."""
    training = model.training
    model.eval()
    total = 0.0
    learned = 0
    for batch in batches[ranks.rank :: ranks.world]:
        for start in range(0, batch.ids.shape[0], plan.micro or plan.rows):
            part = batch.select_rows(start, start + (plan.micro or plan.rows))
            losses = token_losses(model, part, plan.isolate, bool(plan.autocast))
            total += (losses * part.learn[:, 1:]).sum().item()
            learned += int(part.learn[:, 1:].sum())
    model.train(training)
    whole, counted = ranks.sum_of([total, learned], next(model.parameters()).device)
    return whole / counted if counted else math.nan


@torch.no_grad()
def check_causal(model: nn.Module) -> None:
    """Raise ModelError for a model that sees the tokens that it is to predict, as encoders do, or that cannot be asked
    with tokens alone: the last of a few tokens must change nothing before it."""
    name = type(model).__name__
    training = model.training
    first = next(model.parameters())
    ids = torch.tensor([[1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 5, 7]], device=first.device) % _embedding_count(model)
    model.eval()
    try:
        one, other = model(input_ids=ids, use_cache=False).logits[:, :-1].float()
    except (ValueError, TypeError, AttributeError, KeyError, IndexError, RuntimeError) as error:
        if out_of_memory(error):
            raise
        raise ModelError(
            f"{name} cannot be trained on text alone ({first_line(error)}); use another model",
            code="E_MODEL_NOT_TRAINABLE",
        ) from error
    finally:
        model.train(training)
    if bool((one - other).norm() > FAR * (one - one.mean(-1, keepdim=True)).norm()):
        raise ModelError(
            f"{name} sees the tokens that it is to predict; expected a causal language model (of a decoder among "
            'encoders config.json says "is_decoder": true)',
            code="E_MODEL_NOT_CAUSAL",
        )


def _embedding_count(model: nn.Module) -> int:
    """How many tokens it knows."""
    assert isinstance(model, PreTrainedModel)
    embeddings: Any = model.get_input_embeddings()
    return int(embeddings.weight.shape[0])


def _check_ids(batch: PackedBatch, vocabulary_size: int) -> None:
    """Raise ModelError for a token that the model has no embedding for."""
    largest = int(batch.ids.max())
    if largest >= vocabulary_size:
        raise ModelError(
            f"the tokenizer gives a text the token {largest}, but the model knows {vocabulary_size} tokens, 0 to "
            f"{vocabulary_size - 1}; save it with as many embeddings (`resize_token_embeddings`), or take the "
            "tokenizer that belongs to it",
            code="E_TOKEN_BEYOND_EMBEDDINGS",
        )


def _is_due(step: int, every: int, last: int) -> bool:
    return every > 0 and (step % every == 0 or step == last)


def check_plan(plan: TrainingPlan) -> None:
    """Raise ConfigError for a setting that is out of its range, UnknownName for an optimizer there is not."""
    if plan.optimizer not in OPTIMIZERS:
        raise UnknownName("optimizer", plan.optimizer, OPTIMIZERS)
    for name, least in (("steps", 1), ("rows", 1), ("length", 2), ("keep", 1), ("micro", 0), ("save_every", 0)):
        if getattr(plan, name) < least:
            raise ConfigError(
                f"training plan: {name} must be {least} or more, found {getattr(plan, name)}",
                code="E_TRAINING_PLAN_RANGE",
            )
    if not (plan.lr > 0 and plan.clip > 0):
        raise ConfigError(
            f"training plan: lr and clip must be positive, found {plan.lr} and {plan.clip}",
            code="E_TRAINING_PLAN_RANGE",
        )
    lr_multiplier(0, plan.steps, plan.warmup, plan.decay_fraction, plan.shape)


def read_result(directory: str | Path) -> dict[str, Any]:
    """Return the result that a finished ``pretrain`` or ``sft`` wrote next to its model; {} where there is none to be
    read."""
    return try_read_object(Path(directory) / RESULT)


def begin_time(out: str | Path) -> str | None:
    """When the training in a directory was begun, where that is of its settings."""
    about = try_read_object(Path(out) / SETTINGS).get("about")
    begun = about.get("begun") if isinstance(about, dict) else None
    return begun if isinstance(begun, str) else None


def check_resumed(
    out: str | Path, plan: Mapping[str, Any], about: Mapping[str, Any], sampling: Mapping[str, Any] | None = None
) -> None:
    """Raise RunDirectoryError where ``out`` holds no training that could go on with these settings, before long work is
    done for it. ``plan`` and ``about`` are the settings that are known by then; ``train`` compares all of them.
    ``sampling``: how texts are to be drawn that the model itself writes."""
    out = Path(out)
    _check_is_training(out)
    if not (out / SETTINGS).is_file():
        return
    saved_settings = _read_settings(out)
    for part, fields in {"plan": _as_json(plan), "about": _as_json(about)}.items():
        _check_same_fields(out, part, fields, saved_settings.get(part, {}), fields)
    saved_sampling = saved_settings.get("about", {}).get(SAMPLING)
    if saved_sampling is not None:  # not of texts that the model did not write, nor of an earlier version
        flags = _as_json(sampling or {})
        _check_same_fields(out, SAMPLING, flags, saved_sampling, flags.keys() | saved_sampling.keys())


def training_is_finished(out: str | Path) -> bool:
    """Whether the training in a directory has done all of its steps."""
    return (Path(out) / SETTINGS).is_file() and not (Path(out) / CHECKPOINTS).is_dir()


def _with_saved_figures(outcome: TrainingOutcome, metrics: Path) -> TrainingOutcome:
    """The outcome with loss and held-out losses of its last step, as an earlier call wrote them."""
    rows = [row for row in read_jsonl(metrics) if row.get("step") == outcome.step]
    figures = {key: value for row in rows for key, value in row.items() if value is not None}
    validation = {key.removeprefix(VALIDATION): value for key, value in figures.items() if key.startswith(VALIDATION)}
    return replace(outcome, loss=figures.get("loss", math.nan), validation=validation)


def _claim_directory(out: Path, settings: dict[str, Any], resume: bool) -> int | None:
    """Refuse ``out`` when something else is in it, or a run that is not to be resumed or had other settings. Returns
    the number of threads that a run in it was begun with, None if there is none or it did not say."""
    _check_is_training(out)
    if not (out / SETTINGS).is_file():
        return None
    if not resume:
        raise RunDirectoryError(
            f"{out} holds a training run; resume it, or choose another directory", code="E_OUT_HOLDS_TRAINING"
        )
    saved_settings = _read_settings(out)
    for part, fields in settings.items():
        saved_fields = saved_settings.get(part, {})
        names = fields.keys() | saved_fields.keys()
        _check_same_fields(out, part, fields, saved_fields, names - CHANGEABLE_FIELDS)
    threads = saved_settings.get(THREADS)
    return threads if isinstance(threads, int) else None


def _check_is_training(out: Path) -> None:
    """Raise RunDirectoryError for what is there and is no directory of a training."""
    if not (out / SETTINGS).is_file() and out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise RunDirectoryError(
            f"{out} exists and is not a training run; choose a new directory", code="E_OUT_NOT_TRAINING"
        )


def _as_json(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings as they come back from a file."""
    as_read: dict[str, Any] = json.loads(json.dumps(settings, default=str))
    return as_read


def _read_settings(out: Path) -> dict[str, Any]:
    """The settings of the training in a directory. Raises RunDirectoryError for a file that is not as it was
    written."""
    path = out / SETTINGS
    try:
        settings = parse_json(read_regular(path))
        compared = [settings.get("plan", {}), settings.get("about", {})] if isinstance(settings, dict) else [None]
        if not all(isinstance(part, dict) for part in compared):
            raise ValueError("expected an object of objects")
    except (OSError, ValueError) as error:
        raise RunDirectoryError(
            f"{path} is damaged ({error}); restore it, or choose another directory", code="E_TRAINING_DAMAGED"
        ) from error
    return settings


def _check_same_fields(
    out: Path, part: str, fields: Mapping[str, Any], saved_fields: Mapping[str, Any], names: Collection[str]
) -> None:
    """Raise RunDirectoryError for a field of these names that differs from the one that was saved."""
    for name in sorted(names):
        if saved_fields.get(name) != fields.get(name):
            raise RunDirectoryError(
                f"{out} was begun with {part} {name} = {saved_fields.get(name)!r}, now it is {fields.get(name)!r}; "
                "resume with the same, or choose another directory",
                code="E_TRAINING_DIFFERS",
            )


def _save_checkpoint(out: Path, model: nn.Module, optimizer: Optimizer, step: int, cursor: int, keep: int) -> None:
    """One checkpoint: weights, optimiser state, two integers; a transaction (``disk.transaction``)."""
    weights = {name: parameter.detach() for name, parameter in trainable_parameters(model).items()}
    tensors = {"model": weights, "optimizer": optimizer_tensors(optimizer, model)}
    checkpoints.save_checkpoint(
        out / CHECKPOINTS, step, tensors, {"state": {"step": step, "cursor": cursor}}, keep=keep
    )


def _load_on_each(out: Path, model: nn.Module, optimizer: Optimizer, ranks: Ranks) -> tuple[int, int]:
    """(step, next document) of the newest checkpoint, restored on every rank, and the metrics behind it dropped. The
    first rank looks first, as it may set a damaged one aside."""
    device = next(model.parameters()).device
    if ranks.is_first:
        step, cursor = _load_checkpoint(out, model, optimizer)
        truncate_after(out / METRICS, step)
    ranks.wait(device)
    if not ranks.is_first:
        step, cursor = _load_checkpoint(out, model, optimizer)
    ranks.wait(device)
    return step, cursor


def _load_checkpoint(out: Path, model: nn.Module, optimizer: Optimizer) -> tuple[int, int]:
    """Restore the newest intact checkpoint into model and optimiser: (step, next document), or zeros without one."""
    checkpoint = checkpoints.latest_checkpoint(out / CHECKPOINTS)
    if checkpoint is None:
        return 0, 0
    tensors, documents = checkpoint.load()
    step, cursor = take_fields("training checkpoint", documents["state"], "step", "cursor")
    parameters = trainable_parameters(model)
    weights = tensors["model"]
    if {name: t.shape for name, t in weights.items()} != {name: p.shape for name, p in parameters.items()}:
        raise StateError(
            f"{checkpoint.path}: its weights are not those of this model; resume with the model it began with",
            code="E_CHECKPOINT_OF_OTHER_MODEL",
        )
    load_optimizer_tensors(optimizer, model, tensors["optimizer"])
    with torch.no_grad():
        for name, tensor in weights.items():
            parameters[name].copy_(tensor)
    return step, cursor


def _drop_checkpoints(out: Path) -> None:
    """The run is finished and its result written: drop the checkpoints, in one rename as far as a reader can see."""
    trash = out / TRASH
    shutil.rmtree(trash, ignore_errors=True)
    (out / CHECKPOINTS).rename(trash)
    shutil.rmtree(trash)
