"""One rollout of an agent: a program of the user's that talks to roles by OpenAI's protocol and ends with an answer.

::

    async def solve(problem: str, base_url: str, api_key: str) -> str:     # or def, or a command
        client = AsyncOpenAI(base_url=base_url, api_key=api_key)
        …

The program runs in a thread of its own. While the program computes, the engine pauses; while the program waits for an
answer, the engine samples. So the batches of the engine do not depend on the speed of the program, as long as the agent
sends one request at a time.

A request has all messages of a conversation. If its first messages are those of an earlier conversation of this
rollout, that conversation goes on, with the very tokens that were sampled. Else a new training sequence begins, which
is counted (``sequences``). All sequences of a role in a rollout are one trajectory. Left out: several answers to one
request, log-probabilities.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections.abc import Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, replace
from typing import Any, Protocol

from cotrain.core.errors import ModelError, TooLong, UserError, unknown_message
from cotrain.core.notes import PROBLEM
from cotrain.core.types import TOO_LONG
from cotrain.envs.agent.program import Agent, AgentFailed, ProgramRun
from cotrain.envs.agent.tools import ToolMessages
from cotrain.formats.openai_requests import BadRequest, CallingMessage, RequestParams, check_text_size
from cotrain.prompts.decoding import stop_in
from cotrain.prompts.render import Renderer, Rendering
from cotrain.rollout.conversation import Conversation
from cotrain.rollout.event_loop import awaiting_server
from cotrain.rollout.runner import Roles


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """The answer of a role to one request."""

    text: str
    finish: str
    prompt_tokens: int
    completion_tokens: int
    calls: tuple[dict[str, Any], ...] = ()  # calls of tools, with the arguments as an object


InboxItem = tuple[RequestParams, Future[Reply]] | None  # a request and its reply; None: the program has ended


class RolloutServer(Protocol):
    """The server that receives the requests of an agent (``server.py``)."""

    @property
    def base_url(self) -> str: ...

    def admit(self, rollout: Rollout) -> AbstractContextManager[None]:
        """While the block runs, requests with this rollout's key are handed to the rollout."""
        ...


class Rollout:
    """The conversations of one rollout, and the program that asks for them."""

    def __init__(self, roles: Roles, models: tuple[str, ...], requests: int, max_tokens: int) -> None:
        """``models``: names of the roles. ``requests``, ``max_tokens``: most requests, and most tokens of an answer."""
        self.key = secrets.token_hex(16)
        self.models = models
        self.chats: dict[str, list[Conversation]] = {name: [] for name in models}
        self._roles = roles
        self._max_requests = requests
        self._max_tokens = max_tokens
        self._n_requests = 0
        self._loop = asyncio.get_running_loop()
        self._inbox: asyncio.Queue[InboxItem] = asyncio.Queue()
        self._busy_chats: set[Conversation] = set()  # an answer is being sampled in them
        self._tools = ToolMessages()
        self._refusal = ""  # why a request was refused last
        self._is_over = False
        self._program_run: ProgramRun | None = None

    @property
    def pid(self) -> int | None:
        """The process from which all processes of its command descend; None where there is none."""
        return None if self._program_run is None else self._program_run.pid

    # -- called by the server, in its thread

    def ask(self, params: RequestParams) -> Future[Reply]:
        """Hand over a request. The server cancels the returned reply if the agent no longer waits for it. Then sampling
        stops, and nothing is learned from it."""
        reply: Future[Reply] = Future()
        self._loop.call_soon_threadsafe(self._receive_request, params, reply)
        return reply

    def note_refusal(self, error: UserError) -> None:
        """Remember why a request was refused. If the agent fails after it, this is the reason."""
        cause = "context_length_exceeded"
        if isinstance(error, BadRequest):
            cause = error.openai_code or error.param or "body"
        self._refusal = f"agent: request refused ({cause})"

    # -- in the loop of the rollout

    def _receive_request(self, params: RequestParams, reply: Future[Reply]) -> None:
        if self._is_over:
            _refuse(reply, _over_error())
        else:
            self._inbox.put_nowait((params, reply))

    async def run(
        self, server: RolloutServer, program: Agent | Sequence[str], problem: str, seconds: float, folder: str
    ) -> Any:
        """Run the program and return the answer that it ends with.

        Args:
            server: receives the requests of the program.
            seconds: the time that it may take by itself, without waiting for models.
            folder: the working directory of a command.

        Raises AgentFailed.
        """

        def tell_end() -> None:
            self._loop.call_soon_threadsafe(self._inbox.put_nowait, None)

        with server.admit(self):
            run = ProgramRun(program, problem, server.base_url, self.key, tell_end, folder)
            self._program_run = run
            try:
                await self._answer_requests(seconds)
            finally:
                run.stop()
        try:
            return run.answer()
        except AgentFailed as error:
            raise AgentFailed(self._refusal or str(error)) from error

    async def _answer_requests(self, seconds: float) -> None:
        """Answer requests until the program ends. Raises AgentFailed where it computes for more than ``seconds``."""
        next_item = asyncio.ensure_future(self._inbox.get())
        answers: set[asyncio.Task[None]] = set()  # those that are being sampled
        try:
            while True:
                if answers:
                    with awaiting_server():
                        await asyncio.wait({next_item, *answers}, return_when=asyncio.FIRST_COMPLETED)
                else:
                    seconds -= await self._wait_for_program(next_item, seconds)

                for answer in list(answers):
                    if answer.done():
                        answers.remove(answer)
                        if not answer.cancelled():
                            answer.result()  # raises what ends the rollout

                if next_item.done():
                    request = next_item.result()
                    if request is None:  # the program has ended
                        return
                    answers.add(self._start_answer(*request))
                    next_item = asyncio.ensure_future(self._inbox.get())
        finally:
            self._is_over = True
            self._refuse_unread_requests(next_item)
            for pending in (next_item, *answers):
                pending.cancel()
            await asyncio.gather(next_item, *answers, return_exceptions=True)

    async def _wait_for_program(self, next_item: asyncio.Future[InboxItem], seconds: float) -> float:
        """Wait for the next request or the end, while the engine pauses. Returns how many seconds it took. Raises
        AgentFailed after ``seconds``."""
        start = time.monotonic()
        async with self._roles.busy():
            await asyncio.wait({next_item}, timeout=seconds)
        if not next_item.done():
            raise AgentFailed("agent: timeout")
        return time.monotonic() - start

    def _start_answer(self, params: RequestParams, reply: Future[Reply]) -> asyncio.Task[None]:
        """Begin to answer a request. The answer is cancelled when its reply is."""
        answer = asyncio.ensure_future(self._answer_request(params, reply))

        def cancel_answer(reply: Future[Reply]) -> None:
            if reply.cancelled():
                self._loop.call_soon_threadsafe(answer.cancel)

        reply.add_done_callback(cancel_answer)
        return answer

    def _refuse_unread_requests(self, next_item: asyncio.Future[InboxItem]) -> None:
        """Refuse the requests that came in as the rollout ended."""
        items: list[InboxItem] = []
        if next_item.done() and not next_item.cancelled():
            items.append(next_item.result())
        while not self._inbox.empty():
            items.append(self._inbox.get_nowait())
        for item in items:
            if item is not None:
                _, reply = item
                _refuse(reply, _over_error())

    async def _answer_request(self, params: RequestParams, reply: Future[Reply]) -> None:
        try:
            answer = await self._sample_reply(params)
            with suppress(InvalidStateError):  # the reply was cancelled
                reply.set_result(answer)
        except (BadRequest, TooLong, ModelError) as error:
            _refuse(reply, error)
        finally:
            # Where the rollout ends by another error, whoever waits for the reply hears of it.
            _refuse(reply, _over_error())

    async def _sample_reply(self, params: RequestParams) -> Reply:
        """Raises BadRequest and TooLong, and ModelError for messages that the chat template cannot render."""
        self._n_requests += 1
        if self._n_requests > self._max_requests:
            message = f"a rollout may ask {self._max_requests} times; raise requests"
            raise BadRequest(message, status=403, openai_code="too_many_requests", code="E_TOO_MANY_REQUESTS")
        if params.model not in self.chats:
            raise BadRequest(
                unknown_message("model", params.model, self.models), "model", status=404, code="E_MODEL_NOT_SERVED"
            )
        if params.n > 1 or params.top is not None:
            raise BadRequest("expected n=1 without logprobs; ask once for each answer", "n", code="E_ONE_ANSWER_ALONE")
        self._check_size(params)
        params, renderer, syntax = self._tools.prepare_request(params, getattr(self._roles, params.model).renderer)
        chat = self._find_chat(params, renderer)
        limit = min(params.max_tokens or self._max_tokens, self._max_tokens)
        chat.set_messages(params.messages, renderer)
        self._busy_chats.add(chat)
        try:
            turn = await chat.say(stop=params.stop or None, max_tokens=limit)
        finally:
            self._busy_chats.remove(chat)

        turn.add_finding(PROBLEM, params.messages[-1].content)
        if turn.completion.failure == TOO_LONG:
            message = f"messages does not fit the context of {params.model!r}; shorten it"
            raise BadRequest(message, "messages", openai_code="context_length_exceeded", code="E_REQUEST_TOO_LONG")
        if turn.failed:
            raise BadRequest(
                f"the model gave no answer: {turn.completion.failure}",
                status=500,
                openai_code="no_answer",
                code="E_MODEL_WITHOUT_ANSWER",
            )

        text = turn.text
        stop = stop_in(text, params.stop)
        if stop is not None:
            stop_start, _ = stop
            text = text[:stop_start]
        reply = Reply(text=text, finish=turn.finish, prompt_tokens=len(turn.prompt_ids), completion_tokens=turn.tokens)
        if syntax is None or turn.finish != "stop":  # a reply that was cut has no calls
            return reply
        text_without_calls, calls = self._tools.read_reply(turn, text, params, syntax)
        if not calls:
            return reply
        return replace(reply, text=text_without_calls, calls=calls, finish="tool_calls")

    def _check_size(self, params: RequestParams) -> None:
        """Raise BadRequest for more text than the model's context could hold.

        This comes before the chat template and the tokenizer, for which the engine and all other rollouts would wait.
        """
        role = getattr(self._roles, params.model)
        if role.context_length is None:
            return
        longest_token = 1  # the tokens of a role that a program plays are bytes
        if isinstance(role.renderer, Renderer):
            longest_token = role.renderer.longest_token
        texts = [message.content for message in params.messages]
        texts += [json.dumps(message.calls) for message in params.messages if isinstance(message, CallingMessage)]
        check_text_size(texts, role.context_length, longest_token, "messages", params.model)
        if params.tools:
            check_text_size([json.dumps(params.tools)], role.context_length, longest_token, "tools", params.model)

    def _find_chat(self, params: RequestParams, renderer: Rendering) -> Conversation:
        """The longest conversation with these tools with which the messages begin; a new one where there is none."""
        messages = list(params.messages)
        chats = self.chats[params.model]
        continued = []
        for chat in chats:
            can_go_on = chat not in self._busy_chats and chat.renderer is renderer
            if can_go_on and messages[: len(chat.messages)] == chat.messages:
                continued.append(chat)
        if continued:
            return max(continued, key=lambda chat: len(chat.messages))

        role = getattr(self._roles, params.model)
        new_chat: Conversation = role.begin(problem=messages[-1].content, group=role.whole_group)
        if chats:
            new_chat.join(chats[0])  # all conversations of a role are one trajectory, with one reward
        chats.append(new_chat)
        return new_chat


def _refuse(reply: Future[Reply], error: UserError) -> None:
    """Answer a request by an error. A reply that has its answer already, or is cancelled, stays as it is."""
    with suppress(InvalidStateError):
        reply.set_exception(error)


def _over_error() -> BadRequest:
    return BadRequest("the rollout is over", status=410, code="E_ROLLOUT_OVER")
