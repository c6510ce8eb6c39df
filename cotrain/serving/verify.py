"""``/v1/verify``: a role of the run that judges solutions, asked about one problem and its solution as in training.

The body has ``problem`` and either ``solution``, a text with ``<step>`` and ``<answer>`` tags, or ``steps`` and
``answer``. ``n`` reviews are put together: verdicts by majority, probabilities by their mean. A solution or a review
that cannot be read is no error: the response says why, and a verdict of null is never a guess.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from cotrain.algorithms.functional.aggregate import majority, mean
from cotrain.core.seeding import make_nonce, seed_of
from cotrain.core.signals import DeclaredSignals
from cotrain.core.types import ParseFailure
from cotrain.formats import openai_requests
from cotrain.formats.openai_requests import BadRequest, integer_field, number_field, text_field, text_list_field
from cotrain.formats.solutions import Solution, tagged_solution, write_solution
from cotrain.rollout.context import RolloutContext
from cotrain.rollout.role import Turn
from cotrain.rollout.runner import Roles
from cotrain.rollout.verifier_roles import confidence, guarded_fields
from cotrain.serving.models import SERVED_STEP, ServedModel, ServedRun

MAX_REVIEWS = 64
VERDICT_WORDS = {1.0: "CORRECT", 0.0: "INCORRECT", None: None}


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyParams:
    """What a request asks for."""

    model: ServedModel
    problem: str
    solution: str
    reference: str | None  # a known answer, for a role that compares with one
    n: int  # reviews
    temperature: float | None  # None: the role's own, and 0 for a single review
    seed: int | None


async def verify_request(served: ServedRun, body: bytes) -> dict[str, Any]:
    """The response to one request; see docs/serve.md for its fields. Raises BadRequest."""
    params = _read_params(served, body)
    model = params.model
    parsed = tagged_solution(params.solution)
    number = served.next_number()

    turns: list[Turn] = []
    # A reward model reads a text as it is. A role that writes reviews is asked of each step, so it needs the steps.
    if isinstance(parsed, Solution) or model.spec.scores:
        seed = seed_of(served.trainer.recipe.seed, "serve", number) if params.seed is None else params.seed
        roles = _make_roles(served, params, seed)
        prompt_fields = _prompt_fields(params, parsed, seed)
        served.check_capacity(params.n)
        turns = await served.engine.run_in_thread(_ask_verifier(roles, model.name, params.n, prompt_fields))

    to_result = _score_result if model.spec.scores else _review_result
    reviews = [to_result(turn) for turn in turns]
    steps = parsed.steps if isinstance(parsed, Solution) else ()
    return {
        "id": f"verify-{number}",
        "object": "verification",
        "model": model.name,
        "answer": parsed.answer if isinstance(parsed, Solution) else None,
        "solution_failure": parsed.reason if isinstance(parsed, ParseFailure) else None,
        **_combine_reviews(reviews, [step.text.strip() for step in steps]),
    }


# -- Reading the request.


def _read_params(served: ServedRun, body: bytes) -> VerifyParams:
    fields = openai_requests.decode_body(body, openai_requests.VERIFY)
    model = _find_verifier(served, text_field(fields, "model"))
    problem = text_field(fields, "problem")
    solution = _read_solution(fields)
    if problem is None:
        raise BadRequest("problem is missing; expected the problem's text", "problem", code="E_PROBLEM_MISSING")
    reference = text_field(fields, "reference")
    if "reference" in model.prompt_fields and reference is None:
        raise BadRequest(
            f"reference is missing: {model.name!r} compares a solution with a known answer",
            "reference",
            code="E_REFERENCE_MISSING",
        )
    params = VerifyParams(
        model=model,
        problem=problem,
        solution=solution,
        reference=reference,
        n=integer_field(fields, "n", 1, MAX_REVIEWS) or 1,
        temperature=number_field(fields, "temperature", 0.0, 100.0),
        seed=integer_field(fields, "seed", -(2**63), 2**63 - 1),
    )
    served.check_length(model, [problem, solution, reference or ""], "solution")  # before anything reads them
    return params


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


def _read_solution(fields: Mapping[str, Any]) -> str:
    """The solution as one text in tags."""
    solution = text_field(fields, "solution")
    steps = text_list_field(fields, "steps")
    answer = text_field(fields, "answer")
    if solution is None and steps is not None and answer is not None:
        return write_solution(steps, answer)
    if solution is None or steps is not None or answer is not None:
        raise BadRequest(
            "expected either solution, or steps (a list of texts) and answer", "solution", code="E_SOLUTION_OR_STEPS"
        )
    return solution


# -- Asking the role.


def _make_roles(served: ServedRun, params: VerifyParams, seed: int) -> Roles:
    """The role of one request. All its reviews have one address: what they draw depends on the seed alone."""
    trainer = served.trainer
    model = params.model
    assert model.role is not None  # a policy alone has no prompt with a problem and a solution
    sampling = model.role.sampling
    if params.temperature is not None:
        sampling = replace(sampling, temperature=params.temperature)
    elif params.n == 1:
        sampling = replace(sampling, temperature=0.0)
    context = RolloutContext(
        engine=served.engine,
        renderers=trainer.policies.renderers,
        roles={model.name: replace(model.role, sampling=sampling)},
        seed=seed,
        split="serve",
        step=SERVED_STEP,
    )
    return Roles(context, 0, 0, DeclaredSignals("verify", ()), task_id="", task_prompt="")


def _prompt_fields(params: VerifyParams, parsed: Solution | ParseFailure, seed: int) -> dict[str, Any]:
    """The fields of the role's prompt."""
    steps = parsed.steps if isinstance(parsed, Solution) else ()
    fields: dict[str, Any] = {"problem": params.problem, "count": len(steps), "solution": params.solution}
    if "nonce" in params.model.prompt_fields:
        fields |= guarded_fields(make_nonce(seed, "serve"), solution=params.solution)
    if params.reference is not None and "reference" in params.model.prompt_fields:
        fields["reference"] = params.reference
    return fields


async def _ask_verifier(roles: Roles, role: str, n: int, fields: Mapping[str, Any]) -> list[Turn]:
    speaker = getattr(roles, role)  # a role is an attribute of ``Roles``
    turns: list[Turn] = await speaker.many(n, **fields)
    return turns


# -- What was said.


def _review_result(turn: Turn) -> dict[str, Any]:
    """A written review: a verdict on each step and a final one, 1.0 or 0.0 each."""
    review = turn.parsed
    if not review.ok:
        return {"text": turn.text, "steps": [], "final": None, "probability": None, "failure": review.reason}
    return {
        "text": turn.text,
        "steps": [float(is_right) for is_right in review.steps],
        "final": None if review.final is None else float(review.final),
        "probability": confidence(turn),
        "failure": None,
    }


def _score_result(turn: Turn) -> dict[str, Any]:
    """A reward model's score, with its sigmoid as the probability of CORRECT."""
    return {
        "text": "",
        "steps": [],
        "final": float(turn.score > 0),
        "probability": turn.score_probability,
        "failure": None,
    }


def _combine_reviews(reviews: Sequence[dict[str, Any]], texts: Sequence[str]) -> dict[str, Any]:
    """The verdicts of all reviews that could be read, step by step. ``texts``: those of the steps."""
    step_verdicts = [review["steps"] for review in reviews if review["steps"]]
    finals = [review["final"] for review in reviews if review["final"] is not None]
    probabilities = [review["probability"] for review in reviews if review["probability"] is not None]
    failures = [review["failure"] for review in reviews if review["failure"]]

    steps = []
    for index, text in enumerate(texts):
        votes = [verdicts[index] for verdicts in step_verdicts]
        steps.append({"text": text, "verdict": VERDICT_WORDS[majority(votes)], "share": mean(votes)})
    return {
        "steps": steps,
        "final": VERDICT_WORDS[majority(finals)],
        "probability": mean(probabilities),
        "failure": failures[0] if failures and not finals else None,
        "reviews": [_in_words(review) for review in reviews],
    }


def _in_words(review: dict[str, Any]) -> dict[str, Any]:
    step_words = [VERDICT_WORDS[verdict] for verdict in review["steps"]]
    return review | {"steps": step_words, "final": VERDICT_WORDS[review["final"]]}
