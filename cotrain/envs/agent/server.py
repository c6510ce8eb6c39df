"""The server that agents ask: ``/v1/chat/completions`` and ``/v1/models`` on 127.0.0.1, with a key for each rollout.

One server for a process, in a thread of its own, from the first rollout on. It reads requests and writes answers; the
rollout whose key a request has answers it, in the loop that the rollout runs in. A request without such a key is
refused with 401 before its body is read, so nobody else on the machine can ask, nor an agent whose rollout is over; and
a connection without one is held for no longer than a head takes (``rollout/http_server.py``).
"""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, partial
from typing import Any

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from cotrain.core.errors import UserError
from cotrain.envs.agent import peers
from cotrain.envs.agent.rollout import Reply, Rollout
from cotrain.formats.openai_requests import BadRequest, error_json, read_chat
from cotrain.rollout.http_server import note_departure, receive_body, serve_application

LOOK_S = 0.5  # seconds between two checks of whether the agent still waits for its answer


class AgentServer:
    """Listens on a free port until the process ends."""

    def __init__(self) -> None:
        self._rollouts: dict[str, Rollout] = {}
        # Key → the connections that were checked and belong to its own program, each by its sockets.
        self._own_connections: dict[str, set[frozenset[str]]] = {}
        listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
        self._port = listener.getsockname()[1]
        self.base_url = f"http://127.0.0.1:{self._port}/v1"
        routes = [
            Route("/v1/chat/completions", self._answer_chat, methods=["POST"]),
            Route("/v1/models", self._list_models),
        ]
        app = Starlette(routes=routes, exception_handlers={ClientDisconnect: note_departure})
        serve = partial(serve_application, app, listener, knows=self._has_key)
        threading.Thread(target=serve, name="cotrain-agents", daemon=True).start()

    @contextmanager
    def admit(self, rollout: Rollout) -> Iterator[None]:
        """While the block runs, requests with the rollout's key are answered."""
        self._rollouts[rollout.key] = rollout
        self._own_connections[rollout.key] = set()
        try:
            yield
        finally:
            del self._rollouts[rollout.key]
            del self._own_connections[rollout.key]

    async def _answer_chat(self, request: Request) -> Response:
        rollout = self._find_rollout(request)
        if rollout is None:
            return _refusal(
                BadRequest("the key is of no rollout that is running; send api_key", status=401, code="E_ROLLOUT_KEY")
            )
        if await asyncio.to_thread(self._is_from_other_rollout, request, rollout):
            return _refusal(
                BadRequest(
                    "the key is of another rollout than the program that sent it", status=401, code="E_ROLLOUT_KEY"
                )
            )
        try:
            params = read_chat(await receive_body(request), tools=True)
            answer = asyncio.wrap_future(rollout.ask(params))
            while not answer.done():
                await asyncio.wait({answer}, timeout=LOOK_S)
                if not answer.done() and await request.is_disconnected():
                    answer.cancel()
                    return Response(status_code=499)  # nobody is there to read it
            reply = answer.result()
        except UserError as error:
            rollout.note_refusal(error)
            return _refusal(error)

        head = {"id": f"chatcmpl-{time.monotonic_ns()}", "created": int(time.time()), "model": params.model}
        if params.stream:
            return _stream_answer(head, reply, usage=params.usage)
        return _whole_answer(head, reply)

    async def _list_models(self, request: Request) -> Response:
        rollout = self._find_rollout(request)
        names = () if rollout is None else rollout.models
        models = [{"id": name, "object": "model", "created": 0, "owned_by": "cotrain"} for name in names]
        return JSONResponse({"object": "list", "data": models})

    def _has_key(self, authorization: str) -> bool:
        return _key_in(authorization) in self._rollouts

    def _is_from_other_rollout(self, request: Request, rollout: Rollout) -> bool:
        """Whether a program of another rollout sends this request (``peers.py``)."""
        pids = [running.pid for running in list(self._rollouts.values()) if running is not rollout]
        other_pids = [pid for pid in pids if pid is not None]
        if request.client is None or not other_pids or not peers.can_look():
            return False
        sockets = peers.sockets_between(request.client.port, self._port)
        own_connections = self._own_connections.get(rollout.key, set())
        if sockets in own_connections:
            return False
        has_no_holder = not sockets  # its program has left: it cannot be told whose it was
        if has_no_holder or peers.is_held_by(sockets, other_pids):
            return True
        own_connections.add(sockets)
        return False

    def _find_rollout(self, request: Request) -> Rollout | None:
        return self._rollouts.get(_key_in(request.headers.get("authorization", "")))


def _key_in(authorization: str) -> str:
    return authorization.removeprefix("Bearer ").strip()


def _refusal(error: UserError) -> Response:
    status = 400
    param = None
    openai_code: str | None = "context_length_exceeded"
    if isinstance(error, BadRequest):
        status = error.status
        param = error.param
        openai_code = error.openai_code
    body = error_json(str(error), status=status, param=param, openai_code=openai_code, code=error.code)
    return JSONResponse(body, status_code=status)


def _usage(reply: Reply) -> dict[str, int]:
    return {
        "prompt_tokens": reply.prompt_tokens,
        "completion_tokens": reply.completion_tokens,
        "total_tokens": reply.prompt_tokens + reply.completion_tokens,
    }


def _message(reply: Reply) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": reply.text}
    if reply.calls:
        message["content"] = reply.text or None
        message["tool_calls"] = [_call_with_text(call) for call in reply.calls]
    return message


def _call_with_text(call: dict[str, Any]) -> dict[str, Any]:
    """A call of a tool with its arguments as the protocol sends them: as a text of JSON."""
    function = call["function"]
    return {**call, "function": {**function, "arguments": json.dumps(function["arguments"])}}


def _whole_answer(head: dict[str, Any], reply: Reply) -> Response:
    message = {**_message(reply), "refusal": None}
    choice = {"index": 0, "message": message, "finish_reason": reply.finish, "logprobs": None}
    return JSONResponse({**head, "object": "chat.completion", "choices": [choice], "usage": _usage(reply)})


def _stream_answer(head: dict[str, Any], reply: Reply, *, usage: bool) -> Response:
    """The whole answer in one chunk, for clients that ask for a stream; the next chunk says how it ended."""
    message = _message(reply)
    for index, call in enumerate(message.get("tool_calls", ())):
        call["index"] = index
    answer_choice = {"index": 0, "delta": message, "finish_reason": None, "logprobs": None}
    end_choice = {"index": 0, "delta": {}, "finish_reason": reply.finish, "logprobs": None}
    chunks: list[dict[str, Any]] = [{"choices": [answer_choice]}, {"choices": [end_choice]}]
    if usage:
        chunks.append({"choices": [], "usage": _usage(reply)})
    lines = [json.dumps({**head, "object": "chat.completion.chunk", **chunk}) for chunk in chunks]
    return Response("".join(f"data: {line}\n\n" for line in [*lines, "[DONE]"]), media_type="text/event-stream")


@cache
def agent_server() -> AgentServer:
    """The server of this process."""
    return AgentServer()
