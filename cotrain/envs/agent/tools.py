"""Tools of OpenAI's protocol in one rollout: the chat template describes them, and the calls in a reply are sent as
``tool_calls``.

When the agent sends such a reply back, it is replaced by the text that was sampled, so that the next prompt begins with
the sampled tokens. A message that the agent wrote or changed is written by the template.
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
    """The tools that the requests of one rollout describe, and the calls that were sampled."""

    def __init__(self) -> None:
        self._renderers: dict[str, tuple[ToolRenderer, Syntax]] = {}  # model and tools, as JSON → what renders them
        self._sampled: dict[str, tuple[CallingMessage, str]] = {}  # id of the first call → message, sampled text
        self._outcomes: dict[str, list[str]] = {}  # id of a training sequence → outcomes of its calls

    def prepare_request(
        self, params: RequestParams, renderer: Rendering
    ) -> tuple[RequestParams, Rendering, Syntax | None]:
        """Prepare a request for the model that ``renderer`` belongs to. Raises BadRequest.

        Returns:
            the request, in whose messages calls are texts;
            what renders its messages, with the tools;
            how calls are written in the reply, None where none are to be read.
        """
        has_calls = any(isinstance(message, CallingMessage) for message in params.messages)
        if not params.tools and not has_calls:
            return params, renderer, None
        try:
            if not isinstance(renderer, Renderer):
                raise ModelError("it has no chat template", code="E_NO_CHAT_TEMPLATE")
            writer = ToolRenderer(renderer)
            messages = tuple(self._write_calls(message, writer) for message in params.messages)
            params = replace(params, messages=messages)
            if not params.tools:
                return params, renderer, None
            tool_renderer, syntax = self._renderer_with_tools(params, renderer, writer)
        except ModelError as error:
            raise BadRequest(
                f"model {params.model!r} cannot take these tools: {error}", "tools", code="E_TOOLS_NOT_TAKEN"
            ) from error
        return params, tool_renderer, syntax if params.calls else None

    def _renderer_with_tools(
        self, params: RequestParams, renderer: Renderer, writer: ToolRenderer
    ) -> tuple[ToolRenderer, Syntax]:
        """The renderer of this request's tools, and the way in which its model writes calls. The same objects for the
        same tools, as conversations are found by their renderer."""
        key = json.dumps([params.model, params.tools])
        if key not in self._renderers:
            self._renderers[key] = ToolRenderer(renderer, params.tools), find_syntax(writer)
        return self._renderers[key]

    def _write_calls(self, message: Message, writer: ToolRenderer) -> Message:
        """The message with its calls as a text: the sampled text, if the agent has not changed the message."""
        if not isinstance(message, CallingMessage):
            return message
        sent_message, sampled_text = self._sampled.get(message.calls[0]["id"], (None, ""))
        if message == sent_message:
            return Message("assistant", sampled_text)
        return Message("assistant", writer.write_calls(message.content, message.calls))

    def read_reply(
        self, turn: Turn, text: str, params: RequestParams, syntax: Syntax
    ) -> tuple[str, tuple[dict[str, Any], ...]]:
        """Split a reply into its text and its calls. A call that cannot be read stays in the text, and a finding of the
        turn says why."""
        tool_names = {tool["function"]["name"] for tool in params.tools}
        text_without_calls, calls, outcomes = read_calls(text, syntax, tool_names)
        if outcomes:
            outcomes_so_far = self._outcomes.setdefault(turn.first.id, [])
            outcomes_so_far += outcomes
            turn.add_finding(CALLS, list(outcomes_so_far))
        if not calls:
            return text, ()

        text_without_calls = text_without_calls.strip()
        number = len(self._sampled)  # the number of this reply, for the ids of its calls
        messages = tuple(
            function_call(f"call_{number}_{i}", call.tool, dict(call.named)) for i, call in enumerate(calls)
        )
        first_id = messages[0]["id"]
        self._sampled[first_id] = CallingMessage("assistant", text_without_calls, messages), text
        return text_without_calls, messages
