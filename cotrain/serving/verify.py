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

from cotrain.algorithms.functional.aggregate import majority, mean
from cotrain.core.seeding import make_nonce, seed_of
from cotrain.core.signals import DeclaredSignals
from cotrain.core.types import ParseFailure
from cotrain.formats import openai_requests as asked
from cotrain.formats.openai_requests import BadRequest
from cotrain.formats.solutions import Solution, tagged_solution, write_solution
from cotrain.rollout.context import RolloutContext
from cotrain.rollout.role import Turn
from cotrain.rollout.runner import Roles
from cotrain.rollout.verifier_roles import confidence, guarded_fields
from cotrain.serving.models import SERVED_STEP, ServedModel, ServedRun

MAX_REVIEWS = 64
_WORDS = {1.0: "CORRECT", 0.0: "INCORRECT", None: None}


async def verify_request(served: ServedRun, body: bytes) -> dict[str, Any]:
    """The answer to one request; see docs/serve.md for its fields. Raises BadRequest."""
    request_fields = asked.decode_body(body, asked.VERIFY)
    model = _find_verifier(served, asked.text_field(request_fields, "model"))
    problem = asked.text_field(request_fields, "problem")
    solution = _read_solution(request_fields)
    if problem is None:
        raise BadRequest("problem is missing; expected the problem's text", "problem", code="E_PROBLEM_MISSING")
    reference = asked.text_field(request_fields, "reference")
    if "reference" in model.prompt_fields and reference is None:
        raise BadRequest(
            f"reference is missing: {model.name!r} compares a solution with a known answer",
            "reference",
            code="E_REFERENCE_MISSING",
        )
    n = asked.integer_field(request_fields, "n", 1, MAX_REVIEWS) or 1
    temperature = asked.number_field(request_fields, "temperature", 0.0, 100.0)
    seed = asked.integer_field(request_fields, "seed", -(2**63), 2**63 - 1)
    served.check_length(model, [problem, solution, reference or ""], "solution")  # before anything reads them
    parsed = tagged_solution(solution)
    steps = parsed.steps if isinstance(parsed, Solution) else ()
    number = served.next_number()
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
        if temperature is None and n == 1:  # one review is greedy
            temperature = 0.0
        roles = _make_roles(served, model, seed, temperature)
        fields: dict[str, Any] = {"problem": problem, "count": len(steps), "solution": solution}
        if "nonce" in model.prompt_fields:
            fields |= guarded_fields(make_nonce(seed, "serve"), solution=solution)
        if reference is not None and "reference" in model.prompt_fields:
            fields["reference"] = reference
        served.check_capacity(n)
        turns = await served.engine.run_in_thread(_ask_verifier(roles, model.name, n, fields))

    to_result = _score_result if model.spec.scores else _review_result
    reviews = [to_result(turn) for turn in turns]
    return result | _combine_reviews(reviews, [step.text.strip() for step in steps])


def _find_verifier(served: ServedRun, name: str | None) -> ServedModel:
    """The role that was named, else ``verifier``, else the only one that judges."""
    verifiers = {model.name: model for model in served.models.values() if model.can_verify}
    if name is None:
        if "verifier" not in verifiers and len(verifiers) != 1:
            raise BadRequest(
                f"model is missing; roles that judge solutions: {', '.join(verifiers) or 'none'}",
                "model",
                code="E_MODEL_NOT_GIVEN",
            )
        return verifiers.get("verifier") or next(iter(verifiers.values()))
    model = served.find_model(name)
    if not model.can_verify:
        verifier_names = ", ".join(verifiers) or "none"
        raise BadRequest(
            f"model {name!r} does not judge a problem's solution; roles that do: {verifier_names}",
            "model",
            code="E_MODEL_DOES_NOT_JUDGE",
        )
    return model


def _read_solution(request_fields: Mapping[str, Any]) -> str:
    solution = asked.text_field(request_fields, "solution")
    steps = asked.text_list_field(request_fields, "steps")
    answer = asked.text_field(request_fields, "answer")
    if solution is None and steps is not None and answer is not None:
        return write_solution(steps, answer)
    if solution is None or steps is not None or answer is not None:
        raise BadRequest(
            "expected either solution, or steps (a list of texts) and answer", "solution", code="E_SOLUTION_OR_STEPS"
        )
    return solution


def _make_roles(served: ServedRun, model: ServedModel, seed: int, temperature: float | None) -> Roles:
    """The roles of one request. All have one address: what they draw depends on the seed alone."""
    trainer = served.trainer
    assert model.role is not None  # policies do not judge
    sampling = model.role.sampling if temperature is None else replace(model.role.sampling, temperature=temperature)
    stage = RolloutContext(
        engine=served.engine,
        renderers=trainer.policies.renderers,
        roles={model.name: replace(model.role, sampling=sampling)},
        seed=seed,
        split="serve",
        step=SERVED_STEP,
    )
    return Roles(stage, 0, 0, DeclaredSignals("verify", ()), task_id="", task_prompt="")


async def _ask_verifier(roles: Roles, role: str, n: int, fields: Mapping[str, Any]) -> list[Turn]:
    turns: list[Turn] = await getattr(roles, role).many(n, **fields)
    return turns


def _review_result(turn: Turn) -> dict[str, Any]:
    parsed = turn.parsed
    if not parsed.ok:
        result: dict[str, Any] = {"steps": [], "final": None, "probability": None, "failure": parsed.reason}
    else:
        final = None if parsed.final is None else float(parsed.final)
        result = {
            "steps": [float(ok) for ok in parsed.steps],
            "final": final,
            "probability": confidence(turn),
            "failure": None,
        }
    return {"text": turn.text, **result}


def _score_result(turn: Turn) -> dict[str, Any]:
    """A reward model's logit as a probability."""
    probability = 1.0 / (1.0 + math.exp(-max(-700.0, min(700.0, turn.score))))
    return {"text": "", "steps": [], "final": float(turn.score > 0), "probability": probability, "failure": None}


def _combine_reviews(reviews: Sequence[dict[str, Any]], texts: Sequence[str]) -> dict[str, Any]:
    """Verdicts of all reviews that could be read, step by step."""
    review_verdicts = [review["steps"] for review in reviews if review["steps"]]
    finals = [review["final"] for review in reviews if review["final"] is not None]
    votes = list(zip(*review_verdicts, strict=True)) if review_verdicts else [()] * len(texts)
    steps = []
    for text, step_votes in zip(texts, votes, strict=True):
        steps.append({"text": text, "verdict": _WORDS[majority(step_votes)], "share": mean(step_votes)})

    in_words = []
    for review in reviews:
        step_words = [_WORDS[step] for step in review["steps"]]
        in_words.append(review | {"steps": step_words, "final": _WORDS[review["final"]]})

    failures = [review["failure"] for review in reviews if review["failure"]]
    return {
        "steps": steps,
        "final": _WORDS[majority(finals)],
        "probability": mean([review["probability"] for review in reviews if review["probability"] is not None]),
        "failure": failures[0] if failures and not finals else None,
        "reviews": in_words,
    }
