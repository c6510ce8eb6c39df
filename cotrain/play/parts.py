"""Roles that several methods share: a solver that writes tagged steps and a verifier that judges each of them.

The embedded models were trained on short prompts without instructions; any other model is told the format in words.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cotrain.core.types import ParseFailure, Sampling
from cotrain.play.role import Role
from cotrain.text.parsers import Review, Solution, step_verdicts, tagged_solution
from cotrain.text.prompts import RATE, REVIEW, REVIEW_FULL, SOLVE, SOLVE_FULL

EMBEDDED = ("embedded", "embedded-format")  # the package's own models
FORMAT_MARK = "cotrain.json"


def speaks_short(model: str) -> bool:
    """Whether a model knows the formats without being told: the embedded ones, and directories that say so in the file
    that ``cotrain base`` and ``cotrain sft`` leave in them."""
    return model in EMBEDDED or (Path(model) / FORMAT_MARK).is_file()


def parse_solution(text: str, fields: Mapping[str, Any]) -> Solution | ParseFailure:
    return tagged_solution(text)


def parse_review(text: str, fields: Mapping[str, Any]) -> Review | ParseFailure:
    return step_verdicts(text, int(fields["count"]))


def solver(policy: str, model: str, *, max_tokens: int | None = None, temperature: float = 1.0) -> Role:
    """The role ``solver``: field ``problem``; parsed to a Solution."""
    short = speaks_short(model)
    sampling = Sampling(max_tokens=max_tokens or (160 if short else 768), temperature=temperature)
    return Role(policy=policy, prompt=SOLVE if short else SOLVE_FULL, parse=parse_solution, sampling=sampling)


def verifier(policy: str, model: str, *, max_tokens: int | None = None, temperature: float = 1.0) -> Role:
    """The role ``verifier``: fields ``problem``, ``solution`` and ``count`` (its steps); parsed to a Review."""
    short = speaks_short(model)
    sampling = Sampling(max_tokens=max_tokens or (208 if short else 1024), temperature=temperature)
    return Role(policy=policy, prompt=REVIEW if short else REVIEW_FULL, parse=parse_review, sampling=sampling)


def rater(policy: str) -> Role:
    """The role of a reward model: fields ``problem``, ``solution`` and ``reference``; answered with ``Turn.score``."""
    return Role(policy=policy, prompt=RATE, sampling=Sampling(max_tokens=1))
