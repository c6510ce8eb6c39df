"""Calls of a tool between control tokens, answered inside of one turn, as the models of nanochat write them::

    12/60 = <|python_start|>12/60<|python_end|>│<|output_start|>0.2<|output_end|>│ an hour, so …

The tool's output, between the bars, is context: its tokens have no loss and no advantage (``Trace.mask``). To a
protocol the turn is one answer like any other, with the output in its text. So the setting ``tool`` works in every
recipe. Other notations, and conversations of several turns, are in ``rollout/tools/calls.py``.

A tool is ``calculator`` (below) or a function of the user's, which may be async. It takes what the model wrote, and
returns what the model is shown, or None for nothing. An exception is counted by its name, and the model goes on without
an output, as in nanochat's own engine. An output is shown as one line of at most ``MAX_OUTPUT`` characters, without
control tokens and with verifiers' tags broken. One that would be read as an answer in the role's format is withheld.

Tokens of outputs count towards ``max_tokens``. Where an output leaves no token for what follows, the answer ends.
"""

from __future__ import annotations

import ast
import inspect
import operator
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from types import FunctionType
from typing import Any, cast

from cotrain.core.arguments import check_called_with
from cotrain.core.errors import ConfigError
from cotrain.core.seeding import Address
from cotrain.core.types import Completion, TurnRange
from cotrain.formats.nonce import break_verdict_tags
from cotrain.formats.solutions import parse_solution
from cotrain.inference.contract import Request
from cotrain.prompts.render import CALL_TOKENS, Rendering
from cotrain.rollout.event_loop import engine_paused
from cotrain.rollout.role import Role, SolverTool

CALCULATOR = "calculator"
MAX_OUTPUT = 500  # characters of an output that are shown

# Outcomes of calls, besides "ok" and the names of exceptions:
NO_OUTPUT = "no output"
WITHHELD = "reads as an answer"
NO_ROOM = "no room"


@dataclass(frozen=True, slots=True, kw_only=True)
class CallMarks:
    """The ids of ``CALL_TOKENS``."""

    opens: int
    closes: int
    output_opens: int
    output_closes: int


def marks_of(renderer: Rendering, role: str) -> CallMarks:
    """The marks of a model, for the role of this name. Raises ConfigError for a model that has no such tokens."""
    ids = getattr(renderer, "call_ids", None)
    if not ids:
        raise ConfigError(
            f"role {role!r} has a tool, but its model has no tokens {CALL_TOKENS[0]}, {CALL_TOKENS[1]} … to call it "
            "with, as those of nanochat have; leave out --tool (docs/tools.md says how other models call tools)",
            code="E_TOOL_WITHOUT_TOKENS",
        )
    opens, closes, output_opens, output_closes = ids
    return CallMarks(opens=opens, closes=closes, output_opens=output_opens, output_closes=output_closes)


def find_tool(tool: SolverTool) -> SolverTool:
    """The tool that a setting names: "calculator", a function, or ``my_file.py:function``, which is loaded. Raises
    ConfigError for anything else."""
    if isinstance(tool, str) and ".py:" in tool:
        from cotrain.core.user_code import load_object

        tool = cast(SolverTool, load_object(tool, "tool", FunctionType))
    if tool != CALCULATOR and not callable(tool):
        raise ConfigError(
            f"tool is {tool!r}; expected {CALCULATOR}, or a function of your own: my_file.py:function",
            code="E_TOOL_NAME",
        )
    if callable(tool):
        check_called_with("tool", tool, "call")
    return tool


def tool_name(tool: SolverTool) -> str:
    """The name of a tool in files: "calculator", or where its function stands."""
    from cotrain.core.user_code import function_target

    return tool if isinstance(tool, str) else function_target(tool)


def with_tool(roles: Mapping[str, Role], tool: SolverTool | None) -> dict[str, Role]:
    """The roles, with this tool for those that write solutions. None: no tool. Raises ConfigError for a tool that there
    is not, and where no role writes solutions."""
    if tool is None:
        return dict(roles)
    loaded_tool = find_tool(tool)
    solvers = {name for name, role in roles.items() if role.parse is parse_solution}
    if not solvers:
        raise ConfigError(
            f"tool {tool!r} is for roles that write solutions, of which there are none; leave it out",
            code="E_TOOL_WITHOUT_SOLVER",
        )
    return {name: replace(role, tool=loaded_tool) if name in solvers else role for name, role in roles.items()}


async def answer_with_tool(
    ask: Callable[[Request], Awaitable[Completion]],
    request: Request,
    role: Role,
    renderer: Rendering,
    seed_at: Callable[[Address], int],
) -> Completion:
    """The answer of a role with a tool: what the policy sampled, with the tool's outputs between it.

    The policy is asked for a part of the answer until it closes a call. Then the output is added to the prompt, and it
    is asked for the next part.

    Args:
        ask: lets the policy answer one request.
        seed_at: the seed of the request at an address. Each part has the address of a later turn.
    """
    marks = marks_of(renderer, request.address.role)
    max_tokens = request.sampling.max_tokens
    ids: list[int] = []  # tokens of the whole answer, outputs of tools included; so are the next two lists
    logprobs: list[float] = []
    entropies = bytearray()
    parts: list[TurnRange] = []  # where the sampled parts are
    outcomes: list[str] = []  # the outcome of each call
    next_request = replace(request, stop_ids=(*request.stop_ids, marks.closes), keep=True)
    while True:
        completion = await ask(next_request)
        sampled = completion.token_ids
        parts.append(TurnRange(start=len(ids), end=len(ids) + len(sampled), finish=completion.finish))
        ids += sampled
        logprobs += completion.logprobs
        entropies += completion.entropies or bytes(len(sampled))
        ends_with_call = bool(sampled) and sampled[-1] == marks.closes
        if not ends_with_call:
            break

        outcome, output = await _call_tool(role, _written_call(sampled, marks, renderer))
        output_ids: list[int] = []
        if output is not None:
            output_ids = [marks.output_opens, *renderer.encode(output, ids), marks.output_closes]
        if len(ids) + len(output_ids) >= max_tokens:
            outcomes.append(NO_ROOM)
            parts[-1] = replace(parts[-1], finish="length")
            break

        outcomes.append(outcome)
        ids += output_ids
        logprobs += [0.0] * len(output_ids)
        entropies += bytes(len(output_ids))
        address = request.address.later_turn(len(parts))
        next_request = replace(
            next_request,
            prompt_ids=(*request.prompt_ids, *ids),
            sampling=replace(request.sampling, max_tokens=max_tokens - len(ids)),
            seed=seed_at(address),
            address=address,
            continues=next_request.address,
        )

    if not outcomes:
        return completion
    return replace(
        completion,
        token_ids=tuple(ids),
        logprobs=tuple(logprobs),
        entropies=bytes(entropies) if completion.entropies else b"",
        finish=parts[-1].finish,
        parts=tuple(parts),
        calls=tuple(outcomes),
    )


def _written_call(token_ids: tuple[int, ...], marks: CallMarks, renderer: Rendering) -> str | None:
    """The text of the call that these tokens end with; None where no call was opened, or it is empty or no text."""
    before_end = token_ids[:-1]
    if marks.opens not in before_end:
        return None
    start = len(before_end) - before_end[::-1].index(marks.opens)  # after the last opening mark
    call = before_end[start:]
    is_text = all(renderer.decode([token_id]) for token_id in call)  # a control token has no text
    if not call or not is_text:
        return None
    return renderer.decode(call)


async def _call_tool(role: Role, call: str | None) -> tuple[str, str | None]:
    """The outcome of a call, and the output that the model is shown, None for none."""
    if call is None:
        return NO_OUTPUT, None
    tool = calculate if role.tool == CALCULATOR else role.tool
    assert callable(tool)
    try:
        result: Any = tool(call)
        if inspect.isawaitable(result):
            async with engine_paused():
                result = await result
        output = None if result is None else _output_line(str(result))
    except Exception as error:  # noqa: BLE001  whatever it is, it is counted and ends no answer
        return type(error).__name__, None
    if not output:
        return NO_OUTPUT, None
    # In the format "last-number" any number would be read as an answer, so there nothing is withheld.
    can_tell_answers = role.parse is parse_solution and role.answer_format != "last-number"
    if can_tell_answers and role.parse_reply(output, {}).ok:
        return WITHHELD, None
    return "ok", output


def _output_line(text: str) -> str:
    """An output as one line, as it is shown."""
    words = "".join(c if c.isprintable() else " " for c in text).split()
    return break_verdict_tags(" ".join(words)[:MAX_OUTPUT])


# -- The calculator: it answers what nanochat's own answers, but runs nothing as a program.


_SUM = re.compile(r"[0-9*+\-/.() ]+")
_COUNT = re.compile(r"[A-Za-z0-9'\"()._ ]+")
_REFUSED_WORDS = (  # nanochat's own list: a count with one of these anywhere in it has no value
    *("__", "import", "exec", "eval", "compile", "open", "file", "input", "globals", "locals", "vars", "dir"),
    *("getattr", "setattr", "delattr", "hasattr"),
)
_OPERATORS: dict[type[ast.AST], Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.UAdd: operator.pos,
    ast.USub: operator.neg,
}
_TEXT_METHODS = ("count", "lower", "upper", "strip", "title", "capitalize", "swapcase")


def calculate(text: str) -> str | None:
    """The value of a sum such as "12/60" or "(1+2)*3", or of a count such as "'strawberry'.count('r')"; None for
    anything else. Commas in numbers are left out. Powers are refused, since they grow without bound."""
    text = text.replace(",", "")
    is_sum = _SUM.fullmatch(text) is not None and "**" not in text
    is_count = _COUNT.fullmatch(text) is not None and ".count(" in text
    has_refused_word = any(word in text.lower() for word in _REFUSED_WORDS)
    if not is_sum and (not is_count or has_refused_word):
        return None
    try:
        return str(_value_of(ast.parse(text.strip(" "), mode="eval").body))
    except (SyntaxError, ValueError, TypeError, ArithmeticError, RecursionError, MemoryError):
        return None


def _value_of(node: ast.AST) -> Any:
    """The value of a number, a text, a sum of these, or a method of a text. Raises ValueError for anything else."""
    match node:
        case ast.Constant(value=int() | float() | str() as value) if not isinstance(value, bool):
            return value
        case ast.BinOp(left=left, op=sign, right=right) if type(sign) in _OPERATORS:
            return _OPERATORS[type(sign)](_value_of(left), _value_of(right))
        case ast.UnaryOp(op=sign, operand=operand) if type(sign) in _OPERATORS:
            return _OPERATORS[type(sign)](_value_of(operand))
        case ast.Call(func=ast.Attribute(value=owner, attr=name), args=arguments, keywords=[]) if (
            name in _TEXT_METHODS and isinstance(said := _value_of(owner), str)
        ):
            return getattr(said, name)(*map(_value_of, arguments))
        case _:
            raise ValueError("neither a number nor a text")
