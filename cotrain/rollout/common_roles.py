"""Roles that several methods share: a solver that writes tagged steps and a verifier that judges each of them.

The shipped models were trained on terse prompts without instructions. Any other model is told the format in words, and
is shown what it judges between markers with a nonce. So a role is made with the name of its model, to choose its
prompt. ``formats/sanitize.py`` says how the terse prompts are guarded.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from cotrain.core.errors import ConfigError, ModelError, first_line
from cotrain.core.input_files import parse_json, read_regular
from cotrain.core.shipped import SHIPPED_GAMES, SHIPPED_LANGUAGE_MODELS, how_to_get, shipped_folder
from cotrain.core.types import ParseFailure, Sampling
from cotrain.formats.solutions import VERDICT_WORDS, SelfCheck, parse_solution
from cotrain.prompts.templates import SOLVE, SOLVE_FULL
from cotrain.rollout.role import Parser, Role
from cotrain.storage.file_ops import replace_file

if TYPE_CHECKING:
    from cotrain.formats.role_replies import Query, Review

FORMAT_MARK = "cotrain.json"


def is_terse(model: str) -> bool:
    """Whether a model knows the formats without being told: the shipped ones, and directories and models of the Hub
    that say so in the file that ``python -m bases`` and ``cotrain sft`` leave in them."""
    return model in SHIPPED_LANGUAGE_MODELS or _mark_of(model).get("prompts") == "short"


def mark_terse_prompts(model: Path, taught: Sequence[str] = ()) -> None:
    """Write beside a model that it was taught the terse prompts; roles ask it without instructions then. ``taught``:
    methods whose own formats it was taught too."""
    mark: dict[str, Any] = {"prompts": "short"}
    if taught:
        mark["taught"] = list(taught)
    _add_to_mark(model, mark)


def taught_roles(model: str | Path) -> dict[str, dict[str, Any]]:
    """How the roles that a model was taught are asked and read, by their names; {} for a model that was taught none.
    ``model``: a directory, or a model of the Hub."""
    return dict(_mark_of(model).get("roles", {}))


def keep_taught_roles(model: Path, roles: Mapping[str, Mapping[str, Any]]) -> None:
    """Write beside a model how these roles of it are asked and read. Whoever uses the model takes it as the default."""
    if roles:
        _add_to_mark(model, {"roles": {name: dict(how) for name, how in roles.items()}})


def how_taught(role: Role) -> dict[str, Any] | None:
    """How a solver, or a verifier of steps, is asked and read, as a model directory keeps it; None for other roles."""
    if role.parse is parse_solution:
        return {"answer": role.answer_format, "steps_as": role.step_format, "prompt": role.prompt}
    if role.parse is parse_review:
        return {"verdict": role.verdict_format, "prompt": role.prompt}
    return None


def _mark_of(model: str | Path) -> dict[str, Any]:
    """Read the mark beside a model; {} where there is none. Raises ModelError for one that is damaged: without it the
    model would be asked and read otherwise than it was taught."""
    folder = _mark_folder(model)
    if folder is None or not os.path.lexists(folder / FORMAT_MARK):
        return {}
    path = folder / FORMAT_MARK
    try:
        mark = parse_json(read_regular(path))
    except (OSError, ValueError) as error:
        raise _damaged_mark(path, first_line(error)) from error
    roles = mark.get("roles", {}) if isinstance(mark, dict) else None
    if not isinstance(roles, dict) or not all(isinstance(how, dict) for how in roles.values()):
        raise _damaged_mark(path, "expected an object, with an object for each of its roles")
    return mark


def _damaged_mark(path: Path, why: str) -> ModelError:
    return ModelError(
        f"{path}: cannot be read ({why}); it says how the model's roles are asked and read: restore it, or remove it "
        "and give the formats by flags",
        code="E_MODEL_MARK_DAMAGED",
    )


def _mark_folder(model: str | Path) -> Path | None:
    """Where the mark of a model lies: in its directory, or for a model of the Hub among its small files in the cache.
    None where these cannot be had."""
    folder = Path(model).expanduser()
    if isinstance(model, Path) or "/" not in model or folder.exists():
        return folder
    from cotrain.models.names import hub_folder_with  # with the Hub's client, which models that are here do not need

    return hub_folder_with(model, FORMAT_MARK)


def _add_to_mark(model: Path, more: Mapping[str, Any]) -> None:
    mark = _mark_of(model) | dict(more)
    replace_file(model / FORMAT_MARK, (json.dumps(mark, ensure_ascii=False) + "\n").encode())


def check_taught(method: str, model: str) -> None:
    """Raise ConfigError for one of the package's models that was not taught the formats of a method's own game. Any
    other model is told them in words, or comes from whoever taught it."""
    if model not in SHIPPED_LANGUAGE_MODELS or method in _taught_methods(model):
        return
    if not shipped_folder(model).is_dir():
        return  # whoever loads it says that it is not here
    able = [name for name in SHIPPED_LANGUAGE_MODELS if method in _taught_methods(name)]
    if able:
        hint = f"expected {able[0]!r}"
    else:
        hint = f"the one that was is not here: {how_to_get(SHIPPED_GAMES)}"
    raise ConfigError(
        f"{method}: the model {model!r} was not taught the formats of this game; {hint}",
        code="E_MODEL_NOT_TAUGHT_FORMAT",
    )


@cache
def _taught_methods(model: str) -> tuple[str, ...]:
    """The methods that one of the package's models was taught, as its mark says."""
    mark = shipped_folder(model) / FORMAT_MARK
    if not mark.is_file():
        return ()
    return tuple(json.loads(mark.read_text(encoding="utf-8")).get("taught", ()))


def parse_review(text: str, fields: Mapping[str, Any]) -> Review | ParseFailure:
    from cotrain.formats.role_replies import step_verdicts

    return step_verdicts(text, int(fields["count"]))


class Prompt(NamedTuple):
    """A prompt, and the most tokens of an answer to it."""

    prompt: str
    max_tokens: int


def make_role(
    policy: str,
    model: str,
    *,
    terse: Prompt,
    full: Prompt,
    parse: Parser | None,
    words: tuple[str, ...] = (),
    max_tokens: int | None = None,
    temperature: float = 1.0,
) -> Role:
    """A role with the prompt that fits its model: ``terse`` for one that was taught the formats, ``full`` for others.

    ``max_tokens``: by default as the chosen prompt needs. ``words``: see ``Role``.
    """
    chosen = terse if is_terse(model) else full
    sampling = Sampling(max_tokens=max_tokens or chosen.max_tokens, temperature=temperature)
    return Role(policy=policy, prompt=chosen.prompt, parse=parse, sampling=sampling, words=words)


def solver(policy: str, model: str, *, max_tokens: int | None = None, temperature: float = 1.0) -> Role:
    """The role ``solver``: field ``problem``; parsed to a Solution."""
    return make_role(
        policy,
        model,
        terse=Prompt(SOLVE, 160),
        full=Prompt(SOLVE_FULL, 768),
        parse=parse_solution,
        max_tokens=max_tokens,
        temperature=temperature,
    )


def verifier(policy: str, model: str, *, max_tokens: int | None = None, temperature: float = 1.0) -> Role:
    """The role ``verifier``: fields ``problem``, ``solution`` and ``count`` (its steps); parsed to a Review."""
    from cotrain.formats.role_prompts import REVIEW, REVIEW_FULL

    return make_role(
        policy,
        model,
        terse=Prompt(REVIEW, 208),
        full=Prompt(REVIEW_FULL, 1024),
        parse=parse_review,
        words=VERDICT_WORDS,
        max_tokens=max_tokens,
        temperature=temperature,
    )


def rater(policy: str) -> Role:
    """The role of a reward model: fields ``problem``, ``solution`` and ``reference``; answered with ``Turn.score``."""
    from cotrain.formats.role_prompts import RATE

    return Role(policy=policy, prompt=RATE, sampling=Sampling(max_tokens=1))


def parse_self_check(text: str, fields: Mapping[str, Any]) -> SelfCheck | ParseFailure:
    from cotrain.formats.role_replies import self_check

    return self_check(text)


def parse_meta(text: str, fields: Mapping[str, Any]) -> Review | ParseFailure:
    from cotrain.formats.role_replies import meta_verdict

    return meta_verdict(text)


def parse_search(text: str, fields: Mapping[str, Any]) -> Query | ParseFailure:
    from cotrain.formats.role_replies import search_query

    return search_query(text)


# Roles that "shipped-roles" was taught, and of these "shipped-digest" planner and digester. The other shipped models
# are asked in the same words, which they were never taught.


def refiner(policy: str, model: str) -> Role:
    """Revises: fields ``problem``, ``solution`` and ``review``; parsed to a Solution."""
    from cotrain.formats.role_prompts import REFINE, REFINE_FULL

    return make_role(policy, model, terse=Prompt(REFINE, 160), full=Prompt(REFINE_FULL, 768), parse=parse_solution)


def self_checker(policy: str, model: str) -> Role:
    """A solver that reviews its own solution: field ``problem``; parsed to a SelfCheck."""
    from cotrain.formats.role_prompts import SELF_CHECK, SELF_CHECK_FULL

    terse = Prompt(SELF_CHECK, 368)
    full = Prompt(SELF_CHECK_FULL, 1792)
    return make_role(policy, model, terse=terse, full=full, parse=parse_self_check)


def meta_verifier(policy: str, model: str) -> Role:
    """Judges a review: fields ``problem``, ``solution`` and ``review``; parsed to a Review without steps."""
    from cotrain.formats.role_prompts import META, META_FULL

    terse = Prompt(META, 96)
    full = Prompt(META_FULL, 1024)
    return make_role(policy, model, terse=terse, full=full, parse=parse_meta, words=VERDICT_WORDS)


def planner(policy: str, model: str) -> Role:
    """Says what to search for: field ``question``; parsed to a Query."""
    from cotrain.formats.role_prompts import PLAN, PLAN_FULL

    return make_role(policy, model, terse=Prompt(PLAN, 32), full=Prompt(PLAN_FULL, 256), parse=parse_search)


def digester(policy: str, model: str) -> Role:
    """Picks what matters out of documents: fields ``documents`` and ``purpose``; not parsed."""
    from cotrain.formats.role_prompts import DIGEST, DIGEST_FULL

    return make_role(policy, model, terse=Prompt(DIGEST, 112), full=Prompt(DIGEST_FULL, 512), parse=None)
