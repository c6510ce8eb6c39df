"""Checks of a sampling request that every engine makes before it accepts it."""

from __future__ import annotations

from cotrain.core.errors import ConfigError, TooLong
from cotrain.engine.contract import Request


def check_request(request: Request, context: int, vocabulary: int) -> None:
    """Raise ConfigError when the request's policy cannot answer it, TooLong where its context is too short.

    ``context``: tokens of prompt and answer together; ``vocabulary``: number of token ids.
    """
    sampling, prompt = request.sampling, request.prompt_ids
    for wrong, problem in (
        (not prompt, "the prompt is empty; render at least one token"),
        (sampling.max_tokens < 1, f"max_tokens is {sampling.max_tokens}; it must be at least 1"),
        (not sampling.temperature >= 0, f"temperature is {sampling.temperature}; it must be 0 (greedy) or more"),
        (not 0 < sampling.top_p <= 1, f"top_p is {sampling.top_p}; it must be in (0, 1]"),
        (
            len(prompt) + sampling.max_tokens > context,
            f"prompt ({len(prompt)}) and max_tokens ({sampling.max_tokens}) exceed the context of {context};"
            " lower max_tokens or shorten the prompt",
        ),
        (
            bool(prompt) and not 0 <= min(prompt) <= max(prompt) < vocabulary,
            f"a prompt id is outside of the vocabulary of {vocabulary}; use the renderer of this policy",
        ),
        ("" in sampling.stop, "a stop string is empty; leave it out"),
        (
            bool(sampling.stop) and request.decode is None,
            "it has stop strings and no decode to find them in its text",
        ),
    ):
        if wrong:
            error = TooLong if "exceed the context" in problem else ConfigError
            raise error(f"request {request.address} to policy {request.policy!r}: {problem}")
