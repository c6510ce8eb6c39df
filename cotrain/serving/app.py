"""The server: routes, streams, errors, and who may ask.

::

    GET  /health   /v1/models   /v1/models/NAME
    POST /v1/chat/completions   /v1/completions   /v1/verify

It listens on this machine alone unless told otherwise, and knows no passwords. Two things keep web pages that a browser
happens to show from using it: a Host header that is not this server's name is refused (a page whose own name was made
to point here, "DNS rebinding"), and so is a body that is not declared as JSON (a form that another page posts).

What slow, many and leaving clients may cost: ``rollout/http_server.py``. Left out: TLS, keys, quotas and several
processes, which belong to a proxy in front of it; tools and images.
"""

from __future__ import annotations

import asyncio
import json
import re
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from dataclasses import replace
from ipaddress import ip_address
from pathlib import Path
from typing import Any, TypeVar

from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from cotrain import __version__
from cotrain.core.errors import ConfigError, CotrainError, TooLong, UserError
from cotrain.formats import openai_requests as asked
from cotrain.formats.openai_requests import BadRequest, RequestParams
from cotrain.inference import contract
from cotrain.rollout.event_loop import gather
from cotrain.rollout.http_server import GONE, note_departure, receive_body, serve_application
from cotrain.runs import opening
from cotrain.serving import shapes
from cotrain.serving.models import Choice, ServedModel, ServedRun
from cotrain.serving.verify import verify_request
from cotrain.storage.file_ops import DiskError
from cotrain.storage.record import RecordFile

LOCAL = ("localhost", "127.0.0.1", "::1")
_LISTEN_EVERYWHERE = ("0.0.0.0", "::")
_HOST = re.compile(r"(\[(?P<address>[^\[\]]+)\]|(?P<name>[^\[\]:]+))(:[0-9]*)?", re.ASCII)
T = TypeVar("T")


def run_server(
    directory: Path | str,
    *,
    host: str,
    port: int,
    hosts: Sequence[str] = (),
    device: str = "cpu",
    record: str | None = None,
) -> int:
    """Load a run and serve it until a signal comes.

    Args:
        hosts: further names in Host headers that are answered.
        record: the file to which each answer to a chat is appended, with its conversation.

    Raises ConfigError when the address is taken or not this machine's; DataError and DiskError for a record that is
    something else, or cannot be opened.
    """
    listener = open_listener(host, port)  # before the models are loaded
    with listener:
        writer = None if record is None else RecordFile(Path(record), field="messages")
        trainer = opening.open_trainer(directory, device=device)
        served = ServedRun(trainer, writer)
        where = f"[{host}]" if ":" in host else host
        print(f"{trainer.recipe.name} after step {trainer.finished_steps}: {', '.join(served.models)}")
        print(f"http://{where}:{listener.getsockname()[1]}/v1  (Ctrl-C to leave)", flush=True)
        if host not in LOCAL:
            print("cotrain: this server asks nobody for a password and now answers other machines", flush=True)
        try:
            serve_application(make_application(served, (host, *hosts)), listener)
        finally:  # a signal is raised again when the server has ended
            served.close()
    return 0


def open_listener(host: str, port: int) -> socket.socket:
    """A socket that listens there; port 0 takes a free one. Raises ConfigError."""
    if not 0 <= port < 2**16:
        raise ConfigError(f"--port is {port}; expected 0 (any free one) to {2**16 - 1}", code="E_PORT")
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=256)
    except OSError as error:
        why = error.strerror or str(error)
        raise ConfigError(
            f"cannot listen on {host}:{port}: {why}; choose another --host or --port (0: a free one)",
            code="E_CANNOT_LISTEN",
        ) from None


def make_application(served: ServedRun, hosts: Sequence[str] = ()) -> ASGIApp:
    """The ASGI application. ``hosts``: names in Host headers that it answers besides this machine's own."""
    created = int(time.time())

    async def list_models(request: Request) -> Response:
        listed = [shapes.model_json(entry, created) for entry in served.models.values()]
        return JSONResponse({"object": "list", "data": listed})

    async def show_model(request: Request) -> Response:
        return JSONResponse(shapes.model_json(served.find_model(request.path_params["name"]), created))

    async def health(request: Request) -> Response:
        trainer = served.trainer
        state = {"recipe": trainer.recipe.name, "step": trainer.finished_steps, "requests": served.started}
        return JSONResponse({"status": "ok", "version": __version__, **state, "running": served.engine.open_requests})

    async def chat(request: Request) -> Response:
        params = asked.read_chat(await _json_body(request))
        entry = served.find_model(params.model)
        params = replace(params, messages=served.fill_messages(entry, params.messages))

        async def prepare() -> list[contract.Request]:
            return served.make_requests(entry, [served.chat_prompt_ids(entry, params.messages)], params)

        def shape_choice(choice: Choice, index: int) -> dict[str, Any]:
            return shapes.chat_choice(served.renderer_of(entry), choice, index)

        def shape_delta(index: int, text: str | None, finish: str | None) -> dict[str, Any]:
            content = {"content": text} if text is not None else {}
            first = {"role": "assistant", "content": ""} if text is None and finish is None else content
            return {"index": index, "delta": first, "finish_reason": finish, "logprobs": None}

        requests = await served.engine.run_in_thread(prepare())
        return await _respond_choices(
            served, request, entry, params, requests, "chat.completion", shape_choice, shape_delta
        )

    async def completions(request: Request) -> Response:
        params, prompts = asked.read_completions(await _json_body(request))
        entry = served.find_model(params.model)
        served.check_capacity(len(prompts) * params.n)  # before any of them is cut into tokens

        async def prepare() -> list[contract.Request]:
            return served.make_requests(entry, [served.raw_prompt_ids(entry, prompt) for prompt in prompts], params)

        def shape_choice(choice: Choice, index: int) -> dict[str, Any]:
            prompt = prompts[index // params.n]
            text = prompt if isinstance(prompt, str) else None
            return shapes.text_choice(served.renderer_of(entry), choice, index, params, text)

        def shape_delta(index: int, text: str | None, finish: str | None) -> dict[str, Any]:
            return {"index": index, "text": text or "", "finish_reason": finish, "logprobs": None}

        requests = await served.engine.run_in_thread(prepare())
        return await _respond_choices(
            served, request, entry, params, requests, "text_completion", shape_choice, shape_delta
        )

    async def verify_solution(request: Request) -> Response:
        result = await _unless_gone(request, verify_request(served, await _json_body(request)))
        return GONE if result is None else JSONResponse(result)

    app = Starlette(
        routes=[
            Route("/health", health),
            Route("/v1/models", list_models),
            Route("/v1/models/{name:path}", show_model),
            Route("/v1/chat/completions", chat, methods=["POST"]),
            Route("/v1/completions", completions, methods=["POST"]),
            Route("/v1/verify", verify_solution, methods=["POST"]),
        ],
        exception_handlers={
            UserError: _refusal_response,
            ClientDisconnect: note_departure,
            DiskError: _full_disk_response,
            CotrainError: _failure_response,
            HTTPException: _no_route_response,
            Exception: _failure_response,
        },
    )
    return _guard_hosts(app, hosts)


ShapeChoice = Callable[[Choice, int], dict[str, Any]]
ShapeDelta = Callable[[int, str | None, str | None], dict[str, Any]]  # (choice, text, finish)


async def _respond_choices(
    served: ServedRun,
    request: Request,
    entry: ServedModel,
    params: RequestParams,
    requests: Sequence[contract.Request],
    kind: str,
    shape: ShapeChoice,
    delta: ShapeDelta,
) -> Response:
    """Chat and plain completions, as one JSON or as a stream."""
    head = {
        "id": f"{'chatcmpl' if kind.startswith('chat') else 'cmpl'}-{requests[0].address.task}",
        "object": kind,
        "created": int(time.time()),
        "model": entry.name,
        "system_fingerprint": f"{served.trainer.recipe.name}-step-{served.trainer.finished_steps}",
    }
    if params.stream:
        head["object"] = "chat.completion.chunk" if kind.startswith("chat") else kind
        events = _stream_events(served, entry, params, requests, head, delta)
        return StreamingResponse(events, media_type="text/event-stream", headers={"cache-control": "no-store"})

    async def all_choices() -> dict[str, Any]:
        choices = await gather([served.answer_request(entry, request, params) for request in requests])
        shaped = [shape(choice, index) for index, choice in enumerate(choices)]
        return {**head, "choices": shaped, "usage": shapes.usage_json(choices)}

    result = await _unless_gone(request, served.engine.run_in_thread(all_choices()))
    return GONE if result is None else JSONResponse(result)


async def _stream_events(
    served: ServedRun,
    entry: ServedModel,
    params: RequestParams,
    requests: Sequence[contract.Request],
    head: dict[str, Any],
    delta: ShapeDelta,
) -> AsyncIterator[bytes]:
    """Server-sent events: pieces of the choices as they come, in any order; ends with ``[DONE]``."""
    loop = asyncio.get_running_loop()
    pieces = asyncio.Queue[tuple[int, str | None, str | None]]()

    def encode_event(choices: list[dict[str, Any]], **more: Any) -> bytes:
        return f"data: {json.dumps({**head, 'choices': choices, **more}, ensure_ascii=False)}\n\n".encode()

    async def answer_one(index: int, request: contract.Request) -> Choice:
        def put_text(text: str) -> None:
            loop.call_soon_threadsafe(pieces.put_nowait, (index, text, None))

        choice = await served.answer_request(entry, request, params, put_text)
        loop.call_soon_threadsafe(pieces.put_nowait, (index, None, choice.finish))
        return choice

    async def all_choices() -> list[Choice]:
        return await gather([answer_one(index, request) for index, request in enumerate(requests)])

    work = asyncio.ensure_future(served.engine.run_in_thread(all_choices()))
    work.add_done_callback(lambda _: pieces.put_nowait((-1, None, None)))
    try:
        if head["object"] == "chat.completion.chunk":
            for index in range(len(requests)):
                yield encode_event([delta(index, None, None)])
        while (piece := await pieces.get())[0] >= 0:
            yield encode_event([delta(*piece)])
        choices = await work
        if params.usage:
            yield encode_event([], usage=shapes.usage_json(choices))
        yield b"data: [DONE]\n\n"
    except DiskError as error:
        yield f"data: {json.dumps(asked.error_json(_tell_disk_error(error), status=500, code=error.code))}\n\n".encode()
    except CotrainError as error:
        yield f"data: {json.dumps(asked.error_json(str(error), status=500, code=error.code))}\n\n".encode()
    except Exception as error:  # the status is sent: only an event can still tell it; the server's log has the rest
        yield f"data: {json.dumps(asked.error_json(f'{type(error).__name__}: {error}', status=500))}\n\n".encode()
        raise
    finally:
        work.cancel()


async def _json_body(request: Request) -> bytes:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise BadRequest(f"content-type is {kind or 'missing'}; expected application/json", code="E_CONTENT_TYPE")
    return await receive_body(request)


async def _unless_gone(request: Request, work: Coroutine[Any, Any, T]) -> T | None:
    """The result; None, and the work is cancelled, when the client hangs up before it."""
    task = asyncio.ensure_future(work)
    try:
        while not task.done():
            await asyncio.wait({task}, timeout=0.5)
            if not task.done() and await request.is_disconnected():
                return None
        return task.result()
    finally:
        task.cancel()


async def _refusal_response(request: Request, error: Exception) -> Response:
    assert isinstance(error, UserError)
    param = openai_code = None
    status = 400
    if isinstance(error, BadRequest):
        param = error.param
        openai_code = error.openai_code
        status = error.status
    elif isinstance(error, TooLong):
        openai_code = "context_length_exceeded"
    body = asked.error_json(str(error), status=status, param=param, openai_code=openai_code, code=error.code)
    return JSONResponse(body, status_code=status)


async def _full_disk_response(request: Request, error: Exception) -> Response:
    assert isinstance(error, DiskError)
    return JSONResponse(asked.error_json(_tell_disk_error(error), status=500, code=error.code), status_code=500)


def _tell_disk_error(error: Exception) -> str:
    """Say on the server's terminal what the disk refused; returns what a client may know of it: no path."""
    print(f"cotrain: {error}", file=sys.stderr, flush=True)
    return "the answer could not be recorded; the server's own log says why"


async def _failure_response(request: Request, error: Exception) -> Response:
    code = error.code if isinstance(error, CotrainError) else None
    return JSONResponse(asked.error_json(f"{type(error).__name__}: {error}", status=500, code=code), status_code=500)


async def _no_route_response(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    message = f"{request.method} {request.url.path}: {error.detail}; this server has GET /health, /v1/models and POST "
    body = asked.error_json(f"{message}/v1/chat/completions, /v1/completions, /v1/verify", status=error.status_code)
    return JSONResponse(body, status_code=error.status_code, headers=error.headers)


def _guard_hosts(app: ASGIApp, hosts: Sequence[str]) -> ASGIApp:
    """Answers only requests whose Host header names this server; any IP address where it listens on all of them, as no
    name can have been made to point there."""
    names = {name.lower() for name in (*LOCAL, *hosts)}
    everywhere = any(name in _LISTEN_EVERYWHERE for name in hosts)

    async def guard(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            name = host_of(Headers(scope=scope).getlist("host"))
            if name not in names and not (everywhere and _is_address(name)):
                message = f"Host {name!r} is not a name of this server; start it with --allow-host to answer to others"
                await JSONResponse(asked.error_json(message, status=400), status_code=400)(scope, receive, send)
                return
        await app(scope, receive, send)

    return guard


def host_of(headers: Sequence[str]) -> str:
    """The name in a request's only Host header, without port and brackets; "" when it is not exactly one, or more than
    a name and a port."""
    match = _HOST.fullmatch(headers[0].strip().lower()) if len(headers) == 1 else None
    return "" if match is None else match["address"] or match["name"]


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True
