"""Episodes and traces as JSON, and back. Everything round-trips exactly; NaN and infinities are Python's JSON literals.

Fields of a trace that are written in a form of their own:

    logprobs, …      floats as raw bits, see ``encode_floats``
    turns            spans of tokens that were sampled, where they are not all: [start, end, finish], and true behind it
                     where the turn goes on
    entropies        a character a token (``core/entropy.py``), where the engine tells them
    trajectory       the first of several traces that were paid as one
    findings,        must be JSON; a tuple in them comes back as a list
    metadata
    advantages       only for readers of the file: objective → what was learned from, as runs of equal values
                     [advantage, tokens] over the sampled tokens, to four digits
"""

from __future__ import annotations

import base64
import sys
from array import array
from collections.abc import Mapping, Sequence
from typing import Any

from cotrain.core.entropy import as_text, from_text
from cotrain.core.seeding import Address
from cotrain.core.types import Episode, Reward, State, Trace, TurnRange, take_fields
from cotrain.storage.jsonl import check_json

EPISODE_FIELDS = ("step", "task", "member", "task_id", "failure", "traces")
PLAIN_FIELDS = (  # of a trace, as they are
    "role", "policy", "version", "group", "text", "finish", "failure", "findings", "metadata", "parent", "score",
)  # fmt: skip
CODED_FIELDS = ("address", "prompt_ids", "token_ids", "logprobs", "rewards", "turns", "entropies", "trajectory")
ADVANTAGES = "advantages"
LATER_FIELDS = {"score": None, "turns": (), "entropies": "", "trajectory": ""}  # which older ledgers do not have
UNREAD_FIELDS = ("learn_ids", ADVANTAGES)  # the first is of older ledgers

Advantages = Mapping[str, Mapping[str, Sequence[Sequence[float]]]]  # address of a trace → the field ``advantages``


# -- Floats as text that loses no bit.


def encode_floats(values: Sequence[float]) -> str:
    """Bits in base64, little-endian: "f4:" and 4 bytes a value where float32 loses nothing, "f8:" and 8 bytes where it
    would. To decode: ``numpy.frombuffer(base64.b64decode(text[3:]), "<" + text[:2])``."""
    exact = array("d", values)
    short = array("f", values)
    fits_float32 = array("d", short).tobytes() == exact.tobytes()
    bits = short if fits_float32 else exact
    if sys.byteorder == "big":
        bits.byteswap()
    kind = "f4" if fits_float32 else "f8"
    return f"{kind}:{base64.b64encode(bits.tobytes()).decode('ascii')}"


def decode_floats(text: str) -> tuple[float, ...]:
    """The inverse of ``encode_floats``. Raises ValueError."""
    kinds = {"f4:": "f", "f8:": "d"}
    bits = array(kinds.get(text[:3], "?"))  # a ValueError, for another beginning
    bits.frombytes(base64.b64decode(text[3:], validate=True))
    if sys.byteorder == "big":
        bits.byteswap()
    return tuple(bits)


# -- Episodes.


def episode_to_json(episode: Episode) -> State:
    """All of an episode as JSON values."""
    return {
        "step": episode.step,
        "task": episode.task,
        "member": episode.member,
        "task_id": episode.task_id,
        "failure": episode.failure,
        "traces": [trace_to_json(trace) for trace in episode.traces],
    }


def episode_from_json(state: Mapping[str, Any]) -> Episode:
    """The inverse. Raises StateError for missing and unknown fields."""
    step, task, member, task_id, failure, traces = take_fields("an episode", state, *EPISODE_FIELDS)
    return Episode(
        step=step,
        task=task,
        member=member,
        task_id=task_id,
        failure=failure,
        traces=tuple(trace_from_json(trace) for trace in traces),
    )


def trace_to_json(trace: Trace) -> State:
    """All of a trace as JSON values. Raises StateError when ``findings`` or ``metadata`` is not JSON."""
    address = trace.address
    check_json(trace.findings, f"trace {address}: findings", finite=False)
    check_json(trace.metadata, f"trace {address}: metadata", finite=False)
    turns: list[list[Any]] = []
    for turn in trace.turns:
        fields: list[Any] = [turn.start, turn.end, turn.finish]
        if turn.goes_on:
            fields.append(True)
        turns.append(fields)

    state = {
        "address": [address.step, address.task, address.member, address.role, address.call, *address.path],
        **{name: getattr(trace, name) for name in PLAIN_FIELDS},
        "rewards": [[reward.name, reward.value, reward.tokens] for reward in trace.rewards],
        "prompt_ids": trace.prompt_ids,
        "token_ids": trace.token_ids,
        "logprobs": encode_floats(trace.logprobs),
        "turns": turns,
    }
    if trace.entropies:
        state["entropies"] = as_text(trace.entropies)
    if trace.trajectory:
        state["trajectory"] = trace.trajectory
    return state


def trace_from_json(state: Mapping[str, Any]) -> Trace:
    """The inverse of ``trace_to_json``. A field that traces did not have when the ledger was written is None, or one
    turn. Raises StateError for missing and unknown fields."""
    known_state = {name: value for name, value in {**LATER_FIELDS, **state}.items() if name not in UNREAD_FIELDS}
    coded_state = {name: value for name, value in known_state.items() if name not in PLAIN_FIELDS}
    plain_state = {name: value for name, value in known_state.items() if name in PLAIN_FIELDS}
    coded = dict(zip(CODED_FIELDS, take_fields("a trace", coded_state, *CODED_FIELDS), strict=True))
    plain = dict(zip(PLAIN_FIELDS, take_fields("a trace", plain_state, *PLAIN_FIELDS), strict=True))

    turns = []
    for start, end, finish, *goes_on in coded["turns"]:
        turns.append(TurnRange(start=start, end=end, finish=finish, goes_on=bool(goes_on)))
    rewards = []
    for name, value, tokens in coded["rewards"]:
        rewards.append(Reward(name=name, value=value, tokens=None if tokens is None else (tokens[0], tokens[1])))
    return Trace(
        address=_read_address(coded["address"]),
        prompt_ids=tuple(coded["prompt_ids"]),
        turns=tuple(turns),
        token_ids=tuple(coded["token_ids"]),
        logprobs=decode_floats(coded["logprobs"]),
        entropies=from_text(coded["entropies"]),
        trajectory=coded["trajectory"],
        rewards=tuple(rewards),
        **plain,
    )


def _read_address(fields: Sequence[Any]) -> Address:
    step, task, member, role, call, *path = fields
    return Address(step=step, task=task, member=member, role=role, call=call, path=tuple(path))
