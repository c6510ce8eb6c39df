"""The page: one HTML document with its style, its modules and, in a report, its data inside.

The modules are served from the document itself: an import map gives each of them a ``data:`` address, so that the same
page works from a server, from a disk and in a mail. The content security policy admits what carries the page's nonce
and nothing else: no address outside, no inline handler, no picture. Data is JSON in which ``<`` is escaped; the modules
put it into text nodes only.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
from collections.abc import Mapping
from pathlib import Path

from cotrain.core.verbosity import escape_terminal
from cotrain.storage.file_ops import replace_file

# Text of models and files is made safe to show in a page by the front-end (``reports/assets/words.js``), as
# ``core/verbosity.py`` does for a terminal; here markup is escaped only for the title.


def escape_attribute(text: object, limit: int = 300) -> str:
    """``escape_terminal`` for an attribute value in double quotes, or for a ``<title>``: no markup at all."""
    return html.escape(escape_terminal(text, limit), quote=True)


ASSETS = Path(__file__).resolve().parent / "assets"
VENDOR = {"preact": "preact/preact.mjs", "preact/hooks": "preact/hooks.mjs", "htm": "htm/htm.mjs"}
MODULES = (
    "words",
    "source",
    "measures",
    "charts",
    "overview",
    "verifier",
    "rollouts",
    "rollout",
    "interaction",
    "together",
    "folder",
    "main",
)
STYLES = ("vendor/uplot/uPlot.min.css", "page.css")
CHARTS = "vendor/uplot/uPlot.iife.min.js"


def security_policy(nonce: str, *, live: bool) -> str:
    """The content security policy of a page. ``live``: it may send requests to its own server."""
    requests = "; connect-src 'self'" if live else ""
    with_nonce = f"'nonce-{nonce}'"
    return (
        f"default-src 'none'; script-src {with_nonce}; style-src {with_nonce}{requests}; base-uri 'none'; "
        "form-action 'none'"
    )


def render_page(title: str, nonce: str, documents: Mapping[str, bytes] | None = None) -> bytes:
    """The whole page. ``documents``: name → JSON that it shows; None for a live page, which requests them."""
    imports = {name: _data_url(ASSETS / "vendor" / file) for name, file in VENDOR.items()}
    imports |= {f"view/{name}": _data_url(ASSETS / f"{name}.js") for name in MODULES}
    data_scripts = b""
    for name, content in (documents or {}).items():
        no_markup = content.replace(b"<", b"\\u003c")  # the same JSON, which cannot end the script element
        data_scripts += b'<script type="application/json" class="document" data-name="%s">%s</script>\n' % (
            name.encode(),
            no_markup,
        )
    style = "\n".join(_read_asset(name) for name in STYLES)
    head = f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{security_policy(nonce, live=documents is None)}">
<meta name="referrer" content="no-referrer">
<meta name="viewport" content="width=device-width,initial-scale=1">
<title>{escape_attribute(title)}</title>
<style nonce="{nonce}">{style}</style>
</head><body><div id="page"><p class="wait">reading …</p></div>
<noscript><p>This page draws with JavaScript; everything it needs is inside.</p></noscript>
"""
    scripts = f"""<script nonce="{nonce}">{_read_asset(CHARTS)}</script>
<script type="importmap" nonce="{nonce}">{json.dumps({"imports": imports})}</script>
<script type="module" nonce="{nonce}">import "view/main";</script>
</body></html>
"""
    return head.encode() + data_scripts + scripts.encode()


def write_page(path: Path, title: str, documents: Mapping[str, bytes]) -> Path:
    """Write a page with its data inside, and return its path. Its nonce is a hash of the data, so that the same data
    make the same page. Raises DiskError."""
    digest = hashlib.sha256(b"".join(documents.values())).digest()
    nonce = base64.b64encode(digest[:18]).decode("ascii")
    replace_file(path, render_page(title, nonce, documents))
    return path


def _read_asset(name: str) -> str:
    return (ASSETS / name).read_text(encoding="utf-8")


def _data_url(path: Path) -> str:
    return "data:text/javascript;base64," + base64.b64encode(path.read_bytes()).decode("ascii")
