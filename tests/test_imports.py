"""What is imported: by the package itself, by a command, and by a run."""

import ast
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import cotrain
from cotrain.recipes import RECIPES, grpo, tango

ROOT = Path(cotrain.__file__).parent
MOST_FILES = 150  # of the package, that a run of GRPO imports
RUN = (
    *("run", "grpo", "--steps", "1", "--kl", "0", "--tasks-per-step", "2", "--group-size", "2", "--threads", "1"),
    *("--evaluation-tasks", "2", "--set", "evaluation.splits=[]"),
)
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


def test_importing_the_package_loads_no_torch():
    code = "import sys, cotrain; sys.exit(bool({'torch', 'transformers', 'numpy'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def stubbed_names(stub: str) -> dict[str, str]:
    """Name → the module that a stub takes it from."""
    tree = ast.parse((ROOT / stub).read_text(encoding="utf-8"))
    nodes = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
    return {alias.asname or alias.name: str(node.module) for node in nodes for alias in node.names}


def test_every_public_name_is_there_and_type_checkers_see_the_same():
    recipes = {name: place.partition(":")[0] for name, place in RECIPES.items() if name not in cotrain.PLACES}
    assert stubbed_names("__init__.pyi") == cotrain.PLACES | recipes
    assert all(getattr(cotrain, name) is not None for name in cotrain.PLACES)
    assert set(cotrain.PLACES) | set(recipes) <= set(dir(cotrain))
    with pytest.raises(AttributeError, match=r"no attribute .grop."):
        cotrain.grop  # noqa: B018


def test_every_recipe_is_imported_by_its_name():
    """The estimator ``cotrain.grpo`` and the recipe of that name are two things, each told of the other."""
    for name, place in RECIPES.items():
        module, _, function = place.partition(":")
        assert getattr(import_module(module), function).recipe.__name__ == name
    assert cotrain.tango is tango.tango
    assert not hasattr(cotrain.grpo, "recipe") and hasattr(grpo.grpo, "recipe")


def test_every_folder_with_modules_is_a_package():
    """A folder without ``__init__.py`` is left out of the wheel."""
    assert [
        folder for folder in {file.parent for file in ROOT.rglob("*.py")} if not (folder / "__init__.py").is_file()
    ] == []
