"""One rollout of an agent: a program of the user's that talks to roles by OpenAI's protocol and ends with an answer.

::

    async def solve(problem: str, base_url: str, api_key: str) -> str:     # or def, or a command
        client = AsyncOpenAI(base_url=base_url, api_key=api_key)
        …

The program runs in a thread of its own. The engine rests while it computes, and goes on while it waits for an answer,
so batches follow from the work and not from the clock, as long as the agent asks one thing at a time.

A request sends a whole conversation. Where it begins with what the role has heard and said in one of its conversations
of this rollout, it goes on with the very tokens that were sampled; what does not begin with them starts a training
sequence, and is counted (``sequences``). All that a role says in a rollout is one trajectory. Left out: several answers
to one request, log-probabilities.
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
from functools import partial
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


class RolloutServer(Protocol):
    """The end at which the requests of an agent arrive (``server.py``)."""

    @property
    def base_url(self) -> str: ...

    def admit(self, rollout: Rollout) -> AbstractContextManager[None]:
        """While the block runs, requests with this rollout's key are put to it."""
        ...


class Rollout:
    """The conversations of one rollout, and the program that leads them."""

    def __init__(self, roles: Roles, models: tuple[str, ...], requests: int, max_tokens: int) -> None:
        self.key = secrets.token_hex(16)
        self.models = models
        self.chats: dict[str, list[Conversation]] = {name: [] for name in models}
        self._roles = roles
        self._most = requests
        self._max_tokens = max_tokens
        self._asked = 0
        self._loop = asyncio.get_running_loop()
        self._inbox: asyncio.Queue[tuple[RequestParams, Future[Reply]] | None] = asyncio.Queue()  # None: it has ended
        self._speaking: set[Conversation] = set()
        self._tools = ToolMessages()
        self._rejection = ""
        self._over = False
        self._run: ProgramRun | None = None

    @property
    def pid(self) -> int | None:
        """The process from which all processes of its command descend; None where there is none."""
        return None if self._run is None else self._run.pid

    def ask(self, params: RequestParams) -> Future[Reply]:
        """Called by the server, which cancels the reply where the agent does not wait for it any more: what is sampled
        for nobody is not learned."""
        reply: Future[Reply] = Future()
        self._loop.call_soon_threadsafe(self._receive_request, params, reply)
        return reply

    def _receive_request(self, params: RequestParams, reply: Future[Reply]) -> None:
        if self._over:
            _check_reply(reply, BadRequest("the rollout is over", status=410, code="E_ROLLOUT_OVER"))
        else:
            self._inbox.put_nowait((params, reply))

    def reject(self, error: UserError) -> None:
        """A request was refused: the reason, where the agent then fails."""
        what = (
            error.openai_code or error.param or "body" if isinstance(error, BadRequest) else "context_length_exceeded"
        )
        self._rejection = f"agent: request refused ({what})"

    async def run(
        self, server: RolloutServer, program: Agent | Sequence[str], problem: str, seconds: float, folder: str
    ) -> Any:
        """Run the program and return the answer that it ends with.

        Args:
            server: the server to which its requests go.
            seconds: the time that it may take by itself, without waiting for models.
            folder: the working directory of a command.

        Raises AgentFailed.
        """
        ended = partial(self._loop.call_soon_threadsafe, self._inbox.put_nowait, None)
        with server.admit(self):
            run = self._run = ProgramRun(program, problem, server.base_url, self.key, ended, folder)
            try:
                await self._answer_requests(seconds)
            finally:
                run.stop()
        try:
            return run.answer()
        except AgentFailed as error:
            raise AgentFailed(self._rejection or str(error)) from error

    # -- its requests, in the loop of the rollout

    async def _answer_requests(self, seconds: float) -> None:
        """Until the program ends. Raises AgentFailed after ``seconds`` in which it asked nothing."""
        message = asyncio.ensure_future(self._inbox.get())
        answers = set[asyncio.Task[None]]()
        try:
            while True:
                if answers:
                    with awaiting_server():
                        await asyncio.wait({message, *answers}, return_when=asyncio.FIRST_COMPLETED)
                else:
                    begun = time.monotonic()
                    async with self._roles.busy():
                        await asyncio.wait({message}, timeout=seconds)
                    seconds -= time.monotonic() - begun
                    if not message.done():
                        raise AgentFailed("agent: timeout")
                for answer in [one for one in answers if one.done()]:
                    answers.remove(answer)
                    if not answer.cancelled():
                        answer.result()  # raises what ends the rollout

                if message.done():
                    if (request := message.result()) is None:
                        return
                    params, reply = request
                    answers.add(answer := asyncio.ensure_future(self._answer_request(params, reply)))
                    reply.add_done_callback(partial(self._cancel_with, answer))
                    message = asyncio.ensure_future(self._inbox.get())
        finally:
            self._over = True
            unread = [message.result()] if message.done() and not message.cancelled() else []
            while not self._inbox.empty():
                unread.append(self._inbox.get_nowait())
            for request in filter(None, unread):
                self._receive_request(*request)
            for left in (message, *answers):
                left.cancel()
            await asyncio.gather(message, *answers, return_exceptions=True)

    def _cancel_with(self, answer: asyncio.Task[None], reply: Future[Reply]) -> None:
        if reply.cancelled():
            self._loop.call_soon_threadsafe(answer.cancel)

    async def _answer_request(self, params: RequestParams, reply: Future[Reply]) -> None:
        try:
            said = await self._say_reply(params)
            with suppress(InvalidStateError):  # cancelled
                reply.set_result(said)
        except (BadRequest, TooLong, ModelError) as error:
            _check_reply(reply, error)
        finally:
            _check_reply(reply, BadRequest("the rollout is over", status=410, code="E_ROLLOUT_OVER"))

    async def _say_reply(self, params: RequestParams) -> Reply:
        """Raises BadRequest and TooLong, and ModelError for messages that the chat template cannot render."""
        self._asked += 1
        if self._asked > self._most:
            message = f"a rollout may ask {self._most} times; raise requests"
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
        self._speaking.add(chat)
        try:
            turn = await chat.say(stop=params.stop or None, max_tokens=limit)
        finally:
            self._speaking.remove(chat)

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
        stopped = stop_in(turn.text, params.stop)
        text = turn.text if stopped is None else turn.text[: stopped[0]]
        reply = Reply(text=text, finish=turn.finish, prompt_tokens=len(turn.prompt_ids), completion_tokens=turn.tokens)
        if syntax is None or turn.finish != "stop":  # a reply that was cut has no calls
            return reply
        beside, calls = self._tools.read_reply(turn, text, params, syntax)
        return replace(reply, text=beside, calls=calls, finish="tool_calls") if calls else reply

    def _check_size(self, params: RequestParams) -> None:
        """Raises BadRequest for more text than the model's context could hold, before a template or a tokenizer sees
        it: the engine, and with it all other rollouts, would wait for them."""
        role = getattr(self._roles, params.model)
        if role.context_length is None:
            return
        # A program's tokens are bytes.
        longest = role.renderer.longest_token if isinstance(role.renderer, Renderer) else 1
        texts = [message.content for message in params.messages]
        texts += [json.dumps(one.calls) for one in params.messages if isinstance(one, CallingMessage)]
        check_text_size(texts, role.context_length, longest, "messages", params.model)
        if params.tools:
            check_text_size([json.dumps(params.tools)], role.context_length, longest, "tools", params.model)

    def _find_chat(self, params: RequestParams, renderer: Rendering) -> Conversation:
        """The longest conversation, with the same tools, that the messages begin with; else a new one."""
        messages = list(params.messages)
        chats = self.chats[params.model]
        idle = [c for c in chats if c not in self._speaking and c.renderer is renderer]
        known = [c for c in idle if messages[: len(c.messages)] == c.messages]
        if known:
            return max(known, key=lambda chat: len(chat.messages))
        role = getattr(self._roles, params.model)
        chat: Conversation = role.begin(problem=messages[-1].content, group=role.whole_group)
        if chats:
            chat.join(chats[0])  # one rollout earns once, however many conversations it has
        chats.append(chat)
        return chat


def _check_reply(reply: Future[Reply], error: UserError) -> None:
    """Nothing where it has its answer, or is cancelled."""
    with suppress(InvalidStateError):
        reply.set_exception(error)
