"""What the documentation shows as code, run."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from cotrain.runs.directory import resolved_json
from cotrain.trainer.trainer import CoTrainer
from tests.helpers import EASY, TINY
from tests.sentences import refuses

DOCS = Path(__file__).parents[1] / "docs"


def blocks(page: str, language: str) -> list[str]:
    text = (DOCS / page).read_text(encoding="utf-8")
    found = re.findall(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [block for name, block in found if name == language]


def imported(folder: Path, source: str, function: str):
    """What a page shows as a file, imported as a user's file is."""
    file = folder / f"{function}.py"
    file.write_text(source, encoding="utf-8")
    from cotrain.config.registry import find_recipe

    return find_recipe(f"{file}:{function}")


def test_no_line_of_a_page_is_longer_than_120_characters():
    """Rows of tables apart: they cannot be broken."""
    pages = [*DOCS.rglob("*.md"), *DOCS.parent.glob("*.md"), *(DOCS.parent / "benchmarks").glob("*.md")]
    assert len(pages) > 50
    long = [
        f"{page.relative_to(DOCS.parent)}:{number}"
        for page in sorted(pages)
        for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1)
        if len(line) > 120 and not line.startswith("|")
    ]
    assert long == []


@pytest.fixture(scope="module")
def rival(tmp_path_factory):
    source = "\n\n".join(blocks("method-from-scratch.md", "python"))
    return imported(tmp_path_factory.mktemp("docs"), source, "rival")


@pytest.fixture(scope="module")
def median(tmp_path_factory):
    """Importing it runs the page's own test."""
    source = "\n\n".join(blocks("new-estimator.md", "python"))
    return imported(tmp_path_factory.mktemp("docs"), source, "median")


def test_the_new_estimator_is_in_the_recipe_and_is_saved_by_name(median):
    by = median(steps=1).objectives["generator"].algorithm
    assert by.advantage.__name__ == resolved_json(by)["advantage"] == "from_median"


@pytest.mark.whole
def test_the_new_estimator_learns(median):
    made = median(model=TINY, steps=1, tasks=EASY)
    trainer = CoTrainer(replace(made, tasks_per_step=3, group_size=4))
    trainer.step()
    assert trainer.policies.update_counts == {"generator": 1}


@pytest.mark.whole
def test_the_method_of_the_contributing_page_learns(tmp_path):
    brief = imported(tmp_path, blocks("../CONTRIBUTING.md", "python")[0], "brief")
    trainer = CoTrainer(replace(brief(model=TINY, steps=1, tasks=EASY), tasks_per_step=2, group_size=4))
    row = trainer.step().row
    assert trainer.policies.update_counts == {"generator": 1} and row["generator/advantage_mix/brevity"] > 0.0


def test_the_method_from_scratch_is_short(rival):
    source = Path(rival.build.__code__.co_filename).read_text(encoding="utf-8")
    assert len(source.splitlines()) <= 80
    assert {line.split()[1] for line in source.splitlines() if line.startswith(("from ", "import "))} == {
        "cotrain",
        "cotrain.metrics.heldout",
        "cotrain.rollout",
        "cotrain.rollout.reviews",
        "functools",
    }


@pytest.mark.whole
def test_the_method_from_scratch_learns(rival):
    made = rival(model=TINY, steps=2, lr=1e-3, tasks=EASY)
    trainer = CoTrainer(made)
    rows = [trainer.step().row for _ in range(2)]
    assert not [key for row in rows for key in row if key.startswith("failures/")]
    assert trainer.policies.update_counts == {"generator": 2, "rival": 2}
    assert any(row["solver/reward/outcome"] > row["solver/accuracy"] for row in rows)  # some were right and believed
    figures, _ = trainer.evaluate("test", 6, group_size=4)
    assert {"solver/pass@1", "rival/balanced_accuracy"} <= set(figures)
    assert made.description.startswith("A generator that must be right")


def test_building_it_checks_it(rival):
    made = rival(steps=1)
    with refuses("E_POLICY_UNUSED"):
        replace(made, policies={**made.policies, "nobody": made.policies["reference"]})


def test_the_commands_of_the_page_name_what_exists():
    (commands,) = blocks("method-from-scratch.md", "")
    (compared,) = blocks("new-estimator.md", "")
    from cotrain.recipes import NAMES as SHIPPED

    assert "grpo" in SHIPPED and commands.count("rival.py:rival") == 3 and compared.count("median.py:median") == 1
