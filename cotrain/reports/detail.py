"""One rollout in full, for the viewer: every trace, its tokens with log-probabilities and mask, its rewards by source.

Token texts come from the tokenizer of the policy that wrote them, if its ``tokenizer.json`` is on this machine; else
the page shows token ids.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from cotrain.core.entropy import from_text, nats_of
from cotrain.core.notes import PROBLEM
from cotrain.reports.curves import finite_number
from cotrain.reports.rollouts import Json, Weights, address_text
from cotrain.storage.episode_json import PLAIN_FIELDS, decode_floats

ASSETS = Path(__file__).resolve().parent.parent / "assets"
TOKENIZER_FILE = "tokenizer.json"


def rollout_detail(
    episode: Json, models: Mapping[str, str], weights: Weights, objectives: Json | None = None, *, tokens: int = 64
) -> dict[str, Any]:
    """The rollout as a page wants it.

    Args:
        models: policy → the model it began with.
        objectives: those of its step's phase, as ``objectives_in_phase`` has them.
        tokens: the number of traces whose tokens are included; solutions come before reviews.
    """
    traces = [trace for trace in episode.get("traces", ()) if isinstance(trace, dict)]
    traces.sort(key=lambda trace: trace.get("parent") is not None)  # reviews last
    problems = [trace["findings"].get(PROBLEM.name) for trace in traces]
    problem = next((problem for problem in problems if problem), None)
    details = []
    for index, trace in enumerate(traces):
        detail = _trace_detail(trace, models, weights, with_tokens=index < tokens)
        details.append({**detail, "learned": training_status(trace, objectives)})
    return {
        "step": episode["step"],
        "task": episode["task"],
        "member": episode["member"],
        "task_id": episode.get("task_id"),
        "failure": episode.get("failure"),
        "problem": problem,
        "traces": details,
    }


def training_status(trace: Json, objectives: Json | None) -> str:
    """Whether this trace was trained on: "yes", or "no" with the reason. The ledger has advantages of those that were.

    ``objectives``: see ``rollout_detail``; None if they are unknown.
    """
    if trace.get("failure"):
        return f"no: {trace['failure']}"
    advantages = []  # (value, number of tokens in a row that have it), of all objectives
    for of_objective in trace.get("advantages", {}).values():
        advantages += of_objective
    if advantages:
        return "yes" if any(value for value, _ in advantages) else "yes, but its advantage is 0"
    if objectives is None:
        return "no: nothing was learned from it"
    of_role = [name for name, objective in objectives.items() if trace.get("role") in _roles_of_objective(objective)]
    if of_role:
        why = "as from a group whose rewards are all equal" if trace.get("rewards") else "as it has no reward"
        return f"no: {' and '.join(of_role)} took no advantage from it, {why}"
    trained = dict.fromkeys(str(objective.get("policy")) for objective in objectives.values())
    return f"no: this step trained {' and '.join(trained) or 'nothing'} on other turns"


def objectives_in_phase(recipe: Json, phase: str) -> dict[str, Json] | None:
    """The objectives of a phase by name, as ``recipe.json`` has them; None where it does not name the phase."""
    settings = _nested_mapping(recipe, "settings")
    phases = _nested_mapping(settings, "schedule").get("phases")
    objectives = _nested_mapping(settings, "objectives")
    if not isinstance(phases, list):
        return None
    for saved_phase in phases:
        names = saved_phase.get("objectives") if isinstance(saved_phase, dict) else None
        if isinstance(names, list) and saved_phase.get("name") == phase:
            return {name: objectives[name] for name in names if isinstance(objectives.get(name), dict)}
    return None


def _roles_of_objective(objective: Json) -> Sequence[str]:
    role = objective.get("role")
    extra = objective.get("extra_roles")
    roles = list(role) if isinstance(role, list) else [str(role)]
    if isinstance(extra, list):
        roles += extra
    return roles


def _rounded_or_none(value: float) -> float | None:
    """To three digits; None for what is no number, or far too large for a log-probability."""
    if math.isnan(value) or abs(value) >= 1e6:
        return None
    return round(value, 3)


def _trace_detail(trace: Json, models: Mapping[str, str], weights: Weights, *, with_tokens: bool) -> dict[str, Any]:
    record = {name: trace.get(name) for name in PLAIN_FIELDS}
    record["address"] = address_text(trace)
    record["rewards"] = trace["rewards"]
    record["prompt_tokens"] = len(trace["prompt_ids"])
    record["token_count"] = len(trace["token_ids"])
    record["turns"] = trace.get("turns") or []
    record["weights"] = dict(weights.get(str(trace.get("role")), {}))
    if with_tokens:
        logprobs = decode_floats(str(trace["logprobs"]))
        record["logprobs"] = [_rounded_or_none(value) for value in logprobs]
        record["entropies"] = _entropies_in_nats(trace)
        record["ids"] = trace["token_ids"]
        record["tokens"] = _token_texts(trace["token_ids"], models.get(str(trace.get("policy")), ""))
        record["advantages"] = {
            str(objective): _align_advantages(trace, runs) for objective, runs in trace.get("advantages", {}).items()
        }
    return record


def _entropies_in_nats(trace: Json) -> list[float] | None:
    """The entropy of each token in nats; None if the engine did not report them."""
    try:
        levels = from_text(str(trace.get("entropies", "")))
    except ValueError:
        return None
    return [round(nats_of(level), 3) for level in levels] or None


def _align_advantages(trace: Json, runs: Sequence[Sequence[float]]) -> list[float | None]:
    """An advantage for each token, None for those that were not sampled. ``runs``: (value, number of sampled tokens in
    a row that have it)."""
    advantages: list[float] = []
    for value, n_tokens in runs:
        advantages += [value] * int(n_tokens)
    count = len(trace["token_ids"])
    sampled: list[int] = []  # indices of the sampled tokens
    for start, end, *_ in trace.get("turns") or [[0, count]]:
        sampled += range(start, end)
    aligned: list[float | None] = [None] * count
    for index, value in zip(sampled, advantages, strict=False):
        aligned[index] = value if abs(value) < 1e30 else None  # a page draws no larger number
    return aligned


def _token_texts(ids: Sequence[int], model: str) -> list[str]:
    tokenizer = _load_tokenizer(model)
    if tokenizer is None:
        return [f"#{number}" for number in ids]
    return [tokenizer.decode([number], skip_special_tokens=False) for number in ids]


@lru_cache(maxsize=8)
def _load_tokenizer(model: str) -> Any | None:
    """The tokenizer of a model; None if its file is not on this machine, or cannot be read. Nothing is downloaded."""
    path = _tokenizer_file(model)
    if path is None:
        return None
    from tokenizers import Tokenizer

    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:
        if type(error) is not Exception:  # the library raises Exception itself for a damaged file
            raise
        return None


def _tokenizer_file(model: str) -> Path | None:
    """The file of a shipped model, of a folder, or of a model of the Hub in the cache; None if it is not there."""
    if model.startswith("shipped"):
        path = ASSETS / model.replace("shipped", "base", 1) / TOKENIZER_FILE
    else:
        path = Path(model).expanduser() / TOKENIZER_FILE
    if path.is_file():
        return path
    is_hub_name = bool(model) and model.count("/") <= 1 and not model.startswith((".", "/", "~"))
    if not is_hub_name:
        return None
    from huggingface_hub import try_to_load_from_cache

    try:
        cached_path = try_to_load_from_cache(model, TOKENIZER_FILE)
    except ValueError:  # no name of the Hub
        return None
    return Path(cached_path) if isinstance(cached_path, str) else None


def models_of(recipe: Json) -> dict[str, str]:
    """policy → model, as ``recipe.json`` says."""
    policies = _nested_mapping(recipe, "settings", "policies")
    named = {str(name): entry.get("model") for name, entry in policies.items() if isinstance(entry, dict)}
    return {name: model for name, model in named.items() if isinstance(model, str)}


def reward_weights(recipe: Json) -> dict[str, dict[str, float]]:
    """role → signal → its weight in the objectives that learn from this role. Of a weight that changes during the run,
    the value at the start."""
    weights: dict[str, dict[str, float]] = {}
    for objective in _nested_mapping(recipe, "settings", "objectives").values():
        rewards = _nested_mapping(objective, "algorithm", "reward_weights") if isinstance(objective, dict) else {}
        for name, weight in rewards.items():
            value = finite_number(weight.get("start") if isinstance(weight, dict) else weight)
            if value is None:
                continue
            for role in _roles_of_objective(objective):
                weights.setdefault(role, {})[str(name)] = value
    return weights


def _nested_mapping(saved: Json, *names: str) -> Json:
    """``saved[name][name]…``, or {} if there is no mapping."""
    for name in names:
        entry = saved.get(name)
        saved = entry if isinstance(entry, dict) else {}
    return saved


def dump_json(value: Any) -> bytes:
    """JSON that every browser reads: NaN and infinities, which a parser may have found, become texts."""
    try:
        return json.dumps(value, separators=(",", ":"), allow_nan=False).encode("ascii")
    except ValueError:
        return json.dumps(_replace_nonfinite(value), separators=(",", ":"), allow_nan=False).encode("ascii")


def _replace_nonfinite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _replace_nonfinite(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_replace_nonfinite(entry) for entry in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
