"""Generative verifiers as roles: one maker for each format, all parsed to the same small interface.

::

    nonce = roles.nonce(solution)
    review = await roles.judge(problem=task.prompt, **guarded_fields(nonce, solution=solution.text))
    if review.parsed.ok:
        review.parsed.final, review.parsed.score, review.parsed.steps, verdict_probabilities(review)

``final``, ``score`` and ``steps`` mean the same in every format (``formats/verdicts.py``), so a protocol need
not know which format its verifier has. Fields of the prompts::

    every format                      problem, nonce; reference where the role was made with one
    genrm, scored                     solution
    genprm                            solution, count (of steps)
    pairwise, thinkrm, gram           first, second
    grm                               responses, count (of responses)

``comparison_fields`` has those of a pair in every format.

Programs inside of a GenPRM review are run by ``rollout/tools/python.py``, where the protocol asks for it. To
judge one candidate several times, a protocol asks by ``roles.judge.many(n, …)`` and combines the verdicts by
``algorithms/functional/aggregate.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, Literal, TypedDict, Unpack

from cotrain.algorithms.functional.aggregate import aggregate
from cotrain.core.errors import ConfigError, UnknownName
from cotrain.core.shipped import SHIPPED_LANGUAGE_MODELS
from cotrain.core.types import ParseFailure, Sampling
from cotrain.formats import verifier_prompts as prompts
from cotrain.formats.nonce import wrap_all, wrap_text
from cotrain.formats.preferences import Preference, Ratings, read_gram, read_grm, read_rmr1, read_thinkrm
from cotrain.formats.role_prompts import COMPARE
from cotrain.formats.verdicts import Abstention, Verdict, read_genprm, read_genrm, read_score
from cotrain.rollout.common_roles import is_terse, verifier
from cotrain.rollout.role import Parser, Role, Turn

# -- what a verifier is shown, and what it said


def guarded_fields(nonce: str, **candidates: str | Sequence[str]) -> dict[str, str]:
    """Fields for a verifier's prompt: each text between markers with the ``nonce``, and the nonce itself.

    Several texts under one name become numbered blocks. Nothing else of a candidate should reach the prompt.
    """
    fields = {"nonce": nonce}
    for name, candidate in candidates.items():
        if isinstance(candidate, str):
            fields[name] = wrap_text(candidate, nonce, name)
        else:
            fields[name] = wrap_all(candidate, nonce)
    return fields


def fields_to_show(template_fields: Collection[str], nonce: str, **texts: str | Sequence[str]) -> dict[str, Any]:
    """Texts of others as fields of a prompt whose template has ``template_fields``: between markers with the
    ``nonce`` where the template has a field of that name, else as they are."""
    if "nonce" in template_fields:
        return dict(guarded_fields(nonce, **texts))
    return dict(texts)


def comparison_fields(template_fields: Collection[str], nonce: str, first: str, second: str) -> dict[str, Any]:
    """Fields that show a pair of texts to a verifier whose template has ``template_fields``."""
    texts: dict[str, Any] = {"first": first, "second": second, "responses": (first, second)}
    # A template takes first and second, or responses and count.
    needed = {name: text for name, text in texts.items() if name in template_fields}
    return {"count": 2, **fields_to_show(template_fields, nonce, **needed)}


def verdict_probabilities(turn: Turn) -> tuple[float, ...]:
    """Returns [K] P(Yes) of K step verdicts, [1] P(Yes) of one verdict, [1] P(A) of a comparison, [] for scores.

    A probability is p where the word was Yes and 1 − p where it was No, with p the probability with which it was
    sampled: the two words are taken to be all there is. Temperature and top-p have been applied to p
    (``Conversation.probability``). The turn's ``parsed`` must be ok."""
    verdicts = turn.parsed.steps or (turn.parsed.final,)
    spans = turn.parsed.spans
    probabilities = []
    # Scores have no word that was sampled, so no span.
    for span, is_yes in zip(spans, verdicts[: len(spans)], strict=True):
        p = turn.chat.probability(span)
        probabilities.append(p if is_yes else 1.0 - p)
    return tuple(probabilities)


def confidence(turn: Turn) -> float | None:
    """The probability of a right solution that a parsed turn stands for: of its final word where the format has one,
    else the product over the words of its steps, else the score that it wrote; None for a tie."""
    span = getattr(turn.parsed, "final_span", None)
    if span is not None:
        p = turn.chat.probability(span)
        return p if turn.parsed.final else 1.0 - p

    step_probabilities = verdict_probabilities(turn)
    if step_probabilities:
        return aggregate("product", step_probabilities)
    score: float | None = turn.parsed.score
    return score


# -- the roles


class VerifierOptions(TypedDict, total=False):
    """Options that every verifier takes."""

    max_tokens: int | None  # most tokens of a judgement; by default as its format needs
    temperature: float  # 1 by default
    reference: bool  # adds a field of that name to the prompt


def genrm(policy: str, model: str, *, direct: bool = False, **options: Unpack[VerifierOptions]) -> Role:
    """One verdict on a solution, to be read as P(Yes) with ``verdict_probabilities`` (GenRM, arXiv 2408.15240);
    ``direct``: without a chain of thought."""
    if direct:
        return _make_role(policy, model, prompts.GENRM_DIRECT, parse_genrm, 8, **options)
    return _make_role(policy, model, prompts.GENRM, parse_genrm, 1024, **options)


def genprm(policy: str, model: str, *, runs: bool = False, **options: Unpack[VerifierOptions]) -> Role:
    """A verdict on each of ``count`` steps (GenPRM, arXiv 2504.00891); ``runs``: its prompt says that
    its programs are run."""
    prompt = prompts.GENPRM_RUN if runs else prompts.GENPRM
    return _make_role(policy, model, prompt, parse_genprm, 2048, **options)


def scoring_verifier(policy: str, model: str, **options: Unpack[VerifierOptions]) -> Role:
    """0, 0.5 or 1 for a solution (DeepSeekMath-V2)."""
    return _make_role(policy, model, prompts.SCORE, parse_score, 1024, **options)


def pairwise(policy: str, model: str, **options: Unpack[VerifierOptions]) -> Role:
    """Which of two responses is better, by a rubric (RM-R1, arXiv 2505.02387)."""
    return _make_role(policy, model, prompts.RMR1, parse_rmr1, 2048, **options)


def grm(policy: str, model: str, **options: Unpack[VerifierOptions]) -> Role:
    """1 … 10 for each of ``count`` responses, by weighted principles (DeepSeek-GRM, arXiv 2504.02495)."""
    return _make_role(policy, model, prompts.GRM, parse_grm, 2048, **options)


def gram(policy: str, model: str, **options: Unpack[VerifierOptions]) -> Role:
    """Which of two responses is better, in one token (GRAM, arXiv 2506.14175)."""
    return _make_role(policy, model, prompts.GRAM, parse_gram, 8, **options)


def thinkrm(policy: str, model: str, *, graded: bool = False, **options: Unpack[VerifierOptions]) -> Role:
    """Which of two responses is better after a long thought; ``graded``: −3 … 3 (Think-RM, arXiv 2505.16265)."""
    if graded:
        return _make_role(policy, model, prompts.THINKRM_GRADED, parse_graded, 4096, **options)
    return _make_role(policy, model, prompts.THINKRM, parse_thinkrm, 4096, **options)


def _make_role(
    policy: str,
    model: str,
    prompt: str,
    parse: Parser,
    default_tokens: int,
    *,
    max_tokens: int | None = None,
    temperature: float = 1.0,
    reference: bool = False,
) -> Role:
    """Make a verifier. ``default_tokens``: most tokens of a judgement where ``max_tokens`` is None."""
    if model in SHIPPED_LANGUAGE_MODELS:
        raise ConfigError(
            f"policy {policy!r}: the model {model!r} knows only the formats of rollout/common_roles.py, and this "
            "format of reviews needs a chat model; choose another model, or leave the format out",
            code="E_JUDGE_NEEDS_CHAT_MODEL",
        )
    sampling = Sampling(max_tokens=max_tokens or default_tokens, temperature=temperature)
    template = prompts.with_reference(prompt) if reference else prompt
    return Role(policy=policy, prompt=template, parse=parse, sampling=sampling)


ReviewFormat = Literal["steps", "genrm", "genprm", "scored"]
REVIEW_FORMATS: dict[ReviewFormat, Callable[..., Role]] = {
    "steps": verifier,
    "genrm": genrm,
    "genprm": genprm,
    "scored": scoring_verifier,
}
JUDGE_STEPS: frozenset[ReviewFormat] = frozenset({"steps", "genprm"})  # formats of reviews with a verdict on each step


def verifier_role(policy: str, model: str, form: ReviewFormat = "steps") -> Role:
    """A role that judges one solution, in one of ``REVIEW_FORMATS``. Raises UnknownName, and ConfigError for a model
    that does not know the format."""
    if form not in REVIEW_FORMATS:
        raise UnknownName("format of a review", form, REVIEW_FORMATS)
    return REVIEW_FORMATS[form](policy, model)


Comparison = Literal["gram", "rmr1", "thinkrm", "graded", "grm"]
COMPARISONS: dict[Comparison, Callable[..., Role]] = {
    "gram": gram,
    "rmr1": pairwise,
    "thinkrm": thinkrm,
    "graded": partial(thinkrm, graded=True),
    "grm": grm,
}


def comparer(policy: str, model: str, form: Comparison = "gram") -> Role:
    """A role that says which of two responses is better, in one of ``COMPARISONS``.

    Models that know the terse prompts are asked by one, for the letter alone ("gram") or for a thought before it
    ("thinkrm"). Raises UnknownName, and ConfigError for a model that does not know the format.
    """
    if form not in COMPARISONS:
        raise UnknownName("format of a comparison", form, COMPARISONS)
    if is_terse(model) and form == "gram":
        return Role(policy=policy, prompt=COMPARE, parse=parse_gram, sampling=Sampling(max_tokens=8))
    if is_terse(model) and form == "thinkrm":
        return Role(policy=policy, prompt=COMPARE, parse=parse_thinkrm, sampling=Sampling(max_tokens=96))
    return COMPARISONS[form](policy, model)


def checker_role(policy: str, prompt: str) -> Role:
    """The role of a Python program that says Yes or No of a solution. It does not read ``prompt``, which only shows in
    the ledger."""
    return Role(policy=policy, prompt=prompt, parse=parse_genrm, sampling=Sampling(max_tokens=32))


# -- their parsers. A saved recipe holds the name of a parser's function, so that each format has a named one.


def parse_genrm(text: str, fields: Mapping[str, Any]) -> Verdict | Abstention | ParseFailure:
    return read_genrm(text)


def parse_genprm(text: str, fields: Mapping[str, Any]) -> Verdict | Abstention | ParseFailure:
    return read_genprm(text, int(fields["count"]))


def parse_score(text: str, fields: Mapping[str, Any]) -> Verdict | Abstention | ParseFailure:
    return read_score(text)


def parse_rmr1(text: str, fields: Mapping[str, Any]) -> Preference | Abstention | ParseFailure:
    return read_rmr1(text)


def parse_thinkrm(text: str, fields: Mapping[str, Any]) -> Preference | Abstention | ParseFailure:
    return read_thinkrm(text)


def parse_graded(text: str, fields: Mapping[str, Any]) -> Preference | Abstention | ParseFailure:
    return read_thinkrm(text, graded=True)


def parse_grm(text: str, fields: Mapping[str, Any]) -> Ratings | Abstention | ParseFailure:
    return read_grm(text, int(fields["count"]))


def parse_gram(text: str, fields: Mapping[str, Any]) -> Preference | ParseFailure:
    return read_gram(text)
