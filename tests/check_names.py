"""Names say what a function does and to what, and one name means one thing. Run by ``make check``.

Of all functions and methods of the package (dunders aside) at most half have a name of one word, and at most one in
fifty is a bare participle (``told``, ``settled``). No name of a module's functions and classes is defined in three
files with different meanings; ``ONE_MEANING`` has those that mean the same wherever they stand."""

import ast
import sys
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
functions: list[str] = []
places: dict[str, set[str]] = defaultdict(set)
for path in sorted((root / "cotrain").rglob("*.py")):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    nodes = (ast.FunctionDef, ast.AsyncFunctionDef)
    functions += [n.name for n in ast.walk(tree) if isinstance(n, nodes) and not n.name.startswith("__")]
    for node in tree.body:
        if isinstance(node, (*nodes, ast.ClassDef)) and not node.name.startswith("__"):
            places[node.name.strip("_")].add(str(path.relative_to(root)))


one_word = sum(len(words_of(name)) == 1 for name in functions) / len(functions)
participles = sum(map(is_participle, functions)) / len(functions)
shared = {name: files for name, files in places.items() if len(files) > FILES and name not in ONE_MEANING}
print(f"names: {len(functions)} functions, {one_word:.1%} of one word, {participles:.1%} bare participles")
for name, files in sorted(shared.items()):
    print(f"names: {name} is defined in {len(files)} files: {', '.join(sorted(files))}")
sys.exit(bool(shared) or one_word > ONE_WORD or participles > PARTICIPLES)
