"""The result of a run in words: the sentences above its page, and the four figures that stand under them.

All of it is read from one source, the held-out figures before and after training (``summary.json``). What a run earns
on its training problems is drawn in its curves and is never mixed into these sentences.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cotrain.core.statistics import Estimate
from cotrain.metrics.table import labelled_metric
from cotrain.reports.guide import difference_interval, number_text, points_text

FigureRow = Mapping[str, Any]  # one row of ``runs.py: figure_rows``

GAP = "gap"  # share of answers that a verifier calls right, minus the share that is right
WIDE = 0.2  # a gap whose interval is wider than ± this is not interpreted
LEADS = 4  # figures that a page shows at once; it folds the others away
VERDICT_METRIC = "balanced_accuracy"
ON_FIXED = "fixed"  # the split of solutions that did not change
WORDS = {  # metric → the words behind its value
    "pass@1": "of its answers to held-out problems right",
    "greedy": "of its greedy answers to held-out problems right",
}
NUMBER_WORDS = {2: "two", 3: "three", 4: "four", 5: "five", 6: "six", 7: "seven", 8: "eight"}
HARDER = (
    "So it did not forget how to judge. The solutions that it is shown have changed, and the errors that are left in "
    "them are harder to see."
)


def outcome_sentences(figures: Sequence[FigureRow]) -> list[str]:
    """The sentences on what became of each role, on whether a verifier is fooled, and on what its choice is worth."""
    sentences = []
    for who in dict.fromkeys(str(figure["who"]) for figure in figures):
        own = [figure for figure in figures if figure["who"] == who]
        if any(figure["name"] == VERDICT_METRIC for figure in own):
            sentences += _verifier_sentences(who, own)
        elif who:
            sentences += _first_headline(who, own)
    gaps = [figure for figure in figures if figure["name"] == GAP and not figure["split"]]
    sentences += [_fooled_sentence(figure, _problems_tested(figures)) for figure in gaps if figure["after"]]
    return [*sentences, *_choice_sentences(figures)]


def is_fooled(figures: Sequence[FigureRow]) -> bool:
    """Whether a verifier is shown to call more right than is right, at the end."""
    gaps = (figure for figure in figures if figure["name"] == GAP and figure["after"])
    return any(Estimate.from_json(figure["after"]).low > 0.0 for figure in gaps)


def lead_keys(figures: Sequence[FigureRow]) -> list[str]:
    """The keys of the figures that are shown first, ``LEADS`` at most:

    - how often the solver is right
    - how well its verifier judges solutions that did not change
    - how well it judges those that the generator writes now
    - whether it is fooled
    - other headlines
    """
    measured = [figure for figure in figures if figure["before"] and figure["after"]]
    candidates = (
        [figure for figure in measured if figure["name"] == "pass@1" and not figure["split"]],
        [figure for figure in measured if figure["name"] == VERDICT_METRIC and figure["split"] == ON_FIXED],
        [figure for figure in measured if figure["name"] == VERDICT_METRIC and not figure["split"]],
        [figure for figure in measured if figure["name"] == GAP],
    )
    first_of_each = [matches[0] for matches in candidates if matches]
    headlines = [figure for figure in measured if figure["headline"]]
    keys = dict.fromkeys(str(figure["key"]) for figure in (*first_of_each, *headlines))
    return list(keys)[:LEADS]


def direction_words(figure: FigureRow) -> str:
    """The better direction, in words; "" where neither is."""
    best_value = labelled_metric(figure["name"]).best_value
    if best_value is not None:
        return f"nearer to {best_value:g} is better"
    if figure["better"] > 0:
        return "better is up"
    if figure["better"] < 0:
        return "better is down"
    return ""


def better_sign(figure: FigureRow) -> int:
    """Which change is an improvement: +1, −1, or 0 for neither. A gap is better nearer to 0, so a positive one should
    fall and a negative one rise. One that changed its sign has 0."""
    best_value = labelled_metric(figure["name"]).best_value
    if best_value is None or not (figure["before"] and figure["after"]):
        return int(figure["better"])
    before = Estimate.from_json(figure["before"]).value - best_value
    after = Estimate.from_json(figure["after"]).value - best_value
    if before * after <= 0.0:
        return 0
    return -1 if after > 0.0 else 1


def got_worse(figure: FigureRow) -> bool:
    """Whether it changed in the wrong direction, by an interval that leaves out zero."""
    if not (figure["change"] and figure["better"]):
        return False
    change = Estimate.from_json(figure["change"])
    return not change.includes(0.0) and change.value * figure["better"] < 0.0


def explain_worse(figure: FigureRow, figures: Sequence[FigureRow]) -> str:
    """Why a figure may have got worse; "" for one that did not."""
    if not got_worse(figure):
        return ""
    fixed = None if figure["split"] else _on_fixed_solutions(figure, figures)
    if fixed is None:
        return str(figure["advice"] or figure["meaning"])
    change = f"On solutions that did not change: {_from_to(fixed)}."
    return change if got_worse(fixed) else f"{change} {HARDER}"


def _on_fixed_solutions(figure: FigureRow, figures: Sequence[FigureRow]) -> FigureRow | None:
    """The same metric of the same role on solutions that did not change, if it was measured before and after."""
    for other in figures:
        is_same_metric = other["who"] == figure["who"] and other["name"] == figure["name"]
        if is_same_metric and other["split"] == ON_FIXED:
            return other if other["before"] and other["after"] else None
    return None


def _first_headline(who: str, own: Sequence[FigureRow]) -> list[str]:
    """The first headline of a role that is no verifier."""
    for figure in own:
        if figure["headline"] and figure["before"] and figure["after"] and figure["change"]:
            what = WORDS.get(figure["name"])
            text = f"{_from_to(figure)} {what}" if what else f"{figure['label']} {_from_to(figure)}"
            return [f"{who.capitalize()}: {text} ({_change_words(figure)})."]
    return []


def _verifier_sentences(who: str, own: Sequence[FigureRow]) -> list[str]:
    """How well a verifier tells right from wrong, on solutions that did not change and on those of the solver next to
    it."""
    solutions = {ON_FIXED: "on solutions that did not change", "": "on those of its own generator"}  # by split
    parts = []
    for split, words in solutions.items():
        for figure in own:
            is_of_split = figure["name"] == VERDICT_METRIC and figure["split"] == split
            if is_of_split and figure["before"] and figure["after"]:
                parts.append(f"{words} {_from_to(figure)} ({_change_words(figure)})")
    if len(parts) == 1:
        parts[0] = parts[0].removeprefix("on those of its own generator ")
    return [f"{who.capitalize()}, in balanced accuracy (chance is 50): {', '.join(parts)}."] if parts else []


def _problems_tested(figures: Sequence[FigureRow]) -> int:
    """How many held-out problems there were: each has one greedy answer. 0 where that was not measured."""
    greedy = (figure for figure in figures if figure["name"] == "greedy" and not figure["split"] and figure["after"])
    return max((Estimate.from_json(figure["after"]).n for figure in greedy), default=0)


def _fooled_sentence(gap: FigureRow, problems: int) -> str:
    """Whether a verifier calls more right than is right."""
    who = f"The {gap['who']}" if gap["who"] else "It"
    after = Estimate.from_json(gap["after"])
    size = points_text(abs(after.value), share=True).removeprefix("+")
    bounds = difference_interval(after, share=True)
    if after.low > 0.0:
        return f"{who} is being fooled: it calls {size} points more of them right than are ({bounds})."
    if after.high < 0.0:
        return f"{who} is strict, not fooled: it calls {size} points fewer of them right than are ({bounds})."
    if after.high - after.low > 2 * WIDE:
        counted = f" ({problems})" if problems else ""
        return f"Too few problems{counted} to say whether {who[:1].lower()}{who[1:]} is fooled."
    return f"{who} is not shown to be fooled: right by its word minus right in truth is {bounds}."


def _choice_sentences(figures: Sequence[FigureRow]) -> list[str]:
    """The sentences that compare the verifier's choice among k answers with the vote and with one greedy answer."""
    at_the_end = {(f["who"], f["name"]): f for f in figures if f["after"] and not f["split"]}
    sentences = []
    for (who, name), best in at_the_end.items():
        method, _, count = name.partition("@")
        if method != "best" or not count.isdigit():
            continue
        weighted = at_the_end.get((who, f"weighted@{count}"))
        vote = at_the_end.get((who, f"majority@{count}"))
        greedy = at_the_end.get((who, "greedy"))
        if weighted and vote and greedy:
            number = NUMBER_WORDS.get(int(count), count)
            sentences.append(
                f"Of {number} answers, a vote weighted by the verifier's scores is right in {_end(weighted)}, the "
                f"answer that it scores highest in {_end(best)}, the most frequent one in {_end(vote)}; a single "
                f"greedy answer in {_end(greedy)}."
            )
    return sentences


def _end(figure: FigureRow) -> str:
    return number_text(Estimate.from_json(figure["after"]).value, share=bool(figure["share"]))


def _from_to(figure: FigureRow) -> str:
    """``39.9 % → 64.7 %``."""
    start = number_text(Estimate.from_json(figure["before"]).value, share=bool(figure["share"]))
    return f"{start} → {_end(figure)}"


def _change_words(figure: FigureRow) -> str:
    """``+20.1 to +29.5 points``, or that no change is shown."""
    if not figure["change"]:
        return "interval unknown"
    change = Estimate.from_json(figure["change"])
    bounds = difference_interval(change, share=bool(figure["share"]))
    return f"no change shown, {bounds}" if change.includes(0.0) else bounds
