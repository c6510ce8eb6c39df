"""Responses in OpenAI's JSON, made from sampled choices. Functions of tokens run in the engine's thread."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cotrain.formats.openai_requests import RequestParams
from cotrain.prompts.render import Renderer
from cotrain.serving.models import Alternatives, Choice, ServedModel


def usage_json(choices: Sequence[Choice]) -> dict[str, int]:
    """Prompts are counted once each, however many choices they have."""
    distinct_prompts = {id(choice.prompt_ids): choice.prompt_ids for choice in choices}
    prompts = sum(map(len, distinct_prompts.values()))
    sampled = sum(len(choice.token_ids) for choice in choices)
    return {"prompt_tokens": prompts, "completion_tokens": sampled, "total_tokens": prompts + sampled}


def chat_choice(renderer: Renderer, choice: Choice, index: int) -> dict[str, Any]:
    spoken = renderer.offsets(choice.token_ids)  # tokens behind a stop string's beginning are not shown
    content = None
    if choice.logprobs is not None:
        shown = [k for k, end in enumerate(spoken) if end <= len(choice.text) or choice.finish == "length"]
        content = [_chat_token(renderer, choice.token_ids[k], *choice.logprobs[k]) for k in shown]
    return {
        "index": index,
        "message": {"role": "assistant", "content": choice.text, "refusal": None},
        "finish_reason": choice.finish,
        "logprobs": None if content is None else {"content": content, "refusal": None},
    }


def text_choice(
    renderer: Renderer, choice: Choice, index: int, params: RequestParams, prompt: str | None
) -> dict[str, Any]:
    """``prompt``: the text of the prompt, where it was given as text."""
    text = choice.text
    ids = choice.token_ids
    unknown: list[tuple[float | None, Alternatives | None]] = []
    if params.echo:
        text = (renderer.decode(choice.prompt_ids) if prompt is None else prompt) + text
        ids = (*choice.prompt_ids, *ids)
        unknown.append((None, None))  # the first token of a prompt has no probability

    logprobs = None
    if choice.logprobs is not None:
        values: list[tuple[float | None, Alternatives | None]] = [*unknown, *choice.logprobs]
        top_logprobs: list[dict[str, float] | None] = []
        for token, (logprob, best) in zip(ids, values, strict=True):
            if logprob is None or best is None:
                top_logprobs.append(None)
            else:
                top_logprobs.append({token_text(renderer, other): p for other, p in [*best, (token, logprob)]})
        logprobs = {
            "tokens": [token_text(renderer, token) for token in ids],
            "token_logprobs": [logprob for logprob, _ in values],
            "top_logprobs": top_logprobs,
            "text_offset": [0, *renderer.offsets(ids)][: len(ids)],
        }

    row = {"index": index, "text": text, "finish_reason": choice.finish, "logprobs": logprobs}
    if params.ids:
        row["token_ids"] = list(choice.token_ids)
    return row


def token_text(renderer: Renderer, token: int) -> str:
    """The text of a single token, control tokens included; ``token_id:N`` for one that is no text on its own."""
    text = renderer.tokenizer.decode([token], skip_special_tokens=False, clean_up_tokenization_spaces=False)
    if not isinstance(text, str) or not text or "\ufffd" in text:
        return f"token_id:{token}"
    return text


def model_json(entry: ServedModel, created: int) -> dict[str, Any]:
    """An entry of ``/v1/models``; what is not OpenAI's is under "cotrain"."""
    ours = {
        "role": None if entry.role is None else entry.name,
        "policy": entry.policy,
        "chat": entry.can_chat,
        "completions": entry.spec.generates,
        "verify": entry.can_verify,
        "max_tokens": entry.sampling.max_tokens,
        "temperature": entry.sampling.temperature,
    }
    return {"id": entry.name, "object": "model", "created": created, "owned_by": "cotrain", "cotrain": ours}


def _chat_token(renderer: Renderer, token: int, logprob: float, best: Alternatives) -> dict[str, Any]:
    return _token_json(renderer, token, logprob) | {"top_logprobs": [_token_json(renderer, *pair) for pair in best]}


def _token_json(renderer: Renderer, token: int, logprob: float) -> dict[str, Any]:
    text = token_text(renderer, token)
    is_text = not text.startswith("token_id:")
    return {"token": text, "logprob": logprob, "bytes": list(text.encode()) if is_text else None}
