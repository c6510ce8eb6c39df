"""vLLM as an engine: one set of weights, the policies that generate with it, and their adapters.

vLLM runs in this process and is stepped by ``advance``, so what shares a batch follows from the work and not from the
clock. It holds weights of its own; ``load_weights`` brings new ones. Four things about that are silent when they are
left out (each is a method of its own, so that a test can leave it out):

    tied output layer     keeps its packed copy of the old weights on a CPU         → ``_repack_output``
    prefix cache          keeps keys and values of the old weights                  → ``_clear_prefix_cache``
    adapter's old name    new weights under a known name are not looked at          → ``_adapter_request``
    rows without one      next to rows with adapters get the last slot's, on a CPU  → ``_slot_count``

The prefix cache is also emptied whenever nothing runs: what is in it then follows from the requests that run together,
and rollouts that are sampled again after a loss give the same bits.

Draws come from vLLM's own generator, one for each request, seeded with the request's seed; they are not those of
``decode_batch.py``. Left out: chunked prefill (a seeded request crashes under it on a CPU), vLLM's asynchronous
scheduling, several devices, and answers that are read while they grow (``ServingEngine``).

vLLM is imported when an engine is made, and never more than one in a process: two would share state.
"""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from cotrain.core.errors import ConfigError, ModelError, UnknownName, first_line
from cotrain.core.types import Completion
from cotrain.inference.contract import Request, check_request
from cotrain.prompts.decoding import StopMatcher

Weights = Iterable[tuple[str, torch.Tensor]]  # (name as in the model's directory, tensor)
ENVIRONMENT = {  # what vLLM reads when it is imported
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
}
COLDEST = 0.01  # vLLM raises temperatures below this, but for 0


def card_arguments(device: str) -> dict[str, Any]:
    """Arguments of an engine on a GPU alone: vLLM does not start unless this share of the card is free, also where its
    cache has a size of its own. Its default of 0.92 would leave no room for learners on the same card."""
    return {} if device == "cpu" else {"gpu_memory_utilization": 0.05}


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmSettings:
    """Settings of one engine; ``[engine]`` of the cluster file."""

    cache_mb: int = 1024  # memory of keys and values
    context: int | None = None  # tokens of prompt and answer together; None: the model's own
    rows: int = 256  # that decode at a time


DEFAULT_SETTINGS = VllmSettings()


@dataclass(slots=True)
class _VllmRow:
    """A request that vLLM works on."""

    request: Request
    future: asyncio.Future[Completion]
    stop_matcher: StopMatcher | None  # for its stop strings
    number: str  # vLLM's name for it
    ids: list[int]  # sampled so far; without a stop matcher all of them come at the end
    logprobs: list[float]


@dataclass(slots=True)
class _VllmCounts:
    requests: int = 0
    prompt_tokens: int = 0
    reused_tokens: int = 0  # tokens of prompts that were found in the prefix cache
    sampled_tokens: int = 0
    decode_steps: int = 0
    decode_rows: int = 0
    seconds: float = 0.0
    publish_seconds: float = 0.0
    published_bytes: int = 0


class VllmEngine:
    """Samples from one model and adapters on it. Implements ``Engine``."""

    def __init__(
        self,
        model: str | os.PathLike[str],
        policies: Mapping[str, int | None],
        *,
        dtype: str = "float32",
        settings: VllmSettings | None = None,
        device: str = "cpu",
        trust_remote_code: bool = False,
    ) -> None:
        """
        Args:
            model: a directory of transformers.
            policies: the rank of a policy's adapter; None: it generates with the model's own weights.
            dtype: of vLLM's weights and arithmetic.
            trust_remote_code: run Python files that come with the model.

        Raises ConfigError where vLLM is not installed, ModelError for a model that it does not run.
        """
        for name, value in ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        try:
            import vllm

            make_arguments = vllm.EngineArgs  # loads what it needs only now
        except ImportError as error:
            raise ConfigError(
                f"vLLM does not load in this Python: {first_line(error)}", code="E_VLLM_NOT_LOADED"
            ) from error
        ranks = [rank for rank in policies.values() if rank is not None]
        slots = self._slot_count(ranks)
        adapters: dict[str, Any] = {"max_loras": slots, "max_cpu_loras": slots, "max_lora_rank": _padded_rank(ranks)}
        settings = settings or DEFAULT_SETTINGS
        context = settings.context or _own_context(model, trust_remote_code)
        arguments = make_arguments(
            model=os.fspath(model),
            dtype=dtype,
            seed=0,  # requests have seeds of their own
            trust_remote_code=trust_remote_code,
            enforce_eager=device == "cpu",
            max_model_len=context,
            max_num_seqs=settings.rows,
            max_num_batched_tokens=max(8192, context),
            kv_cache_memory_bytes=settings.cache_mb * 2**20,
            skip_tokenizer_init=True,
            generation_config="vllm",
            logprobs_mode="processed_logprobs",
            enable_prefix_caching=True,
            enable_chunked_prefill=False,
            async_scheduling=False,
            disable_log_stats=True,
            worker_extension_cls="cotrain.inference.vllm_worker.Extension",
            enable_lora=bool(ranks),
            **(adapters if ranks else {}),
            **card_arguments(device),
        )
        try:
            self._llm: Any = vllm.LLMEngine.from_engine_args(arguments)
        except (ValueError, RuntimeError, NotImplementedError, AssertionError, KeyError) as error:
            why = first_line(error).split(". Try ")[0]  # without vLLM's advice, which names arguments of its own
            raise ModelError(
                f"vLLM does not run {os.fspath(model)!r}: {why}; its memory and context are cache_mb and context under "
                "[engine] of the cluster file",
                code="E_VLLM_NOT_RUNNING",
            ) from error
        config = self._llm.model_config
        self._context: int = config.max_model_len
        self._vocabulary: int = config.get_vocab_size()
        self._ranks = dict(sorted(policies.items()))
        self._adapters: dict[str, Any] = {}  # policy → vLLM's LoRARequest, once its weights have come
        self._versions = dict.fromkeys(self._ranks, 0)
        self._counts = {name: _VllmCounts() for name in self._ranks}
        self._waiting: list[tuple[Request, asyncio.Future[Completion]]] = []
        self._running: dict[str, _VllmRow] = {}
        self._number = 0
        self._folder = tempfile.TemporaryDirectory(prefix="cotrain-adapters-")

    async def sample(self, request: Request) -> Completion:
        """See ``Engine``. Also raises ConfigError for an adapter whose weights have not come, and for a temperature
        that vLLM would change."""
        self.check(request)
        future: asyncio.Future[Completion] = asyncio.get_running_loop().create_future()
        self._waiting.append((request, future))
        return await future

    def check(self, request: Request) -> None:
        """Raise what ``sample`` would raise for this request."""
        check_request(request, self.context(request.policy), self._vocabulary)
        where = f"request {request.address} to policy {request.policy!r}"
        if not request.sampling.is_greedy and request.sampling.temperature < COLDEST:
            cold = request.sampling.temperature
            raise ConfigError(
                f"{where}: temperature is {cold}; vLLM samples at 0, or from {COLDEST} on", code="E_VLLM_TEMPERATURE"
            )
        if self._ranks[request.policy] is not None and request.policy not in self._adapters:
            raise ConfigError(
                f"{where}: the weights of its adapter have not been published", code="E_ADAPTER_NOT_PUBLISHED"
            )

    def context(self, policy: str) -> int:
        """Tokens of the longest sequence that a policy takes, prompt and answer together. Raises UnknownName."""
        if policy not in self._ranks:
            raise UnknownName("policy", policy, self._ranks)
        return self._context

    def advance(self) -> bool:
        """Admit what waits, in the order of addresses; step until something is finished; resolve it in that order."""
        self._drop_cancelled()
        if self._waiting and not self._running:
            self._clear_prefix_cache()
        waiting = sorted(self._waiting, key=lambda pair: pair[0].address)
        self._waiting = []
        for request, future in waiting:
            self._admit_request(request, future)
        if not self._running:
            return False
        finished: list[_VllmRow] = []
        try:
            while not finished:
                finished = self._step_engine()
        except BaseException:
            self._give_up()
            raise
        for row in sorted(finished, key=lambda row: row.request.address):
            row.future.set_result(self._make_completion(row))
        return True

    def load_weights(self, policy: str, weights: Weights, config: Mapping[str, Any] | None = None) -> None:
        """New weights of a policy: all of the model's, or those of its adapter, by the names that PEFT saves.

        ``config``: of the adapter, as PEFT writes it. Raises UnknownName, and RuntimeError while rows run.
        """
        self._check_idle(policy)
        began = time.perf_counter()
        count = self._counts[policy]
        named_weights = list(weights)
        if self._ranks[policy] is None:
            self._llm.collective_rpc("take_weights", args=(named_weights,))
            self._repack_output()
        else:
            self._take_adapter(policy, named_weights, config or {})
        self._clear_prefix_cache()
        count.publish_seconds += time.perf_counter() - began
        count.published_bytes += sum(tensor.numel() * tensor.element_size() for _, tensor in named_weights)

    def publish(self, policy: str, version: int) -> None:
        """The version of the weights that are there. Errors: as ``load_weights``."""
        self._check_idle(policy)
        self._versions[policy] = version

    def counts(self) -> dict[str, float]:
        """``{policy}/requests``, ``…/prompt_tokens``, ``…/reused_tokens`` (of prompts, found in the prefix cache),
        ``…/sampled_tokens``, ``…/decode_steps``, ``…/decode_rows`` (their sum over the steps), ``…/seconds`` (of steps,
        shared by rows), ``…/publish_seconds``, ``…/published_bytes``."""
        return {
            f"{policy}/{name}": float(count)
            for policy, counts in self._counts.items()
            for name, count in asdict(counts).items()
        }

    # -- the four cures

    def _repack_output(self) -> None:
        """The output layer's packed copy, from the weights that are there now."""
        self._llm.collective_rpc("repack_output")

    def _clear_prefix_cache(self) -> None:
        """Empty the prefix cache. Raises RuntimeError where vLLM refuses, as rows run."""
        if not self._llm.reset_prefix_cache():
            raise RuntimeError("vLLM did not empty its prefix cache: rows are running")

    def _slot_count(self, ranks: Sequence[int]) -> int:
        """Places for adapters of these ranks, of which the last one stays empty."""
        return len(ranks) + 1

    def _adapter_request(self, policy: str, directory: Path) -> Any:
        """vLLM's request for an adapter whose weights have changed under its name."""
        from vllm.lora.request import LoRARequest

        number = 1 + list(self._ranks).index(policy)
        return LoRARequest(policy, number, os.fspath(directory), load_inplace=True)

    # -- how it is done

    def _take_adapter(self, policy: str, named: Sequence[tuple[str, torch.Tensor]], config: Mapping[str, Any]) -> None:
        from safetensors.torch import save_file
        from vllm.lora.request import LoRARequest

        directory = Path(self._folder.name) / f"{list(self._ranks).index(policy)}"
        directory.mkdir(exist_ok=True)
        save_file({name: tensor.contiguous() for name, tensor in named}, directory / "adapter_model.safetensors")
        (directory / "adapter_config.json").write_text(json.dumps(dict(config)), encoding="utf-8")
        lora_request = self._adapter_request(policy, directory)
        if not self._llm.add_lora(lora_request):
            raise RuntimeError(f"vLLM did not take the adapter of policy {policy!r}")
        self._adapters[policy] = LoRARequest(policy, lora_request.lora_int_id, lora_request.lora_path)

    def _admit_request(self, request: Request, future: asyncio.Future[Completion]) -> None:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        sampling = request.sampling
        self._number = self._number + 1
        stop_matcher = StopMatcher(sampling.stop, request.decode) if sampling.stop and request.decode else None
        row = _VllmRow(
            request=request,
            future=future,
            stop_matcher=stop_matcher,
            number=f"{request.policy}/{self._number}",
            ids=[],
            logprobs=[],
        )
        self._llm.add_request(
            row.number,
            {"prompt_token_ids": list(request.prompt_ids)},
            SamplingParams(
                max_tokens=sampling.max_tokens,
                temperature=0.0 if sampling.is_greedy else sampling.temperature,
                top_p=sampling.top_p,
                seed=None if sampling.is_greedy else request.seed,
                stop_token_ids=list(request.stop_ids),
                logprobs=0,
                ignore_eos=True,
                detokenize=False,
                output_kind=RequestOutputKind.DELTA if stop_matcher else RequestOutputKind.FINAL_ONLY,
            ),
            lora_request=self._adapters.get(request.policy),
        )
        self._running[row.number] = row
        counts = self._counts[request.policy]
        counts.requests += 1
        counts.prompt_tokens += len(request.prompt_ids)

    def _step_engine(self) -> list[_VllmRow]:
        """One step of vLLM; the rows that it has finished."""
        began = time.perf_counter()
        running_rows = list(self._running.values())
        finished = []
        for output in self._llm.step():
            row = self._running.get(output.request_id)
            if row is None:
                continue
            sample = output.outputs[0]
            row.ids += sample.token_ids
            for logprob_of_token, token in zip(sample.logprobs, sample.token_ids, strict=True):
                row.logprobs.append(logprob_of_token[token].logprob)
            stopped = row.stop_matcher is not None and row.stop_matcher.read(sample.token_ids) is not None
            if stopped and not output.finished:
                self._llm.abort_request([row.number])
            if stopped or output.finished:
                self._counts[row.request.policy].reused_tokens += output.num_cached_tokens or 0
                finished.append(self._running.pop(row.number))

        seconds = time.perf_counter() - began
        for policy in {row.request.policy for row in running_rows}:
            own = sum(row.request.policy == policy for row in running_rows)
            counts = self._counts[policy]
            counts.decode_steps += 1
            counts.decode_rows += own
            counts.seconds += seconds * own / len(running_rows)
        return finished

    def _make_completion(self, row: _VllmRow) -> Completion:
        request = row.request
        self._counts[request.policy].sampled_tokens += len(row.ids)
        has_stop_token = row.ids[-1] in request.stop_ids
        has_stop_string = row.stop_matcher is not None and row.stop_matcher.count is not None
        return Completion(
            token_ids=tuple(row.ids),
            logprobs=tuple(row.logprobs),
            finish="stop" if has_stop_token or has_stop_string else "length",
            policy=request.policy,
            version=self._versions[request.policy],
        )

    def _drop_cancelled(self) -> None:
        self._waiting = [pair for pair in self._waiting if not pair[1].cancelled()]
        gone = [number for number, row in self._running.items() if row.future.cancelled()]
        for number in gone:
            del self._running[number]
        if gone:
            self._llm.abort_request(gone)

    def _give_up(self) -> None:
        """Drop all requests after vLLM raised: it would raise again at each step while they are there."""
        self._llm.abort_request(list(self._running))
        self._running = {}

    def _check_idle(self, policy: str) -> None:
        self.context(policy)
        self._drop_cancelled()
        if self._running:
            raise RuntimeError(f"policy {policy!r} was published while {len(self._running)} rows were running")


def _padded_rank(ranks: Sequence[int]) -> int:
    """The least of the ranks for which vLLM makes room that holds all of these; their greatest, which vLLM refuses by
    name, where none does."""
    greatest = max(ranks, default=1)
    for room in (1, 8, 16, 32, 64, 128, 256, 320, 512):
        if room >= greatest:
            return room
    return greatest


def _own_context(model: str | os.PathLike[str], trust_remote_code: bool) -> int:
    from transformers import AutoConfig

    text = AutoConfig.from_pretrained(os.fspath(model), trust_remote_code=trust_remote_code).get_text_config()
    return int(text.max_position_embeddings)
