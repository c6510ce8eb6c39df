"""How dense the code is: figures of the package and of each of its folders. It prints, and fails nothing.

    python -m tests.density                        # the package, folder by folder
    python -m tests.density cotrain/rollout zoo    # these folders and files
    python -m tests.density --files cotrain/api.py cotrain/recipes

A line of code is one that has a token besides comments and docstrings. Columns, in their order:

    lines         lines of the files, blank ones and comments included
    code          lines of code
    tok/line      tokens of a line of code
    cond-in-cond  conditional expressions inside of another one
    a,b=x,y       assignments of several values to several names in one statement, swaps apart
    compr.        comprehensions and generator expressions
    nested        those of them that stand in another one, or have two ``for``
    >40           functions of more than 40 lines
    participles   functions whose name is a bare participle (``told``, ``settled``)
    as variable   variables and parameters whose name is one
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LONG = 40  # lines of a function from which on it is counted as long
IRREGULAR_TEXT = """
begun born bought bound brought built chosen come cut dealt done drawn driven fallen found given gone grown heard held
hidden hit kept known laid led left lent lost made meant met paid put run said seen sent set shown shut sold spent split
spoken stood struck taken taught thrown told torn understood won woven written
"""
IRREGULAR = frozenset(IRREGULAR_TEXT.split())
NO_PARTICIPLE = {"feed", "need", "seed", "shed", "speed", "embed"}
LAYOUT = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
}
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


@dataclass
class Density:
    """Counts of one file, or of several that were added up."""

    lines: int = 0
    code_lines: int = 0
    tokens: int = 0
    nested_conditionals: int = 0
    tuple_assignments: int = 0
    comprehensions: int = 0
    nested_comprehensions: int = 0
    long_functions: int = 0
    participle_functions: int = 0
    participle_variables: int = 0

    def __add__(self, other: Density) -> Density:
        counts = {field.name: getattr(self, field.name) + getattr(other, field.name) for field in fields(self)}
        return Density(**counts)


def words_of(name: str) -> list[str]:
    return [word for word in name.split("_") if word]


def is_participle(name: str) -> bool:
    """Whether a name is one participle and nothing else."""
    words = words_of(name)
    if len(words) != 1:
        return False
    word = words[0]
    if word in IRREGULAR:
        return True
    return bool(re.search("ed$", word)) and word not in NO_PARTICIPLE


def density_of_file(path: Path) -> Density:
    source = path.read_text(encoding="utf-8")
    tree = ast.parse(source)
    density = Density(lines=len(source.splitlines()))
    _count_tokens(source, _docstring_lines(tree), density)
    _count_nodes(tree, density)
    return density


def density_of(path: Path) -> Density:
    """A file's counts, or the sum of those of all files below a folder."""
    total = Density()
    for file in python_files(path):
        total += density_of_file(file)
    return total


def python_files(path: Path) -> list[Path]:
    return sorted(path.rglob("*.py")) if path.is_dir() else [path]


def _docstring_lines(tree: ast.Module) -> set[int]:
    """The first line of every docstring."""
    lines = set()
    for node in ast.walk(tree):
        if not isinstance(node, (*FUNCTIONS, ast.ClassDef, ast.Module)) or not node.body:
            continue
        first = node.body[0]
        if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
            lines.add(first.lineno)
    return lines


def _count_tokens(source: str, docstring_lines: set[int], density: Density) -> None:
    code_lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type in LAYOUT:
            continue
        is_docstring = token.type == tokenize.STRING and token.start[0] in docstring_lines
        if is_docstring:
            continue
        density.tokens += 1
        code_lines.update(range(token.start[0], token.end[0] + 1))
    density.code_lines = len(code_lines)


def _count_nodes(tree: ast.Module, density: Density) -> None:
    for node, ancestors in _walk(tree):
        if isinstance(node, ast.IfExp):
            density.nested_conditionals += any(isinstance(above, ast.IfExp) for above in ancestors)
        elif isinstance(node, ast.Assign):
            density.tuple_assignments += _assigns_several(node)
        elif isinstance(node, COMPREHENSIONS):
            density.comprehensions += 1
            is_inside_another = any(isinstance(above, COMPREHENSIONS) for above in ancestors)
            density.nested_comprehensions += is_inside_another or len(node.generators) > 1
        elif isinstance(node, FUNCTIONS):
            assert node.end_lineno is not None
            density.long_functions += node.end_lineno - node.lineno + 1 > LONG
            density.participle_functions += is_participle(node.name)
        elif isinstance(node, ast.arg):
            density.participle_variables += is_participle(node.arg)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            density.participle_variables += is_participle(node.id)


def _walk(node: ast.AST, ancestors: tuple[ast.AST, ...] = ()) -> Iterator[tuple[ast.AST, tuple[ast.AST, ...]]]:
    """Every node with those above it, up to the statement that it is a part of."""
    yield node, ancestors
    for child in ast.iter_child_nodes(node):
        starts_anew = isinstance(child, (ast.stmt, ast.Lambda))
        yield from _walk(child, () if starts_anew else (*ancestors, node))


def _assigns_several(node: ast.Assign) -> bool:
    """``a, b = x, y``; not ``a, b = b, a``, and not ``a, b = pair``."""
    target = node.targets[0]
    if not (isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple)):
        return False
    left = sorted(ast.unparse(element) for element in target.elts)
    right = sorted(ast.unparse(element) for element in node.value.elts)
    return left != right


def print_table(rows: list[tuple[str, Density]]) -> None:
    width = max(len(name) for name, _ in rows)
    print(
        f"{'':{width}}   lines    code  tok/line  cond-in-cond  a,b=x,y  compr.  nested   >40  participles  as variable"
    )
    for name, density in rows:
        rate = density.tokens / density.code_lines if density.code_lines else 0.0
        print(
            f"{name:{width}}  {density.lines:6d}  {density.code_lines:6d}  {rate:8.2f}"
            f"  {density.nested_conditionals:12d}  {density.tuple_assignments:7d}  {density.comprehensions:6d}"
            f"  {density.nested_comprehensions:6d}  {density.long_functions:4d}  {density.participle_functions:11d}"
            f"  {density.participle_variables:11d}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="*", type=Path, metavar="PATH", help="by default the folders of the package")
    parser.add_argument("--files", action="store_true", help="a row for each file below them too")
    args = parser.parse_args()

    package = ROOT / "cotrain"
    paths = args.paths or sorted(path for path in package.iterdir() if path.is_dir() and python_files(path))
    rows = []
    for path in paths:
        if args.files and path.is_dir():
            rows += [(str(file), density_of(file)) for file in python_files(path)]
        name = path.name if path.is_absolute() else str(path)
        rows.append((name, density_of(path)))
    rows.append(("the package", density_of(package)))
    print_table(rows)


if __name__ == "__main__":
    main()
