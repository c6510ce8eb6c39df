"""Continuous batching for one policy: requests wait, enter together, decode together and leave one by one.

::

    waiting ──admit──▶ prefill (each distinct prompt once) ──▶ rows ──decode step──▶ … ──▶ Completion
                                                                ▲ one forward for all rows

Which rows share a batch depends on counts and addresses alone. Requests enter in the order of their addresses, when
enough of them can: a quarter of the running rows, so that prefills are not tiny next to the decode steps that they
delay. The model is the learner's own module; it is put into evaluation mode and given another attention function
for the length of a forward pass, and found as it was left.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig

from cotrain.core.errors import ConfigError, ModelError
from cotrain.core.seeding import Address
from cotrain.core.types import Completion, Sampling
from cotrain.inference.contract import Request, check_request
from cotrain.inference.decode_batch import Row, Rows, draw_tokens
from cotrain.inference.kv_cache import (
    DECODE,
    TILE,
    SharedPrefixCache,
    cache_argument,
    plan_moves,
    previous_argument,
    use_attention,
)
from cotrain.inference.prefill import continue_prefill, prefill
from cotrain.inference.prefix_cache import KeptPrefix, PrefixStore
from cotrain.models.memory import MEMORY_ERRORS, out_of_memory, release_gpu_cache
from cotrain.models.shared_prefix import layer_windows
from cotrain.prompts.decoding import StopMatcher

if TYPE_CHECKING:
    from cotrain.inference.half_precision import HalfPrecisionCopies
    from cotrain.inference.packed_weights import PackedWeights

LEAST_ADMITTED = 8  # fewer than this (or a quarter of what runs at once) do not interrupt running rows


@dataclass(slots=True, kw_only=True)
class EngineCounts:
    """Work done by one scheduler."""

    requests: int = 0  # finished
    prompt_tokens: int = 0  # tokens of the prompts of all requests
    prefill_tokens: int = 0  # tokens of prompts that were computed, without padding
    reused_tokens: int = 0  # tokens of prompts that were kept from an earlier turn
    sampled_tokens: int = 0
    decode_steps: int = 0
    decode_rows: int = 0  # summed over the steps
    # Rows among these that the model computed: once where rows have drawn the same tokens so far
    computed_rows: int = 0
    seconds: float = 0.0
    out_of_memory: int = 0  # how often all rows began again, half as many at a time


class Scheduler:
    """The waiting and the running rows of one policy."""

    counts: EngineCounts
    takes_turns = False  # on the device, with other models
    casts_kept = True  # by autocast, for the length of an admission or a decode step

    def __init__(
        self,
        policy: str,
        model: nn.Module,
        *,
        max_rows: int,
        autocast: torch.dtype | None,
        activate: Callable[[], object] | None = None,
        copies: HalfPrecisionCopies | PackedWeights | None = None,
    ) -> None:
        """``activate``: called before each admission and decode step, to select an adapter of a shared module.
        ``copies``: of the weights in ``autocast`` or in another layout, shared by all schedulers of this model.

        Raises ModelError for a model that this scheduler does not decode as its own forward pass would.
        """
        self.policy = policy
        self.model = model
        self.autocast = autocast
        self.at_once = max_rows  # rows; fewer once memory ran out
        self._activate = activate or (lambda: None)
        self._copies = copies
        config = getattr(model, "config", None)
        if not isinstance(config, PreTrainedConfig):
            name = type(model).__name__
            raise ModelError(
                f"policy {policy!r}: {name} is not a causal language model of transformers",
                code="E_MODEL_NOT_DECODABLE",
            )
        self.config = config
        self.context, self.vocabulary = model_limits(policy, self.config)
        self.device = next(model.parameters()).device
        self._modules = list(model.modules())
        self.version = 0
        self.waiting: list[Row] = []
        self._kept = PrefixStore()
        self._most = 0  # rows at a time, so far
        self._reset_rows()
        self._verify_logits()

    # -- what the engine asks

    def check(self, request: Request) -> None:
        """Raise ConfigError when this policy cannot answer the request, TooLong where its context is too short."""
        check_request(request, self.context, self.vocabulary)

    @torch.inference_mode()
    def drop_cancelled(self) -> None:
        """Forget the rows that nobody waits for any more."""
        self.waiting = [row for row in self.waiting if not row.future.cancelled()]
        self._remove_rows({i for i, row in enumerate(self.running.items) if row.future.cancelled()})

    def ready_count(self, patient: bool) -> int:
        """How many of the waiting rows may enter now. ``patient``: rows of other schedulers may lead to more of them.

        A decode step costs hardly more for many rows than for few. So meanwhile only a full batch enters: reviews wait
        until the solutions that they are about have all been written, and then decode side by side. Nothing enters then
        where models take turns (``models/offload.py``), which change places once a batch.
        """
        free_rows = self.at_once - len(self.running)
        count = 0 if patient and self.takes_turns else min(len(self.waiting), free_rows)
        few = free_rows if patient else 1
        if self.running:
            few = max(few, min(LEAST_ADMITTED, self.at_once // 4), len(self.running) // 4)
        return count if count >= few else 0

    @torch.inference_mode()
    def step(self, entering: int) -> list[Row]:
        """Admit so many of the waiting rows, decode one token of every running one, and return what has finished.

        Where memory runs out, nothing has: all rows wait again, and from now on half as many run at a time. They draw
        what they would have drawn, as draws depend on a row's seed alone. Raises ConfigError where one row is too many.
        """
        started = time.perf_counter()
        self._most = max(self._most, len(self.running) + entering)
        rows: list[Row] | None = None
        try:
            with self._inference_state():
                if entering:
                    self.waiting.sort(key=lambda row: row.sort_key)
                    self._admit_rows(self.waiting[:entering])
                    del self.waiting[:entering]
                else:
                    self._decode_step()
            finished = self.running.collect_finished()
            rows = [self.running.items[i] for i in finished]
            self._keep_prefixes(finished)
            self._remove_rows(set(finished))
        except MEMORY_ERRORS as error:
            if not out_of_memory(error):
                raise
            rows = None
            if self._most == 1:
                raise ConfigError(
                    f"policy {self.policy!r}: the memory of {self.device} does not hold one answer "
                    f"({len(self._first_request().prompt_ids)} tokens of prompt, max_tokens "
                    f"{self._first_request().sampling.max_tokens}); lower max_tokens, or take a smaller model",
                    code="E_MEMORY_FOR_ANSWER",
                ) from error
        if rows is None:
            self._resubmit()
            rows = []
        self.counts.requests += len(rows)
        self.counts.seconds += time.perf_counter() - started
        return rows

    def publish(self, version: int) -> None:
        """The weights have changed: what was computed with the old ones is forgotten."""
        self.version = version
        self._kept.clear()

    def release(self) -> None:
        """The weights leave the device: what was made of them goes too, and room that no row needs."""
        if self._copies:
            self._copies.clear()
        if not self.running:
            counts = self.counts
            self._reset_rows()
            self.counts = counts

    def completion(self, row: Row) -> Completion:
        """Raises FloatingPointError for a row whose logits were not numbers."""
        if row.broken:
            raise FloatingPointError(
                f"policy {self.policy!r} (version {self.version}) computes logits that are not numbers for "
                f"{row.request.address}; its weights hold some that are not, or such that their sums overflow"
            )
        return Completion(
            token_ids=row.token_ids,
            logprobs=row.logprobs,
            entropies=row.entropies,
            finish=row.finish,
            policy=self.policy,
            version=self.version,
        )

    # -- inside

    def _first_request(self) -> Request:
        return (self.running.items or self.waiting)[0].request

    def _resubmit(self) -> None:
        """All rows wait, as if they had drawn nothing; at most half as many run at a time from now on."""
        waiting = {id(row) for row in self.waiting}
        self.waiting += [row for row in self.running.items if id(row) not in waiting]
        for row in self.waiting:
            row.token_ids = ()
            row.logprobs = ()
            row.entropies = b""
            if row.stop_matcher is not None and row.request.decode is not None:
                row.stop_matcher = StopMatcher(row.request.sampling.stop, row.request.decode)

        counts = self.counts
        self._reset_rows()
        self._kept.clear()
        release_gpu_cache(self.device)
        self.counts = counts
        self.at_once = self._most // 2
        self._most = 0
        counts.out_of_memory += 1

    def _reset_rows(self) -> None:
        """No row runs, nothing is stored or counted."""
        narrow = torch.float32 if self.device.type == "cpu" else self.autocast  # on a CPU attention stays in float32
        self.running = Rows(self.device)
        self.counts = EngineCounts()
        self._cache = SharedPrefixCache(narrow if self.autocast else None, layer_windows(self.config))

    def _admit_rows(self, rows: list[Row]) -> None:
        """Prefill the rows' distinct prompts and draw each row's first token."""
        members: dict[tuple[int, ...], list[Row]] = {}
        pasts: dict[tuple[int, ...], KeptPrefix] = {}
        for row in rows:
            members.setdefault(row.request.prompt_ids, []).append(row)
            past = self._kept.find(row.request.continues, row.request.prompt_ids)
            if past is not None:
                pasts.setdefault(row.request.prompt_ids, past)

        tiles: dict[tuple[int, ...], list[list[Row]]] = {}
        for prompt, group in members.items():
            tiles[prompt] = [group[start : start + TILE] for start in range(0, len(group), TILE)]
        self._cache.make_room(
            len(rows),
            sum(map(len, tiles.values())),
            max(map(len, tiles)),
            max(row.request.sampling.max_tokens for row in rows),
        )
        fresh = [prompt for prompt in members if prompt not in pasts]
        for part in chain(
            prefill(self.model, self.config, fresh), continue_prefill(self.model, self.config, pasts, self.autocast)
        ):
            entering = [(i, tile) for i, prompt in enumerate(part.prompts) for tile in tiles[prompt]]
            self._cache.add_rows(
                part.layers,
                index=[i for i, _ in entering],
                lengths=[len(part.prompts[i]) for i, _ in entering],
                sizes=[len(tile) for _, tile in entering],
            )
            first = len(self.running)
            self.running.add_rows([row for _, tile in entering for row in tile])
            index = torch.tensor([i for i, tile in entering for _ in tile], device=self.device)
            self._draw_tokens(part.logits.index_select(0, index), first)
            self.counts.prefill_tokens += part.computed

        self.counts.prompt_tokens += sum(len(row.request.prompt_ids) for row in rows)
        self.counts.reused_tokens += sum(len(past.ids) for past in pasts.values())

    def _keep_prefixes(self, finished: Sequence[int]) -> None:
        """Keep what has been computed of those that may be continued: all but their last token."""
        for i in finished:
            row = self.running.items[i]
            if row.request.keep and not row.broken:
                ids = (*row.request.prompt_ids, *row.token_ids[:-1])
                self._kept.put(
                    row.request.address, KeptPrefix(ids=ids, layers=self._cache.copy_row(i, len(row.token_ids) - 1))
                )

    def _decode_step(self) -> None:
        """One token for every running row."""
        logits = self._next_logits()
        self.counts.decode_steps += 1
        self.counts.decode_rows += len(self.running)
        self._draw_tokens(logits, 0)

    def _next_logits(self) -> Tensor:
        """[R, V] after the last token of every running row. Rows that have drawn the same tokens are computed once."""
        cache = self._cache
        rows = self.running
        cache.part_rows(rows.last_tokens[:, 0])
        cache.prepare_step(self.device)
        speakers = cache.speakers
        with use_attention(self.config, DECODE):
            output = self.model(
                input_ids=rows.last_tokens[speakers],
                position_ids=rows.positions[speakers],
                **cache_argument(self.model, cache),
                **previous_argument(self.config, rows.previous_tokens[speakers]),
                use_cache=True,
                logits_to_keep=1,
            )

        cache.cursor += 1
        self.counts.computed_rows += len(speakers)
        return output.logits[:, -1].index_select(0, cache.readers)

    @torch.inference_mode()
    def _verify_logits(self) -> None:
        """Hold the logits after one decoded token, of prompts of two lengths, against those of a plain forward pass.

        Which models keep their keys elsewhere, place their tokens otherwise or bias their scores is not to be seen from
        their configuration. A few tokens show it.
        """
        if self.context < 9:  # tokens of the longer one
            return
        try:
            with self._inference_state(activate=False):  # an adapter changes numbers, not how they come about
                self._admit_rows([_probe_row(1, 5, self.vocabulary), _probe_row(2, 6, self.vocabulary)])
                decoded = self._next_logits().float()
                sequences = [
                    [*row.request.prompt_ids, *token_ids]
                    for row, token_ids in zip(self.running.items, self.running.row_tokens(), strict=True)
                ]
            inputs = [torch.tensor([ids], device=self.device) for ids in sequences]
            with self._inference_state(activate=False, copies=False):
                expected = torch.cat(
                    [self.model(input_ids=ids, use_cache=False).logits[:, -1] for ids in inputs]
                ).float()
        except torch.OutOfMemoryError:
            raise
        except (ValueError, TypeError, AttributeError, KeyError, IndexError, RuntimeError) as error:
            raise ModelError(
                self._refusal_text(str(error).strip().splitlines()[0]), code="E_MODEL_NOT_DECODABLE"
            ) from error
        finally:
            self._reset_rows()

        spread = (expected - expected.mean(-1, keepdim=True)).norm()
        wrong = (decoded - expected).norm() / spread
        narrow = self.autocast is not None or next(self.model.parameters()).dtype.itemsize < 4
        approximate = narrow or (self._copies is not None and self._copies.approximate)
        if bool(wrong > (0.2 if approximate else 1e-3)):
            raise ModelError(
                self._refusal_text(f"its decoded logits are off by {float(wrong):.2g} of their spread"),
                code="E_MODEL_NOT_DECODABLE",
            )

    def _refusal_text(self, problem: str) -> str:
        return (
            f"policy {self.policy!r}: the local engine cannot run {type(self.model).__name__} exactly ({problem}); "
            "expected causal attention through transformers' attention interface; use another model"
        )

    def _draw_tokens(self, logits: Tensor, first: int) -> None:
        """Draw the next token of every row from ``first`` on, and note it."""
        tokens, logprobs, entropies = draw_tokens(logits, *self.running.draw_settings(first))
        wrong = logprobs.isnan()
        if bool(wrong.any()):
            self.running.broken.update((first + wrong.nonzero()[:, 0]).tolist())
        self.running.append_tokens(first, tokens, logprobs, entropies)
        self.counts.sampled_tokens += len(tokens)

    def _remove_rows(self, gone: set[int]) -> None:
        """Remove rows; the last ones take their places, so that the rest stay dense."""
        if gone:
            moves = plan_moves(len(self.running), gone)
            self._cache.remove_rows(*moves)
            self.running.remove_rows(*moves)

    @contextmanager
    def _inference_state(self, activate: bool = True, copies: bool = True) -> Iterator[None]:
        """The policy's adapter, evaluation mode, autocast and copies; modules in training mode are set back to it."""
        if activate:
            self._activate()
        if self._copies and copies and not self.running:
            self._copies.refresh()
        training = [module for module in self._modules if module.training]
        for module in training:
            module.training = False
        cast: AbstractContextManager[object] = nullcontext()
        if self.autocast:
            cast = torch.autocast(self.device.type, self.autocast, cache_enabled=self.casts_kept)
        try:
            with cast, self._copies.use_copies() if self._copies and copies else nullcontext():
                yield
        finally:
            for module in training:
                module.training = True


def _probe_row(first: int, length: int, vocabulary: int) -> Row:
    """A request that nobody made: so many tokens from ``first`` on, then one sampled one."""
    request = Request(
        policy="",
        prompt_ids=tuple((first + i) % vocabulary for i in range(length)),
        sampling=Sampling(max_tokens=3),
        stop_ids=(),
        seed=first,
        address=Address(step=0, task=first, member=0, role="", call=0),
    )
    return Row(request=request, future=None)  # type: ignore[arg-type]


def model_limits(policy: str, config: PreTrainedConfig) -> tuple[int, int]:
    """Longest sequence and vocabulary of a model. Raises ModelError for one that the engine cannot run, as far as its
    configuration tells. A sliding window that only transformers' own attention knows limits the sequence: within it, it
    hides nothing."""
    text = config.get_text_config()
    kinds = set(getattr(text, "layer_types", None) or ["sliding_attention"])  # without the list, a window is for all
    unknown = sorted(kinds - {"full_attention", "sliding_attention", "chunked_attention"})
    context = getattr(text, "max_position_embeddings", None)
    if unknown or context is None:
        problem = f"layers of kind {', '.join(unknown)}" if unknown else "no max_position_embeddings"
        raise ModelError(
            f"policy {policy!r}: the local engine cannot run {text.model_type!r}, which has {problem}",
            code="E_MODEL_NOT_DECODABLE",
        )
    if kinds != {"full_attention"} and not layer_windows(text):
        windows = (getattr(text, "sliding_window", None), getattr(text, "attention_chunk_size", None))
        context = min([context, *(window for window in windows if window is not None)])
    rope = getattr(text, "rope_parameters", None) or {}
    if rope.get("rope_type") == "longrope":  # beyond it all positions are turned otherwise, those of stored keys too
        context = min(context, rope.get("original_max_position_embeddings") or context)
    return context, text.vocab_size
