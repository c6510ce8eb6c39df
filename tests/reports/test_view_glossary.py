"""The oracle's reasons are told in words, in the same ones where it judges, in the viewer and in the docs."""

import re
from pathlib import Path

import cotrain
from cotrain.data.word_problems import oracle
from cotrain.data.word_problems.oracle import REASONS

ROOT = Path(cotrain.__file__).parent


def test_viewer_and_page_have_the_oracles_words():
    script = (ROOT / "reports/assets/rollout.js").read_text(encoding="utf-8")
    block = script[script.index("const REASONS = {") :].partition("};")[0]
    assert dict(re.findall(r'(\w+): "([^"]*)"', block)) == REASONS
    page = (ROOT.parent / "docs/viewer.md").read_text(encoding="utf-8")
    assert all(f"| {name} | {words} |" in page for name, words in REASONS.items())


def test_every_reason_that_the_oracle_gives_has_words():
    source = Path(oracle.__file__).read_text(encoding="utf-8")
    given = set(re.findall(r'(?:return|reason=|or|else) "([a-z]+)"', source))
    assert {"relation", "premise", "arithmetic"} <= given <= set(REASONS)
