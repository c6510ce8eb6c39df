"""Tables of results as data, and as pages of the site.

``cotrain compare`` and ``cotrain study`` write ``table.md``. In this repository such a file is kept as data, beside the
curves: ``tables.json``, a list of blocks in the order of the page.

    {"heading": "At the start and at the end"}
    {"table": {"columns": ["recipe", "greedy"], "rows": [["grpo", "46.6 % → 100.0 %"]]}}
    {"text": "…"}   {"list": ["…"]}   {"picture": "curves.svg"}

The site renders it again (``site_links.py``). To turn the ``table.md`` of a new result into data:

    python docs/result_tables.py docs/results/NAME/table.md
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

Block = dict[str, Any]
NAME = "tables.json"
ESCAPED = re.compile(r"\\([\\`*_\[\]<>|])")
TO_ESCAPE = re.compile(r"([\\`*_\[\]<>|])")


def parse_tables(markdown: str) -> list[Block]:
    """The blocks of a ``table.md``. Raises ValueError for what could not be rendered as it was."""
    blocks = [_parse_block(part) for part in markdown.rstrip("\n").split("\n\n")]
    if render_tables(blocks) != markdown:
        raise ValueError("the page would not be rendered as it was")
    return blocks


def render_tables(blocks: list[Block]) -> str:
    """The page of these blocks, in Markdown."""
    return "\n\n".join(_render_block(block) for block in blocks) + "\n"


def _parse_block(part: str) -> Block:
    if part.startswith("# "):
        return {"title": _unescape(part[2:])}
    if part.startswith("## "):
        return {"heading": _unescape(part[3:])}
    if picture := re.fullmatch(r"!\[(.*)\]\((.*)\)", part):
        return {"picture": picture[2]}
    if part.startswith("|"):
        columns, _, *rows = [_parse_cells(line) for line in part.split("\n")]
        return {"table": {"columns": columns, "rows": rows}}
    if part.startswith("- "):
        return {"list": [_unescape(item) for item in part[2:].split("\n- ")]}
    return {"text": _unescape(part)}


def _render_block(block: Block) -> str:
    [(kind, value)] = block.items()
    if kind == "title":
        return f"# {_escape(value)}"
    if kind == "heading":
        return f"## {_escape(value)}"
    if kind == "picture":
        return f"![{value.partition('.')[0]}]({value})"
    if kind == "table":
        rule = "|---" * len(value["columns"]) + "|"
        head, *rows = [_render_cells(cells) for cells in (value["columns"], *value["rows"])]
        return "\n".join([head, rule, *rows])
    if kind == "list":
        return "\n".join(f"- {_escape(item)}" for item in value)
    return _escape(value)


def _parse_cells(line: str) -> list[str]:
    return [_unescape(cell.strip()) for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


def _render_cells(cells: list[str]) -> str:
    return f"| {' | '.join(_escape(cell) for cell in cells)} |"


def _unescape(text: str) -> str:
    return ESCAPED.sub(r"\1", text)


def _escape(text: str) -> str:
    return TO_ESCAPE.sub(r"\\\1", text)


def main(pages: list[str]) -> None:
    for page in map(Path, pages):
        blocks = parse_tables(page.read_text(encoding="utf-8"))
        lines = ",\n".join(json.dumps(block, ensure_ascii=False) for block in blocks)
        page.with_name(NAME).write_text(f"[\n{lines}\n]\n", encoding="utf-8")
        page.unlink()


if __name__ == "__main__":
    main(sys.argv[1:])
