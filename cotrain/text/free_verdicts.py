r"""Verdict formats of free text: what a judge's review says of each step and of the answer, by the name of a format.

::

    tags         <step>… CORRECT</step> … <final>INCORRECT</final>   the project's own, ``parsers.step_verdicts``
    words        Step 1: correct …  Step 2: 3+4 is 7. Incorrect.     a line "Step k" for each step, and a last line
                 Verdict: incorrect                                  "Verdict: …" or "The solution is …"
    boxed        … \boxed{Yes} … \boxed{No}                          one for each step, and the last for the answer
    first-wrong  … \boxed{1}                                         the first wrong step from 0, or -1, as in
                                                                     ProcessBench (arXiv 2412.06559)
    PATTERN      a regular expression with one group                 the group of its matches is the verdict

Steps are read where the prompt names their ``count``; else the verdict on the answer is all there is. Whatever is
ambiguous ("correct or incorrect", two verdicts, text after the verdict) is a ``ParseFailure`` with its reason, as in
the other formats. A thought in front is not read.

``without_verdicts`` is the other half: it takes out of a candidate's text what these readers would take for a verdict
if the judge quoted it, whole or cut off. In "words" the words correct and incorrect are left out altogether; in "boxed"
and "first-wrong" a box is written ``\boxed {``, which no reader takes; of a pattern, verdict words are left out at
which a quotation could end and match. What a judge reads and then says in its own words, no rule can stop.

Left out: tables, verdicts before their explanation (a pattern reads them), and scores.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from cotrain.core.errors import ConfigError
from cotrain.core.types import ParseFailure, Span
from cotrain.text.parsers import TAGS, _clip_score, without_thought
from cotrain.text.patterns import pattern_of
from cotrain.text.role_parsers import Review, write_review
from cotrain.text.verdicts import Verdict, is_negated

WORDS, BOXED, FIRST_WRONG = "words", "boxed", "first-wrong"
FORMS = (TAGS, WORDS, BOXED, FIRST_WRONG)
GAP = "…"  # stands for a word that was left out
REACH = 120  # characters before a verdict word in which its mark may stand
MOST = 400  # verdict words of a text that are looked at one by one; beyond that all are left out

_SAYS = {
    **dict.fromkeys(("correct", "right", "valid", "sound", "true", "yes"), True),
    **dict.fromkeys(("incorrect", "wrong", "invalid", "unsound", "flawed", "false", "no"), False),
}
_ALL = "incorrect|correct|invalid|valid|unsound|sound|wrong|right|flawed|false|true|yes|no"
_FEW = "incorrect|correct|invalid|valid|wrong|right"  # those that answer no question but "is it right?"
_OPEN = r"[*_#`\"'\[({$ \t]"
_CLOSE = r"[*_`\"')\]}$ \t]"
_NOT = r"(?P<neg>not[ \t]{1,3})?"
_ONE = rf"\b(?!{_CLOSE}{{0,8}}(?:or\b|and\b|/|\||\?))"  # no second choice behind it
_BOX = r"(?:\\(?:boxed|text|textbf)\{){0,2}"
_VERDICT = re.compile(
    rf"^{_OPEN}{{0,8}}(?:[-•][ \t])?(?:(?:my|the|your|final|overall)[ \t]{{1,3}}){{0,3}}"
    r"(?:verdict|judge?ment|assessment|conclusion|decision|evaluation)"
    r"(?:[ \t]{1,3}(?:on|of|about|for)[ \t]the(?:[ \t]final)?[ \t](?:answer|solution))?"
    rf"[*_ \t]{{0,6}}(?:[:：=–—-]|is\b|\n)[:*_`\"'\[({{$ \t\n]{{0,8}}"
    rf"(?:(?:the|this)(?:[ \t]final)?[ \t](?:solution|answer)[ \t]is[ \t])?{_OPEN}{{0,4}}"
    rf"{_BOX}{_NOT}(?P<word>{_ALL}){_ONE}",
    re.IGNORECASE | re.MULTILINE,
)
_STATED = re.compile(
    rf"^{_OPEN}{{0,8}}(?:(?:therefore|thus|so|hence|overall|finally|in[ \t]conclusion),?[ \t]{{1,3}})?"
    r"(?:the|this)[ \t](?:(?:given|proposed|final|overall|whole|entire)[ \t]){0,2}(?:solution|answer|reasoning)[ \t]is"
    rf"[ \t]{{1,3}}{_OPEN}{{0,4}}{_BOX}{_NOT}(?P<word>{_FEW}){_ONE}",
    re.IGNORECASE | re.MULTILINE,
)
_STEP = re.compile(rf"^{_OPEN}{{0,8}}(?:[-•][ \t])?step[ \t]{{1,3}}(?P<k>\d{{1,3}})\b", re.IGNORECASE | re.MULTILINE)
_ENDS = rf"(?={_CLOSE}{{0,8}}(?:[.,;:!\n–—-]|\Z|because\b|since\b))"
_LEAD = (  # what may stand between "Step 1" and its verdict
    r"[*_ \t]{0,4}(?:\([^()\n]{0,80}\))?[*_:.)\s–—-]{0,8}(?:(?:is|was)[ \t]{1,3})?"
    rf"{_OPEN}{{0,4}}{_BOX}{_NOT}"
)
_HEAD = re.compile(rf"{_LEAD}(?P<word>{_ALL}){_ONE}{_ENDS}", re.IGNORECASE)
_TAIL = re.compile(
    rf"(?:\A|[.!?:;,\n–—=>-]|\bis|\bwas)[ \t]{{0,3}}{_OPEN}{{0,4}}{_BOX}{_NOT}(?P<word>incorrect|correct)"
    rf"{_CLOSE}{{0,8}}[.!]{{0,2}}{_CLOSE}{{0,4}}\s{{0,8}}\Z",
    re.IGNORECASE,
)
# a quotation may end there
_FIRST = re.compile(rf"(?:^|<step>|[.!?][ \t]){_LEAD}(?P<word>{_ALL})\b", re.IGNORECASE | re.MULTILINE)
_TAKEN_BACK = re.compile(  # behind "correct"
    rf"{_CLOSE}{{0,8}}[,;:(]?[ \t]{{0,3}}(?:but|except|unless|only|apart|aside|if|when|although|though|however)\b"
    rf"|{_CLOSE}{{0,8}}[,;=][ \t]{{0,3}}(?:(?:{_FEW})\b{_ENDS}|no\b)",
    re.IGNORECASE,
)
_ADJECTIVE = re.compile(
    r"[ \t-]{1,3}(?!(?:it|this|that|the|as|because|since|so)\b)[a-z]", re.IGNORECASE
)  # no errors, right angle
_DOUBTS = re.compile(
    r"\b(?:not|never|cannot|doubt|hardly|wrong|whether|if|un(?:clear|sure|likely))\b|n['’]t\b", re.IGNORECASE
)
_CLAUSE = re.compile(r"[.!?:;,\n–—=>]")
_PLAIN = re.compile(r"\b(?:in)?correct\b", re.IGNORECASE)
_ANY = re.compile(_ALL, re.IGNORECASE)
_MARK = re.compile(r"verdict|judge?ment|assessment|conclusion|decision|evaluation|step|solution|answer|reason", re.I)
_BOXES = re.compile(r"\\boxed\{\s{0,8}(?:\\(?:text(?:bf|rm|it)?|math(?:bf|rm))\{)?\s{0,8}([^{}\n]{0,40}?)[\s.]{0,8}\}")
_BEGINS_A_BOX = re.compile(r"\\boxed\{")


def check_verdict(form: str) -> None:
    """Raises UnknownName for what is no form, and ConfigError for a pattern that cannot be used."""
    if form not in FORMS:
        pattern_of(form, "verdict", "form of a verdict", FORMS, "Verdict: (.*)")


def free_review(text: str, form: str, count: int | None) -> Review | Verdict | ParseFailure:
    """A review in this form (see the module), of a solution with ``count`` steps; None: steps are not judged.

    Reasons of failure: those of ``without_thought``, "no final verdict", "bad final verdict", "several verdicts", "text
    after verdict", "no steps", "step count", "bad step verdict".
    """
    spoken = without_thought(text)
    if isinstance(spoken, ParseFailure):
        return spoken
    if form == WORDS:
        return _read_words(spoken, count)
    if form in (BOXED, FIRST_WRONG):
        boxes = list(_BOXES.finditer(spoken))
        return _wrong_step_of(spoken, boxes, count) if form == FIRST_WRONG else _read_boxed(spoken, boxes, count)
    matches = [match for match in re.finditer(form, spoken) if match[1] is not None]
    meanings = {verdict_of(match[1]) for match in matches}
    if not matches:
        return _verdict_failure("no final verdict")
    if None in meanings:
        return _verdict_failure("bad final verdict")
    return _verdict_failure("several verdicts") if len(meanings) > 1 else _answer_verdict(_group_span(matches[-1]))


def verdict_of(word: str) -> bool | None:
    """What a verdict alone says, whatever stands around it; None for another text."""
    plain = word.strip("*_#`\"'[](){}$ \t\n.,;:!").removeprefix("\\text{").casefold()
    negated = plain.startswith("not ")
    meaning = _SAYS.get(plain.removeprefix("not ").strip())
    return meaning if meaning is None or not negated else (False if meaning else None)


def write_free_review(form: str, verdicts: Sequence[bool], final: bool) -> str | None:
    """The text of a review without derivations. ``free_review`` reads it back, of tags ``step_verdicts``, for up to 999
    steps. None where the form cannot say it: the first wrong step says that all behind it and the answer are wrong.
    Raises ConfigError for a pattern."""
    if form == TAGS:
        return write_review([""] * len(verdicts), verdicts, final)
    if form == WORDS:
        lines = [f"Step {k}: {'correct' if ok else 'incorrect'}" for k, ok in enumerate(verdicts, 1)]
        return "\n".join([*lines, f"Verdict: {'correct' if final else 'incorrect'}"])
    if form == BOXED:
        lines = [f"Step {k}: \\boxed{{{'Yes' if ok else 'No'}}}" for k, ok in enumerate(verdicts, 1)]
        return "\n".join([*lines, f"Answer: \\boxed{{{'Yes' if final else 'No'}}}"])
    if form == FIRST_WRONG:
        first = sum(verdicts)  # where the right ones stand in front
        if final != all(verdicts) or not all(verdicts[:first]):
            return None
        return f"\\boxed{{{-1 if final else first}}}"
    raise ConfigError(f"verdict {form!r}: a pattern says how a verdict is read, not how it is written; name a form")


# ---- readers


def _read_words(text: str, count: int | None) -> Review | Verdict | ParseFailure:
    ends = sorted([*_VERDICT.finditer(text), *_STATED.finditer(text)], key=lambda match: match.start())
    last = ends[-1] if ends else None
    meaning = _word_meaning(last) if last is not None else None
    marks = [] if count is None else _steps_of(text, ends)
    verdicts = [_step_verdict(text[a:b]) for a, b in marks]
    if last is None:
        reason = "no final verdict"
    elif _has_more(text, last.end()):
        reason = "text after verdict"
    elif meaning is None:
        reason = "bad final verdict"
    elif any(_word_meaning(match) is not meaning for match in ends):
        reason = "several verdicts"
    elif count and not marks:
        reason = "no steps"
    elif count is not None and len(marks) != count:
        reason = "step count"
    elif None in verdicts:
        reason = "bad step verdict"
    else:
        span = Span(start=last.start("word"), end=last.end("word"), text=last["word"])
        return (
            _answer_verdict(span, meaning)
            if count is None
            else _make_review([bool(ok) for ok in verdicts], meaning, span)
        )
    missing = (
        meaning is None,
        bool(count) and not marks,
        count is not None and (len(marks) != count or None in verdicts),
    )
    return _verdict_failure(reason, sum(missing))


def _steps_of(text: str, ends: Sequence[re.Match[str]]) -> list[tuple[int, int]]:
    """From each line "Step k" that continues the count to the next one, or to the last verdict."""
    marks = list[re.Match[str]]()
    for match in _STEP.finditer(text):
        if int(match["k"]) == len(marks) + 1:
            marks.append(match)
    stop = ends[-1].start() if ends else len(text)
    edges = [*(mark.start() for mark in marks[1:]), max(stop, marks[-1].end() if marks else 0)]
    return [(mark.end(), end) for mark, end in zip(marks, edges, strict=False)]


def _step_verdict(text: str) -> bool | None:
    """The verdict at the head or at the tail of what was said of a step; None where there is none, or both differ."""
    head, tail = _HEAD.match(text), _TAIL.search(text[-REACH:])
    meanings = {_word_meaning(match) for match in (head, tail) if match is not None}
    if tail is not None and _DOUBTS.search(
        _CLAUSE.split(text[-REACH:][: tail.start("word") - len(tail["neg"] or "")])[-1]
    ):
        return None  # I can not say that it is correct
    return meanings.pop() if len(meanings) == 1 else None


def _read_boxed(text: str, boxes: Sequence[re.Match[str]], count: int | None) -> Review | Verdict | ParseFailure:
    verdict_boxes = [(match, said) for match in boxes if (said := verdict_of(match[1])) is not None]
    if not verdict_boxes:
        return _verdict_failure("bad final verdict" if boxes else "no final verdict", 2 if count else 1)
    last, final = verdict_boxes[-1]
    if _has_more(text, last.end()):
        return _verdict_failure("text after verdict", 0)
    if count is None and len(verdict_boxes) > 1:
        return _verdict_failure("several verdicts")
    if count is not None and len(verdict_boxes) != count + 1:
        return _verdict_failure("no steps" if len(verdict_boxes) == 1 else "step count")
    if any(is_negated(text[text.rfind("\n", 0, match.start()) + 1 : match.start()]) for match, _ in verdict_boxes):
        return _verdict_failure("bad final verdict")  # not \boxed{Yes}
    if count is None:
        return _answer_verdict(_group_span(last), final)
    return _make_review([said for _, said in verdict_boxes[:-1]], final, _group_span(last))


def _wrong_step_of(text: str, boxes: Sequence[re.Match[str]], count: int | None) -> Verdict | ParseFailure:
    if not boxes:
        return _verdict_failure("no final verdict")
    if _has_more(text, boxes[-1].end()):
        return _verdict_failure("text after verdict", 0)
    number = boxes[-1][1].strip("$ \t").replace("−", "-").replace("–", "-")
    if not re.fullmatch(r"-1|\d{1,3}", number) or (count is not None and int(number) >= count):
        return _verdict_failure("bad final verdict")
    first = int(number)
    steps = tuple(first < 0 or k < first for k in range(count or 0))
    return Verdict(final=first < 0, score=float(first < 0), steps=steps)


def _has_more(text: str, at: int) -> bool:
    """Whether a line with words follows the one at a place."""
    return any(map(str.isalnum, text[at:].partition("\n")[2]))


def _word_meaning(match: re.Match[str]) -> bool | None:
    """What the word that a reader found says; None for "not wrong", for one that is taken back ("correct, but") or
    belongs to the next ("no errors"), and for one with a letter that is only like i."""
    word, behind = match["word"].casefold(), match.end("word")
    if word in ("no", "right") and _ADJECTIVE.match(match.string, behind):
        return None
    meaning = _SAYS.get(word)
    meaning = meaning if not match["neg"] else (False if meaning else None)
    return None if meaning and _TAKEN_BACK.match(match.string, behind) else meaning


def _answer_verdict(span: Span, meaning: bool | None = None) -> Verdict:
    final = bool(verdict_of(span.text) if meaning is None else meaning)
    return Verdict(final=final, score=float(final), spans=(span,))


def _make_review(steps: Sequence[bool], final: bool, span: Span) -> Review:
    return Review(steps=tuple(steps), final=final, final_span=span)


def _group_span(match: re.Match[str]) -> Span:
    return Span(start=match.start(1), end=match.end(1), text=match[1])


def _verdict_failure(reason: str, missing: int = 1) -> ParseFailure:
    return ParseFailure(reason=reason, format_score=min(0.6, _clip_score(1.0 - 0.8 * missing)))


# ---- what a judge is shown


def find_imitations(seen: str, form: str) -> Iterator[tuple[int, int, str]]:
    """(start, end, what to put there) of what a reader of this form could take for a verdict in a quotation of
    ``seen``, in order."""
    if form in (BOXED, FIRST_WRONG):
        yield from ((m.start(), m.end(), "\\boxed {") for m in _BEGINS_A_BOX.finditer(seen))
        return
    places = [match.span() for match in _ANY.finditer(seen)]
    many = len(places) > MOST
    alone = {m.span("word") for m in _FIRST.finditer(seen)} | {m.span() for m in _PLAIN.finditer(seen)}
    for start, end in places:
        if (form == WORDS and (start, end) in alone) or many or _could_end_there(seen, start, end, form):
            yield start, end, GAP


def _could_end_there(seen: str, start: int, end: int, form: str) -> bool:
    """Whether a quotation that ends with this word, wherever it begins, is read as a verdict."""
    at = max(0, start - REACH)
    near = seen[at:end]
    if form == WORDS and not _MARK.search(near):
        return False
    for begin in {0, *(m.start() for m in re.finditer(r"(?<!\w)\S|\n", near))}:
        quotation = near[begin:]
        if form == WORDS:
            if _VERDICT.match(quotation) or _STATED.match(quotation):
                return True
            mark = _STEP.match(quotation)
            if mark is not None and _HEAD.fullmatch(quotation, mark.end()):
                return True
        else:
            for stop in (end, end + REACH):  # cut off behind the word, or not
                for match in re.finditer(form, seen[at + begin : stop]):
                    inside = match.start(1) <= start - at - begin < match.end(1)
                    if inside and verdict_of(match[1]) is not None:
                        return True
    return False
