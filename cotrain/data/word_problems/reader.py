"""Word problems that somebody else wrote: text → ``Problem`` with its answer, or the reason why it is none.

This is the gate of methods in which a model writes problems. It fails closed: whatever is not read to the last
character by the sentences of one wording (``wording.py``), and worked out within the limits, is no problem. Reasons:

    not read         a sentence that no wording has, or sentences of two wordings
    no question      or several, or one that is not the last sentence
    defined twice    a noun with two values
    undefined        a noun that nothing defines, or a circle
    asks for a given
    out of range     a value that is not in 1 … ``max_value``
    too long         more than ``LONGEST`` operations or ``FACTS`` facts

Left out: moduli, and problems in other words. The grammar is ours, so nothing here is learned "from zero data".
"""

from __future__ import annotations

import re
from functools import cache

from cotrain.core.errors import ConfigError
from cotrain.core.types import ParseFailure, Task
from cotrain.data.word_problems.problem import Fact, Problem, assemble_problem
from cotrain.data.word_problems.source import LONGEST, WordGrader
from cotrain.data.word_problems.wording import EVERY, NOUNS, Family

KINDS = ("given", "plus", "minus", "times", "sum", "difference", "question")
FACTS = 20
CHARACTERS = 2000
_SENTENCE = re.compile(r"[^.?]+[.?]")


@cache
def _sentence_patterns(style: Family) -> tuple[tuple[str, re.Pattern[str]], ...]:
    noun = "|".join(NOUNS)
    patterns = []
    for kind in KINDS:
        pattern = re.escape(getattr(style, kind)).replace(r"\{", "{").replace(r"\}", "}")
        for name, what in (("t", noun), ("x", noun), ("y", noun), ("c", "[1-9][0-9]{0,3}")):
            pattern = pattern.replace(f"{{{name}}}", f"(?P<{name}>{what})", 1)
        patterns.append((kind, re.compile(pattern)))
    return tuple(patterns)


def read_problem(text: str, *, max_value: int = 99) -> Problem | ParseFailure:
    """The problem that a text is."""
    if len(text) > CHARACTERS:
        return ParseFailure(reason="too long")
    sentences = _split_sentences(text)
    if not sentences or " ".join(sentences) != text.strip():
        return ParseFailure(reason="not read")
    for style in EVERY.values():
        read = [_match_sentence(style, sentence) for sentence in sentences]
        if all(read):
            return _work_out([one for one in read if one], style, max_value)
    return ParseFailure(reason="not read")


def facts_in(text: str) -> tuple[Fact, ...]:
    """The facts among the sentences of a text, each in any wording; other sentences are passed over."""
    facts = []
    for sentence in _split_sentences(text):
        for style in EVERY.values():
            parts = _match_sentence(style, sentence)
            if parts is not None:
                if parts[0] != "question":
                    facts.append(_fact_from_parts(*parts))
                break
    return tuple(facts)


def problem_signature(problem: Problem) -> str:
    """The facts of a problem, with nouns by the order in which they appear: the same for a problem in any wording."""
    names: dict[str, int] = {}

    def noun_number(part: str | int) -> str:
        if isinstance(part, int):
            return str(part)
        if not part:
            return ""
        return f"n{names.setdefault(part, len(names))}"

    facts = [f"{noun_number(f.target)}={f.kind}({noun_number(f.left)},{noun_number(f.right)})" for f in problem.facts]
    return ";".join([*facts, noun_number(problem.question)])


def operation_string(problem: Problem) -> str:
    """The operations of its solution: problems of one shape differ in nouns and numbers alone."""
    return "".join(problem.relations[noun].operator for noun in problem.needed)


def task_of(problem: Problem, name: str) -> Task:
    """The problem as a task of this id, graded by the program that worked it out."""
    return Task(
        id=name,
        prompt=problem.text,
        gold=str(problem.answer),
        solution=problem.solution,
        difficulty=float(len(problem.needed)),
        grader=WordGrader(problem=problem),
    )


def _split_sentences(text: str) -> list[str]:
    """Split a text into sentences, which end with a full stop or a question mark. What follows the last one is left
    out."""
    end = max(text.rfind("."), text.rfind("?")) + 1
    return [part.strip() for part in _SENTENCE.findall(text[:end])]


def _match_sentence(style: Family, sentence: str) -> tuple[str, dict[str, str]] | None:
    for kind, pattern in _sentence_patterns(style):
        if (match := pattern.fullmatch(sentence)) is not None:
            return kind, match.groupdict()
    return None


def _work_out(
    parsed_sentences: list[tuple[str, dict[str, str]]], style: Family, max_value: int
) -> Problem | ParseFailure:
    *before, (last, question_parts) = parsed_sentences
    if last != "question" or any(kind == "question" for kind, _ in before):
        return ParseFailure(reason="no question")
    facts = tuple(_fact_from_parts(kind, parts) for kind, parts in before)
    nouns = [fact.target for fact in facts]
    if len(facts) > FACTS or sum(fact.kind != "given" for fact in facts) > LONGEST:
        return ParseFailure(reason="too long")
    if len(set(nouns)) < len(nouns):
        return ParseFailure(reason="defined twice")
    if any(fact.kind == "given" and fact.target == question_parts["t"] for fact in facts):
        return ParseFailure(reason="asks for a given")
    if question_parts["t"] not in nouns:
        return ParseFailure(reason="undefined")
    try:
        problem = assemble_problem(facts, question_parts["t"], family=style.name)
    except ConfigError:
        return ParseFailure(reason="undefined")

    if not all(1 <= value <= max_value for value in problem.values.values()):
        return ParseFailure(reason="out of range")
    return problem


def _fact_from_parts(kind: str, parts: dict[str, str]) -> Fact:
    if kind == "given":
        return Fact(target=parts["t"], kind=kind, right=int(parts["c"]))
    right: str | int = int(parts["c"]) if parts.get("c") else parts["y"]
    return Fact(target=parts["t"], kind=kind, left=parts["x"], right=right)
