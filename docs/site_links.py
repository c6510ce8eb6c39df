"""For the site: a link from a page to a file that is no page (code, a study, CONTRIBUTING.md) becomes its name, as the
site holds pages alone. On a code host the links of the pages lead to the files."""

import re
from pathlib import Path
from typing import Any

LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(([^)#\s]+)(#[^)\s]*)?\)")


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Any) -> str:
    folder = Path(config["docs_dir"], page.file.src_uri).parent

    def keep_or_name(link: re.Match[str]) -> str:
        if "://" in link[2]:
            return link[0]
        target = (folder / link[2]).resolve()
        inside = target.is_relative_to(Path(config["docs_dir"]).resolve())
        known = inside and files.get_file_from_path(target.relative_to(Path(config["docs_dir"]).resolve()).as_posix())
        return link[0] if known else link[1]

    return LINK.sub(keep_or_name, markdown)
