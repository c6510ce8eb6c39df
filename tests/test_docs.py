"""What the documentation shows as code, run."""

import re
from pathlib import Path

import pytest

from cotrain.core.errors import ConfigError
from cotrain.loop.trainer import CoTrainer
from tests.helpers import EASY, TINY

DOCS = Path(__file__).parents[1] / "docs"


def blocks(page: str, language: str) -> list[str]:
    text = (DOCS / page).read_text(encoding="utf-8")
    found = re.findall(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [block for name, block in found if name == language]


@pytest.fixture(scope="module")
def rival(tmp_path_factory):
    """The page's file, imported as a user's file is."""
    source = "\n\n".join(blocks("method-from-scratch.md", "python"))
    file = tmp_path_factory.mktemp("docs") / "rival.py"
    file.write_text(source, encoding="utf-8")
    from cotrain.recipes import find

    return find(f"{file}:rival")


@pytest.mark.whole
def test_the_method_from_scratch_learns(rival):
    made = rival(model=TINY, steps=2, lr=1e-3, tasks=EASY)
    trainer = CoTrainer(made)
    rows = [trainer.step().row for _ in range(2)]
    assert not [key for row in rows for key in row if key.startswith("failures/")]
    assert trainer.cast.updates == {"generator": 2, "rival": 2}
    assert any(row["solver/reward/outcome"] > row["solver/accuracy"] for row in rows)  # some were right and believed
    figures, _ = trainer.evaluate("test", 6, members=4)
    assert {"solver/pass@1", "rival/balanced_accuracy"} <= set(figures)
    assert made.description.startswith("A generator that must be right")


def test_building_it_checks_it(rival):
    from dataclasses import replace

    made = rival(steps=1)
    with pytest.raises(ConfigError, match="used by no role"):
        replace(made, policies={**made.policies, "nobody": made.policies["start"]})


def test_the_commands_of_the_page_name_what_exists():
    (commands,) = blocks("method-from-scratch.md", "")
    from cotrain.recipes import SHIPPED

    assert "grpo" in SHIPPED and commands.count("rival.py:rival") == 3
