"""Responses in OpenAI's JSON, made from sampled choices. Functions of tokens run in the engine's thread.

``Chat`` and ``Completion`` are the two forms of a response: as one JSON, or as a stream of pieces.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from cotrain.formats.openai_requests import RequestParams
from cotrain.prompts.render import Renderer
from cotrain.serving.models import Alternatives, Choice, ServedModel


class ResponseForm(Protocol):
    """How choices are written in a response."""

    id_prefix: str
    object_name: str  # of a response that is one JSON
    piece_name: str  # of each event of a stream
    has_first_event: bool  # a stream begins with an event of each choice, before its first text

    def choice(self, renderer: Renderer, choice: Choice, index: int) -> dict[str, Any]: ...

    def first_event(self, index: int) -> dict[str, Any]: ...

    def text_event(self, index: int, text: str) -> dict[str, Any]: ...

    def last_event(self, index: int, finish: str) -> dict[str, Any]: ...


class Chat:
    """The responses of ``/v1/chat/completions``."""

    id_prefix = "chatcmpl"
    object_name = "chat.completion"
    piece_name = "chat.completion.chunk"
    has_first_event = True

    def choice(self, renderer: Renderer, choice: Choice, index: int) -> dict[str, Any]:
        return {
            "index": index,
            "message": {"role": "assistant", "content": choice.text, "refusal": None},
            "finish_reason": choice.finish,
            "logprobs": None if choice.logprobs is None else _chat_logprobs(renderer, choice, choice.logprobs),
        }

    def first_event(self, index: int) -> dict[str, Any]:
        return self._event(index, {"role": "assistant", "content": ""}, None)

    def text_event(self, index: int, text: str) -> dict[str, Any]:
        return self._event(index, {"content": text}, None)

    def last_event(self, index: int, finish: str) -> dict[str, Any]:
        return self._event(index, {}, finish)

    def _event(self, index: int, delta: dict[str, str], finish: str | None) -> dict[str, Any]:
        return {"index": index, "delta": delta, "finish_reason": finish, "logprobs": None}


class Completion:
    """The responses of ``/v1/completions``. ``prompts``: as the client gave them, as texts or token ids."""

    id_prefix = "cmpl"
    object_name = "text_completion"
    piece_name = "text_completion"
    has_first_event = False

    def __init__(self, params: RequestParams, prompts: Sequence[str | tuple[int, ...]]) -> None:
        self._params = params
        self._prompts = prompts

    def choice(self, renderer: Renderer, choice: Choice, index: int) -> dict[str, Any]:
        prompt = self._prompts[index // self._params.n]
        return text_choice(renderer, choice, index, self._params, prompt if isinstance(prompt, str) else None)

    def first_event(self, index: int) -> dict[str, Any]:
        raise NotImplementedError("a stream of completions begins with text")

    def text_event(self, index: int, text: str) -> dict[str, Any]:
        return {"index": index, "text": text, "finish_reason": None, "logprobs": None}

    def last_event(self, index: int, finish: str) -> dict[str, Any]:
        return {"index": index, "text": "", "finish_reason": finish, "logprobs": None}


def text_choice(
    renderer: Renderer, choice: Choice, index: int, params: RequestParams, prompt: str | None
) -> dict[str, Any]:
    """A choice of ``/v1/completions``. ``prompt``: the text of the prompt, where it was given as text."""
    text = choice.text
    token_ids = choice.token_ids
    if params.echo:
        prompt_text = renderer.decode(choice.prompt_ids) if prompt is None else prompt
        text = prompt_text + text
        token_ids = (*choice.prompt_ids, *token_ids)
    row = {
        "index": index,
        "text": text,
        "finish_reason": choice.finish,
        "logprobs": None
        if choice.logprobs is None
        else _text_logprobs(renderer, token_ids, choice.logprobs, is_echoed=params.echo),
    }
    if params.ids:
        row["token_ids"] = list(choice.token_ids)
    return row


def _text_logprobs(
    renderer: Renderer, token_ids: Sequence[int], known: list[tuple[float, Alternatives]], *, is_echoed: bool
) -> dict[str, Any]:
    """The log-probabilities of tokens, each list with an entry a token. With the prompt in front, its first token has
    none."""
    logprobs: list[float | None] = [logprob for logprob, _ in known]
    alternatives: list[dict[str, float] | None] = []
    if is_echoed:
        logprobs.insert(0, None)
        alternatives.append(None)
    for (logprob, best), token in zip(known, token_ids[len(alternatives) :], strict=True):
        alternatives.append({token_text(renderer, other): p for other, p in [*best, (token, logprob)]})
    return {
        "tokens": [token_text(renderer, token) for token in token_ids],
        "token_logprobs": logprobs,
        "top_logprobs": alternatives,
        "text_offset": [0, *renderer.offsets(token_ids)][: len(token_ids)],
    }


def _chat_logprobs(renderer: Renderer, choice: Choice, known: list[tuple[float, Alternatives]]) -> dict[str, Any]:
    """The log-probabilities of the tokens whose text is shown: those of a stop string are not."""
    ends = renderer.offsets(choice.token_ids)  # [T] where each token's text ends, in characters
    content = []
    for token, end, (logprob, best) in zip(choice.token_ids, ends, known, strict=True):
        is_shown = end <= len(choice.text) or choice.finish == "length"
        if is_shown:
            alternatives = [_token_json(renderer, other, p) for other, p in best]
            content.append(_token_json(renderer, token, logprob) | {"top_logprobs": alternatives})
    return {"content": content, "refusal": None}


def _token_json(renderer: Renderer, token: int, logprob: float) -> dict[str, Any]:
    text = token_text(renderer, token)
    is_text = not text.startswith("token_id:")
    return {"token": text, "logprob": logprob, "bytes": list(text.encode()) if is_text else None}


def token_text(renderer: Renderer, token: int) -> str:
    """The text of a single token, control tokens included; ``token_id:N`` for one that is no text on its own."""
    text = renderer.tokenizer.decode([token], skip_special_tokens=False, clean_up_tokenization_spaces=False)
    if not isinstance(text, str) or not text or "\ufffd" in text:
        return f"token_id:{token}"
    return text


def usage_json(choices: Sequence[Choice]) -> dict[str, int]:
    """How many tokens were read and sampled. Each prompt is counted once, however many choices it has."""
    distinct_prompts = {id(choice.prompt_ids): choice.prompt_ids for choice in choices}
    prompt_tokens = sum(map(len, distinct_prompts.values()))
    sampled_tokens = sum(len(choice.token_ids) for choice in choices)
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": sampled_tokens,
        "total_tokens": prompt_tokens + sampled_tokens,
    }


def model_json(model: ServedModel, created: int) -> dict[str, Any]:
    """An entry of ``/v1/models``; what is not OpenAI's is under "cotrain"."""
    ours = {
        "role": None if model.role is None else model.name,
        "policy": model.policy,
        "chat": model.can_chat,
        "completions": model.spec.generates,
        "verify": model.can_verify,
        "max_tokens": model.sampling.max_tokens,
        "temperature": model.sampling.temperature,
    }
    return {"id": model.name, "object": "model", "created": created, "owned_by": "cotrain", "cotrain": ours}
