"""A page of a comparison: one HTML file that needs nothing else, opens on a phone, and lets nothing in or out.

Everything is inside: the style, the charts as SVG, and one small script that the content security policy admits by its
hash. No other script, no request to anywhere, no markup from models or files.
"""

from __future__ import annotations

import base64
import hashlib

from cotrain.report.escape import attribute
from cotrain.report.style import CSS, SCRIPT


def document(title: str, body: str) -> str:
    """A page around ready HTML: policy, style, script. ``title`` is escaped here, ``body`` must be already."""
    digest = base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
    allowed = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    policy = f"{allowed}; base-uri 'none'; form-action 'none'"
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}"><meta name="referrer" content="no-referrer">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{attribute(title)}</title><style>{CSS}</style></head>"
        f'<body><main>{body}</main><div id="tip" hidden></div><script>{SCRIPT}</script></body></html>\n'
    )
