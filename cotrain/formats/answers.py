r"""Answer formats of free text: where the final answer stands in a solution, by the name of a format.

::

    tags         <step>…</step> … <answer>39</answer>        the project's own, read by ``parsers.tagged_solution``
    boxed        … \boxed{39}                                the last one
    hash         … #### 39                                   GSM8K's
    phrase       The answer is 39.  Final answer: **39**     the last such phrase or ####, or bold text that ends the
                                                             solution
    last-number  … so she pays $39 in all.                   the last number, whatever it counts
    PATTERN      a regular expression with one group         the group of its last match

A free text becomes a ``Solution`` as a tagged one does: it is cut into steps as one says (``steps.py``; by default its
lines), and ``tagged`` is the same solution in tags, for graders and verifiers. A text in which the format finds nothing
is a ``ParseFailure``, never a guess by another format. A thought in front, ``… </think>``, is neither steps nor answer;
where nothing else is before ``<answer>``, as in R1's format, it is what the steps are cut from.

Left out: answers in words ("thirty-nine"), and several answers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

from cotrain.core.types import ParseFailure
from cotrain.formats.patterns import pattern_of
from cotrain.formats.solutions import (
    MAX_CHARS,
    TAGS,
    Solution,
    behind_thoughts,
    blocks_of,
    last_block,
    without_thought,
    write_solution,
)
from cotrain.formats.steps import LINES, steps_in, write_steps
from cotrain.prompts.thoughts import without_tags

LONGEST = 200  # characters of a line after "the answer is" that are still an answer
_GAP = r"(?:,|\{,\}|\\[,;:!> ]|[ ~'’_\u00a0\u2009\u202f])"  # between groups of three digits
_DECIMAL = (  # 1.234,56, 1.234.567, 12,34,567; 1,234.5
    r"(?:\d{1,3}(?:\.\d{3})+,\d{1,2}(?![\d,])|\d{1,3}(?:\.\d{3}){2,}(?![\d.])|\d{1,2}(?:,\d{2})+,\d{3}(?![\d,])"
    rf"|(?:\d{{1,3}}(?:{_GAP}\d{{3}})+(?!\d)|\d+(?:,\d{{3}})*)(?:\.\d+)?|\.\d+)"
)
_FRACTION = rf"\\[dt]?frac\s?(?:\{{[-−]?{_DECIMAL}\}}|\d)\s?(?:\{{{_DECIMAL}\}}|\d)"
_POWER = r"(?:[eE][-+−]?\d+(?!\w)|\s?(?:\\times|\\cdot|[×·*x])\s?10(?:\s?\^(?:\{[-−]?\d+\}|[-−]?\d+)|⁻?[⁰¹²³⁴-⁹]+))"
_REPEATING = r"\d*\.\d*(?:\\(?:overline|bar)\s?(?:\{\d+\}|\d)|\(\d+\))"
_EXPONENT = r"(?:\s?\^\s?(?:\{[-−]?\d+\}|[-−]?\d+)|⁻?[⁰¹²³⁴-⁹]+)"
_NUMBER = re.compile(  # with its sign, currency, power and per cent; fractions, mixed numbers and ratios too
    rf"(?<![\w.^])(?<![\^_][{{−-])(?<!\^\{{[−-])(?:(?<![%)\]}}°])[-−–‐‑](?=[\d.$€£\\]))?(?:\\?[$€£]\s?[-−]?)?"
    rf"(?:\d+(?:\s?{_FRACTION}|\s\d+/\d+(?![\d/])|[¼-¾⅐-⅞])|{_FRACTION}|[¼-¾⅐-⅞]|\d+(?::\d+)+(?!\w)"
    rf"|{_REPEATING}|{_DECIMAL}(?:{_POWER}|{_EXPONENT})?(?:\s?/\s?{_DECIMAL}{_POWER}?)?)(?:\s?\\?%)?"
)
_SCALE = r"(?:hundred|thousand|million|billion|trillion|dozen|percent|per cent)s?\b"
_SAYS = re.compile(
    r"####|\banswers?\b[*_]*(?: (?:to|of) [^.:\n]{1,80}?)?(?: (?:is|are|was|were|would be)\b|\s?[:：=])[*_]*\s?[:：]?"
    r"|^[#*_ \t]{0,8}(?:the )?(?:final )?answers?[*_ \t]{0,4}$",
    re.I | re.M,
)
_OFFERS = re.compile(  # in front of "answer", in a sentence that gives none
    r"\b(?:another|any|no|other|different|each|every"
    r"|(?:if|whether|unless|check|checking|verify|verifying|confirm|test) (?:the|this|that|my|your|our)) (?:\w+ )?\Z"
    r"|\b(?:if|do|would|should|when) you\b[^,]{0,40}\b(?:need|want|like|prefer|require|look)",
    re.I,
)
_PRAISE = re.compile(
    r"(?:\w+ly )?(?:correct|right|wrong|incorrect|verified|confirmed|consistent|reasonable|valid|clear|unclear|helpful"
    r"|useful|complete|open|not)\b",
    re.I,
)
_LEAD = re.compile(  # words in front of an answer
    r"(?:(?:exactly|precisely|therefore|thus|hence|then|so|simply|just|only|clearly|indeed|actually|finally|obviously"
    r"|either|approximately|about|around|roughly|again|still|now|equal to|given by|as follows|found to be|that)\b"
    r"[,:]?\s*)+",
    re.I,
)
_REASON = re.compile(
    r"(?:,\sas|,?\s\(?(?:not|rather than|instead of|because|since|which|where|when|after|if|given|so that|by|from))\s"
    r"|(?:[;:]|\s—|,\s(?:i\.?e|e\.?g|that\sis)\b[.,]{0,2})(?:\s(?=[^\W\d]{3})|\Z)",
    re.I,
)
_CHANGES = re.compile(  # words right in front of a number that is not the answer then
    r"\b(?:not|never|at (?:least|most)|(?:more|less|greater|fewer|larger|smaller|higher|lower) than|(?:root|square|cube"
    r"|half) of|twice|double|minus|negative|over|under|above|below|up to|nearly|almost)\s+\(?\Z",
    re.I,
)
_MATH = re.compile(
    r"\$\$(.+?)\$\$|\\\[(.+?)\\\]|\\\((.+?)\\\)|(?<![\\$])\$(?!\d[\d,.]*\s+[A-Za-z]{2})([^$\n]*[^$\n\s\\])\s?\$(?!\d)"
    r"|\\begin\{(?:equation|align|gather)\*?\}(.+?)\\end\{|```\w*\n(.+?)```|`([^`\n]+)`",
    re.S,
)
_ALIGNED = re.compile(r"\\(?:begin|end)\{(?:align|aligned|equation|gather|gathered|split)\*?\}|&(?=\s*=)")
_SYSTEM = re.compile(r"\\begin\{cases\}([^&]*)\\end\{cases\}")
_LINE_ENDS = re.compile(r"\s*\\\\(?:\[[^\[\]]*\])?\s*(=?)")
_FORMULA = re.compile(r"[\\^]|\d[A-Za-z]\b|\s[+*/]\s")
_GROUP = re.compile(r"\\?[(\[{][^()\[\]{}\n,]+,[^()\[\]{}\n]+[)\]}]")  # a point, an interval, a set
_AND = r"\s*(?:(?:,|;|and|or|maybe|perhaps|possibly|probably|&|∪|\\cup|\\text\{ ?(?:and|or) ?\})\s*)+"
_BOX = re.compile(r"\\(?:boxed|fbox)(?:\s*(\{)|(?![a-zA-Z])\s*([-+]?(?:\d[\d,]*(?:\.\d+)?|[a-zA-Z](?![a-zA-Z]))))")
_JOINT = re.compile(r"[\s$]*+(?:\\text\s*+\{\s*+)?(?:[,;/|&]\s*+(?:or|and)?|or|and)[\s},$]*+")  # two boxes
_SENTENCE_END = re.compile(
    r"(?<=[^.\d])(?<!\bMrs)(?<!\bMr)(?<!\bMs)(?<!\bDr)(?<!\bSt)(?<!\bMt)\.(?:\s|$)|(?<=[.\d])\.\s|\*\*|__"
)
_GOES_ON = re.compile(r"\d*\.\d*(\d+?)\1+\.\.\.\Z")  # 0.333...
_BOLD = re.compile(r"\*\*([^*\n]+)\*\*[.!]?\s*\Z")
# Marks in front of an answer on the next line.
_LISTING = re.compile(r"\A[\s*:_]*(?:(?<=\n)[-=]{3,}\s*\n\s*)?(?:(?<=\n)[-+•>]\s+)?[\s*:_]*")
_MARKS = re.compile(r"</?(?:step|answer|final)>")


def free_solution(text: str, answer: str, steps: str | None = None) -> Solution | ParseFailure:
    """A solution whose answer is written as ``answer`` says (see the module), cut into steps as ``steps`` says (None:
    its lines). Reasons of failure: those of ``without_thought``, "no answer", "several answers" (in tags), "no
    steps"."""
    spoken = without_thought(text)
    if isinstance(spoken, ParseFailure):
        said = behind_thoughts(text) if len(text) <= MAX_CHARS else None
        return _failure_with_answer(spoken, None if said is None else _find_answer(said, answer))
    raw_answer: str | None = None
    body = ""
    if answer == TAGS:
        blocks = [block for block in blocks_of(spoken, "answer") if block.text.strip()]
        if len(blocks) > 1:
            return _failure_with_answer(ParseFailure(reason="several answers"), blocks[-1].text)
        if blocks:
            raw_answer = blocks[0].text
            body = spoken[: blocks[0].start - len("<answer>")]
        if not body.strip():  # all but the answer is a thought
            body = without_tags(text[: len(body)])
    else:
        raw_answer = answer_reader(answer)(spoken)
        body = spoken

    said = _without_marks(raw_answer or "")
    if not said:
        return ParseFailure(reason="no answer")
    cut_steps = steps_in(body, steps or LINES)
    if not cut_steps:
        return _failure_with_answer(ParseFailure(reason="no steps"), said)
    tagged = write_solution([_without_marks(step.text) for step in cut_steps], said)
    return Solution(steps=cut_steps, answer=said, tagged=tagged)


def _find_answer(spoken: str, answer: str) -> str | None:
    """The answer in a text without thoughts."""
    if answer != TAGS:
        return answer_reader(answer)(spoken)
    blocks = [block.text for block in blocks_of(spoken, "answer") if block.text.strip()]
    return blocks[-1] if blocks else None


def _failure_with_answer(failure: ParseFailure, answer: str | None) -> ParseFailure:
    """The failure of a text that names this answer all the same."""
    cleaned = _without_marks(answer or "")
    if not cleaned:
        return failure
    return replace(failure, tagged=write_solution((), cleaned))


def answer_reader(answer: str) -> Callable[[str], str | None]:
    """Return the function that finds the answer in a text. Raises UnknownName, and ConfigError for a pattern that
    cannot be used."""
    if answer in READERS:
        return READERS[answer]
    pattern = pattern_of(answer, "answer", "format of an answer", (TAGS, *READERS), "A: (.*)")
    return lambda text: _last_match(pattern, text)


def check_answer(answer: str) -> None:
    """Raise as ``answer_reader`` does where ``answer`` is no format."""
    if answer != TAGS:
        answer_reader(answer)


def _last_match(pattern: re.Pattern[str], text: str) -> str | None:
    """The first group of the last match."""
    last = None
    for match in pattern.finditer(text):
        last = match[1]
    return last


def _hash_answer(text: str) -> str | None:
    """The line behind the last #### that is followed by one."""
    _, *parts = re.split("#{4,}", text)
    lines = [first_line(part) for part in parts]
    return next((line for line in reversed(lines) if line), None)


def first_line(text: str) -> str:
    """The first line that is not blank, or its first sentence where that ends in a number."""
    line = text.strip().partition("\n")[0].strip()
    return re.split(r"(?<=\d)\.\s+(?=[A-Z])", line, maxsplit=1)[0]


def _phrase_answer(text: str) -> str | None:
    """The text behind the last "answer is", "answer:", "####" or heading "Answer", on that line or the next; or else
    bold text at the very end. A sentence that offers another answer, or hopes that this one is clear, gives none; one
    that praises the answer gives it only where there is no other."""
    praise = None
    for match in reversed(list(_SAYS.finditer(text))):
        before = text[max(0, match.start() - LONGEST) : match.start()]
        sentence_before = re.split(r"[.!?\n:]", before)[-1]
        if _OFFERS.search(sentence_before):
            continue
        behind = text[match.end() : match.end() + 2 * LONGEST]
        candidate = _leading_answer(_LISTING.sub("", behind))
        if candidate is None:
            continue
        is_own = re.search(r"\b(?:my|your|our|this|that)\s+$", before, re.I) is not None
        is_words = candidate.replace(" ", "").isalpha() and len(candidate) > 1
        is_praise = _PRAISE.match(candidate) is not None or (is_own and is_words)
        if not is_praise:
            return candidate
        praise = praise or candidate

    bold = _BOLD.search(text[-LONGEST:])
    if bold is None:
        return praise
    return _leading_answer(bold[1])


def _leading_answer(rest: str) -> str | None:
    """The answer that a text begins with: mathematics as it is, of a sentence the number in it, else the words."""
    rest = re.sub(r"\Anot [^.\n]{1,60}? but (?:rather )?", "", rest)
    lead = _LEAD.match(rest)
    if lead and lead.end() < len(rest.rstrip(" .\n")):
        rest = rest[lead.end() :].lstrip("*_")

    math = _MATH.match(rest)
    math_end = math.end() if math else 0
    line_end = rest.find("\n", math_end)
    line = rest if line_end < 0 else rest[:line_end]
    boxed = last_boxed(line)
    if boxed is not None:
        return boxed

    spans = list(_MATH.finditer(line[: math_end + LONGEST]))
    if spans and (math or len(spans) == 1):
        in_front = "" if math else line[: spans[0].start()]
        changes = in_front if _CHANGES.search(in_front) else ""  # words that change what the mathematics says
        return changes + _math_answer(line, spans)

    clause, *_ = _SENTENCE_END.split(line[:LONGEST], maxsplit=1)
    clause = clause.strip().rstrip("!,;: *_")
    if not _GOES_ON.search(clause):
        clause = clause.rstrip(".!,;: ")
    return _sentence_answer(clause) if clause else None


def _math_answer(line: str, spans: Sequence[re.Match[str]]) -> str:
    """The mathematics that is first, with what it is joined to by "and", "or" or a comma, and with a word such as
    million behind it."""
    answer = ""
    end = spans[0].start()
    for span in spans:
        between = line[end : span.start()]
        if answer and not re.fullmatch(_AND, between):
            break
        inside = next(group for group in span.groups() if group is not None)
        formula = " ".join(without_alignment(inside).split()).rstrip(".,;")
        answer = f"{answer}{between}{formula}" if answer else formula
        end = span.end()
    scale = re.match(rf"\s?{_SCALE}", line[end:], re.I)
    return answer + scale[0] if scale else answer


def without_alignment(text: str) -> str:
    r"""A text without ``\begin{aligned}`` and the like: equations below each other become a list, and a line that
    begins with "=" goes on."""
    if "\\begin{" not in text:
        return text
    text = _SYSTEM.sub(r"\1", text)
    text = _ALIGNED.sub(" ", text)
    if "\\begin{" in text:  # a matrix, whose lines are no list
        return text
    return _LINE_ENDS.sub(lambda end: " =" if end[1] else ", ", text)


def _sentence_answer(sentence: str) -> str:
    """The answer in a sentence that gives one."""
    if "=" in sentence:
        return _equation_answer(sentence)
    if sentence.startswith("not ") or "otherwise" in sentence:
        return sentence
    short = _REASON.split(sentence, maxsplit=1)[0]
    if _NUMBER.search(short) or 1 <= len(short.split()) <= 3:
        sentence = short
    if len(sentence.split()) <= 3:
        return sentence
    groups = list(_GROUP.finditer(sentence))
    if groups:
        joined = all(re.fullmatch(_AND, gap) for gap in _gaps_between(sentence, groups))
        last = groups[-1] if joined else groups[0]
        return sentence[groups[0].start() : last.end()]
    if _FORMULA.search(sentence):
        runs = [run.strip().rstrip(",;") for run in re.split(r"(?<!\S)[A-Za-z]{2,}[,;:]?(?!\S)", sentence)]
        return next((run for run in runs if _FORMULA.search(run)), sentence)
    return _listed_numbers(sentence)


def _equation_answer(sentence: str) -> str:
    """The number on the right of the last "=", where nothing goes on behind it; else the whole."""
    reasoned = _REASON.split(sentence, maxsplit=1)[0]
    if _NUMBER.fullmatch(reasoned):  # 5, because 2 + 3 = 5
        return reasoned
    side = sentence.rpartition("=")[2].strip()
    number = _NUMBER.match(side)
    if number is None:
        return sentence
    rest = side[number.end() :]
    is_plain = re.fullmatch(r"[\s\w,.!°'()-]*", rest) is not None
    goes_on = re.match(r"\w|\s[+*/^-]", rest) is not None
    states_several = re.search(r"\b(?:or|and)\b|,\s", sentence) is not None
    if is_plain and not goes_on and not states_several:
        return number[0]
    return sentence


def _listed_numbers(sentence: str) -> str:
    """The first number of a sentence, with those that it is listed with and with the word behind them; the sentence
    where there is none, and where words change what the number says."""
    numbers = list(_NUMBER.finditer(sentence))
    if not numbers or _CHANGES.search(sentence[: numbers[0].start()]):
        return sentence
    gaps = _gaps_between(sentence, numbers)
    are_listed = all(re.fullmatch(rf"(?:\s?[^\W\d]+){{0,2}}{_AND}|\s?[^\W\d]+\s", gap) for gap in gaps)
    have_units = not all(re.fullmatch(_AND, gap) for gap in gaps)  # 3 apples and 4 pears
    last = numbers[-1] if are_listed else numbers[0]
    unit = rf"\s?{_SCALE}"
    if are_listed and have_units:
        unit += r"|\s[^\W\d]+"
    behind = re.match(unit, sentence[last.end() :], re.I)
    listed = sentence[numbers[0].start() : last.end()]
    return listed + behind[0] if behind else listed


def _gaps_between(text: str, matches: Sequence[re.Match[str]]) -> list[str]:
    return [text[match.end() : following.start()] for match, following in pairwise(matches)]


def _last_number(text: str) -> str | None:
    last = None
    for match in _NUMBER.finditer(text):
        last = match
    if last is None:
        return None
    is_mathematics = text.startswith("$", last.end())  # $5$ is no 5 dollars
    return last[0].lstrip("$") if is_mathematics else last[0]


def final_answer(text: str) -> str | None:
    r"""The answer that a text ends on, stripped, or None.

    The last complete ``<answer>…</answer>``; without one the last ``\boxed{…}`` with balanced braces; without one what
    follows the last ``####`` on its line. An empty answer is None, and what stands in a thought is no answer.
    """
    spoken = behind_thoughts(text)
    if spoken is None:
        return None
    in_tags = last_block(spoken, "answer")
    if in_tags is not None:
        return in_tags or None
    boxed = last_boxed(spoken)
    if boxed is not None:
        return boxed.strip() or None
    return _hash_answer(spoken)


def answer_in(response: str, answer: str | None = None) -> str | None:
    """The answer that a response gives, read by a format as of ``answer_reader``; None where none is found. Without a
    format it is what stands in tags, in a box or behind ####, else behind "the answer is"."""
    if answer is not None:
        return answer_reader(answer)(response)
    return final_answer(response) or _phrase_answer(response)


_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)  # an escaped brace is no brace
_VISIBLE = re.compile(r"\S")


def last_boxed(text: str) -> str | None:
    r"""The inside of the ``\boxed{…}`` that begins last among those whose braces balance and that are not blank, behind
    those that it is joined to by "and", "or" or a comma: "1, 2". Where there is none, the number or letter behind the
    last ``\boxed``. ``\fbox`` is another name of it."""
    first = _BOX.search(text)
    if first is None:
        return None
    boxes = list(_BOX.finditer(text, first.start()))
    starts = {box.end() - 1: box.start() for box in boxes if box[1]}  # opening brace → where its box begins
    open_braces = list[int]()
    ends = dict[int, int]()  # opening brace of a box that is not blank → its closing one
    for mark in _BRACE.finditer(text, first.start()):
        if mark[0] == "{":
            open_braces.append(mark.start())
        elif mark[0] == "}" and open_braces:
            start = open_braces.pop()
            if start in starts and _VISIBLE.search(text, start + 1, mark.start()):
                ends[start] = mark.start()

    if not ends:
        return next((box[2] for box in reversed(boxes) if box[2]), None)
    last, *earlier = sorted(ends, reverse=True)
    joined = [last]
    for start in earlier:
        next_box = starts[joined[0]]
        is_outside = ends[start] <= next_box
        if not is_outside or not _JOINT.fullmatch(text, ends[start] + 1, next_box):
            break
        joined.insert(0, start)
    return ", ".join(dict.fromkeys(text[start + 1 : ends[start]] for start in joined))


READERS: Mapping[str, Callable[[str], str | None]] = {
    "boxed": last_boxed,
    "hash": _hash_answer,
    "phrase": _phrase_answer,
    "last-number": _last_number,
}


ENDS: Mapping[str, str] = {  # how a solution ends that is read in a format; a pattern is not written
    TAGS: "<answer>ANSWER</answer>",
    "boxed": "The answer is \\boxed{ANSWER}.",
    "hash": "#### ANSWER",
    "phrase": "The answer is ANSWER.",
    "last-number": "ANSWER",
}


def write_answer(answer: str, form: str) -> str:
    """The end of a solution from which the reader of this format takes this answer, as far as it can say it."""
    end = ENDS[form].replace("ANSWER", answer)
    if form == "phrase" and _phrase_answer(end) != answer:
        return ENDS["boxed"].replace("ANSWER", answer)
    return end


def write_own(steps: Sequence[str], answer: str, form: str, cut: str | None) -> str:
    """The text of a solution in words; ``free_solution`` reads its answer back, and its steps, which are lines."""
    one_line_each = (" ".join(step.split()) for step in steps)
    lines = [line for line in one_line_each if line]
    return f"{write_steps(lines, cut or LINES)}\n{write_answer(answer, form)}".strip()


def _without_marks(text: str) -> str:
    """A text that can stand between tags."""
    return _MARKS.sub("", text).strip()
