"""The name that was meant by one that nobody knows: another one since a renaming, or one with typing errors."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

RENAMED: dict[str, tuple[str, ...]] = {  # name of before → names that took its place; which one, the known names say
    # Parameters of recipes, of a comparison and of a study, and their flags.
    "among": ("target_split",),
    "answer": ("answer_format",),
    "band": ("solver_band",),
    "blend": ("advantage_mix",),
    "judge": ("review_format",),
    "lag": ("async_steps",),
    "learned": ("sft_on",),
    "over": ("overlong_penalty", "history"),
    "overlooked": ("false_negative_rate",),
    "proposals": ("proposer_group_size",),
    "pull": ("teacher_kl",),
    "restart": ("reset",),
    "settings": ("overrides", "RunConfig"),
    "shown": ("example_rate", "example"),
    "shown_share": ("example_rate",),
    "still": ("frozen_agent",),
    "target": ("target_rate",),
    # Fields of a recipe's parts, which `--set` names.
    "after": ("edit_after",),
    "also": ("extra_roles",),
    "before": ("edit_before",),
    "beside": ("baseline_roles",),
    "by": ("algorithm", "sampling"),
    "coefficient": ("weight",),
    "fixed": ("frozen_roles", "uniform_operations"),
    "implied": ("implicit_rewards",),
    "label": ("class_label",),
    "merge": ("sum_rewards_first",),
    "on": ("role",),
    "restart_every": ("reset_every",),
    "restart_weights": ("reset_to_start",),
    "rewards": ("reward_weights",),
    "steps": ("step_format",),
    "verdict": ("verdict_format",),
    # Values.
    "embedded": ("shipped", "local"),
    "nobody": ("none",),
    # Names of the package.
    "kl": ("KLPenalty",),
}


def current_name(name: str, known: Iterable[str]) -> str | None:
    """The name of today of what was called ``name`` before, as it is spelled among the ``known`` ones; None where it
    was not renamed, or is known as it is."""
    names = {_plain_spelling(known_name): known_name for known_name in known}
    typed = _plain_spelling(str(name))
    if typed in names:
        return None
    todays = [_plain_spelling(today) for today in RENAMED.get(typed, ())]
    return next((names[today] for today in todays if today in names), None)


def with_current_names(values: Mapping[str, Any], known: Iterable[str]) -> dict[str, Any]:
    """The values, those that were called otherwise before by their names among the ``known`` ones. A value whose name
    of today is there already keeps its own."""
    names = list(known)
    renamed = {}
    for name, value in values.items():
        today = current_name(name, names)
        renamed[name if today is None or today in values else today] = value
    return renamed


LONG_NAME = 4  # letters; any three are near some word


def nearest_name(name: str, known: Iterable[str]) -> str | None:
    """The name that was probably meant, whatever its case, with ``-`` as good as ``_``; None when nothing is near.

    Where the name was renamed, it is the one of today (``RENAMED``). Else these are near, the first kind that there is:

    0. the end of the given one behind a slash (``gap`` of ``verifier/gap``);
    1. names with at most two typing errors, a name of before counted as the one of today (``anwser``, which is near
       ``answer``, means ``answer-format``);
    2. names that the given one shortens: it is their beginning (``temp`` of ``temperature``), or some of their words
       (``size`` of ``group-size``);
    3. names that it shortens with at most two typing errors (``evalutaion`` of ``evaluation-tasks``);
    4. names with more typing errors.

    There is at most one typing error for each three letters."""
    known = list(known)
    current = current_name(name, known)
    if current is not None:
        return current

    names = {_plain_spelling(known_name): known_name for known_name in known}
    typed = _plain_spelling(str(name))
    without_owner = [known_name for known_name in names if typed.endswith(f"/{known_name}")]
    if without_owner:
        return names[max(without_owner, key=len)]

    allowed = max(1, (len(typed) + 1) // 3)
    distances = {known_name: _typing_errors(typed, known_name) for known_name in names}
    mistyped = [known_name for known_name, errors in distances.items() if errors <= allowed]
    close = [known_name for known_name in mistyped if distances[known_name] <= 2]
    if close:
        return names[_least(distances, close)]

    old_distances = {old: _typing_errors(typed, old) for old in RENAMED if len(old) >= LONG_NAME}
    old_names = [old for old, errors in old_distances.items() if errors <= min(2, allowed) and current_name(old, known)]
    if old_names:
        return current_name(_least(old_distances, old_names), known)

    shortened = [known_name for known_name in names if _shortens(typed, known_name)]
    if shortened:
        return names[_least(distances, shortened)]

    part_distances = {known_name: _typing_errors_in_part(typed, known_name) for known_name in names}
    near_parts = [known_name for known_name, errors in part_distances.items() if errors <= min(2, allowed)]
    if near_parts and len(typed) >= LONG_NAME:
        return names[_least(part_distances, near_parts)]
    return names[_least(distances, mistyped)] if mistyped else None


def _least(distances: Mapping[str, int], names: Iterable[str]) -> str:
    """The nearest of these names, the first in the alphabet among equals."""
    return min(names, key=lambda name: (distances[name], name))


def _plain_spelling(name: str) -> str:
    return name.casefold().replace("-", "_")


def _typing_errors_in_part(typed: str, name: str) -> int:
    """The typing errors of a name against that run of words of a longer name which it is nearest to, of as many words:
    1 of ``anwser`` in ``answer_format``. All letters of both where there is no such run."""
    n_words = typed.count("_") + 1
    words = name.split("_")
    runs = ["_".join(words[start : start + n_words]) for start in range(len(words) - n_words + 1)]
    return min((_typing_errors(typed, run) for run in runs), default=len(typed) + len(name))


def nearest_file(name: str, known: Iterable[str]) -> str | None:
    """``nearest_name`` of names of files, without their endings, which many files share."""
    names = {known_name.partition(".")[0]: known_name for known_name in sorted(known, reverse=True)}
    near = nearest_name(name.partition(".")[0], names)
    return None if near is None else names[near]


def _shortens(typed: str, name: str) -> bool:
    words, all_words = (set(re.split(r"[\W_]+", text)) for text in (typed, name))
    is_beginning = len(typed) >= 3 and name.startswith(typed)
    return is_beginning or words < all_words


def _typing_errors(one: str, other: str) -> int:
    """How many letters are too many, missing, others or swapped with their neighbour between two words (optimal string
    alignment)."""
    before: list[int] = []
    last = list(range(len(other) + 1))
    for i, letter in enumerate(one, start=1):
        row = [i]
        for j, other_letter in enumerate(other, start=1):
            errors = min(last[j] + 1, row[j - 1] + 1, last[j - 1] + (letter != other_letter))
            is_swap = i > 1 and j > 1 and (letter, one[i - 2]) == (other[j - 2], other_letter)
            row.append(min(errors, before[j - 2] + 1) if is_swap else errors)
        before = last
        last = row
    return last[-1]
