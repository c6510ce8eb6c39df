r"""Tools as plain async functions: the policy writes a call, the function answers, and the policy goes on in the same
answer.

::

    CALLS     6 * 7 is <call>6 * 7</call>│\n<result id=9f3c01ab>\n42\n</result id=9f3c01ab>\n│so 42.
    HERMES    <tool_call>{"name": "calculator", "arguments": {"term": "6 * 7"}}</tool_call>│ a tool message │So 42.

All that is written in a ``<call>`` is said to the one tool there is; of several, the first word names it. What is
between the bars is given: no loss, no credit (``Trace.mask``). It is material: between markers with a nonce, with
verifiers' tags broken, without control tokens, cut at ``MAX_OUTPUT`` characters. A call is read in the policy's own
words alone, so what a tool prints is never one. A tool that fails is a value with a reason, which the policy is shown
and the metrics count."""

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
MAX_OUTPUT = 500  # characters
MOST_READ = 100_000  # characters of an output that are looked at; a tool that returns more has failed
CUT = "\n(cut)"


class ToolError(Exception):
    """A tool's failure: ``reason`` is a short fixed phrase, a metric's key; ``output`` is what there is all the
    same."""

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

    stop: tuple[str, ...]  # a turn ends with one of these
    # own words up to a stop → the call that ends there; or ToolError
    read: Callable[[str, Mapping[str, Tool]], ToolCall | None]
    show: Callable[[Conversation, str, str], None]  # put an output into the conversation, with this mark


def tag_format(tag: str, shown: str) -> CallFormat:
    """``<tag>…</tag>`` in the text, and the output behind it between markers of the name ``shown``."""
    opening = f"<{tag}>"
    closing = f"</{tag}>"

    def read_call(text: str, tools: Mapping[str, Tool]) -> ToolCall | None:
        if begins_with_thought(text) and broken_thought_in(text):
            return None  # a thought may hold what looks like one
        _, opened, inside = text[: -len(closing)].rpartition(opening)
        if not opened or closing in inside:
            return None
        if len(tools) == 1:
            return ToolCall(tool=next(iter(tools)), said=(inside,))
        name, _, said = inside.strip().partition(" ")
        return ToolCall(tool=name, said=(said,))

    def show_output(chat: Conversation, output: str, mark: str) -> None:
        chat.assistant(f"\n{wrap_text(output, mark, shown)}\n")

    return CallFormat(stop=(closing,), read=read_call, show=show_output)


def _read_json(text: str, tools: Mapping[str, Tool]) -> ToolCall:
    return _parse_call(text[: -len("</tool_call>")].rpartition("<tool_call>")[2], "arguments")


def _parse_call(text: str, arguments: str) -> ToolCall:
    """A call in JSON: an object of a name and, under the key ``arguments``, an object of arguments, which may be
    missing. Anything else beside them may be meant as arguments, so that it is a bad call. Raises ToolError."""
    try:
        found = json.loads(text, object_pairs_hook=_without_doubles)
        if not isinstance(found, dict) or not {"name"} <= found.keys() <= {"name", arguments}:
            raise ToolError("bad call")
        name = found["name"]
        named = found.get(arguments, {})
        if not isinstance(name, str) or not isinstance(named, dict):
            raise ToolError("bad call")
        json.dumps(named, allow_nan=False, ensure_ascii=False).encode()  # neither endless nor lone surrogates
    except (ValueError, TypeError, RecursionError) as error:
        raise ToolError("bad call") from error
    return ToolCall(tool=name, named=named)


def _without_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of JSON. Raises ValueError where a key stands twice, of which only one would be read."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key twice")
    return found


CALLS = tag_format("call", "result")
HERMES = CallFormat(
    stop=("</tool_call>",),
    read=_read_json,
    show=lambda chat, output, mark: chat.tool(wrap_text(output, mark, "result")),
)


Syntax = tuple[re.Pattern[str], str]  # a call with its JSON as group 1, and the key of the arguments in it
SYNTAXES: dict[str, Syntax] = {  # of models that were taught to call, by the name in messages
    "Hermes and Qwen": (re.compile(r"<tool_call>(.*?)(?:</tool_call>|\Z)", re.DOTALL), "arguments"),
    "Llama 3": (re.compile(r"\A\s*(\{\s*\"name\".*)", re.DOTALL), "parameters"),
}


class ToolRenderer(Renderer):
    """A model's renderer, of prompts in which its chat template describes these functions, which are as in OpenAI's
    protocol. Raises ModelError for a template that describes none, and where a description holds the text of a control
    token."""

    def __init__(self, renderer: Renderer, tools: Sequence[Any] = ()) -> None:
        vars(self).update(vars(renderer))
        if renderer._template is None:
            raise ModelError("it has no chat template", code="E_NO_CHAT_TEMPLATE")
        self._template = copy(renderer._template)
        self._layouts = {}
        self._template.tools = list(tools)
        question = [("user", "")]
        if tools and self._template.render(question, opening=True) == renderer._template.render(question, opening=True):
            raise ModelError("its chat template describes no tools", code="E_CHAT_TEMPLATE_CALLS")
        written = json.dumps(tools, ensure_ascii=False)
        for control in filter(None, map(self.token_text, sorted(self._forbidden))):
            if control in written:
                raise ModelError(
                    f"a tool's description holds {control!r}, a control token of the model; take it out",
                    code="E_TOOL_CONTROL_TOKEN",
                )

    def write_calls(self, content: str, calls: Sequence[Any]) -> str:
        """An assistant's turn with calls of tools, as the content that makes the chat template write the same. Raises
        ModelError for a template that cannot write them so."""
        assert self._template is not None
        turns = [("user", "")]
        mark = PLACEHOLDER.format(1)
        before, _, after = self._template.render([*turns, ("assistant", mark)], opening=False).partition(mark)
        text = self._template.render([*turns, ("assistant", content)], opening=False, calls=calls)
        if text == self._template.render([*turns, ("assistant", content)], opening=False):
            raise ModelError("its chat template writes no calls of tools", code="E_CHAT_TEMPLATE_CALLS")
        if not (text.startswith(before) and text.endswith(after) and len(text) >= len(before + after)):
            raise ModelError(
                f"its chat template writes calls of tools as {text.removeprefix(before)[:80]!r}",
                code="E_CHAT_TEMPLATE_CALLS",
            )
        return text[len(before) : len(text) - len(after)]


def find_syntax(renderer: ToolRenderer) -> Syntax:
    """The one in which the chat template writes calls. Raises ModelError where it is none of ``SYNTAXES``."""
    written = renderer.write_calls("", [function_call("call_0", "f", {"x": 1})])
    for syntax in SYNTAXES.values():
        if read_calls(written, syntax, {"f"})[1] == [ToolCall(tool="f", named={"x": 1})]:
            return syntax
    known = ", ".join(SYNTAXES)
    raise ModelError(
        f"its chat template writes calls of tools as {written[:80]!r}; expected the way of {known}",
        code="E_CHAT_TEMPLATE_CALLS",
    )


def read_calls(text: str, syntax: Syntax, tools: Collection[str]) -> tuple[str, list[ToolCall], list[str]]:
    """The calls in a whole reply, none in a thought: what is said beside them, the calls, and the outcome of each, "ok"
    or why it stays text."""
    calls = list[ToolCall]()
    outcomes = list[str]()

    def take_call(found: re.Match[str]) -> str:
        try:
            call = _parse_call(found[1], syntax[1])
            if call.tool not in tools:
                raise ToolError("unknown tool")
        except ToolError as error:
            outcomes.append(error.reason)
            return found[0]
        calls.append(call)
        outcomes.append("ok")
        return ""

    spoken = behind_thoughts(text) or ""
    return text[: len(text) - len(spoken)] + syntax[0].sub(take_call, spoken), calls, outcomes


async def use_tools(
    chat: Conversation, tools: Mapping[str, Tool], *, form: CallFormat = CALLS, most: int = 8, nonce: str | None = None
) -> Turn:
    """Let the role answer, with tools; returns the last turn of the answer, parsed with all of it.

    Args:
        tools: by name; called with what the policy said. They may wait for whatever they like: the engine rests.
        most: calls that are answered; later ones are read past.
        nonce: the one in the markers; None: the conversation's own.

    The role's ``max_tokens`` are those of the whole answer. An answer whose prompt outgrows the context cannot be read:
    "no room". The last turn shows as ``calls`` what became of each: "ok" or its reason.
    """
    outcomes: list[str] = []
    tokens_left = chat.role.sampling.max_tokens
    while True:
        stop = (*chat.role.sampling.stop, *(form.stop if len(outcomes) < most else ()))
        try:
            turn = await chat.say(stop=stop, max_tokens=tokens_left)
        except TooLong:
            if not outcomes:
                raise
            chat.turns[-1].parsed = ParseFailure(reason="no room")
            return chat.turns[-1]
        tokens_left -= len(turn.completion.token_ids)
        if tokens_left <= 0 or not turn.text.endswith(form.stop) or len(outcomes) == most:
            return turn
        try:
            call = form.read(chat.response_text, tools)
            if call is None:
                continue
            outcome = "ok"
            output = await _run_call(tools, call)
        except ToolError as error:
            outcome = error.reason
            output = f"{_printable_output(error.output)}\n({error.reason})".strip()
        form.show(chat, output, nonce or chat.nonce)
        outcomes.append(outcome)
        turn.add_finding(CALLED, list(outcomes))


async def _run_call(tools: Mapping[str, Tool], call: ToolCall) -> str:
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
    """Return what is shown of what a tool returned. Raises ToolError for more than is read."""
    if len(output) > MOST_READ:
        raise ToolError("too much output", output[:MAX_OUTPUT])
    return _printable_output(output)


def _printable_output(output: str) -> str:
    """Return what is shown of an output, of which ``MOST_READ`` characters are looked at."""
    output = output[:MOST_READ]
    output = "".join(c if c.isprintable() or c in "\n\t" else "\ufffd" for c in output).strip()
    return output if len(output) <= MAX_OUTPUT else output[:MAX_OUTPUT] + CUT
