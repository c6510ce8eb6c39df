"""A policy that another server runs: any OpenAI-compatible one, asked over HTTP.

    chat         messages go to ``/chat/completions`` as texts; the prompt's token ids here are the bytes of their JSON,
                 the answer's those of its text
    token ids    with the server's own tokenizer at hand, ids go to ``/completions`` and come back (``cotrain serve``,
                 vLLM)

The server answers when it likes: the engine of this process goes on meanwhile (``rollout.idle_loop.awaiting_server``).
Whatever goes wrong with an answer is asked again, with growing pauses, until the deadline; then the turn is a value
with its reason, kept from training and counted. Who may not ask, or asks for what is not there, is told at once, and
after ``FIRST_CONTACT`` who asks where no server is: no repetition mends that. An answer is believed as far as it can be
true: no more of it is read than its tokens can need, ids are of the vocabulary, log-probabilities finite and not
positive, counts of tokens those of a request.

A server is no function of the request, so a run is repeated from its ledger: an answer that is remembered is not
asked for again. Left out: streams, proxies, and images.
"""

from __future__ import annotations

import asyncio
import json
import time
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import httpx2

from cotrain.backend.handles import PolicyHandle, PolicySpec
from cotrain.core.address import Address, rng_of
from cotrain.core.errors import ConfigError, DataError
from cotrain.core.types import FAILED, Completion, Trace
from cotrain.engine.contract import Request
from cotrain.rollout.idle_loop import awaiting_server
from cotrain.text.chat_template import Message
from cotrain.text.plain import STOP, ByteRenderer
from cotrain.text.render import Piece, Rendering

FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0  # seconds before an answer is asked for again
FIRST_CONTACT = 30.0  # seconds for which a server that never answered is waited for
AGAIN = (408, 409, 425, 429, 500, 502, 503, 504, 520, 529)  # states of a server that may pass
NEVER = {
    401: "it wants another key; check the variable that the policy names as key_variable",
    403: "this key may not ask; check the variable that the policy names as key_variable",
    404: "there is no such model or address; check the policy's url and model",
}
MOST_BODY, PER_TOKEN = 1 << 20, 256  # bytes of an answer's JSON, and further ones for each token of prompt and answer
TEXT_PER_TOKEN = 64  # bytes of text that a token may be
LEAST_LOGPROB, ROUNDING = -1e4, 1e-4  # servers write -9999 for minus infinity, and what rounding makes of 0
MOST_COUNT = 10**9  # tokens of one request that a server may count


class RemoteSpec(PolicySpec, Protocol):
    """``config.remote.Remote``, which see for the fields."""

    @property
    def url(self) -> str: ...
    @property
    def concurrency(self) -> int: ...
    @property
    def timeout(self) -> float: ...
    @property
    def deadline(self) -> float: ...
    @property
    def input_price(self) -> float: ...
    @property
    def output_price(self) -> float: ...
    @property
    def send_ids(self) -> bool: ...


class MessagesRenderer(ByteRenderer):
    """Messages as the bytes of their JSON, so that a prompt holds who said what; texts as their bytes."""

    def prompt_pieces(self, messages: Sequence[Message]) -> list[Piece]:
        """One piece; what tools and the environment say is shown as a user's words."""
        others = {"tool": "user", "environment": "user"}
        sent = [{"role": others.get(m.role, m.role), "content": m.content} for m in messages]
        return [(json.dumps(sent, ensure_ascii=False), "content")]

    def encode_pieces(self, pieces: Sequence[Piece], before: str = "") -> tuple[int, ...]:
        return tuple("".join(text for text, _ in pieces).encode(errors="replace"))


class RemoteHandle(PolicyHandle):
    """Asks a server. Connections live in the event loop in which the first request was made."""

    spec: RemoteSpec
    renderer: Rendering

    def __init__(self, name: str, spec: RemoteSpec, renderer: Rendering, key: str | None) -> None:
        super().__init__(name, spec, renderer)
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._line: _Connection | None = None
        self._reached = False  # has the server ever answered?
        self._known: dict[Address, Trace] = {}
        self._vocabulary = renderer.vocabulary
        self._counts = dict.fromkeys(
            ("answers", "failed", "retries", "prompt_tokens", "completion_tokens", "remembered", "seconds"), 0.0
        )

    def cache_answers(self, traces: Sequence[Trace]) -> None:
        self._known = {trace.address: trace for trace in traces}

    def counts(self) -> dict[str, float]:
        """``{policy}/remote/answers``, ``…/failed``, ``…/retries``, ``…/prompt_tokens``, ``…/completion_tokens`` (as
        the server counts), ``…/remembered``, ``…/cost``, and ``…/seconds``, the sum of all waiting."""
        spent = self._counts["prompt_tokens"] * self.spec.input_price
        spent += self._counts["completion_tokens"] * self.spec.output_price
        return {f"{self.name}/remote/{what}": count for what, count in (self._counts | {"cost": spent / 1e6}).items()}

    async def sample(self, request: Request) -> Completion:
        """The server's answer, or one that says why there is none. Raises ConfigError where asking again cannot help,
        and DataError where another prompt was answered at this address."""
        if request.address in self._known:
            return self._recorded_completion(request)
        path, body = self._path_and_body(request)
        with awaiting_server():
            line = self._get_connection()
            async with line.free:
                began = time.monotonic()
                try:
                    return await self._request_answer(line.client, request, path, body, began)
                finally:
                    self._counts["seconds"] += time.monotonic() - began

    async def close(self) -> None:
        line, self._line = self._line, None
        if line is not None:
            await line.client.aclose()

    async def _request_answer(
        self, client: httpx2.AsyncClient, request: Request, path: str, body: Mapping[str, Any], began: float
    ) -> Completion:
        deadline, pauses, tries = began + self.spec.deadline, rng_of("pause", request.seed), 0
        while True:
            least_pause, answer, reason = 0.0, None, ""  # seconds that the server wants to be left alone; why no answer
            try:
                async with (
                    asyncio.timeout(min(self.spec.timeout, deadline - time.monotonic())),
                    client.stream("POST", path, json=body) as answer,
                ):
                    self._reached = True
                    content = await _read_body(answer, _most_bytes(request)) if answer.status_code == 200 else b""
                if answer.status_code == 200:
                    return self._parse_answer(request, _parse_json(content))
            except (TimeoutError, httpx2.TimeoutException):
                reason, answer = "timeout", None
            except httpx2.HTTPError as error:
                if not self._reached and time.monotonic() - began > FIRST_CONTACT:
                    raise ConfigError(
                        f"policy {self.name!r}: no server answers at {self.spec.url} ({error}); start it, or check the "
                        "policy's url"
                    ) from error
                reason, answer = "no connection", None
            except Malformed as error:
                reason, answer = str(error), None
            if answer is not None:
                reason = f"status {answer.status_code}"
                if answer.status_code in NEVER:
                    raise ConfigError(
                        f"policy {self.name!r}: {self.spec.url} answers {answer.status_code}: "
                        f"{NEVER[answer.status_code]}"
                    )
                if answer.status_code not in AGAIN:
                    return self._failed_completion(f"refused ({reason})")
                wanted = answer.headers.get("retry-after", "")
                least_pause = min(LONGEST_PAUSE, float(wanted)) if wanted.isdecimal() else 0.0
            pause = max(least_pause, min(LONGEST_PAUSE, FIRST_PAUSE * 2**tries) * (0.5 + pauses.random()))
            if time.monotonic() + pause >= deadline:
                return self._failed_completion(reason)
            tries += 1
            self._counts["retries"] += 1
            await asyncio.sleep(pause)

    def _path_and_body(self, request: Request) -> tuple[str, dict[str, Any]]:
        """Path and body."""
        sampling = request.sampling
        body: dict[str, Any] = {
            "model": self.spec.model,
            "max_tokens": sampling.max_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "seed": request.seed % 2**31,
        }
        if sampling.stop:
            body["stop"] = list(sampling.stop)
        if self.spec.send_ids:
            return "completions", body | {"prompt": list(request.prompt_ids), "logprobs": 0, "return_token_ids": True}
        text = bytes(request.prompt_ids).decode(errors="replace")
        messages, end = json.JSONDecoder().raw_decode(text)
        if end != len(text):
            raise ConfigError(
                f"policy {self.name!r} is asked by messages and cannot go on with a given beginning of its answer; "
                "give it a tokenizer, or ask for the whole answer"
            )
        return "chat/completions", body | {"messages": messages}

    def _parse_answer(self, request: Request, answer: Any) -> Completion:
        """The answer that stands in a body. Raises Malformed."""
        choices = answer.get("choices") if isinstance(answer, Mapping) else None
        if not isinstance(choices, list) or not choices or not isinstance(choices[0], Mapping):
            raise Malformed("no choices")
        choice, usage = choices[0], answer.get("usage")
        finish = "length" if choice.get("finish_reason") == "length" else "stop"
        if self.spec.send_ids:
            token_ids, logprobs = _ids_and_logprobs(choice, request.sampling.max_tokens, self._vocabulary)
        else:
            message = choice.get("message")
            text = message.get("content") if isinstance(message, Mapping) else None
            if not isinstance(text, str):
                raise Malformed("no text")
            if len(text) > TEXT_PER_TOKEN * request.sampling.max_tokens:
                raise Malformed("more text than max_tokens allows")
            token_ids = tuple(text.encode(errors="replace")) + ((STOP,) if finish == "stop" or not text else ())
            logprobs = (0.0,) * len(token_ids)
        counts = {
            name: usage.get(name) if isinstance(usage, Mapping) else None
            for name in ("prompt_tokens", "completion_tokens")
        }
        if not all(count is None or (type(count) is int and 0 <= count <= MOST_COUNT) for count in counts.values()):
            raise Malformed("impossible token counts")
        self._counts["answers"] += 1
        for name, count in counts.items():
            self._counts[name] += count or 0
        return Completion(token_ids=token_ids, logprobs=logprobs, finish=finish, policy=self.name, version=0)

    def _failed_completion(self, reason: str) -> Completion:
        self._counts["answers"] += 1
        self._counts["failed"] += 1
        ids = (self.renderer.stop_ids[0],)
        why = f"remote: {reason}"
        return Completion(token_ids=ids, logprobs=(0.0,), finish=FAILED, policy=self.name, version=0, failure=why)

    def _recorded_completion(self, request: Request) -> Completion:
        trace = self._known[request.address]
        if trace.prompt_ids != request.prompt_ids:
            raise DataError(
                f"policy {self.name!r}: another prompt was answered at {request.address} of this ledger; use the "
                "templates, tasks, weights and seed of the recorded run"
            )
        self._counts["remembered"] += 1
        return Completion(
            token_ids=trace.token_ids,
            logprobs=trace.logprobs,
            entropies=trace.entropies,
            finish=trace.finish,
            policy=self.name,
            version=trace.version,
            failure=trace.failure if trace.finish == FAILED else None,
        )

    def _get_connection(self) -> _Connection:
        """The line of the running loop. It reads no proxies, keys or passwords from the surroundings."""
        loop = asyncio.get_running_loop()
        if self._line is None or self._line.loop is not loop:
            client = httpx2.AsyncClient(
                base_url=self.spec.url.rstrip("/") + "/",
                headers={"Accept-Encoding": "gzip"} | self._headers,
                timeout=self.spec.timeout,
                limits=httpx2.Limits(max_connections=self.spec.concurrency),
                trust_env=False,
            )
            self._line = _Connection(loop=loop, client=client, free=asyncio.Semaphore(self.spec.concurrency))
        return self._line


@dataclass(frozen=True, slots=True, kw_only=True)
class _Connection:
    """Connections, and how many more requests may be under way."""

    loop: asyncio.AbstractEventLoop
    client: httpx2.AsyncClient
    free: asyncio.Semaphore


class Malformed(ValueError):
    """What is wrong with the body of an answer, as a short fixed phrase."""


def _most_bytes(request: Request) -> int:
    """Bytes that the JSON of an answer may have."""
    return MOST_BODY + PER_TOKEN * (len(request.prompt_ids) + request.sampling.max_tokens)


async def _read_body(answer: httpx2.Response, most: int) -> bytes:
    """The body of an answer, unpacked. Raises Malformed for one that is longer than ``most``, before it is read."""
    coding, parts, size = answer.headers.get("content-encoding", "identity").strip().lower(), [], 0
    async for part in answer.aiter_raw():
        parts.append(part)
        size += len(part)
        if size > most:
            raise Malformed("a longer answer than max_tokens allows")
    content = b"".join(parts)
    if coding in ("gzip", "x-gzip", "deflate"):
        try:
            content = zlib.decompressobj(zlib.MAX_WBITS | 32).decompress(content, most + 1)
        except zlib.error:
            raise Malformed("no gzip") from None
        if len(content) > most:
            raise Malformed("a longer answer than max_tokens allows")
    elif coding not in ("", "identity"):
        raise Malformed("packed in another way than gzip")
    return content


def _parse_json(content: bytes) -> Any:
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        raise Malformed("no JSON") from None


def _ids_and_logprobs(
    choice: Mapping[str, Any], most: int, vocabulary: int
) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """At most ``most`` token ids [T] below ``vocabulary``, with their log-probabilities. Raises Malformed."""
    ids, logprobs = choice.get("token_ids"), choice.get("logprobs")
    if not isinstance(ids, list) or not ids or not all(type(i) is int for i in ids):
        raise Malformed("no token ids")
    if len(ids) > most:
        raise Malformed("more tokens than max_tokens allows")
    if min(ids) < 0 or max(ids) >= vocabulary:
        raise Malformed("token ids outside of the vocabulary")
    values = logprobs.get("token_logprobs") if isinstance(logprobs, Mapping) else None
    if not isinstance(values, list) or len(values) != len(ids) or not all(type(v) in (int, float) for v in values):
        raise Malformed("no log-probabilities")
    if not all(LEAST_LOGPROB <= v <= ROUNDING for v in values):  # NaN is neither
        raise Malformed("impossible log-probabilities")
    return tuple(ids), tuple(min(0.0, float(v)) for v in values)
