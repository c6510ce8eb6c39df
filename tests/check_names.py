"""Names say what a function does and to what, and one name means one thing. Run by ``make check``.

Of all functions and methods of the package (dunders aside) at most half have a name of one word, and at most one in
fifty is a bare participle (``told``, ``settled``). No name of a module's functions and classes is defined in three
files with different meanings; ``ONE_MEANING`` has those that mean the same in every file.

Words that the project gave up do not come back: ``RETIRED`` has them with the word that took their place. They are
looked for in the names of files, classes, functions, parameters, attributes and variables; participles that say
nothing of a value (``PARTICIPLE_VARIABLES``) are looked for in variables and parameters of ``READ_FOLDERS``, and more
of them (``RECIPE_PARTICIPLES``) in the recipes, those of the zoo included, and in what they are made of.

A name with a leading underscore belongs to its file: no other file imports it.

Besides: what catches the ValueError of ``json.loads`` catches its RecursionError too, which it raises for JSON that is
nested too deeply; ``core/input_files.py: parse_json`` raises ValueError for both. That holds outside of the package,
too: in ``benchmarks``, ``bases``, ``zoo``, ``docs`` and ``examples``. And no comment stands behind a line
that is a closing bracket alone, below all that it is about."""

import ast
import io
import re
import sys
import tokenize
from collections import defaultdict
from pathlib import Path

from density import is_participle, words_of

ONE_WORD, PARTICIPLES, FILES = 0.50, 0.02, 2
root = Path(__file__).resolve().parent.parent
ONE_MEANING = frozenset(
    # a process's or a command's entry; a verb of the API, its command and its work; what is printed of a result
    """main command compare evaluate save_checkpoint lines_of estimate_text first_line mean rehearse start_states
    task_of""".split()  # noqa: SIM905
)
RETIRED = {
    "JUDGE_TAGS": "VERDICT_TAGS",
    "JudgeOptions": "VerifierOptions",
    "ODD": "WRONG_SHAPE_ERRORS",
    "ask_verb": "a method written out",
    "behind_system": "with_system_text",
    "cell": "sandbox",
    "cells": "sandbox",
    "embedded": "shipped (weights), local (engine)",
    "judge_prompts": "verifier_prompts",
    "judge_role": "verifier_role",
    "judges": "verifiers",
    "lag": "async_steps",
    "files_by_part": "files_by_split",
    "one_form": "plain_unicode",
    "part_of": "split_named_by",
    "pull_to": "reference",
    "speaks": "generates",
    "watched": "observer",
}
KEPT = {  # folder or file in which a retired word has another meaning
    "cell": ("analysis", "core", "data", "inference", "metrics", "reports"),  # of a table, of a closure
    "cells": ("analysis", "core", "data", "inference", "metrics", "reports"),
    "judge_role": ("recipes/gram.py",),  # its judge pays a generator
    "embedded": ("models",),  # tokens as vectors
    "judges": ("reports",),  # key of the viewer's JSON
}
PARTICIPLE_VARIABLES = frozenset("asked found given made taken told".split())  # noqa: SIM905
READ_FOLDERS = (
    *("analysis", "cli", "core", "data", "formats", "grading", "metrics", "pretraining", "reports", "serving"),
    *("storage", "trackers"),
)
NOUNS = {"given": "data/word_problems"}  # participle → folder in which it is a noun: the givens of a problem
RECIPE_PARTICIPLES = PARTICIPLE_VARIABLES | frozenset(
    """accepted accused believed drawn earned heard judged kept known played said seen spoken told won
    written""".split()  # noqa: SIM905
)
RECIPE_PLACES = (
    *("recipes", "envs/agent", "envs/played.py", "envs/verifiers", "rollout/monte_carlo.py", "rollout/proposals.py"),
    *("rollout/reviews.py", "rollout/tournament.py", "rollout/votes.py"),
)


def variables_of(tree: ast.AST) -> set[str]:
    """The names of variables and parameters."""
    names = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    return names | {n.arg for n in ast.walk(tree) if isinstance(n, ast.arg)}


JSON_READERS = frozenset({"json.loads", "json.load"})
JSON_ERRORS = frozenset({"ValueError", "JSONDecodeError"})
HALF_CAUGHT = "JSON that is nested too deeply is not caught; read it by parse_json"
NESTED_TOO_DEEPLY = frozenset({"RecursionError", "WRONG_SHAPE_ERRORS", "Exception", "BaseException"})


def half_caught_json_in(tree: ast.AST) -> list[int]:
    """The lines of ``try`` in which JSON is read and what is nested too deeply is not caught beside a ValueError."""
    lines = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.Try):
            continue
        functions = [part for statement in node.body for part in ast.walk(statement) if isinstance(part, ast.Attribute)]
        kinds = [handler.type for handler in node.handlers if handler.type is not None]
        caught = {ast.unparse(part).rpartition(".")[2] for kind in kinds for part in ast.walk(kind)}
        reads_json = any(ast.unparse(function) in JSON_READERS for function in functions)
        if reads_json and caught & JSON_ERRORS and not caught & NESTED_TOO_DEEPLY:
            lines.append(node.lineno)
    return lines


def late_comments_in(source: str) -> list[int]:
    """The lines of comments behind a closing bracket alone. Those for tools, such as ``noqa``, may stand there."""
    if not re.search(r"^\s*[)\]},]+\s*#", source, re.MULTILINE):
        return []  # most files: they need not be taken apart
    words_by_line: dict[int, list[str]] = defaultdict(list)
    comments = {}
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        line = token.start[0]
        if token.type == tokenize.COMMENT:
            comments[line] = token.string
        elif token.string.strip():
            words_by_line[line].append(token.string)
            words_by_line[token.end[0]].append(token.string)  # a text of several lines ends here
    for_tools = ("# fmt", "# noqa", "# type")
    return [
        line
        for line, comment in comments.items()
        if words_by_line[line] and set(words_by_line[line]) <= set(")]},") and not comment.startswith(for_tools)
    ]


SHARED_PRIVATELY = ("data/word_problems/practice.py",)  # with corpus.py, which ``bases/`` reads too


def private_imports_of(tree: ast.AST) -> list[str]:
    """The names of other files' own that a file imports."""
    names = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("cotrain"):
            names += [alias.name for alias in node.names if alias.name.startswith("_") and alias.name[1:2] != "_"]
    return names


functions: list[str] = []
retired: list[str] = []
places: dict[str, set[str]] = defaultdict(set)
for path in sorted((root / "cotrain").rglob("*.py")):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    nodes = (ast.FunctionDef, ast.AsyncFunctionDef)
    functions += [n.name for n in ast.walk(tree) if isinstance(n, nodes) and not n.name.startswith("__")]
    place = str(path.relative_to(root / "cotrain"))
    names = {path.stem} | {n.name for n in ast.walk(tree) if isinstance(n, (*nodes, ast.ClassDef))}
    names |= {n.arg for n in ast.walk(tree) if isinstance(n, ast.arg)}
    names |= {n.attr for n in ast.walk(tree) if isinstance(n, ast.Attribute)}
    variables = variables_of(tree)
    for name in sorted(RETIRED.keys() & (names | variables)):
        if not place.startswith(KEPT.get(name, ())):
            retired.append(f"{place} has {name!r}; the word for it is {RETIRED[name]}")
    private_names = [] if place in SHARED_PRIVATELY else private_imports_of(tree)
    for name in private_names:
        retired.append(f"{place} imports {name!r}, which is another file's own; name it without the underscore there")
    for line in late_comments_in(path.read_text(encoding="utf-8")):
        retired.append(f"{place}, line {line}: the comment stands behind what it is about; write it above")
    for line in half_caught_json_in(tree):
        retired.append(f"{place}, line {line}: {HALF_CAUGHT}")
    participles_here = PARTICIPLE_VARIABLES if place.startswith(READ_FOLDERS) else frozenset()
    if place.startswith(RECIPE_PLACES):
        participles_here = RECIPE_PARTICIPLES
    for name in sorted(participles_here & variables):
        if not place.startswith(NOUNS.get(name, "/")):
            retired.append(f"{place} has a variable {name!r}; name what it is")
    for node in tree.body:
        if isinstance(node, (*nodes, ast.ClassDef)) and not node.name.startswith("__"):
            places[node.name.strip("_")].add(str(path.relative_to(root)))

for path in sorted((root / "zoo" / "cotrain_zoo").rglob("*.py")):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for name in sorted(RECIPE_PARTICIPLES & variables_of(tree)):
        retired.append(f"{path.relative_to(root)} has a variable {name!r}; name what it is")
    for name in private_imports_of(tree):
        retired.append(f"{path.relative_to(root)} imports {name!r}, which is another file's own")

for folder in ("benchmarks", "bases", "zoo", "docs", "examples"):
    for path in sorted((root / folder).rglob("*.py")):
        for line in half_caught_json_in(ast.parse(path.read_text(encoding="utf-8"))):
            retired.append(f"{path.relative_to(root)}, line {line}: {HALF_CAUGHT}")

one_word = sum(len(words_of(name)) == 1 for name in functions) / len(functions)
participles = sum(map(is_participle, functions)) / len(functions)
shared = {name: files for name, files in places.items() if len(files) > FILES and name not in ONE_MEANING}
print(f"names: {len(functions)} functions, {one_word:.1%} of one word, {participles:.1%} bare participles")
for name, files in sorted(shared.items()):
    print(f"names: {name} is defined in {len(files)} files: {', '.join(sorted(files))}")
for line in retired:
    print(f"names: {line}")
sys.exit(bool(shared or retired) or one_word > ONE_WORD or participles > PARTICIPLES)
