r"""Verdict formats of free text: what a verifier's review says of each step and of the answer, by the name of a format.

::

    tags         <step>… CORRECT</step> … <final>INCORRECT</final>   the project's own, ``parsers.step_verdicts``
    words        Step 1: 3+4 is 7 → Correct                          "Step k" for each step, its analysis and its
                 Step 2: 7*2 is 14, not 15 → Incorrect               verdict, and a last line for the answer
                 Overall: Incorrect
    boxed        … \boxed{Yes} … \boxed{No}                          one for each step, and the last for the answer
    first-wrong  … \boxed{1}                                         the first wrong step from 0, or -1, as in
                                                                     ProcessBench (arXiv 2412.06559)
    PATTERN      a regular expression with one group                 the group of its matches is the verdict
                 or with a group (?P<step>…) besides                 which holds the verdict on a step

In "words" the verdict on a step is at the end of what is said of it, behind an arrow (→, ->, =>), a dash, a colon
or the end of a sentence, or at its head ("Step 1: correct, since …"). The last line is marked by "Overall", "Verdict",
"Final verdict", "Conclusion" and the like, or says "The solution is …". Steps must come in order, each with one
verdict. A pattern with a group ``step`` may have a group ``number`` too: then the steps that it finds must be numbered
in order.

Steps are read where the prompt names their ``count``; else the verdict on the answer is all there is. Whatever is
ambiguous ("correct or incorrect", two verdicts, text after the verdict) is a ``ParseFailure`` with its reason, as in
the other formats. A thought in front is not read.

``without_verdicts`` is the other half: it takes out of a candidate's text what these readers would take for a verdict
if the verifier quoted it, whole or cut off. In "words" the words correct and incorrect are left out altogether; in
"boxed" and "first-wrong" a box is written ``\boxed {``, which no reader takes; of a pattern, verdict words are left out
at which a quotation could end and match. What a verifier reads and then says in its own words, no rule can stop.

Left out: tables, verdicts before their explanation (a pattern reads them), and scores.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from cotrain.core.errors import ConfigError
from cotrain.core.types import ParseFailure, Span
from cotrain.formats.patterns import pattern_of
from cotrain.formats.role_replies import Review, write_review
from cotrain.formats.solutions import TAGS, clip_score, without_thought
from cotrain.formats.verdicts import Verdict, is_negated

WORDS = "words"
BOXED = "boxed"
FIRST_WRONG = "first-wrong"
FORMS = (TAGS, WORDS, BOXED, FIRST_WRONG)
STEP_GROUP = "step"  # the group of a pattern that is the verdict on a step
NUMBER_GROUP = "number"  # the group that is the number of the step
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
_ARROW = r"(?:[→⇒⟶⟹➔➜➡]\ufe0f?|[-=–—]{1,2}>|\$?\\(?:Long|long)?(?:[Rr]ightarrow|to|implies)\b\$?)"
# Where a mark may stand: at the beginning of a line, or behind the verdict in front of it on the same line.
_BEGINS = r"(?:^|(?<=orrect)[*_\])}$.,;|]{0,4}[ \t]{1,4}(?=[*_#`]{0,4}(?:step|overall|final|verdict|conclusion)\b))"
_FINAL_MARK = (  # "Overall", "My final verdict on the answer", and what separates it from the verdict
    rf"{_BEGINS}{_OPEN}{{0,8}}(?:[-•][ \t])?(?:(?:my|the|your|final|overall)[ \t]{{1,3}}){{0,3}}"
    r"(?:verdict|judge?ment|assessment|conclusion|decision|evaluation|overall)"
    r"(?:[ \t]{1,3}(?:on|of|about|for)[ \t]the(?:[ \t]final)?[ \t](?:answer|solution))?"
    rf"[*_ \t]{{0,6}}(?:{_ARROW}|[:：=–—-]|is\b|\n)"
)
_VERDICT = re.compile(
    rf"{_FINAL_MARK}(?:{_ARROW}|[-:–—*_`\"'\[({{$ \t\n]){{0,8}}"
    rf"(?:(?:the|this)(?:[ \t]final)?[ \t](?:solution|answer)[ \t]is[ \t])?{_OPEN}{{0,4}}"
    rf"{_BOX}{_NOT}(?P<word>{_ALL}){_ONE}",
    re.IGNORECASE | re.MULTILINE,
)
# "Overall: the second step is wrong → Incorrect"
_REASONED = re.compile(
    rf"{_FINAL_MARK}[^\n]{{0,300}}?{_ARROW}[ \t]{{0,3}}{_OPEN}{{0,4}}{_BOX}(?P<neg>not[ \t]{{1,3}})?"
    rf"(?P<word>incorrect|correct){_ONE}{_CLOSE}{{0,8}}[.!]{{0,2}}{_CLOSE}{{0,4}}$",
    re.IGNORECASE | re.MULTILINE,
)
_STATED = re.compile(
    rf"^{_OPEN}{{0,8}}(?:(?:therefore|thus|so|hence|overall|finally|in[ \t]conclusion),?[ \t]{{1,3}})?"
    r"(?:the|this)[ \t](?:(?:given|proposed|final|overall|whole|entire)[ \t]){0,2}(?:solution|answer|reasoning)[ \t]is"
    rf"[ \t]{{1,3}}{_OPEN}{{0,4}}{_BOX}{_NOT}(?P<word>{_FEW}){_ONE}",
    re.IGNORECASE | re.MULTILINE,
)
_STEP = re.compile(
    rf"{_BEGINS}{_OPEN}{{0,8}}(?:[-•][ \t])?step[ \t]{{1,3}}(?P<k>\d{{1,3}})\b", re.IGNORECASE | re.MULTILINE
)
# The verdict on the step follows, and not "Step 1 gave 7, so …", which is about another one.
_HEADS_A_STEP = re.compile(
    rf"[*_ \t]{{0,4}}(?:\([^()\n]{{0,80}}\))?[*_ \t]{{0,4}}(?:[\[:：.)\n–—-]|{_ARROW}|\Z|(?:is|was)\b)", re.IGNORECASE
)
_ENDS = rf"(?={_CLOSE}{{0,8}}(?:{_ARROW}|[.,;:!\n–—-]|\Z|because\b|since\b))"
_LEAD = (  # words that may stand between "Step 1" and its verdict
    rf"[*_ \t]{{0,4}}(?:\([^()\n]{{0,80}}\))?(?:{_ARROW}|[*_:：.)\s–—-]){{0,8}}(?:(?:is|was)[ \t]{{1,3}})?"
    rf"{_OPEN}{{0,4}}{_BOX}{_NOT}"
)
_HEAD = re.compile(rf"{_LEAD}(?P<word>{_ALL}){_ONE}{_ENDS}", re.IGNORECASE)
_YES_MARKS = "✓✔✅☑"
_NO_MARKS = "✗✘❌❎"
_TO_THE_END = rf"{_CLOSE}{{0,8}}[.!;,|]{{0,2}}{_CLOSE}{{0,4}}(?:[{_YES_MARKS}{_NO_MARKS}]\ufe0f?)?\s{{0,8}}\Z"
_TAIL = re.compile(
    rf"(?:\A|{_ARROW}|[.!?:：;,\n–—=>-]|\bis|\bwas)[ \t]{{0,3}}{_OPEN}{{0,4}}{_BOX}{_NOT}(?P<word>incorrect|correct)"
    rf"{_TO_THE_END}",
    re.IGNORECASE,
)
_ARROW_TAIL = re.compile(  # behind an arrow other words are verdicts too
    rf"{_ARROW}[ \t]{{0,3}}{_OPEN}{{0,4}}{_BOX}{_NOT}(?P<word>{_FEW}){_TO_THE_END}", re.IGNORECASE
)
# a quotation may end there
_FIRST = re.compile(rf"(?:^|<step>|[.!?][ \t]){_LEAD}(?P<word>{_ALL})\b", re.IGNORECASE | re.MULTILINE)
_ARROWED = re.compile(rf"{_ARROW}[ \t]{{0,3}}{_OPEN}{{0,4}}{_BOX}{_NOT}(?P<word>{_FEW})", re.IGNORECASE)
_TAKEN_BACK = re.compile(  # behind "correct"
    rf"{_CLOSE}{{0,8}}[,;:(]?[ \t]{{0,3}}(?:but|except|unless|only|apart|aside|if|when|although|though|however)\b"
    rf"|{_CLOSE}{{0,8}}(?:{_ARROW}|[,;=])[ \t]{{0,3}}{_OPEN}{{0,4}}(?:(?:{_FEW})\b{_ENDS}|no\b)",
    re.IGNORECASE,
)
_ADJECTIVE = re.compile(  # no errors, right angle
    r"[ \t-]{1,3}(?!(?:it|this|that|the|as|because|since|so)\b)[a-z]", re.IGNORECASE
)
_DOUBTS = re.compile(
    r"\b(?:not|never|cannot|doubt|hardly|wrong|whether|if|un(?:clear|sure|likely))\b|n['’]t\b", re.IGNORECASE
)
_CLAUSE = re.compile(rf"{_ARROW}|[.!?:：;,\n–—=>]")
_QUOTATION_MARKS = '"“”„«»`'
_PLAIN = re.compile(r"\b(?:in)?correct\b", re.IGNORECASE)
_ANY = re.compile(_ALL, re.IGNORECASE)
_MARK = re.compile(
    r"verdict|judge?ment|assessment|conclusion|decision|evaluation|overall|step|solution|answer|reason", re.IGNORECASE
)
_BOXES = re.compile(r"\\boxed\{\s{0,8}(?:\\(?:text(?:bf|rm|it)?|math(?:bf|rm))\{)?\s{0,8}([^{}\n]{0,40}?)[\s.]{0,8}\}")
_BEGINS_A_BOX = re.compile(r"\\boxed\{")


def check_verdict(form: str) -> None:
    """Raises UnknownName for what is no form, and ConfigError for a pattern that cannot be used. Beside the group for
    the verdict on the answer a pattern may have ``(?P<step>…)`` and ``(?P<number>…)``."""
    if form not in FORMS:
        pattern_of(form, "verdict", "form of a verdict", FORMS, "Verdict: (.*)", others=(STEP_GROUP, NUMBER_GROUP))


def final_group_of(pattern: re.Pattern[str]) -> int:
    """The number of a pattern's group for the verdict on the answer: the one that is not of steps."""
    of_steps = {pattern.groupindex.get(name) for name in (STEP_GROUP, NUMBER_GROUP)}
    return next(group for group in range(1, pattern.groups + 1) if group not in of_steps)


def free_review(text: str, form: str, count: int | None) -> Review | Verdict | ParseFailure:
    """A review in this form (see the module), of a solution with ``count`` steps; None: steps are not judged.

    Reasons of failure: those of ``without_thought``, "no final verdict", "bad final verdict", "several verdicts", "text
    after verdict", "no steps", "step order", "step count", "bad step verdict".
    """
    spoken = without_thought(text)
    if isinstance(spoken, ParseFailure):
        return spoken
    if form == WORDS:
        return _read_words(spoken, count)
    if form in (BOXED, FIRST_WRONG):
        boxes = list(_BOXES.finditer(spoken))
        return _wrong_step_of(spoken, boxes, count) if form == FIRST_WRONG else _read_boxed(spoken, boxes, count)
    return _read_pattern(spoken, re.compile(form), count)


def verdict_of(word: str) -> bool | None:
    """The verdict that a text consists of, with any marks around it; None for another text."""
    plain = word.strip("*_#`\"'[](){}$ \t\n.,;:!").removeprefix("\\text{").casefold()
    meaning = _SAYS.get(plain.removeprefix("not ").strip())
    if plain.startswith("not "):
        return _negate(meaning)
    return meaning


def _negate(meaning: bool | None) -> bool | None:
    """ "not right" is wrong; "not wrong" may be anything."""
    return False if meaning else None


def write_free_review(form: str, verdicts: Sequence[bool], final: bool) -> str | None:
    """The text of a review without derivations. ``free_review`` reads it back, of tags ``step_verdicts``, for up to 999
    steps. None where the form cannot say it: the first wrong step says that all behind it and the answer are wrong.
    Raises ConfigError for a pattern."""
    if form == TAGS:
        return write_review([""] * len(verdicts), verdicts, final)
    if form == WORDS:
        words = ["Correct" if ok else "Incorrect" for ok in (*verdicts, final)]
        lines = [f"Step {k}: → {word}" for k, word in enumerate(words[:-1], 1)]
        return "\n".join([*lines, f"Overall: {words[-1]}"])
    if form == BOXED:
        words = ["Yes" if ok else "No" for ok in (*verdicts, final)]
        lines = [f"Step {k}: \\boxed{{{word}}}" for k, word in enumerate(words[:-1], 1)]
        return "\n".join([*lines, f"Answer: \\boxed{{{words[-1]}}}"])
    if form == FIRST_WRONG:
        first = sum(verdicts)  # the place of the first wrong step, if all right ones come before it
        if final != all(verdicts) or not all(verdicts[:first]):
            return None
        return f"\\boxed{{{-1 if final else first}}}"
    raise ConfigError(
        f"verdict {form!r}: a pattern says how a verdict is read, not how it is written; name a form",
        code="E_VERDICT_FORM_UNNAMED",
    )


# ---- readers


@dataclass(frozen=True, slots=True, kw_only=True)
class _StepLine:
    """The part of a review under one mark "Step k"."""

    number: int  # k
    verdict: bool | None  # None: no verdict, or two that differ


def _read_words(text: str, count: int | None) -> Review | Verdict | ParseFailure:
    ends = _final_verdicts(text)
    last = ends[-1] if ends else None
    meaning = None if last is None else _word_meaning(last)
    steps = [] if count is None else _step_lines_of(text, ends)
    numbers = [step.number for step in steps]
    in_order = numbers == list(range(1, len(steps) + 1))
    counted = count is None or len(steps) == count
    all_said = all(step.verdict is not None for step in steps)
    if last is None:
        reason = "no final verdict"
    elif _has_more(text, last.end()):
        reason = "text after verdict"
    elif meaning is None:
        reason = "bad final verdict"
    elif any(_word_meaning(match) is not meaning for match in ends):
        reason = "several verdicts"
    elif count and not steps:
        reason = "no steps"
    elif not in_order:
        reason = "step order"
    elif not counted:
        reason = "step count"
    elif not all_said:
        reason = "bad step verdict"
    else:
        span = Span(start=last.start("word"), end=last.end("word"), text=last["word"])
        if count is None:
            return _answer_verdict(span, meaning)
        return _make_review([bool(step.verdict) for step in steps], meaning, span)

    no_steps = bool(count) and not steps
    bad_steps = not (counted and in_order and all_said)
    return _verdict_failure(reason, (meaning is None) + no_steps + bad_steps)


def _final_verdicts(text: str) -> list[re.Match[str]]:
    """Every verdict on the answer that a text holds, in order."""
    matches = [*_VERDICT.finditer(text), *_STATED.finditer(text)]
    stated_at = {match.start() for match in matches}
    matches += [match for match in _REASONED.finditer(text) if match.start() not in stated_at]
    return sorted(matches, key=lambda match: match.start())


def _step_lines_of(text: str, ends: Sequence[re.Match[str]]) -> list[_StepLine]:
    """Return the verdict on each step, read from its mark to the next one or to the last verdict.

    A mark under which no verdict is belongs to what follows it: a title ("### Step 1"), the candidate's own step,
    which is quoted and then judged, or one that is referred to. It is a step of its own only where it continues the
    count, so that a step without a verdict is seen as such.
    """
    stop = ends[-1].start() if ends else len(text)
    marks = list[re.Match[str]]()
    for match in _STEP.finditer(text, 0, stop):
        last_number = int(marks[-1]["k"]) if marks else 0
        continues = int(match["k"]) == last_number + 1
        if continues or _heads_a_step(match):
            marks.append(match)

    edges = [*(mark.start() for mark in marks[1:]), stop]
    steps = list[_StepLine]()
    for mark, end in zip(marks, edges, strict=False):
        verdict = _step_verdict(text[mark.end() : end])
        line = _StepLine(number=int(mark["k"]), verdict=verdict)
        is_open = bool(steps) and steps[-1].verdict is None
        if is_open and line.number == steps[-1].number:
            steps[-1] = line
        elif verdict is not None or line.number == len(steps) + 1:
            steps.append(line)
    return steps


def _heads_a_step(mark: re.Match[str]) -> bool:
    return _HEADS_A_STEP.match(mark.string, mark.end()) is not None


def _step_verdict(text: str) -> bool | None:
    """The verdict at the head or at the tail of what was said of a step; None where there is none, or both differ."""
    near_end = text[-REACH:]
    head = _HEAD.match(text)
    tail = _ARROW_TAIL.search(near_end) or _TAIL.search(near_end)
    meanings = {_word_meaning(match) for match in (head, tail) if match is not None}
    if tail is not None and _is_doubted(near_end, tail):
        return None
    return meanings.pop() if len(meanings) == 1 else None


def _is_doubted(text: str, verdict: re.Match[str]) -> bool:
    """Whether the clause in front of a verdict takes it back ("I can not say that it is correct") or is another verdict
    ("Correct → Incorrect")."""
    start = verdict.start("word") - len(verdict["neg"] or "")
    clauses = _CLAUSE.split(text[:start])
    spoken = [clause for clause in clauses if any(map(str.isalnum, clause))]
    is_quoted = bool(spoken) and any(mark in spoken[-1] for mark in _QUOTATION_MARKS)
    before = verdict_of(spoken[-1]) if spoken and not is_quoted else None
    is_contradicted = before is not None and before is not _word_meaning(verdict)
    return is_contradicted or _DOUBTS.search(clauses[-1]) is not None


def _read_pattern(text: str, pattern: re.Pattern[str], count: int | None) -> Review | Verdict | ParseFailure:
    """Read a review by the user's own pattern: one verdict on the answer, and one on each step where the pattern has a
    group for steps and steps are judged."""
    groups = pattern.groupindex
    final_group = final_group_of(pattern)
    matches = list(pattern.finditer(text))
    finals = [match for match in matches if match[final_group] is not None]
    meanings = {verdict_of(match[final_group]) for match in finals}
    if not finals:
        return _verdict_failure("no final verdict")
    if None in meanings:
        return _verdict_failure("bad final verdict")
    if len(meanings) > 1:
        return _verdict_failure("several verdicts")
    final = _answer_verdict(_group_span(finals[-1], final_group))
    if STEP_GROUP not in groups or count is None:
        return final
    said = [match for match in matches if match[STEP_GROUP] is not None]
    if count and not said:
        return _verdict_failure("no steps", 2)
    if NUMBER_GROUP in groups and [_number_in(match) for match in said] != list(range(1, len(said) + 1)):
        return _verdict_failure("step order")
    if len(said) != count:
        return _verdict_failure("step count")
    steps = [verdict_of(match[STEP_GROUP]) for match in said]
    if None in steps:
        return _verdict_failure("bad step verdict")
    return _make_review([bool(step) for step in steps], bool(final.final), final.spans[0])


def _number_in(match: re.Match[str]) -> int | None:
    """The number of a step as a pattern found it; None for what is no number."""
    number = match[NUMBER_GROUP] or ""
    return int(number) if number.isdecimal() else None


def _read_boxed(text: str, boxes: Sequence[re.Match[str]], count: int | None) -> Review | Verdict | ParseFailure:
    verdict_boxes = []
    for match in boxes:
        verdict = verdict_of(match[1])
        if verdict is not None:
            verdict_boxes.append((match, verdict))

    if not verdict_boxes:
        return _verdict_failure("bad final verdict" if boxes else "no final verdict", 2 if count else 1)
    last, final = verdict_boxes[-1]
    if _has_more(text, last.end()):
        return _verdict_failure("text after verdict", 0)
    if count is None and len(verdict_boxes) > 1:
        return _verdict_failure("several verdicts")
    if count is not None and len(verdict_boxes) != count + 1:
        return _verdict_failure("no steps" if len(verdict_boxes) == 1 else "step count")
    if any(is_negated(_line_before(text, match.start())) for match, _ in verdict_boxes):
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
    if not re.fullmatch(r"-1|\d{1,3}", number):
        return _verdict_failure("bad final verdict")
    first_wrong = int(number)
    if count is not None and first_wrong >= count:
        return _verdict_failure("bad final verdict")
    all_right = first_wrong < 0
    steps = tuple(all_right or step < first_wrong for step in range(count or 0))
    return Verdict(final=all_right, score=float(all_right), steps=steps)


def _line_before(text: str, place: int) -> str:
    """The text in front of a place, on the same line."""
    return text[text.rfind("\n", 0, place) + 1 : place]


def _has_more(text: str, at: int) -> bool:
    """Whether a line with words follows the one at a place."""
    return any(map(str.isalnum, text[at:].partition("\n")[2]))


def _word_meaning(match: re.Match[str]) -> bool | None:
    """The verdict of a word that a reader found; None for "not wrong", for one that is taken back ("correct, but") or
    belongs to the next ("no errors"), and for one with a letter that is only like i."""
    word = match["word"].casefold()
    behind = match.end("word")
    if word in ("no", "right") and _ADJECTIVE.match(match.string, behind):
        return None
    meaning = _SAYS.get(word)
    if match["neg"]:
        meaning = _negate(meaning)
    opposite = _NO_MARKS if meaning else _YES_MARKS
    if any(mark in match.string[behind : behind + 8].partition("\n")[0] for mark in opposite):
        return None  # Correct ✗
    if meaning and _TAKEN_BACK.match(match.string, behind):
        return None
    return meaning


def _answer_verdict(span: Span, meaning: bool | None = None) -> Verdict:
    final = bool(verdict_of(span.text) if meaning is None else meaning)
    return Verdict(final=final, score=float(final), spans=(span,))


def _make_review(steps: Sequence[bool], final: bool, span: Span) -> Review:
    return Review(steps=tuple(steps), final=final, final_span=span)


def _group_span(match: re.Match[str], group: int = 1) -> Span:
    return Span(start=match.start(group), end=match.end(group), text=match[group])


def _verdict_failure(reason: str, missing: int = 1) -> ParseFailure:
    return ParseFailure(reason=reason, format_score=min(0.6, clip_score(1.0 - 0.8 * missing)))


# ---- what a verifier is shown


def find_imitations(seen: str, form: str) -> Iterator[tuple[int, int, str]]:
    """(start, end, what to put there) of what a reader of this form could take for a verdict in a quotation of
    ``seen``, in order."""
    if form in (BOXED, FIRST_WRONG):
        for box in _BEGINS_A_BOX.finditer(seen):
            yield box.start(), box.end(), "\\boxed {"
        return
    places = [match.span() for match in _ANY.finditer(seen)]
    are_too_many = len(places) > MOST  # to try them one by one
    alone = {match.span("word") for match in (*_FIRST.finditer(seen), *_ARROWED.finditer(seen))}
    alone |= {match.span() for match in _PLAIN.finditer(seen)}
    for start, end in places:
        is_verdict_alone = form == WORDS and (start, end) in alone
        if is_verdict_alone or are_too_many or _could_end_there(seen, start, end, form):
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
                    if _is_verdict_at(match, start - at - begin):
                        return True
    return False


def _is_verdict_at(match: re.Match[str], place: int) -> bool:
    """Whether a group of a user's pattern takes the word at this place for a verdict, on the answer or on a step."""
    for group in range(1, match.re.groups + 1):
        inside = match.start(group) <= place < match.end(group)
        if inside and verdict_of(match[group]) is not None:
            return True
    return False
