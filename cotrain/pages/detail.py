"""One rollout with all that is known of it: every trace, its tokens with log-probabilities and mask, its rewards by
source.

Token texts come from the tokenizer of the policy that spoke, where its ``tokenizer.json`` is on this machine; else the
page shades the ids.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from cotrain.core.entropy import from_text, nats
from cotrain.core.notes import PROBLEM
from cotrain.disk.floats import decode_floats
from cotrain.pages.curves import number
from cotrain.pages.rollouts import Json, Weights, address_of

ASSETS = Path(__file__).resolve().parent.parent / "assets"
NAME = "tokenizer.json"


def detail(
    episode: Json, models: Mapping[str, str], weights: Weights, due: Json | None = None, *, tokens: int = 64
) -> dict[str, Any]:
    """The rollout as a page wants it. ``models``: policy → the model it began with; ``due``: objectives of its step's
    phase, as ``due_in`` has them; ``tokens``: of how many traces, the speeches before the reviews, each token is
    told."""
    traces = [trace for trace in episode.get("traces", ()) if isinstance(trace, dict)]
    traces.sort(key=lambda trace: trace.get("parent") is not None)
    problem = next((t["parsed"][PROBLEM.name] for t in traces if t["parsed"].get(PROBLEM.name)), None)
    return {
        "step": episode["step"],
        "task": episode["task"],
        "member": episode["member"],
        "task_id": episode.get("task_id"),
        "failure": episode.get("failure"),
        "problem": problem,
        "traces": [
            _trace(trace, models, weights, place < tokens) | {"learned": learned_from(trace, due)}
            for place, trace in enumerate(traces)
        ],
    }


def learned_from(trace: Json, due: Json | None) -> str:
    """Is this trace in training? "yes", or "no" with the reason. What was learned from has advantages in the
    ledger."""
    if trace.get("failure"):
        return f"no: {trace['failure']}"
    if runs := [run for runs in trace.get("advantages", {}).values() for run in runs]:
        return "yes" if any(value for value, _ in runs) else "yes, but its advantage is 0"
    if due is None:
        return "no: nothing was learned from it"
    mine = [name for name, objective in due.items() if trace.get("role") in _roles(objective)]
    if mine:
        return f"no: {' and '.join(mine)} took no advantage from it, as from a group whose rewards are all equal"
    trained = dict.fromkeys(str(objective.get("policy")) for objective in due.values())
    return f"no: this step trained {' and '.join(trained) or 'nothing'} on other turns"


def due_in(recipe: Json, phase: str) -> dict[str, Json] | None:
    """The objectives of a phase by name, as ``recipe.json`` has them; None where it does not name the phase."""
    settings = _inside(recipe, "settings")
    phases, known = _inside(settings, "schedule").get("phases"), _inside(settings, "objectives")
    for one in phases if isinstance(phases, list) else ():
        if isinstance(one, dict) and one.get("name") == phase and isinstance(one.get("objectives"), list):
            return {name: known[name] for name in one["objectives"] if isinstance(known.get(name), dict)}
    return None


def _roles(objective: Json) -> Sequence[str]:
    on = objective.get("on")
    return on if isinstance(on, list) else [str(on)]


def _trace(trace: Json, models: Mapping[str, str], weights: Weights, tokens: bool) -> dict[str, Any]:
    kept = ("role", "policy", "version", "group", "text", "finish", "failure", "parsed", "truth", "parent", "score")
    found = {name: trace.get(name) for name in kept} | {"address": address_of(trace), "signals": trace["signals"]}
    found |= {"prompt_tokens": len(trace["prompt_ids"]), "token_count": len(trace["token_ids"])}
    found |= {"turns": trace.get("turns") or [], "weights": dict(weights.get(str(trace.get("role")), {}))}
    if tokens:
        logprobs = decode_floats(str(trace["logprobs"]))
        found["logprobs"] = [round(value, 3) if value == value and abs(value) < 1e6 else None for value in logprobs]
        found["entropies"] = _entropies(trace)
        found["ids"] = trace["token_ids"]
        found["tokens"] = _pieces(trace["token_ids"], models.get(str(trace.get("policy")), ""))
        found["advantages"] = {
            str(objective): _in_place(trace, runs) for objective, runs in trace.get("advantages", {}).items()
        }
    return found


def _entropies(trace: Json) -> list[float] | None:
    """In nats, of each token; None where the engine did not tell them."""
    try:
        levels = from_text(str(trace.get("entropies", "")))
    except ValueError:
        return None
    return [round(nats(level), 3) for level in levels] or None


def _in_place(trace: Json, runs: Sequence[Sequence[float]]) -> list[float | None]:
    """Advantages of the sampled tokens, runs of equal ones, at their places among all tokens; None for those that were
    given."""
    advantages = [value for value, many in runs for _ in range(int(many))]
    count = len(trace["token_ids"])
    spans = [(turn[0], turn[1]) for turn in trace.get("turns") or [[0, count]]]
    sampled = [at for start, end in spans for at in range(start, end)]
    found: list[float | None] = [None] * count
    for at, value in zip(sampled, advantages, strict=False):
        found[at] = value if abs(value) < 1e30 else None
    return found


def _pieces(ids: Sequence[int], model: str) -> list[str]:
    tokenizer = _tokenizer(model)
    if tokenizer is None:
        return [f"#{number}" for number in ids]
    return [tokenizer.decode([number], skip_special_tokens=False) for number in ids]


@lru_cache(maxsize=8)
def _tokenizer(model: str) -> Any | None:
    """None where the file is not here or cannot be read; nothing is downloaded."""
    path = _place(model)
    if path is None:
        return None
    from tokenizers import Tokenizer

    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # tokenizers raises bare ones
        if type(error) is not Exception:
            raise
        return None


def _place(model: str) -> Path | None:
    if model.startswith("embedded"):
        path = ASSETS / model.replace("embedded", "base", 1) / NAME
    else:
        path = Path(model).expanduser() / NAME
    if path.is_file():
        return path
    if not model or model.count("/") > 1 or model.startswith((".", "/", "~")):
        return None
    from huggingface_hub import try_to_load_from_cache

    try:
        found = try_to_load_from_cache(model, NAME)
    except ValueError:  # no name of the Hub
        return None
    return Path(found) if isinstance(found, str) else None


def models_of(recipe: Json) -> dict[str, str]:
    """policy → model, as ``recipe.json`` says."""
    policies = _inside(recipe, "settings", "policies")
    named = {str(name): entry.get("model") for name, entry in policies.items() if isinstance(entry, dict)}
    return {name: model for name, model in named.items() if isinstance(model, str)}


def weights_of(recipe: Json) -> dict[str, dict[str, float]]:
    """role → signal → weight, of the objectives that learn from this role; a weight that changes counts as it
    begins."""
    found: dict[str, dict[str, float]] = {}
    for objective in _inside(recipe, "settings", "objectives").values():
        rewards = _inside(objective, "by", "rewards") if isinstance(objective, dict) else {}
        for name, weight in rewards.items():
            value = weight.get("start") if isinstance(weight, dict) else weight
            if (finite := number(value)) is not None:
                found.setdefault(str(objective.get("on")), {})[str(name)] = finite
    return found


def _inside(saved: Json, *names: str) -> Json:
    for name in names:
        entry = saved.get(name)
        saved = entry if isinstance(entry, dict) else {}
    return saved


def dumped(value: Any) -> bytes:
    """JSON that every browser reads: NaN and infinities in what a model's parser found become words."""
    try:
        return json.dumps(value, separators=(",", ":"), allow_nan=False).encode("ascii")
    except ValueError:
        return json.dumps(_finite(value), separators=(",", ":"), allow_nan=False).encode("ascii")


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(entry) for entry in value]
    return str(value) if isinstance(value, float) and value - value != 0 else value
