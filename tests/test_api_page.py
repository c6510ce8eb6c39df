"""The API reference: every public name has an example there, and the examples run."""

import doctest
import re
from pathlib import Path

import pytest
import torch

PAGE = (Path(__file__).parents[1] / "docs" / "api.md").read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL))
RUNS = "Running"  # whose examples train


def example_of(section: str) -> str:
    (example,) = re.findall(r"^```pycon\n(.*?)^```$", SECTIONS[section], re.MULTILINE | re.DOTALL)
    return example


def failures_of(section: str) -> str:
    """What doctest says of a section's example; nothing where it does what the page shows."""
    test = doctest.DocTestParser().get_doctest(example_of(section), {"__name__": "api_page"}, section, "docs/api.md", 0)
    said: list[str] = []
    doctest.DocTestRunner(verbose=False, optionflags=doctest.ELLIPSIS).run(test, out=said.append)
    return "".join(said)


@pytest.mark.parametrize("section", SECTIONS)
def test_every_public_name_has_an_example(section):
    names = re.findall(r"^::: [\w.]+\.(\w+)$", SECTIONS[section], re.MULTILINE)
    example = example_of(section)
    assert names and [name for name in names if not re.search(rf"\b{name}\b", example)] == []


@pytest.mark.parametrize("section", [section for section in SECTIONS if section != RUNS])
def test_the_examples_run(section):
    assert failures_of(section) == ""


@pytest.mark.whole
def test_the_examples_that_train_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.set_num_threads(1)
    assert failures_of(RUNS) == ""
