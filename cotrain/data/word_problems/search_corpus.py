"""The facts of a problem scattered over documents, as a tool that searches would return them.

A document holds one or two sentences about its subject and as many again about something else. A search by a word of
the problem's facts finds documents whose subject they are; any other word finds documents about other things. What is
irrelevant names other nouns and is put in other words than the problem, so that its question tells which is which.

    search(text, "apples", rng)   → ("There are 3 kites. Mia has 4 apples. …", …)

Left out: ranking, documents that contradict each other, and facts that only another fact shows to be needed.
"""

from __future__ import annotations

import random
import re

from cotrain.data.word_problems.problem import CONSTANT_MAX, FACTOR_MAX, GIVEN_MAX, OPERATOR, Fact
from cotrain.data.word_problems.wording import FAMILIES, NOUNS, Family, fact_sentence

_SENTENCE = re.compile(r"(?<=[.?!])\s+")
_LONG_WORD = re.compile(r"[^\W\d_]{3,}")


def split_sentences(text: str) -> tuple[str, ...]:
    """A text cut after each full stop, question or exclamation mark that a space follows."""
    return tuple(part for part in _SENTENCE.split(text.strip()) if part)


def facts_and_question(text: str) -> tuple[tuple[str, ...], str]:
    """All sentences of a problem but the last, and the last, which asks."""
    *facts, question = split_sentences(text) or ("",)
    return tuple(facts), question


def long_words(text: str) -> frozenset[str]:
    """Its words in lower case, those of two letters and less left out."""
    return frozenset(_LONG_WORD.findall(text.lower()))


def search_documents(text: str, query: str, rng: random.Random, *, noise: float = 1.0) -> tuple[str, ...]:
    """Documents that the first word of ``query`` finds: about the facts of the problem if it occurs in them.

    ``noise``: irrelevant sentences for each one about the subject. An empty query finds nothing.
    """
    first_word = _LONG_WORD.search(query.lower())
    if first_word is None:
        return ()
    facts, _ = facts_and_question(text)
    is_about_facts = first_word[0] in long_words(" ".join(facts))
    return scatter_facts(text, rng, noise=noise, about=is_about_facts)


def scatter_facts(text: str, rng: random.Random, *, noise: float = 1.0, about: bool = True) -> tuple[str, ...]:
    """Documents ``about`` the facts of a problem, or as many about something else."""
    facts, _ = facts_and_question(text)
    n_irrelevant = round(len(facts) * noise)
    if about:
        irrelevant = distractor_sentences(text, n_irrelevant, rng)
        subject = list(facts)
    else:
        irrelevant = distractor_sentences(text, n_irrelevant + len(facts), rng)
        subject = [irrelevant.pop() for _ in facts]
    rng.shuffle(subject)
    scattered = []
    while subject:
        n_subject = min(len(subject), 1 + int(rng.random() * 2))
        share = [subject.pop() for _ in range(n_subject)]
        n_irrelevant = len(irrelevant)  # the last document has all that are left
        if subject:
            n_irrelevant = min(n_irrelevant, n_subject)
        share += [irrelevant.pop() for _ in range(n_irrelevant)]
        rng.shuffle(share)
        scattered.append(" ".join(share))
    return tuple(scattered)


def distractor_sentences(text: str, count: int, rng: random.Random) -> list[str]:
    """Sentences of the same kind as a problem's facts, about nouns and in wordings that the problem does not use."""
    _, question = facts_and_question(text)
    own_words = long_words(text)
    nouns = [noun for noun in NOUNS if noun not in own_words]

    def has_asked(style: Family) -> bool:
        return question in {style.question.format(t=noun) for noun in NOUNS}

    styles = [style for style in FAMILIES.values() if not has_asked(style)]
    sentences = []
    for _ in range(count):
        target, left, other = rng.sample(nouns, 3)
        kind = rng.choice(("given", "given", *OPERATOR))
        top = {"given": GIVEN_MAX, "times": FACTOR_MAX}.get(kind, CONSTANT_MAX)
        right = other if kind in ("sum", "difference") else 2 + int(rng.random() * (top - 1))
        sentences.append(fact_sentence(rng.choice(styles), Fact(target=target, kind=kind, left=left, right=right)))
    return sentences
