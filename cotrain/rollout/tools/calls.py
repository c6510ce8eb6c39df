r"""Tools as plain async functions: the policy writes a call, the function answers, and the policy goes on in the same
answer.

::

    CALLS     6 * 7 is <call>6 * 7</call>│\n<result id=9f3c01ab>\n42\n</result id=9f3c01ab>\n│so 42.
    HERMES    <tool_call>{"name": "calculator", "arguments": {"term": "6 * 7"}}</tool_call>│ a tool message │So 42.

The text of a ``<call>`` is passed to the only tool; where there are several, its first word is the tool's name.

The tool's output, between the bars, is context: its tokens have no loss and no advantage (``Trace.mask``). It is shown
as material: between markers with a nonce, with verifiers' tags broken, without control tokens, cut at ``MAX_OUTPUT``
characters. Calls are read only in what the policy wrote, so an output is never taken for a call. A tool that fails
becomes an output with a reason, which the policy is shown and the metrics count.
"""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import Any

from cotrain.core.errors import ModelError, TooLong
from cotrain.core.notes import CALLS as CALLED
from cotrain.core.types import ParseFailure
from cotrain.core.user_code import INTERRUPTS
from cotrain.formats.nonce import wrap_text
from cotrain.formats.openai_requests import function_call
from cotrain.formats.solutions import behind_thoughts
from cotrain.prompts.render import PLACEHOLDER, Renderer
from cotrain.prompts.thoughts import begins_with_thought, broken_thought_in
from cotrain.rollout.conversation import Conversation
from cotrain.rollout.event_loop import engine_paused
from cotrain.rollout.role import Turn

Tool = Callable[..., Awaitable[object]]
MAX_OUTPUT = 500  # characters of an output that are shown
MOST_READ = 100_000  # characters of an output that are read; a tool that returns more has failed
CUT = "\n(cut)"


class ToolError(Exception):
    """A tool's failure.

    ``reason``: a short fixed phrase, which is also a metric's key. ``output``: what the tool printed until it failed.
    """

    def __init__(self, reason: str, output: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.output = output


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """A policy's call of a tool."""

    tool: str
    said: tuple[str, ...] = ()  # positional arguments
    named: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class CallFormat:
    """How calls are written and outputs are shown."""

    stop: tuple[str, ...]  # a turn ends with one of these strings
    # (what the policy wrote up to a stop, the tools) → the call that ends there, None where none does; or ToolError
    read: Callable[[str, Mapping[str, Tool]], ToolCall | None]
    show: Callable[[Conversation, str, str], None]  # (conversation, output, nonce): adds the output


def tag_format(tag: str, output_marker: str) -> CallFormat:
    """Calls are ``<tag>…</tag>`` in the text; the output follows, between markers with the name ``output_marker``."""
    opening = f"<{tag}>"
    closing = f"</{tag}>"

    def read_call(text: str, tools: Mapping[str, Tool]) -> ToolCall | None:
        if begins_with_thought(text) and broken_thought_in(text):
            return None  # a thought may hold what looks like one
        _, opened, inside = text[: -len(closing)].rpartition(opening)
        if not opened or closing in inside:
            return None
        if len(tools) == 1:
            [name] = tools
            return ToolCall(tool=name, said=(inside,))
        name, _, said = inside.strip().partition(" ")
        return ToolCall(tool=name, said=(said,))

    def show_output(chat: Conversation, output: str, mark: str) -> None:
        chat.assistant(f"\n{wrap_text(output, mark, output_marker)}\n")

    return CallFormat(stop=(closing,), read=read_call, show=show_output)


def _read_json(text: str, tools: Mapping[str, Tool]) -> ToolCall:
    _, _, call = text[: -len("</tool_call>")].rpartition("<tool_call>")
    return _parse_call(call, "arguments")


def _parse_call(text: str, arguments_key: str) -> ToolCall:
    """A call in JSON: an object with ``name`` and, if it has arguments, an object under ``arguments_key``. An object
    with any other key is a bad call, since that may have been meant as an argument. Raises ToolError."""
    try:
        call = json.loads(text, object_pairs_hook=_object_of_pairs)
        if not isinstance(call, dict) or not {"name"} <= call.keys() <= {"name", arguments_key}:
            raise ToolError("bad call")
        name = call["name"]
        arguments = call.get(arguments_key, {})
        if not isinstance(name, str) or not isinstance(arguments, dict):
            raise ToolError("bad call")
        json.dumps(arguments, allow_nan=False, ensure_ascii=False).encode()  # raises for NaN and for lone surrogates
    except (ValueError, TypeError, RecursionError) as error:
        raise ToolError("bad call") from error
    return ToolCall(tool=name, named=arguments)


def _object_of_pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of JSON. Raises ValueError where a key occurs twice, since only one of its values would be read."""
    values = dict(pairs)
    if len(values) < len(pairs):
        raise ValueError("a key twice")
    return values


CALLS = tag_format("call", "result")
HERMES = CallFormat(
    stop=("</tool_call>",),
    read=_read_json,
    show=lambda chat, output, mark: chat.tool(wrap_text(output, mark, "result")),
)


Syntax = tuple[re.Pattern[str], str]  # a pattern with a call's JSON as group 1, and the key of the arguments in it
SYNTAXES: dict[str, Syntax] = {  # family of models that write calls so, as error messages name it → syntax
    "Hermes and Qwen": (re.compile(r"<tool_call>(.*?)(?:</tool_call>|\Z)", re.DOTALL), "arguments"),
    "Llama 3": (re.compile(r"\A\s*(\{\s*\"name\".*)", re.DOTALL), "parameters"),
}


class ToolRenderer(Renderer):
    """A model's renderer whose prompts describe ``tools`` by the model's chat template.

    ``tools``: functions, described as in OpenAI's protocol. Raises ModelError for a template that describes no tools,
    and where a description holds the text of a control token.
    """

    def __init__(self, renderer: Renderer, tools: Sequence[Any] = ()) -> None:
        vars(self).update(vars(renderer))
        if renderer._template is None:
            raise ModelError("it has no chat template", code="E_NO_CHAT_TEMPLATE")
        self._template = copy(renderer._template)
        self._layouts = {}
        self._template.tools = list(tools)

        question = [("user", "")]
        prompt = self._template.render(question, opening=True)
        prompt_without_tools = renderer._template.render(question, opening=True)
        if tools and prompt == prompt_without_tools:
            raise ModelError("its chat template describes no tools", code="E_CHAT_TEMPLATE_CALLS")

        descriptions = json.dumps(tools, ensure_ascii=False)
        for token_id in sorted(self._forbidden):
            control = self.token_text(token_id)
            if control and control in descriptions:
                raise ModelError(
                    f"a tool's description holds {control!r}, a control token of the model; take it out",
                    code="E_TOOL_CONTROL_TOKEN",
                )

    def write_calls(self, content: str, calls: Sequence[Any]) -> str:
        """Return these calls as the chat template writes them in an assistant's turn, without what it puts around every
        assistant's turn. Raises ModelError for a template that writes no calls, or that writes them elsewhere."""
        assert self._template is not None
        question = ("user", "")
        mark = PLACEHOLDER.format(1)
        before, _, after = self._template.render([question, ("assistant", mark)], opening=False).partition(mark)
        text = self._template.render([question, ("assistant", content)], opening=False, calls=calls)
        text_without_calls = self._template.render([question, ("assistant", content)], opening=False)
        if text == text_without_calls:
            raise ModelError("its chat template writes no calls of tools", code="E_CHAT_TEMPLATE_CALLS")
        if not (text.startswith(before) and text.endswith(after) and len(text) >= len(before + after)):
            raise ModelError(
                f"its chat template writes calls of tools as {text.removeprefix(before)[:80]!r}",
                code="E_CHAT_TEMPLATE_CALLS",
            )
        return text[len(before) : len(text) - len(after)]


def find_syntax(renderer: ToolRenderer) -> Syntax:
    """The syntax in which the chat template writes calls. Raises ModelError where it is none of ``SYNTAXES``."""
    written = renderer.write_calls("", [function_call("call_0", "f", {"x": 1})])
    for syntax in SYNTAXES.values():
        _, calls, _ = read_calls(written, syntax, {"f"})
        if calls == [ToolCall(tool="f", named={"x": 1})]:
            return syntax
    known = ", ".join(SYNTAXES)
    raise ModelError(
        f"its chat template writes calls of tools as {written[:80]!r}; expected the way of {known}",
        code="E_CHAT_TEMPLATE_CALLS",
    )


def read_calls(text: str, syntax: Syntax, tools: Collection[str]) -> tuple[str, list[ToolCall], list[str]]:
    """The calls in a whole reply; what looks like one in a thought is none.

    Returns the reply without its calls, the calls, and the outcome of each: "ok", or why it is left in the text.
    """
    pattern, arguments_key = syntax
    calls: list[ToolCall] = []
    outcomes: list[str] = []

    def take_call(match: re.Match[str]) -> str:
        """Note a call, and return the text that stays in its place."""
        try:
            call = _parse_call(match[1], arguments_key)
            if call.tool not in tools:
                raise ToolError("unknown tool")
        except ToolError as error:
            outcomes.append(error.reason)
            return match[0]
        calls.append(call)
        outcomes.append("ok")
        return ""

    spoken = behind_thoughts(text) or ""
    thought = text[: len(text) - len(spoken)]
    return thought + pattern.sub(take_call, spoken), calls, outcomes


async def use_tools(
    chat: Conversation, tools: Mapping[str, Tool], *, form: CallFormat = CALLS, most: int = 8, nonce: str | None = None
) -> Turn:
    """Let the role answer, with tools; returns the last turn of the answer, parsed with all of it.

    Args:
        tools: name → tool, called with the arguments that the policy wrote. It may await anything; the engine rests.
        most: calls that are answered; later ones stay text.
        nonce: that of the markers; None: the conversation's own.

    The role's ``max_tokens`` is the limit of the whole answer, outputs apart. An answer whose prompt outgrows the
    context has the parse failure "no room". The finding ``calls`` of the last turn has the outcome of each call:
    "ok" or the reason of its failure.
    """
    outcomes: list[str] = []
    tokens_left = chat.role.sampling.max_tokens
    while True:
        stop = chat.role.sampling.stop
        if len(outcomes) < most:
            stop = (*stop, *form.stop)
        try:
            turn = await chat.say(stop=stop, max_tokens=tokens_left)
        except TooLong:
            if not outcomes:
                raise
            chat.turns[-1].parsed = ParseFailure(reason="no room")
            return chat.turns[-1]
        tokens_left -= len(turn.completion.token_ids)
        ends_with_call = turn.text.endswith(form.stop) and len(outcomes) < most
        if tokens_left <= 0 or not ends_with_call:
            return turn

        try:
            call = form.read(chat.response_text, tools)
            if call is None:
                continue  # a stop string without a call: the policy goes on
            outcome = "ok"
            output = await _run_call(tools, call)
        except ToolError as error:
            outcome = error.reason
            output = f"{_printable_output(error.output)}\n({error.reason})".strip()
        form.show(chat, output, nonce or chat.nonce)
        outcomes.append(outcome)
        turn.add_finding(CALLED, list(outcomes))


async def _run_call(tools: Mapping[str, Tool], call: ToolCall) -> str:
    """Run a call and return the tool's output as it is shown. Raises ToolError for whatever the tool raises."""
    if call.tool not in tools:
        raise ToolError("unknown tool")
    try:
        async with engine_paused():
            output = str(await tools[call.tool](*call.said, **call.named))
    except (ToolError, *INTERRUPTS):
        raise
    except BaseException as error:
        raise ToolError(type(error).__name__) from error
    return read_output(output)


def read_output(output: str) -> str:
    """The part of an output that is shown. Raises ToolError for an output of more than ``MOST_READ`` characters."""
    if len(output) > MOST_READ:
        raise ToolError("too much output", output[:MAX_OUTPUT])
    return _printable_output(output)


def _printable_output(output: str) -> str:
    """The first ``MAX_OUTPUT`` characters of an output, each that cannot be printed replaced."""
    output = output[:MOST_READ]
    output = "".join(c if c.isprintable() or c in "\n\t" else "\ufffd" for c in output).strip()
    if len(output) <= MAX_OUTPUT:
        return output
    return output[:MAX_OUTPUT] + CUT
