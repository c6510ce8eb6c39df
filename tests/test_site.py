"""The front page and the site: short, whole, and every public name in the API reference."""

import inspect
import json
import pkgutil
import re
import tomllib
from pathlib import Path

import pytest
import yaml

import cotrain
from cotrain.recipes import NAMES

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
ABOUT_ALL_STUDIES = ("how-studies-are-run.md", "withdrawn.md")


def pages_of(entries):
    for entry in entries:
        if isinstance(entry, str):
            yield entry
        elif isinstance(entry, dict):
            for value in entry.values():
                yield from pages_of([value] if isinstance(value, str) else value)


def test_tables_of_results_are_data_and_are_rendered_as_they_were_written(monkeypatch):
    monkeypatch.syspath_prepend(str(DOCS))
    from result_tables import parse_tables, render_tables

    files = sorted(DOCS.rglob("tables.json"))
    assert len(files) > 50 and not list(DOCS.rglob("table.md"))
    for file in files:
        blocks = json.loads(file.read_text(encoding="utf-8"))
        assert parse_tables(render_tables(blocks)) == blocks, file


def test_every_picture_of_a_table_is_beside_it():
    """The strict build of the site had ended at four that were never committed."""
    pictures = []
    for file in DOCS.rglob("tables.json"):
        blocks = json.loads(file.read_text(encoding="utf-8"))
        pictures += [file.with_name(block["picture"]) for block in blocks if "picture" in block]
    assert len(pictures) > 50
    assert [str(picture) for picture in pictures if not picture.exists()] == []


def test_the_differences_that_a_page_counts_are_those_of_the_tables():
    """How many differences come with a verdict, and how many of them are significant: nothing corrects for it."""
    verdicts = []
    for file in DOCS.glob("results/*/**/tables.json"):
        tables = [block["table"] for block in json.loads(file.read_text(encoding="utf-8")) if "table" in block]
        for table in tables:
            if table["columns"][0] == "figure" and table["columns"][-1] == "difference":
                verdicts += [row[-1] for row in table["rows"] if "significant" in row[-1]]
    significant = [verdict for verdict in verdicts if re.search(r": (better|worse|higher|lower) by ", verdict)]
    page = " ".join((DOCS / "results" / "how-studies-are-run.md").read_text(encoding="utf-8").split())
    counted = re.search(r"hold (\d+) differences .* of which (\d+) are significant", page).groups()
    assert counted == (str(len(verdicts)), str(len(significant)))


def test_every_question_has_a_page_with_its_answer_first():
    """The index leads to each, and each has what a reader asks for, in this order."""
    results = DOCS / "results"
    index = (results / "README.md").read_text(encoding="utf-8")
    questions = sorted(set(results.glob("*.md")) - {results / name for name in ("README.md", *ABOUT_ALL_STUDIES)})
    assert len(questions) > 8 and len(index.split()) < 500
    for page in questions:
        assert f"]({page.name})" in index, page
        title, answer, rest = page.read_text(encoding="utf-8").split("\n\n", 2)
        assert title.endswith("?") and answer.startswith("**"), page
        parts = ["\n![", "\n| ", "## How it was asked", "## What would change our mind", "## The studies"]
        places = [f"\n{rest}".index(part) for part in parts]
        assert places == sorted(places), page


def test_every_study_is_found_from_a_question():
    results = DOCS / "results"
    pages = "".join(page.read_text(encoding="utf-8") for page in results.glob("*.md"))
    for study in results.glob("*/README.md"):
        assert f"]({study.parent.name}/README.md" in pages, study


def test_the_front_page_is_read_in_four_minutes():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.split()) <= 900
    assert "make demo" in text and "make test" in text
    for link in re.findall(r"\]\(([^)#]+)", text):
        assert (ROOT / link).exists(), link


def test_every_page_is_on_the_path_or_in_the_list():
    site = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    listed = set(pages_of(site["nav"]))
    assert listed == {page.name for page in DOCS.glob("*.md")} | {"methods/README.md", "results/README.md"}
    index = (DOCS / "index.md").read_text(encoding="utf-8")
    linked = set(re.findall(r"\]\(([\w./-]+\.md)", index)) | {"index.md"}
    assert listed <= linked


def test_every_public_name_stands_in_the_api_reference():
    shown = re.findall(r"^::: ([\w.]+)$", (DOCS / "api.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert {name.rpartition(".")[2] for name in shown} >= set(dir(cotrain))
    objects = {name: getattr(cotrain, name) for name in dir(cotrain)}
    assert not [name for name, value in objects.items() if callable(value) and not value.__doc__]


def test_each_argument_in_the_api_reference_has_a_line_of_its_own():
    """The site's reader of docstrings takes `device, backend:` for one name, at which the strict build ends."""
    shown = re.findall(r"^::: ([\w.]+)$", (DOCS / "api.md").read_text(encoding="utf-8"), re.MULTILINE)
    objects = [pkgutil.resolve_name(name) for name in shown]
    members = [member for value in objects for member in getattr(value, "__dict__", {}).values() if callable(member)]
    joined = []
    for value in [*objects, *members]:
        _, args, text = (inspect.getdoc(value) or "").partition("\nArgs:\n")
        of_args = text.partition("\n\n")[0] if args else ""
        joined += re.findall(r"^    \w+(?:, \w+)+:.*", of_args, re.MULTILINE)
    assert joined == []


def test_the_list_of_methods_has_every_recipe():
    table = (DOCS / "methods" / "README.md").read_text(encoding="utf-8")
    assert {name for name in NAMES if f"`{name}`" not in table} <= {"demo"}


def test_there_are_twenty_questions_and_more():
    assert len(re.findall(r"^## … .*\?$", (DOCS / "questions.md").read_text(encoding="utf-8"), re.MULTILINE)) >= 20


def test_versions_that_are_allowed_are_those_of_the_project():
    table = (DOCS / "versions.md").read_text(encoding="utf-8")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for requirement in project["dependencies"]:
        name, least = re.match(r"([\w-]+)>=([\d.]+)", requirement).groups()
        assert re.search(rf"^\| `{name}` \| .* \| {re.escape(least)} (and newer|to )", table, re.MULTILINE), name


def test_the_pinned_versions_are_allowed_and_name_no_index():
    from packaging.requirements import Requirement

    text = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    pins = [Requirement(line) for line in text.splitlines()]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for wanted in map(Requirement, [*project["dependencies"], *project["optional-dependencies"]["serve"]]):
        versions = [next(iter(pin.specifier)).version for pin in pins if pin.name == wanted.name]
        assert versions and all(version in wanted.specifier for version in versions), wanted
    assert "://" not in text and all(str(pin.specifier).startswith("==") for pin in pins)


def test_files_for_those_who_cite_and_report_can_be_read():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == cotrain.__version__ and citation["license"] == "MIT"
    for form in (ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"):
        assert yaml.safe_load(form.read_text(encoding="utf-8"))


@pytest.mark.whole
def test_the_site_builds_without_a_warning(tmp_path):
    """Where mkdocs is installed, as in the environment of ``make docs``."""
    pytest.importorskip("mkdocstrings")
    from mkdocs.commands.build import build
    from mkdocs.config import load_config

    build(load_config(str(ROOT / "mkdocs.yml"), site_dir=str(tmp_path / "site")))
    assert (tmp_path / "site" / "api" / "index.html").is_file()
