"""Errors that a user can act on: what was expected, what was found, where, and what to change.

``UserError`` and its children end a command with one line and exit code 2; anything else is a bug and keeps its
traceback. Each also subclasses the standard error that fits, so that library users can catch the usual types.

Each error also has a code, such as ``E_GROUP_TOO_SMALL``, for programs and tests. It is where the error is raised::

    raise ConfigError(f"clip_norm is {norm}, expected a norm above 0", code="E_CLIP_NORM")

A sentence may be rewritten at any time; the code stays. One code means one thing, wherever that is found, and belongs
to one class. An error that is raised again with other words, or with a place in front, keeps the code of its cause.
Left out: a table of all codes, which would be far from the lines that raise them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping


def install_extra(extra: str) -> str:
    """How an optional part of the package is installed: from its source, since no package index has it."""
    return f"pip install -e '.[{extra}]' in the source of cotrain"


class CotrainError(Exception):
    """Base of every error that cotrain raises on purpose."""

    code = "E_COTRAIN"  # what an error of this class has that is raised without a code, as by a user's own recipe

    def __init__(self, *parts: object, code: str | None = None) -> None:
        super().__init__(*parts)
        if code is not None:
            self.code = code


class UserError(CotrainError):
    """Bad input: the message is one line that says what is wrong, where, and what to do."""

    code = "E_INPUT"


class ConfigError(UserError, ValueError):
    """A recipe, flag or ``--set`` value that makes no sense."""

    code = "E_CONFIG"


class TooLong(ConfigError):
    """A prompt that does not fit into its model's context together with the tokens of its answer."""

    code = "E_PROMPT_TOO_LONG"


class UnknownName(UserError, LookupError):
    """A name that is not in a list; says which names there are and which is nearest. Its code is made of the kind:
    ``E_UNKNOWN_ROLE`` for a "role", and for a "role of suite 'gsm8k'" too."""

    def __init__(self, kind: str, name: str, known: Iterable[str], *, code: str | None = None) -> None:
        self.kind = kind
        self.name = name
        self.known = sorted(known)
        super().__init__(unknown_message(kind, name, self.known), code=code or unknown_code(kind))

    def __reduce__(self) -> tuple[type[UnknownName], tuple[str, str, list[str]], dict[str, str]]:
        return (UnknownName, (self.kind, self.name, self.known), {"code": self.code})


class DataError(UserError, ValueError):
    """A data file that cannot be read: file, row and column, what was expected."""

    code = "E_DATA"


class RowError(DataError):
    """One row of a data file that cannot be read, where the others may be."""

    code = "E_ROW"


class ModelError(UserError, ValueError):
    """A model directory or Hub name that cannot be used."""

    code = "E_MODEL"


class RunDirectoryError(UserError, FileExistsError):
    """A run directory that is in use, is not one, or does not belong to this recipe."""

    code = "E_RUN_DIRECTORY"


class StateError(CotrainError, ValueError):
    """Saved state that does not fit: missing or unknown fields, or a hash that does not match."""

    code = "E_STATE"


class TooManyFailures(CotrainError):
    """Most episodes of a step failed: something is wrong that training on the rest would hide."""

    code = "E_TOO_MANY_FAILURES"


class ServerSilent(TooManyFailures):
    """Most of what a server was asked had no answer: nothing is wrong with the run, which goes on when it answers."""

    code = "E_SERVER_SILENT"


class ProcessLost(CotrainError):
    """A process that the run counts on is gone or silent: killed, out of memory, or past its deadline. What it held is
    lost; the step can be made again from the newest checkpoint."""

    code = "E_PROCESS_LOST"


class EngineLost(ProcessLost):
    """The process of an engine is lost. It held nothing but copies of weights: the rollouts can be sampled again at
    once."""

    code = "E_ENGINE_LOST"


class RankShort(ProcessLost):
    """A rank had too little memory for a pass, in which the others wait for it: all begin again with smaller ones."""

    code = "E_RANK_MEMORY"

    def __init__(self, rank: int, world: int, micro_tokens: int, policy: str = "") -> None:
        """``micro_tokens``: of a pass from now on; ``policy``: whose passes, "" where it is not known yet."""
        super().__init__(rank, world, micro_tokens, policy)
        self.rank = rank
        self.world = world
        self.micro_tokens = micro_tokens
        self.policy = policy

    def __str__(self) -> str:
        return (
            f"rank {self.rank} of {self.world} had too little memory for a pass of policy {self.policy!r}; all go on "
            f"with passes of {self.micro_tokens} tokens"
        )


def error_text(error: BaseException) -> str:
    """Return an error's message in one line: the words alone of an error that cotrain raised, else ``KeyError:
    'vote'``. Errors without words, or whose words cannot be read, have a line, too."""
    try:
        words = " ".join(str(error).split())
    except Exception:  # noqa: BLE001  an exception of a user's own may be anything
        words = "its text cannot be had"
    if isinstance(error, CotrainError) and words:
        return words
    return f"{type(error).__name__}: {words or 'without a message'}"


def first_line(error: BaseException) -> str:
    """The first line of an error's message; its class name where the message is empty."""
    return (str(error).strip() or type(error).__name__).splitlines()[0].strip()


SHOWN = 100  # names that a message lists before it only counts them


def unknown_message(kind: str, name: str, known: Iterable[str]) -> str:
    """``unknown recipe 'tanog'; did you mean 'tango'? (there are: grpo, tango)``"""
    names = sorted(set(known))
    near = nearest_name(name, names)
    hint = f"; did you mean {near!r}?" if near else ""
    if near and near == current_name(name, names):
        hint = f"; it is called {near!r} now"
    more = f" … and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return f"unknown {kind} {name!r}{hint} (there are: {', '.join(names[:SHOWN]) or 'none'}{more})"


def unknown_code(kind: str) -> str:
    """The code of an unknown name: of the first words of its kind, up to where it is said of what or in what."""
    head = re.split(r" of | in | on | that | \(|[:=]|, ", kind)[0]
    words = re.findall(r"[a-z]+", head.lower())
    return "_".join(["E_UNKNOWN", *(word.upper() for word in words)])


RENAMED: dict[str, tuple[str, ...]] = {  # name of before → names that took its place; which one, the known names say
    # Parameters of recipes, of a comparison and of a study, and their flags.
    "answer": ("answer_format",),
    "band": ("solver_band",),
    "blend": ("advantage_mix",),
    "judge": ("review_format",),
    "lag": ("async_steps",),
    "proposals": ("proposer_group_size",),
    "restart": ("reset",),
    "settings": ("overrides", "RunConfig"),
    "target": ("target_rate",),
    # Fields of a recipe's parts, which `--set` names.
    "after": ("edit_after",),
    "also": ("extra_roles",),
    "before": ("edit_before",),
    "beside": ("baseline_roles",),
    "by": ("algorithm",),
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


def nearest_name(name: str, known: Iterable[str]) -> str | None:
    """The name that was probably meant, whatever its case, with ``-`` as good as ``_``; None when nothing is near.

    Where the name was renamed, it is the one of today (``RENAMED``). Else these are near, the first kind that there is:

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


LONG_NAME = 4  # letters: any three are near some word


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
