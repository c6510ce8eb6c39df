"""How an optional part is installed: from the source, in words that a shell takes as they stand."""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path

from cotrain.core.errors import install_extra

ROOT = Path(__file__).parents[2]


def test_the_words_are_a_command_and_say_where_it_is_run():
    command, where = install_extra("hub").split(" in ", 1)
    assert shlex.split(command) == ["pip", "install", "-e", ".[hub]"] and "source" in where


def test_nobody_is_sent_to_a_package_index_for_this_package():
    for file in [*(ROOT / "cotrain").rglob("*.py"), *(ROOT / "zoo").rglob("*.py")]:
        assert not re.search(r"pip install[^\n]*cotrain\[", file.read_text(encoding="utf-8")), file


def test_every_extra_that_is_named_exists():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    for file in (ROOT / "cotrain").rglob("*.py"):
        named = re.findall(r"install_extra\(['\"](\w+)['\"]\)", file.read_text(encoding="utf-8"))
        assert set(named) <= extras.keys(), file
