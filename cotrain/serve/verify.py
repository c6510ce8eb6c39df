"""``/v1/verify``: a problem and its solution before a judging role of the run, as in training.

The body has ``problem`` and either ``solution``, a text with ``<step>`` and ``<answer>`` tags, or ``steps`` and
``answer``. ``n`` reviews are put together: verdicts by majority, probabilities by their mean. A solution or a review
that cannot be read is an answer with its reason and no error: verdicts are three-valued, and null is never a guess.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from cotrain.core.address import seed_of
from cotrain.core.signals import Declared
from cotrain.core.types import ParseFailure
from cotrain.functional.aggregate import majority, mean
from cotrain.rollout.executor import Roles, Stage
from cotrain.rollout.judges import confidence, shown
from cotrain.rollout.role import Turn
from cotrain.serve import asked
from cotrain.serve.asked import BadRequest
from cotrain.serve.models import SERVED_STEP, Model, Served
from cotrain.text.nonce import nonce
from cotrain.text.parsers import Solution, tagged_solution, write_solution

MAX_REVIEWS = 64
_WORDS = {1.0: "CORRECT", 0.0: "INCORRECT", None: None}


async def verify(served: Served, body: bytes) -> dict[str, Any]:
    """The answer to one request; see docs/serve.md for its fields. Raises BadRequest."""
    found = asked.decode(body, asked.VERIFY)
    model = _judge(served, asked.text(found, "model"))
    problem, solution = asked.text(found, "problem"), _solution(found)
    if problem is None:
        raise BadRequest("problem is missing; expected the problem's text", "problem")
    reference = asked.text(found, "reference")
    if "reference" in model.fields and reference is None:
        raise BadRequest(f"reference is missing: {model.name!r} compares a solution with a known answer", "reference")
    n = asked.integer(found, "n", 1, MAX_REVIEWS) or 1
    temperature = asked.real(found, "temperature", 0.0, 100.0)
    seed = asked.integer(found, "seed", -(2**63), 2**63 - 1)
    parsed = tagged_solution(solution)
    steps = parsed.steps if isinstance(parsed, Solution) else ()
    number = served.number()
    result = {
        "id": f"verify-{number}",
        "object": "verification",
        "model": model.name,
        "answer": parsed.answer if isinstance(parsed, Solution) else None,
        "solution_failure": parsed.reason if isinstance(parsed, ParseFailure) else None,
    }
    turns: list[Turn] = []
    if isinstance(parsed, Solution) or model.spec.scores:
        seed = seed_of(served.trainer.recipe.seed, "serve", number) if seed is None else seed
        roles = _roles(served, model, seed, (0.0 if n == 1 else None) if temperature is None else temperature)
        fields: dict[str, Any] = {"problem": problem, "count": len(steps), "solution": solution}
        if "nonce" in model.fields:
            fields |= shown(nonce(seed, "serve"), solution=solution)
        if reference is not None and "reference" in model.fields:
            fields["reference"] = reference
        served.measure(model, [problem, solution, reference or ""], "solution")
        served.admit(n)
        turns = await served.engine.do(_ask(roles, model.name, n, fields))
    reviews = [_scored(turn) if model.spec.scores else _review(turn) for turn in turns]
    return result | _together(reviews, [step.text.strip() for step in steps])


def _judge(served: Served, name: str | None) -> Model:
    """The role that was named, else ``verifier``, else the only one that judges."""
    judges = {model.name: model for model in served.models.values() if model.judges}
    if name is None:
        if "verifier" not in judges and len(judges) != 1:
            raise BadRequest(f"model is missing; roles that judge solutions: {', '.join(judges) or 'none'}", "model")
        return judges.get("verifier") or next(iter(judges.values()))
    model = served.find(name)
    if not model.judges:
        there = ", ".join(judges) or "none"
        raise BadRequest(f"model {name!r} does not judge a problem's solution; roles that do: {there}", "model")
    return model


def _solution(found: Mapping[str, Any]) -> str:
    solution, steps, answer = asked.text(found, "solution"), asked.texts(found, "steps"), asked.text(found, "answer")
    if solution is None and steps is not None and answer is not None:
        return write_solution(steps, answer)
    if solution is None or steps is not None or answer is not None:
        raise BadRequest("expected either solution, or steps (a list of texts) and answer", "solution")
    return solution


def _roles(served: Served, model: Model, seed: int, temperature: float | None) -> Roles:
    """The roles of one request. All have one address: what they draw depends on the seed alone."""
    trainer = served.trainer
    assert model.role is not None  # policies do not judge
    sampling = model.role.sampling if temperature is None else replace(model.role.sampling, temperature=temperature)
    stage = Stage(
        engine=served.engine,
        renderers=trainer.policies.renderers,
        roles={model.name: replace(model.role, sampling=sampling)},
        grader=None,
        seed=seed,
        split="serve",
        step=SERVED_STEP,
    )
    return Roles(stage, 0, 0, Declared("verify", ()))


async def _ask(roles: Roles, role: str, n: int, fields: Mapping[str, Any]) -> list[Turn]:
    turns: list[Turn] = await getattr(roles, role).many(n, **fields)
    return turns


def _review(turn: Turn) -> dict[str, Any]:
    read = turn.parsed
    if not read.ok:
        said: dict[str, Any] = {"steps": [], "final": None, "probability": None, "failure": read.reason}
    else:
        final = None if read.final is None else float(read.final)
        said = {
            "steps": [float(ok) for ok in read.steps],
            "final": final,
            "probability": confidence(turn),
            "failure": None,
        }
    return {"text": turn.text, **said}


def _scored(turn: Turn) -> dict[str, Any]:
    """A reward model's logit as a probability."""
    probability = 1.0 / (1.0 + math.exp(-max(-700.0, min(700.0, turn.score))))
    return {"text": "", "steps": [], "final": float(turn.score > 0), "probability": probability, "failure": None}


def _together(reviews: Sequence[dict[str, Any]], texts: Sequence[str]) -> dict[str, Any]:
    """Verdicts of all reviews that could be read, step by step."""
    review_verdicts = [review["steps"] for review in reviews if review["steps"]]
    finals = [review["final"] for review in reviews if review["final"] is not None]
    votes = list(zip(*review_verdicts, strict=True)) if review_verdicts else [()] * len(texts)
    return {
        "steps": [
            {"text": text, "verdict": _WORDS[majority(said)], "share": mean(said)}
            for text, said in zip(texts, votes, strict=True)
        ],
        "final": _WORDS[majority(finals)],
        "probability": mean([r["probability"] for r in reviews if r["probability"] is not None]),
        "failure": None if finals else next((r["failure"] for r in reviews if r["failure"]), None),
        "reviews": [r | {"steps": [_WORDS[step] for step in r["steps"]], "final": _WORDS[r["final"]]} for r in reviews],
    }
