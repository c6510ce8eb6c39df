"""Roles that several methods share: a solver that writes tagged steps and a verifier that judges each of them.

The shipped models were trained on short prompts without instructions; any other model is told the format in words, and
is shown what it judges between markers with a nonce. ``formats/sanitize.py`` says how the short prompts are guarded.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cotrain.core.errors import ConfigError
from cotrain.core.shipped import SHIPPED_GAMES, SHIPPED_LANGUAGE_MODELS, how_to_get, shipped_folder
from cotrain.core.types import ParseFailure, Sampling
from cotrain.formats.solutions import VERDICT_WORDS, SelfCheck, parse_solution
from cotrain.prompts.templates import SOLVE, SOLVE_FULL
from cotrain.rollout.role import Parser, Role

if TYPE_CHECKING:
    from cotrain.formats.role_replies import Query, Review

FORMAT_MARK = "cotrain.json"


def is_terse(model: str) -> bool:
    """Whether a model knows the formats without being told: the shipped ones, and directories and models of the Hub
    that say so in the file that ``python -m bases`` and ``cotrain sft`` leave in them."""
    return model in SHIPPED_LANGUAGE_MODELS or _mark_of(model).get("prompts") == "short"


def mark_terse_prompts(model: Path, taught: Sequence[str] = ()) -> None:
    """Note beside a model that it was taught the short prompts; roles ask it without instructions then. ``taught``:
    methods whose own formats it was taught too."""
    _add_to_mark(model, {"prompts": "short"} | ({"taught": list(taught)} if taught else {}))


def taught_roles(model: str | Path) -> dict[str, dict[str, Any]]:
    """How the roles are asked and read that a model, a directory or one of the Hub, was taught, by their names; {} for
    any other model."""
    roles = _mark_of(model).get("roles")
    return {name: how for name, how in roles.items() if isinstance(how, dict)} if isinstance(roles, dict) else {}


def keep_taught_roles(model: Path, roles: Mapping[str, Mapping[str, Any]]) -> None:
    """Note beside a model how these roles of it are asked and read. Whoever uses the model takes it as the default."""
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
    """What stands beside a model; {} for nothing, and for what cannot be read."""
    folder = _mark_folder(model)
    if folder is None:
        return {}
    try:
        mark = json.loads((folder / FORMAT_MARK).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return mark if isinstance(mark, dict) else {}


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
    (model / FORMAT_MARK).write_text(json.dumps(mark, ensure_ascii=False) + "\n", encoding="utf-8")


def check_taught(method: str, model: str) -> None:
    """Raise ConfigError for one of the package's models that was not taught the formats of a method's own game. Any
    other model is told them in words, or comes from whoever taught it."""
    if model in SHIPPED_LANGUAGE_MODELS and method not in _taught_methods(model):
        if not shipped_folder(model).is_dir():
            return  # whoever loads it says that it is not here
        able = [name for name in SHIPPED_LANGUAGE_MODELS if method in _taught_methods(name)]
        hint = f"expected {able[0]!r}" if able else f"the one that was is not here: {how_to_get(SHIPPED_GAMES)}"
        raise ConfigError(
            f"{method}: the model {model!r} was not taught the formats of this game; {hint}",
            code="E_MODEL_NOT_TAUGHT_FORMAT",
        )


@cache
def _taught_methods(model: str) -> tuple[str, ...]:
    """What the mark of one of the package's models says."""
    mark = shipped_folder(model) / FORMAT_MARK
    if not mark.is_file():
        return ()
    return tuple(json.loads(mark.read_text(encoding="utf-8")).get("taught", ()))


def parse_review(text: str, fields: Mapping[str, Any]) -> Review | ParseFailure:
    from cotrain.formats.role_replies import step_verdicts

    return step_verdicts(text, int(fields["count"]))


def solver(policy: str, model: str, *, max_tokens: int | None = None, temperature: float = 1.0) -> Role:
    """The role ``solver``: field ``problem``; parsed to a Solution."""
    prompts = (SOLVE, SOLVE_FULL)
    return _make_role(policy, model, prompts, (160, 768), parse_solution, (), max_tokens, temperature)


def verifier(policy: str, model: str, *, max_tokens: int | None = None, temperature: float = 1.0) -> Role:
    """The role ``verifier``: fields ``problem``, ``solution`` and ``count`` (its steps); parsed to a Review."""
    from cotrain.formats.role_prompts import REVIEW, REVIEW_FULL

    prompts = (REVIEW, REVIEW_FULL)
    return _make_role(policy, model, prompts, (208, 1024), parse_review, VERDICT_WORDS, max_tokens, temperature)


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


# Roles of "shipped-roles", of which "shipped-digest" keeps planner and digester; the other shipped models are asked
# in the same words and have never heard them.


def refiner(policy: str, model: str) -> Role:
    """Revises: fields ``problem``, ``solution`` and ``review``; parsed to a Solution."""
    from cotrain.formats.role_prompts import REFINE, REFINE_FULL

    return _make_role(policy, model, (REFINE, REFINE_FULL), (160, 768), parse_solution)


def self_checker(policy: str, model: str) -> Role:
    """A solver that reviews its own solution: field ``problem``; parsed to a SelfCheck."""
    from cotrain.formats.role_prompts import SELF_CHECK, SELF_CHECK_FULL

    return _make_role(policy, model, (SELF_CHECK, SELF_CHECK_FULL), (368, 1792), parse_self_check)


def meta_verifier(policy: str, model: str) -> Role:
    """Judges a review: fields ``problem``, ``solution`` and ``review``; parsed to a Review without steps."""
    from cotrain.formats.role_prompts import META, META_FULL

    return _make_role(policy, model, (META, META_FULL), (96, 1024), parse_meta, VERDICT_WORDS)


def planner(policy: str, model: str) -> Role:
    """Says what to search for: field ``question``; parsed to a Query."""
    from cotrain.formats.role_prompts import PLAN, PLAN_FULL

    return _make_role(policy, model, (PLAN, PLAN_FULL), (32, 256), parse_search)


def digester(policy: str, model: str) -> Role:
    """Picks what matters out of documents: fields ``documents`` and ``purpose``; not parsed."""
    from cotrain.formats.role_prompts import DIGEST, DIGEST_FULL

    return _make_role(policy, model, (DIGEST, DIGEST_FULL), (112, 512), None)


def _make_role(
    policy: str,
    model: str,
    prompts: tuple[str, str],
    tokens: tuple[int, int],
    parse: Parser | None,
    words: tuple[str, ...] = (),
    max_tokens: int | None = None,
    temperature: float = 1.0,
) -> Role:
    """``prompts`` and ``tokens``: for models that know the formats, and for any other."""
    full = not is_terse(model)
    sampling = Sampling(max_tokens=max_tokens or tokens[full], temperature=temperature)
    return Role(policy=policy, prompt=prompts[full], parse=parse, sampling=sampling, words=words)
