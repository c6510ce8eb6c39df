"""The tests of a programming problem, and the files that they need, as the process that runs them gets them.

A name in the tests is the answer's only where the reference program defines it. So an answer cannot bring its own
``abs`` or ``math`` to its tests; modules that the reference imports for them, or that they use without an import, are
imported next to the tests.
"""

from __future__ import annotations

import ast
import builtins
import json
import sys
from collections.abc import Iterable

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def paper_of(*, before: str, tests: str, solution: str) -> str:
    """The paper as JSON. ``before``: code that is before the answer; ``solution``: the reference program. Where
    that cannot be read, all names that the tests do not explain are the answer's."""
    used = _names_read(f"{before}\n{tests}")
    try:
        reference = list(_all_statements(ast.parse(solution).body))
    except (SyntaxError, ValueError, RecursionError):
        reference = []
        defined = used - set(vars(builtins))
    else:
        defined = {name for statement in reference for name in _names_defined(statement)}

    imports = []
    known_names = set(defined)
    for statement in reference:
        if isinstance(statement, ast.Import | ast.ImportFrom):
            imported = _names_imported(statement)
            known_names |= imported
            if used & imported:
                imports.append(ast.unparse(statement))
    unimported_modules = (used & sys.stdlib_module_names) - known_names
    imports += [f"import {name}" for name in sorted(unimported_modules)]
    return json.dumps({"imports": imports, "names": sorted(defined & used), "before": before, "tests": tests})


def _names_read(code: str) -> set[str]:
    """All names that are read anywhere in it."""
    try:
        nodes = ast.walk(ast.parse(code))
    except (SyntaxError, ValueError, RecursionError):
        return set()
    return {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}


def _all_statements(body: Iterable[ast.stmt]) -> Iterable[ast.stmt]:
    """The statements of a module, also those under ``if``, ``try``, ``with`` and loops."""
    for statement in body:
        yield statement
        if not isinstance(statement, Definition):
            for part in ("body", "orelse", "finalbody"):
                yield from _all_statements(getattr(statement, part, []))
            for handler in getattr(statement, "handlers", []):
                yield from _all_statements(handler.body)


def _names_defined(statement: ast.stmt) -> set[str]:
    if isinstance(statement, Definition):
        return {statement.name}
    if isinstance(statement, ast.Import | ast.ImportFrom):
        return set()
    nodes = ast.walk(statement)
    return {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}


def _names_imported(statement: ast.Import | ast.ImportFrom) -> set[str]:
    return {(alias.asname or alias.name).partition(".")[0] for alias in statement.names}
