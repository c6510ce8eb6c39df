"""What a page of a comparison is made of, and text that would like to be more than text."""

from __future__ import annotations

import base64
import hashlib
import re
from html.parser import HTMLParser

from cotrain.report.escape import hidden
from cotrain.report.style import SCRIPT

PAYLOADS = (
    "<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "'><svg/onload=alert(1)>", "</style><script>x()</script>",
    "</title><script>x()</script>", "--><iframe src=//evil.example>", "<a href=javascript:alert(1)>x</a>", "&lt;script&gt;",
    "]]><script>1</script>", "<link rel=stylesheet href=//evil.example>", "<meta http-equiv=refresh content=0>", "\x00<b>",
    "\u202e\u2066txet\u2069", "\x1b]52;c;aGk=\x07", "\x1b[2J", "\u200b\u200d\ufeff", "<base href=//evil.example>", "\ud800",
    "<form action=//evil.example>", '" style="background:url(//evil.example)', "` onmouseover=alert(1) `", "{{7*7}}${7*7}",
    "<math><mtext></table><mglyph><style><!--</style><img title='--&gt;&lt;img src=1 onerror=alert(1)&gt;'>",
)  # fmt: skip
POISON = "".join(PAYLOADS)
TAGS = """html head meta title style body main p div h1 h2 h3 b small strong em i span section figure figcaption svg path rect
    table thead tbody tr th td details summary article header footer ol li pre button dl dt dd script"""
ATTRIBUTES = """lang charset http-equiv content name id class hidden style role scope colspan type title x y d width height
    viewbox preserveaspectratio aria-label aria-hidden aria-pressed data-label data-filter data-value data-when data-kind"""


class Inspector(HTMLParser):
    """What a page is made of."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.text: list[str] = []
        self._inside = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._inside = tag
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, content: str) -> None:
        if self._inside == "script":
            self.scripts[-1] += content
        elif self._inside != "style":
            self.text.append(content)

    def handle_comment(self, content: str) -> None:
        raise AssertionError(f"a comment in the page: {content[:60]!r}")


def inspect(text: str) -> Inspector:
    """Assert that a page can do nothing but what we wrote, and return its elements."""
    page = Inspector(text)
    assert page.scripts == [SCRIPT]
    assert not any(hidden(c) for c in text if c not in "\n\t")
    metas = [attrs for tag, attrs in page.elements if tag == "meta"]
    policy = next(attrs["content"] for attrs in metas if attrs.get("http-equiv") == "Content-Security-Policy")
    digest = base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
    assert policy is not None and policy.startswith(
        "default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-"
    )
    assert digest in policy and len([a for a in metas if "http-equiv" in a]) == 1
    for tag, attrs in page.elements:
        assert tag in TAGS.split(), tag
        for name, value in attrs.items():
            assert name in ATTRIBUTES.split(), (tag, name)
            if name == "style":
                assert re.fullmatch(r"(top|left):-?[\d.]+%", value or ""), value
            elif name == "class":
                assert re.fullmatch(r"[a-z0-9 -]+", value or ""), value
    assert "url(" not in text.split("</style>")[0].split("<style>")[1] and "@import" not in text.split("</style>")[0]
    return page
