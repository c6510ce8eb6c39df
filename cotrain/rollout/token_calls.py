"""Calls of a tool between control tokens, answered inside of one turn, as the models of nanochat write them::

    12/60 = <|python_start|>12/60<|python_end|>│<|output_start|>0.2<|output_end|>│ an hour, so …

What is between the bars is given: no loss, no credit (``Trace.mask``). To a protocol the turn is one answer like any
other, with the output in its text; so every recipe takes a tool, by the setting ``tool``. Longer conversations and
other notations have ``rollout/tools/calls.py``.

A tool is ``calculator`` (below), or a function of one's own, which may be async: what the model wrote → what it is
shown, None where nothing is to be said. What it raises is counted by its name, and the model goes on without an
output, as in nanochat's own engine. An output is text: one line, without control tokens, at most ``MAX_OUTPUT``
characters, with judges' tags broken; one that reads as an answer in the role's format is withheld.

Given tokens count towards ``max_tokens``. A call whose output leaves no token for what follows ends the answer.
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
from cotrain.formats.nonce import break_judge_tags
from cotrain.formats.solutions import parse_solution
from cotrain.inference.contract import Request
from cotrain.prompts.render import CALL_TOKENS, Rendering
from cotrain.rollout.event_loop import engine_paused
from cotrain.rollout.role import Role, SolverTool

CALCULATOR = "calculator"
MAX_OUTPUT = 500  # characters
NO_OUTPUT, WITHHELD, NO_ROOM = "no output", "reads as an answer", "no room"  # outcomes of calls besides "ok"


@dataclass(frozen=True, slots=True, kw_only=True)
class CallMarks:
    """The ids of ``CALL_TOKENS``."""

    opens: int
    closes: int
    output_opens: int
    output_closes: int


def marks_of(renderer: Rendering, role: str) -> CallMarks:
    """Those of a model. Raises ConfigError for one that has no such tokens."""
    ids = getattr(renderer, "call_ids", None)
    if not ids:
        raise ConfigError(
            f"role {role!r} has a tool, but its model has no tokens {CALL_TOKENS[0]}, {CALL_TOKENS[1]} … to call it "
            "with, as those of nanochat have; leave out --tool (docs/tools.md says how other models call tools)",
            code="E_TOOL_WITHOUT_TOKENS",
        )
    return CallMarks(opens=ids[0], closes=ids[1], output_opens=ids[2], output_closes=ids[3])


def find_tool(tool: SolverTool) -> SolverTool:
    """ "calculator", or the function that is given or that ``my_file.py:function`` names. Raises ConfigError."""
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
    """What a tool is called in files: "calculator", or where its function stands."""
    from cotrain.core.user_code import function_target

    return tool if isinstance(tool, str) else function_target(tool)


def with_tool(roles: Mapping[str, Role], tool: SolverTool | None) -> dict[str, Role]:
    """The roles, of which those that write solutions have this tool; as they are where it is None. Raises ConfigError
    for a tool that there is not, and where no role writes solutions."""
    if tool is None:
        return dict(roles)
    found = find_tool(tool)
    if not any(role.parse is parse_solution for role in roles.values()):
        raise ConfigError(
            f"tool {tool!r} is for roles that write solutions, of which there are none; leave it out",
            code="E_TOOL_WITHOUT_SOLVER",
        )
    return {name: replace(role, tool=found) if role.parse is parse_solution else role for name, role in roles.items()}


async def answer_with_tool(
    ask: Callable[[Request], Awaitable[Completion]],
    request: Request,
    role: Role,
    renderer: Rendering,
    seed_at: Callable[[Address], int],
) -> Completion:
    """What a role with a tool says to a request: its own words, and what the tool said between them.

    Args:
        ask: has the policy answer one request.
        seed_at: of the request at an address; the parts of an answer stand at those of later turns.
    """
    marks = marks_of(renderer, request.address.role)
    most = request.sampling.max_tokens
    ids: list[int] = []
    logprobs: list[float] = []
    levels = bytearray()
    parts: list[TurnRange] = []
    outcomes: list[str] = []
    asked = replace(request, stop_ids=(*request.stop_ids, marks.closes), keep=True)
    while True:
        completion = await ask(asked)
        parts.append(TurnRange(start=len(ids), end=len(ids) + len(completion.token_ids), finish=completion.finish))
        ids += completion.token_ids
        logprobs += completion.logprobs
        levels += completion.entropies or bytes(len(completion.token_ids))
        if not completion.token_ids or completion.token_ids[-1] != marks.closes:
            break
        outcome, output = await _call_tool(role, _written_call(completion.token_ids, marks, renderer), renderer)
        given = [] if output is None else [marks.output_opens, *renderer.encode(output, ids), marks.output_closes]
        if len(ids) + len(given) >= most:
            outcomes.append(NO_ROOM)
            parts[-1] = replace(parts[-1], finish="length")
            break
        outcomes.append(outcome)
        ids += given
        logprobs += [0.0] * len(given)
        levels += bytes(len(given))
        address = request.address.later_turn(len(parts))
        asked = replace(
            asked,
            prompt_ids=(*request.prompt_ids, *ids),
            sampling=replace(request.sampling, max_tokens=most - len(ids)),
            seed=seed_at(address),
            address=address,
            continues=asked.address,
        )
    if not outcomes:
        return completion
    return replace(
        completion,
        token_ids=tuple(ids),
        logprobs=tuple(logprobs),
        entropies=bytes(levels) if completion.entropies else b"",
        finish=parts[-1].finish,
        parts=tuple(parts),
        calls=tuple(outcomes),
    )


def _written_call(token_ids: tuple[int, ...], marks: CallMarks, renderer: Rendering) -> str | None:
    """What stands in the call that these tokens end with; None where none was begun, or nothing is in it."""
    inside = token_ids[:-1]
    if marks.opens not in inside:
        return None
    start = len(inside) - inside[::-1].index(marks.opens)
    call = inside[start:]
    is_text = all(renderer.decode([i]) for i in call)  # control tokens have none
    return renderer.decode(call) if call and is_text else None


async def _call_tool(role: Role, call: str | None, renderer: Rendering) -> tuple[str, str | None]:
    """The outcome of a call, and what the model is shown."""
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
    if role.parse is parse_solution and role.answer_format != "last-number" and role.parse_reply(output, {}).ok:
        return WITHHELD, None
    return "ok", output


def _output_line(text: str) -> str:
    """What is shown of an output."""
    words = "".join(c if c.isprintable() else " " for c in text).split()
    return break_judge_tags(" ".join(words)[:MAX_OUTPUT])


# -- The calculator: what nanochat's own answers, without running it as a program.


_SUM = re.compile(r"[0-9*+\-/.() ]+")
_COUNT = re.compile(r"[A-Za-z0-9'\"()._ ]+")
_REFUSED_WORDS = (  # in any text that counts letters
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
    """The value of a sum such as "12/60" or "(1+2)*3", commas in numbers left out, or of a count such as
    "'strawberry'.count('r')"; None for whatever is neither. Powers are refused, as they grow without bound."""
    text = text.replace(",", "")
    is_sum = _SUM.fullmatch(text) is not None and "**" not in text
    is_count = _COUNT.fullmatch(text) is not None and ".count(" in text
    if not is_sum and (not is_count or any(word in text.lower() for word in _REFUSED_WORDS)):
        return None
    try:
        return str(_value_of(ast.parse(text.strip(" "), mode="eval").body))
    except (SyntaxError, ValueError, TypeError, ArithmeticError, RecursionError, MemoryError):
        return None


def _value_of(node: ast.AST) -> Any:
    """Of a number, a text, a sum of these, or a method of a text. Raises ValueError for anything else."""
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
