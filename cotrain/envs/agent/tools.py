"""Tools of OpenAI's protocol in one rollout: the chat template describes them, and the calls in a reply are sent as
``tool_calls``.

When the agent sends them back, they stand for the text that was sampled, so that the next prompt goes on from its
tokens. A message that the agent made or changed is written by the template.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from cotrain.core.errors import ModelError
from cotrain.core.notes import CALLS
from cotrain.formats.openai_requests import BadRequest, CallingMessage, RequestParams, function_call
from cotrain.prompts.chat_template import Message
from cotrain.prompts.render import Renderer, Rendering
from cotrain.rollout.role import Turn
from cotrain.rollout.tools.calls import Syntax, ToolRenderer, find_syntax, read_calls


class ToolMessages:
    """The calls so far."""

    def __init__(self) -> None:
        self._describing: dict[str, tuple[ToolRenderer, Syntax]] = {}  # by model and tools
        self._sampled: dict[str, tuple[CallingMessage, str]] = {}  # by the id of the first call, with the sampled text
        self._outcomes: dict[str, list[str]] = {}  # outcomes of the calls in a training sequence

    def prepare_request(
        self, params: RequestParams, renderer: Rendering
    ) -> tuple[RequestParams, Rendering, Syntax | None]:
        """The request with texts alone in its messages, what renders them with the tools, and how calls are written;
        None where none are read. Raises BadRequest."""
        if not params.tools and not any(isinstance(message, CallingMessage) for message in params.messages):
            return params, renderer, None
        try:
            if not isinstance(renderer, Renderer):
                raise ModelError("it has no chat template", code="E_NO_CHAT_TEMPLATE")
            writer = ToolRenderer(renderer)
            params = replace(params, messages=tuple(self._write_calls(one, writer) for one in params.messages))
            if not params.tools:
                return params, renderer, None
            key = json.dumps([params.model, params.tools])
            if key not in self._describing:
                self._describing[key] = ToolRenderer(renderer, params.tools), find_syntax(writer)
            describing, syntax = self._describing[key]
            return params, describing, syntax if params.calls else None
        except ModelError as error:
            raise BadRequest(
                f"model {params.model!r} cannot take these tools: {error}", "tools", code="E_TOOLS_NOT_TAKEN"
            ) from error

    def _write_calls(self, message: Message, writer: ToolRenderer) -> Message:
        if not isinstance(message, CallingMessage):
            return message
        sent, text = self._sampled.get(message.calls[0]["id"], (None, ""))
        return Message("assistant", text if message == sent else writer.write_calls(message.content, message.calls))

    def read_reply(
        self, turn: Turn, text: str, params: RequestParams, syntax: Syntax
    ) -> tuple[str, tuple[dict[str, Any], ...]]:
        """Split a reply into its text and its calls. A call that cannot be read stays in the text, and a finding of the
        turn says why."""
        beside, calls, outcomes = read_calls(text, syntax, {tool["function"]["name"] for tool in params.tools})
        if outcomes:
            counted = self._outcomes.setdefault(turn.first.id, [])
            counted += outcomes
            turn.add_finding(CALLS, list(counted))
        if not calls:
            return text, ()
        first = len(self._sampled)
        named = tuple(function_call(f"call_{first}_{i}", call.tool, dict(call.named)) for i, call in enumerate(calls))
        self._sampled[named[0]["id"]] = CallingMessage("assistant", beside.strip(), named), text
        return beside.strip(), named
