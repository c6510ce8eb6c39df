"""A policy that another server runs: any OpenAI-compatible one, asked over HTTP.

    chat         messages go to ``/chat/completions`` as texts; the prompt's token ids here are the bytes of their JSON,
                 the answer's those of its text
    token ids    with the server's own tokenizer at hand, ids go to ``/completions`` and come back (``cotrain serve``,
                 vLLM)

The server answers when it likes: the engine of this process goes on meanwhile (``rollout/event_loop.py:
awaiting_server``). What may pass (a server that is busy, broken or silent) is asked again, with growing pauses, until
the deadline; what the server refuses is not. Then the turn is a value with its reason, kept from training and counted.
The first trouble of each kind is reported at once, in the server's own words. Missing permission, or an unknown model,
ends the run, and after ``FIRST_CONTACT`` who asks where no server is: no repetition mends that.

A limit of tokens that does not fit the server's context next to the prompt is halved until it does. An answer without
text that has an end, such as one whose thought filled ``max_tokens``, is an empty answer.

An answer is believed as far as it can be true: no more of it is read than its tokens can need, ids are of the
vocabulary, log-probabilities finite and not positive, counts of tokens those of a request.

A server is no function of the request, so a run is repeated from its ledger: an answer that is remembered is not
asked for again. Left out: streams, proxies, and images.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import httpx2

from cotrain.core.errors import ConfigError, DataError
from cotrain.core.redact import redact_text
from cotrain.core.seeding import Address, rng_of
from cotrain.core.types import FAILED, SAYING, Completion, Trace
from cotrain.core.verbosity import escape_terminal
from cotrain.distributed.policy_handles import PolicyHandle, PolicySpec
from cotrain.inference.contract import Request
from cotrain.prompts.byte_tokenizer import STOP, ByteRenderer
from cotrain.prompts.chat_template import Message
from cotrain.prompts.render import Piece, Rendering
from cotrain.rollout.event_loop import awaiting_server

FIRST_PAUSE = 0.5  # seconds before a request is sent again for the first time
LONGEST_PAUSE = 30.0  # most seconds between two tries
FIRST_CONTACT = 30.0  # seconds for which a server that never answered is waited for
TOO_MANY = 429  # requests
AGAIN = (408, 409, 425, TOO_MANY, 500, 502, 503, 504, 520, 529)  # states of a server that may pass
KEY_ADVICE = "name the environment variable that holds its key, as in --set policies.{name}.key_variable=JUDGE_KEY"
NEVER = {  # what no repetition mends, and what does
    401: f"it wants another key: {KEY_ADVICE}",
    403: f"this key may not ask: {KEY_ADVICE}",
    404: "there is no such address or model: check both in http://HOST:PORT/v1#MODEL",
}
COUNTED = (  # see ``RemoteHandle.counts``
    "answers",
    "failed",
    "retries",
    "lowered",
    "prompt_tokens",
    "completion_tokens",
    "remembered",
    "seconds",
)
LEAST_TOKENS = 16  # tokens of an answer: a limit that does not fit is not halved below it
# In a refusal: the limit of tokens does not fit the server's context next to the prompt.
NO_ROOM = re.compile(r"context|too (?:large|long|many)|at most|must be <=|max_new_tokens", re.IGNORECASE)
MOST_REFUSAL = 1 << 16  # bytes that are read of a refusal
MOST_WORDS = 300  # characters that are shown of its reason
MOST_BODY = 1 << 20  # bytes of an answer's JSON
PER_TOKEN = 256  # further bytes of it for each token of prompt and answer
TEXT_PER_TOKEN = 64  # bytes of text that a token may be
LEAST_LOGPROB = -1e4  # servers write -9999 for minus infinity
ROUNDING = 1e-4  # a log-probability may be so far above 0, by rounding
MOST_COUNT = 10**9  # tokens of one request that a server may count
TIMEOUT = "timeout"
NO_CONNECTION = "no connection"


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
        self._connection: _Connection | None = None
        self._reached = False  # has the server ever answered?
        self._known: dict[Address, Trace] = {}
        self._told: set[str] = set()  # reasons of troubles that were reported
        self._refused_limits: dict[int, int] = {}  # max_tokens → length of the shortest prompt that left no room for it
        self._vocabulary = renderer.vocabulary
        self._counts = dict.fromkeys(COUNTED, 0.0)

    def cache_answers(self, traces: Sequence[Trace]) -> None:
        self._known = {trace.address: trace for trace in traces}

    def counts(self) -> dict[str, float]:
        """``{policy}/remote/answers``, ``…/failed``, ``…/retries``, ``…/lowered`` (answers with a smaller limit of
        tokens than was wanted), ``…/prompt_tokens``, ``…/completion_tokens`` (as the server counts), ``…/remembered``,
        ``…/cost``, and ``…/seconds``, the sum of all waiting."""
        spent = self._counts["prompt_tokens"] * self.spec.input_price
        spent += self._counts["completion_tokens"] * self.spec.output_price
        counts = self._counts | {"cost": spent / 1e6}  # prices are for a million tokens
        return {f"{self.name}/remote/{what}": count for what, count in counts.items()}

    async def sample(self, request: Request) -> Completion:
        """The server's answer, or one that says why there is none. Raises ConfigError where asking again cannot help,
        and DataError where another prompt was answered at this address."""
        if request.address in self._known:
            return self._recorded_completion(request)
        path, body = self._path_and_body(request)
        with awaiting_server():
            connection = self._get_connection()
            async with connection.free:
                began = time.monotonic()
                try:
                    return await self._request_answer(connection.client, request, path, body, began)
                finally:
                    self._counts["seconds"] += time.monotonic() - began

    async def close(self) -> None:
        connection = self._connection
        self._connection = None
        if connection is not None:
            await connection.client.aclose()

    async def _request_answer(
        self, client: httpx2.AsyncClient, request: Request, path: str, body: Mapping[str, Any], began: float
    ) -> Completion:
        deadline = began + self.spec.deadline
        pauses = rng_of("pause", request.seed)
        tries = 0
        limit = self._fitting_limit(request)
        last_trouble: Trouble | None = None
        while True:
            left = deadline - time.monotonic()
            is_last_try = left <= self.spec.timeout  # the deadline cuts it off
            seconds = left if is_last_try else self.spec.timeout
            answer = await self._try_once(client, request, path, {**body, "max_tokens": limit}, seconds)
            if isinstance(answer, Completion):
                self._counts["lowered"] += limit < request.sampling.max_tokens
                return answer
            if is_last_try and answer.reason == TIMEOUT and last_trouble is not None:
                answer = last_trouble  # the reason is what the server said before
            if self._too_little_room(answer) and limit // 2 >= LEAST_TOKENS:
                self._note_lowered(answer, request, limit)
                limit //= 2
                continue
            if answer.status in NEVER:
                raise ConfigError(
                    f"policy {self.name!r}: {self.spec.url} answers {answer.in_words()}; "
                    f"{NEVER[answer.status].format(name=self.name)}",
                    code="E_REMOTE_REFUSES",
                )
            if self._was_never_there(answer) and time.monotonic() - began > FIRST_CONTACT:
                raise ConfigError(
                    f"policy {self.name!r}: no server answers at {self.spec.url} ({answer.words}); start it, or check "
                    "the policy's url",
                    code="E_REMOTE_NOT_REACHED",
                )
            self._tell_first(answer)
            if answer.is_refusal:
                return self._failed_completion(answer)
            growing_pause = min(LONGEST_PAUSE, FIRST_PAUSE * 2**tries)
            pause = max(answer.least_pause, growing_pause * (0.5 + pauses.random()))
            if time.monotonic() + pause >= deadline:
                return self._failed_completion(answer)
            last_trouble = answer
            tries += 1
            self._counts["retries"] += 1
            await asyncio.sleep(pause)

    async def _try_once(
        self, client: httpx2.AsyncClient, request: Request, path: str, body: Mapping[str, Any], seconds: float
    ) -> Completion | Trouble:
        """The answer to one request, or what came in its place within so many seconds."""
        try:
            async with asyncio.timeout(seconds), client.stream("POST", path, json=body) as response:
                self._reached = True
                if response.status_code == 200:
                    content = await _read_body(response, _most_bytes(request))
                    return self._parse_answer(request, _parse_json(content))
                return await _trouble_of(response)
        except (TimeoutError, httpx2.TimeoutException):
            return Trouble(reason=TIMEOUT, words=f"nothing came within {seconds:.3g} s")
        except httpx2.HTTPError as error:
            return Trouble(reason=NO_CONNECTION, words=_one_line(str(error)))
        except Malformed as error:
            return Trouble(reason=str(error))

    def _was_never_there(self, answer: Trouble) -> bool:
        """Whether no server is at the address, as far as is known: it has never answered."""
        return answer.reason == NO_CONNECTION and not self._reached

    def _too_little_room(self, answer: Trouble) -> bool:
        """Whether the limit of tokens is refused, which together with the prompt exceeds the server's context."""
        return answer.is_refusal and NO_ROOM.search(answer.words) is not None

    def _fitting_limit(self, request: Request) -> int:
        """``max_tokens`` of the request, halved where the server has refused it for a prompt that was no longer."""
        limit = request.sampling.max_tokens
        size = len(request.prompt_ids)
        while limit // 2 >= LEAST_TOKENS:
            shortest_refused = self._refused_limits.get(limit)
            if shortest_refused is None or size < shortest_refused:
                break
            limit //= 2
        return limit

    def _note_lowered(self, answer: Trouble, request: Request, limit: int) -> None:
        """Remember that so many tokens were refused next to this prompt; the first time, say so."""
        if not self._refused_limits:
            self.tell(
                f"note: policy {self.name!r}: {self.spec.url} refuses max_tokens {limit} ({answer.in_words()}); where "
                "a prompt leaves no room for so many tokens it is asked for half as many, and half again, down to "
                f"{LEAST_TOKENS}"
            )
        size = len(request.prompt_ids)
        self._refused_limits[limit] = min(size, self._refused_limits.get(limit, size))

    def _tell_first(self, answer: Trouble) -> None:
        """Say what went wrong, the first time of each kind."""
        if answer.reason in self._told:
            return
        self._told.add(answer.reason)
        what = f"note: policy {self.name!r}: {self.spec.url}: {answer.in_words()}"
        patience = self.spec.deadline
        if self._was_never_there(answer):
            patience = min(FIRST_CONTACT, patience)
        then = "this is not asked again" if answer.is_refusal else f"asking again, for {patience:g} s"
        self.tell(f"{what}; {then}")

    def _path_and_body(self, request: Request) -> tuple[str, dict[str, Any]]:
        """What is sent, and where: token ids where the server returns them, else messages."""
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
                "give it a tokenizer, or ask for the whole answer",
                code="E_REMOTE_CANNOT_CONTINUE",
            )
        return "chat/completions", body | {"messages": messages}

    def _parse_answer(self, request: Request, answer: Any) -> Completion:
        """The answer that stands in a body. Raises Malformed."""
        choices = answer.get("choices") if isinstance(answer, Mapping) else None
        if not isinstance(choices, list) or not choices or not isinstance(choices[0], Mapping):
            raise Malformed("no choices")
        choice = choices[0]
        usage = answer.get("usage")
        finish = "length" if choice.get("finish_reason") == "length" else "stop"
        if self.spec.send_ids:
            token_ids, logprobs = _ids_and_logprobs(choice, request.sampling.max_tokens, self._vocabulary)
        else:
            message = choice.get("message")
            text = message.get("content") if isinstance(message, Mapping) else None
            if _is_empty_answer(choice):
                text = ""
            if not isinstance(text, str):
                raise Malformed("no text")
            if len(text) > TEXT_PER_TOKEN * request.sampling.max_tokens:
                raise Malformed("more text than max_tokens allows")
            token_ids = tuple(text.encode(errors="replace"))
            if finish == "stop" or not text:  # a completion has at least one token
                token_ids += (STOP,)
            logprobs = (0.0,) * len(token_ids)
        if not isinstance(usage, Mapping):
            usage = {}
        counts = {name: usage.get(name) for name in ("prompt_tokens", "completion_tokens")}
        for count in counts.values():
            is_possible = count is None or (type(count) is int and 0 <= count <= MOST_COUNT)
            if not is_possible:
                raise Malformed("impossible token counts")
        self._counts["answers"] += 1
        for name, count in counts.items():
            self._counts[name] += count or 0
        return Completion(token_ids=token_ids, logprobs=logprobs, finish=finish, policy=self.name, version=0)

    def _failed_completion(self, answer: Trouble) -> Completion:
        self._counts["answers"] += 1
        self._counts["failed"] += 1
        self.trouble = f"{self.spec.url}: {answer.in_words()}; {self._advice(answer)}"
        ids = (self.renderer.stop_ids[0],)
        phrase = f"refused ({answer.reason})" if answer.is_refusal else answer.reason
        why = f"remote: {phrase}"
        if answer.words:
            why += f"{SAYING}{answer.words}"
        return Completion(token_ids=ids, logprobs=(0.0,), finish=FAILED, policy=self.name, version=0, failure=why)

    def _advice(self, answer: Trouble) -> str:
        """Advice for a user."""
        if answer.status is None:
            return f"bring back the server of {self.spec.model!r}"
        if answer.is_refusal:
            return "mend what it refuses"
        if answer.status == TOO_MANY:
            return f"wait, or ask it for less at a time with --set policies.{self.name}.concurrency=N"
        return f"look into the log of the server of {self.spec.model!r}"

    def _recorded_completion(self, request: Request) -> Completion:
        trace = self._known[request.address]
        if trace.prompt_ids != request.prompt_ids:
            raise DataError(
                f"policy {self.name!r}: another prompt was answered at {request.address} of this ledger; use the "
                "templates, tasks, weights and seed of the recorded run",
                code="E_REPLAY_PROMPT",
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
        """The connection of the running loop. It reads no proxies, keys or passwords from the surroundings."""
        loop = asyncio.get_running_loop()
        if self._connection is None or self._connection.loop is not loop:
            client = httpx2.AsyncClient(
                base_url=self.spec.url.rstrip("/") + "/",
                headers={"Accept-Encoding": "gzip"} | self._headers,
                timeout=self.spec.timeout,
                limits=httpx2.Limits(max_connections=self.spec.concurrency),
                trust_env=False,
            )
            free = asyncio.Semaphore(self.spec.concurrency)
            self._connection = _Connection(loop=loop, client=client, free=free)
        return self._connection


@dataclass(frozen=True, slots=True, kw_only=True)
class _Connection:
    """The client in one event loop."""

    loop: asyncio.AbstractEventLoop
    client: httpx2.AsyncClient
    free: asyncio.Semaphore  # how many more requests may be under way


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """A failure in the place of an answer."""

    reason: str  # a short fixed phrase: "status 429", "timeout", "no JSON"
    words: str = ""  # the server's own, or the connection's, in one line
    status: int | None = None  # HTTP status, if the server answered
    least_pause: float = 0.0  # seconds that the server wants to be left alone

    @property
    def is_refusal(self) -> bool:
        """Whether the server wants this request not at all, so that asking it again is in vain."""
        return self.status is not None and self.status not in AGAIN

    def in_words(self) -> str:
        return f"{self.reason}: {self.words}" if self.words else self.reason


async def _trouble_of(response: httpx2.Response) -> Trouble:
    """The trouble of a response whose status is not 200."""
    try:
        words = _reason_in(await _read_body(response, MOST_REFUSAL))
    except (Malformed, httpx2.HTTPError):
        words = ""
    wanted = response.headers.get("retry-after", "")  # seconds; a date in its place is not read
    return Trouble(
        reason=f"status {response.status_code}",
        words=words or response.reason_phrase,
        status=response.status_code,
        least_pause=min(LONGEST_PAUSE, float(wanted)) if wanted.isdecimal() else 0.0,
    )


def _reason_in(content: bytes) -> str:
    """The reason in the body of a refusal: ``{"error": {"message": …}}`` as OpenAI has it, ``{"error": …}``,
    ``{"message": …}``, ``{"detail": …}``, else all of it."""
    try:
        said: Any = json.loads(content)
    except (ValueError, RecursionError):
        said = content.decode(errors="replace")
    for field in ("error", "message", "detail"):  # each within what the one before held
        if isinstance(said, Mapping) and said.get(field):
            said = said[field]
    if not said:
        return ""
    return _one_line(said if isinstance(said, str) else json.dumps(said))


def _one_line(text: str) -> str:
    """Somebody else's words, without keys or control characters."""
    return escape_terminal(redact_text(" ".join(text[:MOST_REFUSAL].split())), MOST_WORDS)


def _is_empty_answer(choice: Mapping[str, Any]) -> bool:
    """Whether it says that it has no text (``"content": null``) and how it ended: a thought filled ``max_tokens``, or a
    tool was called."""
    message = choice.get("message")
    if not isinstance(message, Mapping) or message.get("content", "") is not None:
        return False
    return isinstance(choice.get("finish_reason"), str)


class Malformed(ValueError):
    """Raised for an answer whose body is malformed; the fault is a short fixed phrase."""


def _most_bytes(request: Request) -> int:
    """Bytes that the JSON of an answer may have."""
    return MOST_BODY + PER_TOKEN * (len(request.prompt_ids) + request.sampling.max_tokens)


async def _read_body(answer: httpx2.Response, most: int) -> bytes:
    """The body of an answer, unpacked. Raises Malformed for one that is longer than ``most``, before it is read."""
    coding = answer.headers.get("content-encoding", "identity").strip().lower()
    parts = []
    size = 0
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
    ids = choice.get("token_ids")
    logprobs = choice.get("logprobs")
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
