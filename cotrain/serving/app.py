"""The HTTP server of ``cotrain serve``: routes, streams, errors, and who may ask.

::

    GET  /health   /v1/models   /v1/models/NAME
    POST /v1/chat/completions   /v1/completions   /v1/verify

It listens on this machine alone unless told otherwise, and knows no passwords. A web page that a browser happens to
show must not be able to use it, so two kinds of requests are refused:

- a Host header that is not this server's name: of a page whose own name was made to point here ("DNS rebinding");
- a body that is not declared as JSON: of a form that another page posts.

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
from collections.abc import AsyncIterator, Coroutine, Sequence
from dataclasses import replace
from ipaddress import ip_address
from pathlib import Path
from typing import Any, TypeVar

from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from cotrain import __version__
from cotrain.core.errors import ConfigError, CotrainError, TooLong, UserError
from cotrain.formats import openai_requests
from cotrain.formats.openai_requests import BadRequest, RequestParams
from cotrain.inference.contract import Request as EngineRequest
from cotrain.rollout.event_loop import gather
from cotrain.rollout.http_server import GONE, note_departure, receive_body, serve_application
from cotrain.runs import opening
from cotrain.serving import shapes
from cotrain.serving.models import Choice, ServedModel, ServedRun
from cotrain.serving.verify import verify_request
from cotrain.storage.file_ops import DiskError
from cotrain.storage.record import RecordFile

LOCAL = ("localhost", "127.0.0.1", "::1")
LISTEN_EVERYWHERE = ("0.0.0.0", "::")
_HOST = re.compile(  # localhost:8000, 127.0.0.1, [::1]:8000
    r"(\[(?P<address>[^\[\]]+)\]|(?P<name>[^\[\]:]+))"
    r"(:[0-9]*)?",
    re.ASCII,
)
T = TypeVar("T")


def run_server(
    directory: Path | str,
    *,
    host: str,
    port: int,
    allowed_hosts: Sequence[str] = (),
    device: str = "cpu",
    record: str | None = None,
) -> int:
    """Load a run and serve it until a signal comes.

    Args:
        host: address to listen on.
        allowed_hosts: further names in Host headers that are answered.
        record: the file to which each answer to a chat is appended, with its conversation.

    Raises ConfigError when the address is taken or not this machine's; DataError and DiskError for a record that is
    something else, or cannot be opened.
    """
    with open_listener(host, port) as listener:  # before the models are loaded, which takes long
        record_file = RecordFile(Path(record), field="messages") if record is not None else None
        trainer = opening.open_trainer(directory, device=device)
        served = ServedRun(trainer, record_file)
        shown_host = f"[{host}]" if ":" in host else host
        print(f"{trainer.recipe.name} after step {trainer.finished_steps}: {', '.join(served.models)}")
        print(f"http://{shown_host}:{listener.getsockname()[1]}/v1  (Ctrl-C to leave)", flush=True)
        if host not in LOCAL:
            print("cotrain: this server asks nobody for a password and now answers other machines", flush=True)
        try:
            serve_application(make_application(served, (host, *allowed_hosts)), listener)
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
    pages = _Pages(served)
    app = Starlette(
        routes=[
            Route("/health", pages.health),
            Route("/v1/models", pages.list_models),
            Route("/v1/models/{name:path}", pages.show_model),
            Route("/v1/chat/completions", pages.chat, methods=["POST"]),
            Route("/v1/completions", pages.completions, methods=["POST"]),
            Route("/v1/verify", pages.verify, methods=["POST"]),
        ],
        exception_handlers={  # each handler asserts the class that it stands behind
            UserError: _refusal_response,
            ClientDisconnect: note_departure,
            DiskError: _full_disk_response,
            CotrainError: _failure_response,
            HTTPException: _no_route_response,
            Exception: _failure_response,
        },
    )
    return _guard_hosts(app, hosts)


class _Pages:
    """What each address answers."""

    def __init__(self, served: ServedRun) -> None:
        self._served = served
        self._created = int(time.time())

    async def health(self, request: HttpRequest) -> Response:
        trainer = self._served.trainer
        return JSONResponse(
            {
                "status": "ok",
                "version": __version__,
                "recipe": trainer.recipe.name,
                "step": trainer.finished_steps,
                "requests": self._served.n_requests,
                "running": self._served.engine.open_requests,
            }
        )

    async def list_models(self, request: HttpRequest) -> Response:
        entries = [shapes.model_json(model, self._created) for model in self._served.models.values()]
        return JSONResponse({"object": "list", "data": entries})

    async def show_model(self, request: HttpRequest) -> Response:
        model = self._served.find_model(request.path_params["name"])
        return JSONResponse(shapes.model_json(model, self._created))

    async def chat(self, request: HttpRequest) -> Response:
        served = self._served
        params = openai_requests.read_chat(await _read_json_body(request))
        model = served.find_model(params.model)
        params = replace(params, messages=served.fill_messages(model, params.messages))

        async def make_requests() -> list[EngineRequest]:
            return served.make_requests(model, [served.chat_prompt_ids(model, params.messages)], params)

        requests = await served.engine.run_in_thread(make_requests())
        return await self._respond(request, model, params, requests, shapes.Chat())

    async def completions(self, request: HttpRequest) -> Response:
        served = self._served
        params, prompts = openai_requests.read_completions(await _read_json_body(request))
        model = served.find_model(params.model)
        served.check_capacity(len(prompts) * params.n)  # before any of them is cut into tokens

        async def make_requests() -> list[EngineRequest]:
            return served.make_requests(model, [served.raw_prompt_ids(model, prompt) for prompt in prompts], params)

        requests = await served.engine.run_in_thread(make_requests())
        return await self._respond(request, model, params, requests, shapes.Completion(params, prompts))

    async def verify(self, request: HttpRequest) -> Response:
        body = await _read_json_body(request)
        result = await _unless_gone(request, verify_request(self._served, body))
        return GONE if result is None else JSONResponse(result)

    async def _respond(
        self,
        request: HttpRequest,
        model: ServedModel,
        params: RequestParams,
        requests: Sequence[EngineRequest],
        form: shapes.ResponseForm,
    ) -> Response:
        """Answer these requests, as one JSON or as a stream."""
        served = self._served
        head = {
            "id": f"{form.id_prefix}-{requests[0].address.task}",
            "object": form.piece_name if params.stream else form.object_name,
            "created": int(time.time()),
            "model": model.name,
            "system_fingerprint": f"{served.trainer.recipe.name}-step-{served.trainer.finished_steps}",
        }
        if params.stream:
            events = _stream_events(served, model, params, requests, head, form)
            return StreamingResponse(events, media_type="text/event-stream", headers={"cache-control": "no-store"})

        async def answer_all() -> dict[str, Any]:
            choices = await gather([served.answer_request(model, request, params) for request in requests])
            renderer = served.renderer_of(model)
            shaped = [form.choice(renderer, choice, index) for index, choice in enumerate(choices)]
            return {**head, "choices": shaped, "usage": shapes.usage_json(choices)}

        result = await _unless_gone(request, served.engine.run_in_thread(answer_all()))
        return GONE if result is None else JSONResponse(result)


# -- A stream.


async def _stream_events(
    served: ServedRun,
    model: ServedModel,
    params: RequestParams,
    requests: Sequence[EngineRequest],
    head: dict[str, Any],
    form: shapes.ResponseForm,
) -> AsyncIterator[bytes]:
    """Server-sent events: pieces of the choices as they come, in any order. The last one is ``[DONE]``."""
    loop = asyncio.get_running_loop()
    pieces = asyncio.Queue[dict[str, Any] | None]()  # None: there are no more

    def put_piece(piece: dict[str, Any]) -> None:
        loop.call_soon_threadsafe(pieces.put_nowait, piece)  # from the engine's thread

    async def answer_one(index: int, request: EngineRequest) -> Choice:
        def put_text(text: str) -> None:
            put_piece(form.text_event(index, text))

        choice = await served.answer_request(model, request, params, put_text)
        put_piece(form.last_event(index, choice.finish))
        return choice

    async def answer_all() -> list[Choice]:
        return await gather([answer_one(index, request) for index, request in enumerate(requests)])

    work = asyncio.ensure_future(served.engine.run_in_thread(answer_all()))
    work.add_done_callback(lambda _: pieces.put_nowait(None))
    try:
        if form.has_first_event:
            for index in range(len(requests)):
                yield _event({**head, "choices": [form.first_event(index)]})
        while (piece := await pieces.get()) is not None:
            yield _event({**head, "choices": [piece]})
        choices = await work  # raises what the work raised
        if params.usage:
            yield _event({**head, "choices": [], "usage": shapes.usage_json(choices)})
        yield b"data: [DONE]\n\n"
    except DiskError as error:
        yield _error_event(_report_disk_error(error), error.code)
    except CotrainError as error:
        yield _error_event(str(error), error.code)
    except Exception as error:  # the status is sent: only an event can still tell it; the server's log has the rest
        yield _error_event(f"{type(error).__name__}: {error}", None)
        raise
    finally:
        work.cancel()


def _event(content: dict[str, Any]) -> bytes:
    return f"data: {json.dumps(content, ensure_ascii=False)}\n\n".encode()


def _error_event(message: str, code: str | None) -> bytes:
    error = openai_requests.error_json(message, status=500, code=code)
    return f"data: {json.dumps(error)}\n\n".encode()


# -- A request's body and its client.


async def _read_json_body(request: HttpRequest) -> bytes:
    """The body. Raises BadRequest where it is not declared as JSON."""
    media_type, _, _ = request.headers.get("content-type", "").partition(";")
    media_type = media_type.strip().lower()
    if media_type != "application/json":
        raise BadRequest(f"content-type is {media_type or 'missing'}; expected application/json", code="E_CONTENT_TYPE")
    return await receive_body(request)


async def _unless_gone(request: HttpRequest, work: Coroutine[Any, Any, T]) -> T | None:
    """The result of the work. None where the client hangs up before that; the work is then cancelled."""
    task = asyncio.ensure_future(work)
    try:
        while not task.done():
            await asyncio.wait({task}, timeout=0.5)
            if not task.done() and await request.is_disconnected():
                return None
        return task.result()
    finally:
        task.cancel()


# -- Errors.


async def _refusal_response(request: HttpRequest, error: Exception) -> Response:
    assert isinstance(error, UserError)
    param = None
    openai_code = None
    status = 400
    if isinstance(error, BadRequest):
        param = error.param
        openai_code = error.openai_code
        status = error.status
    elif isinstance(error, TooLong):
        openai_code = "context_length_exceeded"
    return _error_response(str(error), status=status, param=param, openai_code=openai_code, code=error.code)


async def _full_disk_response(request: HttpRequest, error: Exception) -> Response:
    assert isinstance(error, DiskError)
    return _error_response(_report_disk_error(error), status=500, code=error.code)


def _report_disk_error(error: Exception) -> str:
    """Print on the server's terminal what the disk refused; return what a client may know of it: no path."""
    print(f"cotrain: {error}", file=sys.stderr, flush=True)
    return "the answer could not be recorded; the server's own log says why"


async def _failure_response(request: HttpRequest, error: Exception) -> Response:
    code = error.code if isinstance(error, CotrainError) else None
    return _error_response(f"{type(error).__name__}: {error}", status=500, code=code)


async def _no_route_response(request: HttpRequest, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    message = (
        f"{request.method} {request.url.path}: {error.detail}; this server has GET /health, /v1/models and POST "
        "/v1/chat/completions, /v1/completions, /v1/verify"
    )
    response = _error_response(message, status=error.status_code)
    response.headers.update(error.headers or {})
    return response


def _error_response(
    message: str, *, status: int, param: str | None = None, openai_code: str | None = None, code: str | None = None
) -> Response:
    body = openai_requests.error_json(message, status=status, param=param, openai_code=openai_code, code=code)
    return JSONResponse(body, status_code=status)


# -- Who may ask.


def _guard_hosts(app: ASGIApp, hosts: Sequence[str]) -> ASGIApp:
    """The application for requests whose Host header names this server; others are refused. Where the server listens on
    all addresses, any IP address names it: nobody can have made a name out of one that points here."""
    names = {name.lower() for name in (*LOCAL, *hosts)}
    listens_everywhere = any(name in LISTEN_EVERYWHERE for name in hosts)

    async def guard(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await app(scope, receive, send)
            return
        name = host_of(Headers(scope=scope).getlist("host"))
        is_known = name in names or (listens_everywhere and _is_address(name))
        if is_known:
            await app(scope, receive, send)
            return
        message = f"Host {name!r} is not a name of this server; start it with --allow-host to answer to others"
        await _error_response(message, status=400)(scope, receive, send)

    return guard


def host_of(headers: Sequence[str]) -> str:
    """The name in a request's Host header, without port and brackets; "" where there is not exactly one header, or it
    holds more than a name and a port."""
    if len(headers) != 1:
        return ""
    match = _HOST.fullmatch(headers[0].strip().lower())
    return "" if match is None else match["address"] or match["name"]


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True
