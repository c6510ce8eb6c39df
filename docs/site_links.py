"""For the site: tables that are kept as data become pages, and a link from a page to a file that is no page (code, a
study, CONTRIBUTING.md) becomes its name, as the site holds pages alone. On a code host the links of the pages lead to
the files.
"""

import json
import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

sys.path.insert(0, str(Path(__file__).parent))  # hooks are loaded by their path
from result_tables import NAME, render_tables

LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(([^)#\s]+)(#[^)\s]*)?\)")
PAGE = "tables.md"


def on_files(files: Any, *, config: Any) -> Any:
    """Each ``tables.json`` is a page beside the others of its study."""
    docs = Path(config["docs_dir"])
    for data in sorted(docs.rglob(NAME)):
        blocks = json.loads(data.read_text(encoding="utf-8"))
        place = data.with_name(PAGE).relative_to(docs).as_posix()
        files.append(File.generated(config, place, content=render_tables(blocks)))
    return files


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Any) -> str:
    docs = Path(config["docs_dir"]).resolve()
    folder = (docs / page.file.src_uri).parent

    def page_at(link: str) -> bool:
        target = (folder / link).resolve()
        return target.is_relative_to(docs) and bool(files.get_file_from_path(target.relative_to(docs).as_posix()))

    def keep_or_name(link: re.Match[str]) -> str:
        if "://" in link[2]:
            return link[0]
        if link[2].endswith(NAME):
            return f"[{link[1]}]({link[2].removesuffix(NAME)}{PAGE}{link[3] or ''})"
        return link[0] if page_at(link[2]) else link[1]

    return LINK.sub(keep_or_name, markdown)
