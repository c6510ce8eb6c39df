"""A tool that runs Python: ``use_tools(chat, {"python": run_python})``.

A program runs in a sandbox (``grading/isolation.py``), by ``grading/script_worker.py``. The same program prints the
same. Left out: names that one program leaves to the next."""

from __future__ import annotations

import asyncio
import builtins
import textwrap
from functools import cache

from cotrain.grading.fences import MAX_PROGRAM, program_of
from cotrain.grading.isolation import MEMORY_BYTES, working_sandbox
from cotrain.grading.pool import WORKERS, GradingPool
from cotrain.rollout.tools.calls import ToolError

RUNNER = "cotrain.grading.script_worker:load_scripts"
DEADLINE_S = 5.0  # CPU time of a program, as in GenPRM's released code (there by the clock)
_REASONS = frozenset(
    name for name, kind in vars(builtins).items() if isinstance(kind, type) and issubclass(kind, BaseException)
) | {"error", "no output", "program died", "program too long", "syntax error", "timeout"}


async def run_python(program: str) -> str:
    """Run a program, with or without a fence of ``` around it, and return its output.

    Raises ToolError: "timeout" (``DEADLINE_S`` of CPU time, or four times as long by the clock), "program died" (it
    ended its process, or said what is not readable), "program too long", "syntax error", "no output", a built-in
    exception or "error".
    """
    return await asyncio.get_running_loop().run_in_executor(None, _run_program, program)


def _run_program(program: str) -> str:
    source = textwrap.dedent((program_of(program) or program).strip("\n"))
    if len(source) > MAX_PROGRAM:
        raise ToolError("program too long")
    reason, _, printed = (
        (_script_pool().grade_in_process("", source).reason or "")
        .replace("grader died", "program died")
        .partition("\n")
    )
    if reason:
        raise ToolError(reason if reason in _REASONS else "error", printed)
    if not printed.strip():
        raise ToolError("no output")
    return printed


@cache
def _script_pool() -> GradingPool:
    """One pool for all episodes; its processes start when first needed and end with this one."""
    return GradingPool(
        workers=WORKERS, deadline_s=DEADLINE_S, judging=(RUNNER,), memory=MEMORY_BYTES, sandbox=working_sandbox()
    )
