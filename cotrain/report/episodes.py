"""Episodes as cards: the problem, each step with the truth on its left and the verifier's verdict on its right.

About forty are drawn from twelve steps spread over the early, middle and late third of the run, so that every kind of
meeting between the two roles is seen: fooled (said CORRECT, is wrong), false alarm (said INCORRECT, is right), caught,
agreed, unreadable. The draw is addressed, so a report of one run is always the same page.

Colour never speaks alone: a right step has a solid bar and ✓, a wrong one a hatched bar and ✗, an unjudged one a
dotted bar and ·; ▲ marks the first true error.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cotrain.core.address import rng_of
from cotrain.core.notes import (
    ANSWER,
    CORRECT,
    FAILURE,
    FINAL,
    FIRST_WRONG,
    GOLD,
    PROBLEM,
    STEP_OK,
    STEP_REASONS,
    STEPS,
    VERDICTS,
)
from cotrain.core.types import Trace
from cotrain.report.escape import MAX_CHARS, page
from cotrain.report.guide import number
from cotrain.report.read import Run, in_order, read_episodes, recorded_steps

WHEN = ("early", "middle", "late")
KINDS = {
    "fooled": "verifier fooled",
    "alarm": "false alarm",
    "caught": "error caught",
    "agreed": "agreed: right",
    "unreadable": "unreadable",
    "plain": "no verdict",
}
TRUTH = {True: ("ok", "✓", "right"), False: ("bad", "✗", "wrong"), None: ("open", "·", "not judged")}
CARDS = 40
STEPS_READ = 12
MOST_STEPS = 60  # of one solution
MOST_REVIEWS = 4  # shown in words on one card
MOST_CHARS = 100_000  # of one card's HTML
LIMITS = (MAX_CHARS, 400, 60, 10)  # characters of one text: the first of these that makes the card small enough
MOST_SIGNALS = 40  # of one trace


@dataclass(frozen=True, slots=True, kw_only=True)
class Meeting:
    """A solution with the reviews it got."""

    step: int
    when: str  # one of WHEN
    kind: str  # one of KINDS
    speech: Trace
    reviews: tuple[Trace, ...]


def sample(run: Run, cards: int = CARDS) -> list[Meeting]:
    """Draw about ``cards`` meetings, as many of each third of the run and of each kind as there are, in order."""
    steps = [step for step in recorded_steps(run.directory) if step >= 0]
    if not steps:
        return []
    picked = sorted({steps[round(i * (len(steps) - 1) / max(STEPS_READ - 1, 1))] for i in range(STEPS_READ)})
    last = max([steps[-1], *(row.step for row in run.training)])
    found: dict[tuple[str, str], list[Meeting]] = {}
    for step in picked:
        when = WHEN[min(2, 3 * step // (last + 1))]
        for meeting in _meetings(run, step, when):
            found.setdefault((when, meeting.kind), []).append(meeting)
    for place, pool in found.items():
        rng_of("report", *place).shuffle(pool)
    chosen: list[Meeting] = []
    quota = {when: cards // 3 + (i < cards % 3) for i, when in enumerate(WHEN)}
    while len(chosen) < cards:
        before = len(chosen)
        for kind in KINDS:
            for when in WHEN:
                pool = found.get((when, kind), [])
                if pool and quota[when] and len(chosen) < cards:
                    chosen.append(pool.pop())
                    quota[when] -= 1
        if len(chosen) == before:  # a third has no more: the others may fill its places
            left = [when for when in WHEN if any(found.get((when, kind)) for kind in KINDS)]
            if not left:
                break
            quota = {when: max(quota[when], 1) if when in left else 0 for when in WHEN}
    return sorted(chosen, key=lambda m: (m.step, m.speech.address))


def who_plays(meetings: Sequence[Meeting]) -> dict[str, str]:
    """Role → policy, as the traces say."""
    return {trace.role: trace.policy for m in meetings for trace in (m.speech, *m.reviews)}


def section(meetings: Sequence[Meeting]) -> str:
    """The filters and the cards."""
    if not meetings:
        return ""
    kinds = [kind for kind in KINDS if any(m.kind == kind for m in meetings)]
    whens = [when for when in WHEN if any(m.when == when for m in meetings)]
    buttons = _filters("when", [(w, w, sum(m.when == w for m in meetings)) for w in whens], len(meetings))
    buttons += _filters("kind", [(k, KINDS[k], sum(m.kind == k for m in meetings)) for k in kinds], len(meetings))
    cards = "".join(card(meeting) for meeting in meetings)
    return (
        '<section id="episodes"><h2>Episodes</h2><p class="lead">Sampled across the run, rare cases first, so their'
        " counts are not rates. Left of each step the truth, right of it the verdict.</p>"
        '<p class="key"><span class="step ok"><b class="mark">✓</b> step is right</span> <span class="step bad">'
        '<b class="mark">✗</b> step is wrong</span> <span><b class="first">▲</b> first wrong step</span> <span>'
        '<span class="verdict">says right</span> verdict agrees with the truth</span> <span><span class="verdict off">'
        "≠ says right</span> verdict is mistaken</span></p>"
        f'<div class="filters" hidden>{buttons}</div><div class="cards">{cards}</div></section>'
    )


def card(meeting: Meeting) -> str:
    """One meeting as an ``<article>``; every text in it is escaped, and cut shorter until the card is of a decent size."""
    cards = (_card(meeting, limit) for limit in LIMITS)
    small = next((html for html in cards if len(html) <= MOST_CHARS), None)
    return small or _card(dataclasses.replace(meeting, reviews=()), 0)


def _card(meeting: Meeting, limit: int) -> str:
    asked = PROBLEM.of(meeting.speech)
    correct = _flag(CORRECT.of(meeting.speech))
    head = f'<span class="kind {meeting.kind}">{KINDS[meeting.kind]}</span>'
    head += f'<span class="at">step {meeting.step} · {meeting.when}</span>'
    problem = f'<p class="problem">{page(asked, limit)}</p>' if asked else ""
    return (
        f'<article class="card" data-when="{meeting.when}" data-kind="{meeting.kind}"><header>{head}</header>{problem}'
        f"{_steps(meeting, limit)}{_answer(meeting, correct, limit)}{_words(meeting, limit)}{_footer(meeting)}</article>"
    )


def _meetings(run: Run, step: int, when: str) -> list[Meeting]:
    found = []
    for episode in read_episodes(run.directory, step):
        for speech in episode.traces:
            if speech.parent is not None:
                continue
            reviews = tuple(t for t in episode.traces if t.parent == str(speech.address))
            kind = _kind(speech, reviews)
            found.append(Meeting(step=step, when=when, kind=kind, speech=speech, reviews=reviews))
    return found


def _kind(speech: Trace, reviews: Sequence[Trace]) -> str:
    correct = _flag(CORRECT.of(speech))
    if not _texts(speech) and ANSWER.of(speech) is None:
        return "unreadable"
    if not reviews or correct is None:
        return "plain"
    said = _flag(FINAL.of(reviews[0]))
    if said is None:
        return "unreadable"
    if said:
        return "agreed" if correct else "fooled"
    return "alarm" if correct else "caught"


def _steps(meeting: Meeting, limit: int) -> str:
    speech = meeting.speech
    texts = _texts(speech)
    if not texts:
        why = FAILURE.of(speech) or speech.failure or "not in the form of steps"
        return f'<p class="why">unreadable: {page(why, 200)}</p><pre class="raw">{page(speech.text, limit)}</pre>'
    ok, reasons = _list(STEP_OK.of(speech)), _list(STEP_REASONS.of(speech))
    verdicts = _list(VERDICTS.of(meeting.reviews[0])) if meeting.reviews else []
    first = FIRST_WRONG.of(speech)
    if first is None:
        first = next((i for i, flag in enumerate(ok) if flag is False), None)
    rows = []
    for i, text in enumerate(texts[:MOST_STEPS]):
        true = _flag(ok[i]) if i < len(ok) else None
        said = _flag(verdicts[i]) if i < len(verdicts) else None
        css, mark, spoken = TRUTH[true]
        pointer = '<b class="first" title="first wrong step">▲</b>' if i == first else ""
        reason = reasons[i] if i < len(reasons) and reasons[i] else ""
        why = f'<small class="reason">{page(reason, 200)}</small>' if reason else ""
        rows.append(
            f'<li class="step {css}"><b class="mark" title="truth: {spoken}">{mark}</b>'
            f'<span class="text">{page(text.strip(" "), limit)}{pointer}{why}</span>{_verdict(said, true)}</li>'
        )
    more = f'<p class="why">and {len(texts) - MOST_STEPS} more steps</p>' if len(texts) > MOST_STEPS else ""
    return f'<ol class="steps">{"".join(rows)}</ol>{more}'


def _answer(meeting: Meeting, correct: bool | None, limit: int) -> str:
    speech = meeting.speech
    answer, gold = ANSWER.of(speech), GOLD.of(speech)
    css, mark, spoken = TRUTH[correct]
    said = _flag(FINAL.of(meeting.reviews[0])) if meeting.reviews else None
    right = f' <span class="gold">gold answer <b>{page(gold, limit)}</b></span>' if gold is not None else ""
    text = f"answer <b>{page(answer, limit)}</b>" if answer is not None else "no answer"
    unread = ""
    if meeting.reviews and said is None:
        why = FAILURE.of(meeting.reviews[0]) or meeting.reviews[0].failure or "no verdict found"
        unread = f'<span class="verdict none">review unreadable: {page(why, 200)}</span>'
    final = _verdict(said, correct) or unread
    bar = f'<b class="mark" title="truth: {spoken}">{mark}</b>'
    return f'<div class="step answer {css}">{bar}<span class="text">{text}{right}</span>{final}</div>'


def _verdict(said: bool | None, true: bool | None) -> str:
    if said is None:
        return ""
    word = "says right" if said else "says wrong"
    off = true is not None and said is not true
    return f'<span class="verdict{" off" if off else ""}">{"≠ " if off else ""}{word}</span>'


def _words(meeting: Meeting, limit: int) -> str:
    """What the reviewers wrote, folded."""
    if not meeting.reviews:
        return ""
    lines = [review.text.replace("</step>", "</step>\n") for review in meeting.reviews[:MOST_REVIEWS]]
    texts = "".join(f'<pre class="raw">{page(text, limit)}</pre>' for text in lines)
    others = [_flag(FINAL.of(review)) for review in meeting.reviews[1:]]
    tally = ""
    if others:
        words = {True: "right", False: "wrong", None: "unreadable"}
        tally = f'<p class="why">Other reviews say: {", ".join(words[o] for o in others)}.</p>'
    role = meeting.reviews[0].role
    return f"{tally}<details><summary>what the {page(role)} wrote</summary>{texts}</details>"


def _footer(meeting: Meeting) -> str:
    lines = []
    for trace in (meeting.speech, *meeting.reviews[:1]):
        rewards = [s for s in trace.signals if s.name != "truth"][:MOST_SIGNALS]
        names = in_order(s.name for s in rewards)
        shown = [f"{page(name, 60)} {', '.join(_signed(s.value) for s in rewards if s.name == name)}" for name in names]
        failed = [f"left out: {page(trace.failure, 200)}"] if trace.failure else []
        voice = f"<b>{page(trace.role, 60)}</b> {page(trace.policy, 60)} v{int(trace.version)}"
        lines.append(f"<span>{voice} · {' · '.join([*shown, *failed]) or 'no reward'}</span>")
    return f'<footer>{"".join(lines)}<span class="at">{page(meeting.speech.address, 100)}</span></footer>'


def _filters(name: str, choices: Sequence[tuple[str, str, int]], total: int) -> str:
    buttons = "".join(
        f'<button type="button" data-filter="{name}" data-value="{value}" aria-pressed="{str(not value).lower()}">{label}'
        f" <i>{count}</i></button>"
        for value, label, count in [("", "all", total), *choices]
    )
    return f'<div role="group" aria-label="{name}">{buttons}</div>'


def _signed(value: float) -> str:
    return f"{'+' if value > 0 else ''}{number(value, share=False)}"


def _texts(trace: Trace) -> list[str]:
    """The steps' texts from ``[[start, end, text], …]`` or ``[text, …]``; none for verdicts."""
    found = []
    for entry in _list(STEPS.of(trace)):
        text = entry[-1] if isinstance(entry, list | tuple) and entry else entry
        if isinstance(text, str):
            found.append(text)
    return found


def _list(value: object) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else []


def _flag(value: object) -> bool | None:
    return value if isinstance(value, bool) else None
