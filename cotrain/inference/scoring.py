"""A scheduler for policies that score instead of speaking: reward models, one number for a whole prompt.

Requests wait like those of a speaking policy and are answered together at the next step, each distinct prompt once. The
completion holds the score and, so that a learner can train the head where the score was read, one token: the stop
token.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import nullcontext

import torch
from torch import nn

from cotrain.core.errors import ConfigError, TooLong
from cotrain.core.types import Completion
from cotrain.inference.contract import Request
from cotrain.inference.decode_batch import Row
from cotrain.inference.scheduler import EngineCounts
from cotrain.models.memory import MEMORY_ERRORS, out_of_memory, release_gpu_cache

BATCH_TOKENS = 16384  # padded tokens of one forward pass


class ScoringScheduler:
    """The waiting requests of one scoring policy. Has what ``LocalEngine`` asks of a scheduler."""

    takes_turns = False  # it always does

    def __init__(
        self,
        policy: str,
        model: nn.Module,
        *,
        autocast: torch.dtype | None = None,
        activate: Callable[[], object] | None = None,
    ) -> None:
        """``model``: token ids ``[B, L]`` → scores ``[B, L]`` (``models.heads.ValueModel``); the last place counts.
        ``activate``: called before its passes."""
        self.policy = policy
        self.model = model
        self.autocast = autocast
        self._activate = activate or (lambda: None)
        config = model.body.config.get_text_config()  # type: ignore[union-attr, operator]
        self.context: int = config.max_position_embeddings
        self.device = next(model.parameters()).device
        self.version = 0
        self.waiting: list[Row] = []
        self.running: list[Row] = []  # always empty: a score takes one step
        self.counts = EngineCounts()
        self.at_once = BATCH_TOKENS  # padded tokens; fewer once memory ran out

    def check(self, request: Request) -> None:
        """Raise ConfigError when the request cannot be answered by this policy, TooLong where its context is too
        short."""
        if not 0 < len(request.prompt_ids) <= self.context:
            what = (
                f"role {request.address.role!r} (policy {self.policy!r}): a prompt of {len(request.prompt_ids)} "
                f"tokens; expected 1 to {self.context}"
            )
            if request.prompt_ids:
                raise TooLong(what)
            raise ConfigError(what, code="E_PROMPT_EMPTY")

    def drop_cancelled(self) -> None:
        self.waiting = [row for row in self.waiting if not row.future.cancelled()]

    def ready_count(self, patient: bool) -> int:
        """All at once, and only when no other scheduler has rows to go on with: the batch is as large as it can be."""
        return 0 if patient else len(self.waiting)

    def publish(self, version: int) -> None:
        self.version = version

    def release(self) -> None:
        """Nothing is kept here."""

    @torch.inference_mode()
    def step(self, entering: int) -> list[Row]:
        """Score so many of the waiting requests, in the order of their addresses. Returns them all, finished.

        A batch that does not fit in memory is halved, and so are those after it. Raises ConfigError for one prompt that
        does not fit."""
        started = time.perf_counter()
        self._activate()
        self.waiting.sort(key=lambda row: row.sort_key)
        rows = self.waiting[:entering]
        self.waiting = self.waiting[entering:]
        prompts = sorted({row.request.prompt_ids for row in rows}, key=lambda ids: (-len(ids), ids))
        scores: dict[tuple[int, ...], float] = {}
        while prompts:
            batch = prompts[: max(1, self.at_once // len(prompts[0]))]
            batch_scores: list[float] | None = None
            try:
                batch_scores = self._score_batch(batch)
            except MEMORY_ERRORS as error:
                if not out_of_memory(error):
                    raise
                if len(batch) == 1:
                    raise ConfigError(
                        f"policy {self.policy!r}: the memory of {self.device} does not hold one prompt of "
                        f"{len(batch[0])} tokens; shorten the prompts, or take a smaller model",
                        code="E_MEMORY_FOR_PROMPT",
                    ) from error
            if batch_scores is None:
                self.at_once = len(batch) // 2 * len(batch[0])
                self.counts.out_of_memory += 1
                release_gpu_cache(self.device)
                continue
            scores |= dict(zip(batch, batch_scores, strict=True))
            self.counts.prefill_tokens += sum(map(len, batch))
            prompts = prompts[len(batch) :]

        for row in rows:
            row.score = scores[row.request.prompt_ids]
            self.counts.prompt_tokens += len(row.request.prompt_ids)
        self.counts.requests += len(rows)
        self.counts.seconds += time.perf_counter() - started
        return rows

    def _score_batch(self, batch: list[tuple[int, ...]]) -> list[float]:
        """The scores of prompts of falling length, in one forward pass."""
        longest = len(batch[0])
        padded = [[*prompt, *[0] * (longest - len(prompt))] for prompt in batch]
        ids = torch.tensor(padded, device=self.device)
        last = torch.tensor([len(prompt) - 1 for prompt in batch], device=self.device)
        with torch.autocast(self.device.type, self.autocast) if self.autocast else nullcontext():
            scores: list[float] = self.model(input_ids=ids).gather(1, last[:, None])[:, 0].tolist()
        return scores

    def completion(self, row: Row) -> Completion:
        return Completion(
            token_ids=(row.request.stop_ids[0],),
            logprobs=(0.0,),
            finish="stop",
            policy=self.policy,
            version=self.version,
            score=row.score,
        )
