"""Parsing of requests: JSON bodies of OpenAI's API and of ``/v1/verify``, checked field by field.

A parameter that would change the answer and is not implemented is refused, never ignored; so is one that nobody knows.
``null`` is the same as leaving a parameter out.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from cotrain.core.errors import UserError, unknown_message
from cotrain.prompts.chat_template import Message

MAX_CHOICES = 128  # n times prompts
MAX_TOP = 20  # alternatives of a token
MAX_STOPS = 16
MAX_MESSAGES = 2048  # messages of a conversation: a template writes some tokens around each, which takes time
_SPOKEN = ("temperature", "top_p", "max_tokens", "seed", "stop", "n", "logprobs", "stream", "stream_options")
CHAT = ("model", "messages", "max_completion_tokens", "top_logprobs", *_SPOKEN)
COMPLETIONS = ("model", "prompt", "echo", "return_token_ids", *_SPOKEN)
VERIFY = ("model", "problem", "solution", "steps", "answer", "reference", "n", "temperature", "seed")
_WITHOUT_EFFECT = ("user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key")
_NEUTRAL: dict[str, tuple[Any, ...]] = {  # not implemented: the values that ask for nothing
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "logit_bias": ({},),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "parallel_tool_calls": (True, False),
    "best_of": (1,),
    "suffix": ("",),
}


@dataclass(frozen=True, slots=True)
class CallingMessage(Message):
    """An assistant's turn that calls tools, before anybody has written the calls into its content."""

    calls: tuple[dict[str, Any], ...]  # OpenAI's, with the arguments read from their JSON


class BadRequest(UserError, ValueError):
    """A request that cannot be answered: what is wrong with it, and with which parameter."""

    code = "E_REQUEST"

    def __init__(
        self,
        message: str,
        param: str | None = None,
        *,
        status: int = 400,
        openai_code: str | None = None,
        code: str | None = None,
    ) -> None:
        """``openai_code``: what OpenAI's own clients look for, such as "model_not_found"."""
        super().__init__(message, code=code)
        self.param = param
        self.status = status
        self.openai_code = openai_code


def error_json(
    message: str,
    *,
    status: int,
    param: str | None = None,
    openai_code: str | None = None,
    code: str | None = None,
) -> dict[str, Any]:
    """The body of an error. ``code`` in it is OpenAI's, and cotrain's own is next to it, in ``cotrain_code``."""
    if status >= 500:
        kind = "server_error"
    elif status == 429:
        kind = "rate_limit_error"
    else:
        kind = "invalid_request_error"
    error = {"message": message, "type": kind, "param": param, "code": openai_code, "cotrain_code": code}
    return {"error": error}


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestParams:
    """The parameters that chat and completions have in common; None: the model's own setting."""

    model: str
    temperature: float | None
    top_p: float | None
    max_tokens: int | None
    seed: int | None
    stop: tuple[str, ...]
    n: int
    top: int | None  # alternatives of each token's log-probability; None: no log-probabilities
    stream: bool
    usage: bool  # in a stream
    echo: bool = False
    ids: bool = False  # the token ids of each answer too
    messages: tuple[Message, ...] = ()  # messages of a chat
    tools: tuple[dict[str, Any], ...] = ()  # functions that it may call
    calls: bool = True  # are calls of them read


def check_text_size(texts: Iterable[str], context: int, longest_token: int, param: str, model: str) -> None:
    """Raises BadRequest for texts that are too long for a context however they are cut into tokens: counting their
    bytes takes no time, and cutting megabytes into tokens takes seconds in which nobody else is answered."""
    size = sum(len(text.encode("utf-8", "replace")) for text in texts)
    most = context * longest_token
    if size > most:
        raise BadRequest(
            f"{param} has {size} bytes of text, more than the {most} that the context of {context} tokens of "
            f"{model!r} can hold; shorten it",
            param,
            openai_code="context_length_exceeded",
            code="E_REQUEST_TOO_LONG",
        )


def decode_body(body: bytes, field_names: Sequence[str]) -> dict[str, Any]:
    """The JSON object of a body, without its nulls. Raises BadRequest."""
    try:
        parsed = json.loads(body)
        json.dumps(parsed, ensure_ascii=False).encode()  # lone surrogates
    except (ValueError, RecursionError) as error:
        raise BadRequest(
            f"the body is not JSON in UTF-8: {str(error).splitlines()[0]}", code="E_BODY_NOT_JSON"
        ) from None
    if not isinstance(parsed, dict):
        raise BadRequest(f"the body is a JSON {type(parsed).__name__}; expected an object", code="E_BODY_NOT_OBJECT")
    body_of = {name: value for name, value in parsed.items() if value is not None}
    for name, value in body_of.items():
        if name in field_names or name in _WITHOUT_EFFECT:
            continue
        if name not in _NEUTRAL:
            raise BadRequest(unknown_message("parameter", name, field_names), name, code="E_PARAMETER_UNKNOWN")
        if value not in _NEUTRAL[name]:
            raise BadRequest(
                f"{name} is {_short_value(value)}: not implemented by this server; leave it out",
                name,
                code="E_NOT_IMPLEMENTED",
            )
    return body_of


def read_chat(body: bytes, *, tools: bool = False) -> RequestParams:
    """``tools``: of a server that takes them."""
    fields = decode_body(body, (*CHAT, "tools") if tools else CHAT)
    wanted = boolean_field(fields, "logprobs")
    top = integer_field(fields, "top_logprobs", 0, MAX_TOP)
    if top is not None and not wanted:
        raise BadRequest(
            "top_logprobs is given without logprobs; set logprobs to true", "top_logprobs", code="E_LOGPROBS_NOT_ASKED"
        )
    limit = integer_field(fields, "max_completion_tokens", 1, 2**31)
    params = _read_params(
        fields,
        (top or 0) if wanted else None,
        integer_field(fields, "max_tokens", 1, 2**31) if limit is None else limit,
    )
    messages = fields.get("messages")
    if not isinstance(messages, list) or not messages:
        raise BadRequest(
            f"messages is {_short_value(messages)}; expected a list of at least one message",
            "messages",
            code="E_MESSAGES_EMPTY",
        )
    if len(messages) > MAX_MESSAGES:
        raise BadRequest(
            f"messages has {len(messages)} messages, and at most {MAX_MESSAGES} are taken; shorten the conversation",
            "messages",
            openai_code="context_length_exceeded",
            code="E_TOO_MANY_MESSAGES",
        )
    chat_messages = [_read_message(message, f"messages[{i}]", tools) for i, message in enumerate(messages)]
    if chat_messages[-1].role == "assistant":
        raise BadRequest(
            "the last message is the assistant's; expected one that it can answer",
            "messages",
            code="E_LAST_MESSAGE_ASSISTANT",
        )
    functions = _read_tools(fields.get("tools", []))
    calls = fields.get("tool_choice") != "none"
    if functions and fields.get("parallel_tool_calls") is False:
        raise BadRequest(
            "parallel_tool_calls is false: not implemented; leave it out",
            "parallel_tool_calls",
            code="E_NOT_IMPLEMENTED",
        )
    return replace(params, messages=tuple(chat_messages), tools=functions, calls=calls)


def read_completions(body: bytes) -> tuple[RequestParams, list[str | tuple[int, ...]]]:
    """The prompts as texts or token ids."""
    fields = decode_body(body, COMPLETIONS)
    echo = boolean_field(fields, "echo")
    limit = integer_field(fields, "max_tokens", 0 if echo else 1, 2**31)
    params = _read_params(fields, integer_field(fields, "logprobs", 0, MAX_TOP), 16 if limit is None else limit, echo)
    if boolean_field(fields, "return_token_ids"):
        if params.stream:
            raise BadRequest(
                "return_token_ids does not go with stream; leave out one of them",
                "return_token_ids",
                code="E_STREAM_WITH_OPTION",
            )
        params = replace(params, ids=True)
    prompt = fields.get("prompt")
    entries = [prompt]
    if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int):  # several; one may be a list of ids
        entries = prompt
    prompts = [_read_prompt(entry) for entry in entries]
    if len(prompts) * params.n > MAX_CHOICES:
        raise BadRequest(
            f"{len(prompts)} prompts times n {params.n} are more than {MAX_CHOICES} choices",
            "prompt",
            code="E_TOO_MANY_CHOICES",
        )
    return params, prompts


def text_field(fields: Mapping[str, Any], name: str) -> str | None:
    value = fields.get(name)
    if value is not None and not isinstance(value, str):
        raise BadRequest(f"{name} is {_short_value(value)}; expected a string", name, code="E_PARAMETER_TYPE")
    return value


def text_list_field(fields: Mapping[str, Any], name: str) -> tuple[str, ...] | None:
    value = fields.get(name)
    if value is not None and not (isinstance(value, list) and all(isinstance(one, str) for one in value)):
        raise BadRequest(f"{name} is {_short_value(value)}; expected a list of strings", name, code="E_PARAMETER_TYPE")
    return None if value is None else tuple(value)


def boolean_field(fields: Mapping[str, Any], name: str) -> bool:
    value = fields.get(name, False)
    if not isinstance(value, bool):
        raise BadRequest(f"{name} is {_short_value(value)}; expected true or false", name, code="E_PARAMETER_TYPE")
    return value


def integer_field(fields: Mapping[str, Any], name: str, least: int, most: int) -> int | None:
    value = fields.get(name)
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most):
        raise BadRequest(
            f"{name} is {_short_value(value)}; expected an integer from {least} to {most}",
            name,
            code="E_PARAMETER_RANGE",
        )
    return value


def number_field(fields: Mapping[str, Any], name: str, least: float, most: float) -> float | None:
    value = fields.get(name)
    if value is None:
        return None
    number = isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e9
    if not number or not math.isfinite(value) or not least <= value <= most:
        raise BadRequest(
            f"{name} is {_short_value(value)}; expected a number from {least:g} to {most:g}",
            name,
            code="E_PARAMETER_RANGE",
        )
    return float(value)


def _read_params(
    fields: Mapping[str, Any], top: int | None, max_tokens: int | None, echo: bool = False
) -> RequestParams:
    model = text_field(fields, "model")
    stop = fields.get("stop", [])
    if model is None:
        raise BadRequest("model is missing; GET /v1/models lists those there are", "model", code="E_MODEL_NOT_GIVEN")
    stops = [stop] if isinstance(stop, str) else stop
    if not isinstance(stops, list) or len(stops) > MAX_STOPS or not all(isinstance(s, str) and s for s in stops):
        raise BadRequest(
            f"stop is {_short_value(stop)}; expected at most {MAX_STOPS} strings, none empty",
            "stop",
            code="E_STOP_STRINGS",
        )
    top_p = number_field(fields, "top_p", 0.0, 1.0)
    stream = boolean_field(fields, "stream")
    if top_p == 0.0:
        raise BadRequest(
            "top_p is 0; expected a number above 0, or temperature 0 for greedy tokens",
            "top_p",
            code="E_PARAMETER_RANGE",
        )
    if stream and (top is not None or echo):
        raise BadRequest(
            "logprobs and echo do not go with stream; leave out one of them", "stream", code="E_STREAM_WITH_OPTION"
        )
    options = fields.get("stream_options", {})
    if not isinstance(options, dict) or options.keys() - {"include_usage", "include_obfuscation"}:
        raise BadRequest(
            f"stream_options is {_short_value(options)}; expected {{'include_usage': true}}",
            "stream_options",
            code="E_PARAMETER_TYPE",
        )
    return RequestParams(
        model=model,
        temperature=number_field(fields, "temperature", 0.0, 100.0),
        top_p=top_p,
        max_tokens=max_tokens,
        seed=integer_field(fields, "seed", -(2**63), 2**63 - 1),
        stop=tuple(stops),
        n=integer_field(fields, "n", 1, MAX_CHOICES) or 1,
        top=top,
        stream=stream,
        usage=boolean_field({k: v for k, v in options.items() if v is not None}, "include_usage"),
        echo=echo,
    )


def _read_tools(tools: Any) -> tuple[dict[str, Any], ...]:
    expected = "expected a list of {'type': 'function', 'function': {'name': …}}"
    if not isinstance(tools, list):
        raise BadRequest(f"tools is {_short_value(tools)}; {expected}", "tools", code="E_TOOLS_SHAPE")
    for i, tool in enumerate(tools):
        function = tool.get("function") if isinstance(tool, dict) and tool.get("type") == "function" else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise BadRequest(f"tools[{i}] is {_short_value(tool)}; {expected}", "tools", code="E_TOOLS_SHAPE")
    return tuple(tools)


def _read_calls(calls: Any, where: str) -> tuple[dict[str, Any], ...]:
    try:
        read = [
            (str(call["id"]), call["function"]["name"], json.loads(call["function"]["arguments"])) for call in calls
        ]
        json.dumps(read, ensure_ascii=False).encode()  # lone surrogates
        if not all(isinstance(name, str) and isinstance(arguments, dict) for _, name, arguments in read):
            raise TypeError
    except (TypeError, KeyError, ValueError, RecursionError):
        message = (
            f"{where}: tool_calls is {_short_value(calls)}; expected calls with an id, a name and arguments in JSON"
        )
        raise BadRequest(message, "messages", code="E_MESSAGE_CALLS") from None
    return tuple(function_call(*call) for call in read)


def function_call(name: str, function: str, arguments: Any) -> dict[str, Any]:
    """A call as in OpenAI's JSON. ``name``: its id."""
    return {"id": name, "type": "function", "function": {"name": function, "arguments": arguments}}


UNREAD = (  # fields of a message besides its content; calls are read where there are tools
    "tool_calls",
    "function_call",
    "audio",
)


def _read_message(message: Any, where: str, tools: bool) -> Message:
    role = message.get("role") if isinstance(message, dict) else None
    roles = ["system", "developer", "user", "assistant"]
    if tools:
        roles.append("tool")
    if role not in roles:
        raise BadRequest(
            f"{where}: role is {_short_value(role)}; expected one of {', '.join(roles)}",
            "messages",
            code="E_MESSAGE_ROLE_UNKNOWN",
        )
    calls = message.get("tool_calls") if tools and role == "assistant" else None
    for name in UNREAD:
        value = message.get(name)
        if value and not (name == "tool_calls" and calls):
            raise BadRequest(
                f"{where}: {name} is {_short_value(value)}: not implemented by this server; leave it out",
                "messages",
                code="E_NOT_IMPLEMENTED",
            )
    content = message.get("content")
    if calls and content is None:
        content = ""
    if isinstance(content, list) and all(isinstance(p, dict) and isinstance(p.get("text"), str) for p in content):
        content = "".join(part["text"] for part in content)
    if not isinstance(content, str):
        raise BadRequest(
            f"{where}: content is {_short_value(content)}; expected a text or a list of text parts",
            "messages",
            code="E_MESSAGE_CONTENT",
        )
    if calls:
        return CallingMessage(role, content, _read_calls(calls, where))
    return Message("system" if role == "developer" else role, content)


def _read_prompt(prompt: Any) -> str | tuple[int, ...]:
    if isinstance(prompt, str) and prompt:
        return prompt
    if isinstance(prompt, list) and prompt and all(isinstance(i, int) and not isinstance(i, bool) for i in prompt):
        return tuple(prompt)
    raise BadRequest(
        f"prompt is {_short_value(prompt)}; expected a text, token ids, or a list of either, none empty",
        "prompt",
        code="E_BODY_PROMPT",
    )


def _short_value(value: Any) -> str:
    shown = "missing" if value is None else repr(value)
    return shown if len(shown) <= 60 else shown[:57] + "..."
