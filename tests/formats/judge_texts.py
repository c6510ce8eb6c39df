"""What the tests of judges' formats share: every reader with a good example, and texts to try them on."""

from __future__ import annotations

from hypothesis import strategies as st

from cotrain.core.types import ParseFailure
from cotrain.formats.nonce import VERDICT_TAGS
from cotrain.formats.preferences import read_gram, read_grm, read_rmr1, read_thinkrm
from cotrain.formats.solutions import without_thought
from cotrain.formats.verdicts import read_genprm, read_genrm, read_score

READERS = {
    "genrm": read_genrm,
    "genprm": lambda text: read_genprm(text, 2),
    "score": read_score,
    "rmr1": read_rmr1,
    "thinkrm": read_thinkrm,
    "graded": lambda text: read_thinkrm(text, graded=True),
    "grm": lambda text: read_grm(text, 2),
    "gram": read_gram,
}
GOOD = {
    "genrm": "so <verdict>Yes</verdict>",
    "genprm": r"<analyze>a</analyze><output>\boxed{Yes}</output><analyze>b</analyze><output>\boxed{No}</output>",
    "score": "so <score>0.5</score>",
    "rmr1": "<rubric>r</rubric><eval>e</eval><answer>[[A]]</answer>",
    "thinkrm": "<think>t</think><answer>A</answer>",
    "graded": "<think>t</think><answer>-2</answer>",
    "grm": "<principles>100% right</principles><critique>c</critique><scores>[7, 3]</scores>",
    "gram": "A",
}
PIECES = [f"<{tag}>" for tag in VERDICT_TAGS] + [f"</{tag}>" for tag in VERDICT_TAGS]
PIECES += ["Yes", "No", "Abstain", "\\boxed{", "}", "A", "B", "[[A]]", "[[B]]", "[", "]", ",", "%", "3", "0.5", "-"]
PIECES += ["not", "$", "é", " ", "\n", "**Judgement**:", "\x00", "\ud800", *GOOD.values()]
soup = st.one_of(st.text(), st.lists(st.sampled_from(PIECES), max_size=25).map("".join))


def is_harmless(text: str) -> bool:
    """Whether a text has nothing that a format gives a meaning: no tag, no choice in brackets, no thought."""
    has_tag = any(tag in text for tag in PIECES[: 2 * len(VERDICT_TAGS)])
    return not has_tag and "[[" not in text and without_thought(text) == text


harmless = st.text().filter(is_harmless)


def reason(parsed) -> str:
    assert isinstance(parsed, ParseFailure), parsed
    assert not parsed.ok and parsed.format_score < 1.0
    return parsed.reason


def words(text: str, parsed) -> list[str]:
    """The words at the spans of a judgement, after a look at whether they stand there."""
    assert all(text[span.start : span.end] == span.text for span in parsed.spans)
    return [span.text for span in parsed.spans]


def grm(principles: str = "100% right", scores: str = "[7, 3]") -> str:
    return f"<principles>{principles}</principles><critique>c</critique><scores>{scores}</scores>"
