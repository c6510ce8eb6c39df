"""What is imported: by the package itself, by a command, and by a run."""

import ast
import json
import subprocess
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

import pytest

import cotrain
from cotrain.cli.main import COMMANDS
from cotrain.recipes import RECIPES, grpo

ROOT = Path(cotrain.__file__).parent
MOST_FILES = 176  # of the package, that a run of GRPO imports
RUN = (
    *("run", "grpo", "--steps", "1", "--kl", "0", "--tasks-per-step", "2", "--group-size", "2", "--threads", "1"),
    *("--evaluation-tasks", "2", "--set", "evaluation.splits=[]"),
)
OF_A_RUN = {  # command that reads a run → what else it wants
    "attack": [],
    "chat": [],
    "eval": [],
    "export": ["--role", "solver", "--out", "model"],
    "push": ["--role", "solver", "--repo", "owner/name"],
    "report": [],
    "resume": [],
    "serve": [],
    "why": ["0:0:0:solver:0"],
    "xplay": [],
}
SAY = """
import sys
from cotrain.cli.main import main
code = main(sys.argv[1:])
files = {getattr(m, "__file__", None) for n, m in sys.modules.items() if n.partition(".")[0] == "cotrain"}
print("\\n".join(sorted(f for f in files if f)))
sys.exit(code)
"""


def imported_by(*words: str) -> list[Path]:
    """Files of the package that a command imports."""
    done = subprocess.run([sys.executable, "-c", SAY, *words], capture_output=True, text=True, check=True)
    return [Path(line) for line in done.stdout.splitlines() if line.startswith(str(ROOT))]


@pytest.mark.whole
def test_a_run_of_grpo_imports_what_it_needs(tmp_path):
    files = imported_by(*RUN, "--out", str(tmp_path / "run"))
    assert len(files) <= MOST_FILES, len(files)
    idle = (
        "distributed/multi_process.py",
        "inference/vllm.py",
        "inference/cuda_graphs.py",
        "data/programs.py",
        "learner/fsdp.py",
    )
    assert not [name for name in idle if ROOT / name in files]


def test_help_imports_next_to_nothing():
    assert len(imported_by("--help")) <= 12


HEAVY = ("torch", "transformers", "numpy", "sympy", "huggingface_hub", "tokenizers", "httpx2", "jinja2", "ray")
SAY_HEAVY = """
import io, json, sys
from contextlib import redirect_stderr, redirect_stdout
from cotrain.cli.main import main
heavy, found = json.loads(sys.argv[1]), {}
for words in json.loads(sys.argv[2]):
    with redirect_stdout(io.StringIO()) as said, redirect_stderr(said):
        try:
            code = main(words)
        except SystemExit as left:
            code = left.code
    found[" ".join(words)] = [code, [name for name in heavy if name in sys.modules], said.getvalue()]
print(json.dumps(found))
"""


def outcome_of(command_lines: Sequence[Sequence[str]]) -> dict[str, tuple[int, list[str], str]]:
    """Command line → its exit code, the heavy libraries that are loaded after it, and what it said; all in one new
    process, one after the other."""
    words = [sys.executable, "-c", SAY_HEAVY, json.dumps(HEAVY), json.dumps(command_lines)]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    found: dict[str, tuple[int, list[str], str]] = json.loads(done.stdout)
    return found


def test_help_of_every_command_loads_no_library():
    helps = [[name, "--help"] for name in COMMANDS]
    recipes = [["run", name, "--help"] for name in RECIPES]
    for line, (code, loaded, said) in outcome_of([*helps, *recipes, ["list"]]).items():
        assert not loaded, f"cotrain {line} imports {loaded}"
        assert code in (0, None) and said, line


def test_refusals_load_no_library(tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "note.txt").touch()
    out = ["--out", str(tmp_path / "new")]
    lines = [[name, "--no-such-flag"] for name in COMMANDS]
    lines += [[name, "no-such-place", *more] for name, more in OF_A_RUN.items()]
    lines += [
        ["run", "grpo"],
        ["run", "grpo", "--steps", "many", *out],
        ["run", "grpo", "--set", "no.such=1", *out],
        ["run", "tango", "--verifier", "nobody", *out],
        ["run", "grpo", "--out", str(tmp_path / "full")],
        ["study", "cieling"],
        ["study", "nothing.toml"],
        ["compare", "grpo", "tnago", *out],
        ["export", "shipped", "--role", "solver", "--out", str(tmp_path / "full")],
        ["no-such-command"],
    ]
    for line, (code, loaded, said) in outcome_of(lines).items():
        assert not loaded, f"cotrain {line} imports {loaded}"
        assert code == 2 and said.count("\n") == 1, f"{line}: {said}"


@pytest.mark.whole
def test_a_command_that_loads_libraries_says_so_first(tmp_path):
    line = ["eval", str(tmp_path / "nothing-of-mine"), "--suite", "gsm8k"]
    (tmp_path / "nothing-of-mine").mkdir()
    ((code, loaded, said),) = outcome_of([line]).values()
    assert code == 2 and "torch" in loaded
    assert said.startswith("loading torch and transformers …\n")


def test_late_modules_are_the_modules():
    from cotrain.algorithms.functional.late_torch import torch
    from cotrain.core.late import np

    assert torch.nn is sys.modules["torch"].nn and np.asarray is sys.modules["numpy"].asarray
    with pytest.raises(AttributeError, match="no attribute 'tensr'"):
        _ = torch.tensr


def test_importing_the_package_loads_no_torch():
    code = "import sys, cotrain; sys.exit(bool({'torch', 'transformers', 'numpy'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def stubbed_names(stub: str) -> dict[str, str]:
    """Name → the module that a stub takes it from, below ``cotrain``."""
    tree = ast.parse((ROOT / stub).read_text(encoding="utf-8"))
    nodes = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
    modules = {alias.asname or alias.name: str(node.module) for node in nodes for alias in node.names}
    return {name: module.removeprefix("cotrain.") for name, module in modules.items()}


def test_the_public_names_are_those_of_the_stub_and_no_others_show():
    names = stubbed_names("__init__.pyi")
    assert 40 <= len(names) <= 52
    assert sorted(names) == dir(cotrain) == sorted(cotrain.__all__)
    for name, module in names.items():
        assert getattr(cotrain, name) is getattr(import_module(f"cotrain.{module}"), name)
    with pytest.raises(AttributeError, match="grop"):
        cotrain.grop  # noqa: B018


def test_importing_the_package_takes_no_time():
    """Processor seconds, of the quickest of three; a loaded torch alone takes more than one."""
    code = "import time; began = time.process_time(); import cotrain; dir(cotrain); print(time.process_time() - began)"
    runs = [subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True) for _ in range(3)]
    assert min(float(run.stdout) for run in runs) < 0.3


def test_every_recipe_is_imported_by_its_name():
    """The algorithm ``cotrain.GRPO`` and the recipe of that name are two things."""
    for name, place in RECIPES.items():
        module, _, function = place.partition(":")
        assert getattr(import_module(module), function).name == name
    assert not hasattr(cotrain.GRPO, "parameters") and "steps" in grpo.grpo.parameters


def test_every_folder_with_modules_is_a_package():
    """A folder without ``__init__.py`` is left out of the wheel."""
    assert [
        folder for folder in {file.parent for file in ROOT.rglob("*.py")} if not (folder / "__init__.py").is_file()
    ] == []


def imports_of(file: Path, modules: set[str]) -> set[str]:
    """Modules of the package that a file imports, also inside of functions; not those for type checkers alone."""
    found: set[str] = set()

    def look_at(node: ast.AST) -> None:
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            return
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                found.add(inner if inner in modules else node.module)
        for child in ast.iter_child_nodes(node):
            look_at(child)

    look_at(ast.parse(file.read_text(encoding="utf-8")))
    return found & modules


def test_no_file_imports_another_one_in_a_circle():
    names = {file: ".".join(file.relative_to(ROOT.parent).with_suffix("").parts) for file in ROOT.rglob("*.py")}
    files = {name.removesuffix(".__init__"): file for file, name in names.items()}
    left = {name: imports_of(file, set(files)) - {name} for name, file in files.items()}
    while done := [name for name, wanted in left.items() if not wanted & left.keys()]:
        for name in done:
            del left[name]
    assert sorted(left) == []
