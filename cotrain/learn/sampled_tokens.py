"""The tokens of a trace that its policy sampled, apart from those that were given between its turns: only they are
learned.

::

    trace    │ a b <stop> │ <tool> 42 │ c <stop> │      signal on [5, 7)
    sampled  │ a b <stop>               c <stop> │      signal on [3, 5), and ((3, (<tool>, 42)),) was given

Credit, losses and all their totals run over the sampled tokens alone, so no algorithm can put weight on a given one;
only the forward pass sees both (``collate.py``).
"""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate

from cotrain.core.types import Trace

Given = tuple[
    tuple[int, tuple[int, ...]], ...
]  # (k, ids): these ids stand before the k-th sampled token, k ≥ 1, rising


def sampled_only(trace: Trace) -> tuple[Trace, Given]:
    """The trace with its sampled tokens alone, signals moved with them, and what stood between. One turn is itself."""
    if not trace.turns:
        return trace, ()
    mask = trace.mask
    before = [0, *accumulate(mask)]  # sampled tokens in front of each place
    given_tokens: list[tuple[int, tuple[int, ...]]] = []
    for turn, following in zip(trace.turns, trace.turns[1:], strict=False):
        if turn.end < following.start:
            given_tokens.append((before[turn.end], trace.token_ids[turn.end : following.start]))
    sampled_places = [i for i, sampled in enumerate(mask) if sampled]
    signals = tuple(
        s if s.tokens is None else replace(s, tokens=(before[s.tokens[0]], before[s.tokens[1]])) for s in trace.signals
    )
    sampled_trace = replace(
        trace,
        token_ids=tuple(trace.token_ids[i] for i in sampled_places),
        logprobs=tuple(trace.logprobs[i] for i in sampled_places),
        signals=signals,
        turns=(),
    )
    return sampled_trace, tuple(given_tokens)


def with_context(token_ids: tuple[int, ...], given: Given) -> tuple[tuple[int, ...], list[int]]:
    """Sampled tokens [N] with what was given between them [T], and the places [N] where the sampled ones stand."""
    if not given:
        return token_ids, list(range(len(token_ids)))
    ids: list[int] = []
    places: list[int] = []
    at = dict(given)
    for k, token in enumerate(token_ids):
        ids += at.get(k, ())
        places.append(len(ids))
        ids.append(token)
    return tuple(ids), places
