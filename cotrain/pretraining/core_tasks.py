"""A base model on tasks that it need not be tuned for, as DCLM's CORE asks them (Li et al. 2024, arXiv 2406.11794).

::

    {"query", "choices": [text, …], "gold": 1}             which choice has the lowest mean loss a token
    {"context_options": [text, …], "continuation", "gold"} after which context the continuation has it
    {"context", "continuation"}                            is every token of it the likeliest one

One file is one task. ``"delimiter"`` in a row parts the two halves; without it a space does, where there is no white
space already. The centred accuracy of a task is (accuracy − chance) / (1 − chance), and CORE is its mean over tasks.

Left out: the examples' fixed number and order of the published suite, so scores are comparable among models that were
measured here, with the same files and ``--shots``.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from transformers import PreTrainedTokenizerBase

from cotrain import __version__
from cotrain.core.errors import ConfigError, DataError, TooLong
from cotrain.core.seeding import rng_of
from cotrain.core.statistics import Estimate, wilson_interval
from cotrain.core.verbosity import count_of
from cotrain.data.malformed_rows import Quarantine
from cotrain.data.read_rows import numbered_lines, parse_rows
from cotrain.models.load import load_model
from cotrain.storage.kept_work import KeptWork, stamp_of

SUITE = "core"
ROWS_AT_ONCE = 32  # texts of one forward pass
ROWS_KEPT = 64  # rows that are scored, and kept, at a time
LAYOUTS = "query, choices and gold; context_options, continuation and gold; or context and continuation"


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreItem:
    """One question: pairs of a context and a continuation, of which the ``gold``-th is right."""

    pairs: tuple[tuple[str, str], ...]  # one alone: a continuation to be produced
    gold: int

    @property
    def chance(self) -> float:
        return 1 / len(self.pairs) if len(self.pairs) > 1 else 0.0

    @property
    def solved_text(self) -> str:
        """The question with its right answer, as an example before another one."""
        return "".join(self.pairs[self.gold])


def measure_core(
    model: str,
    files: Sequence[str],
    *,
    problems: int | None = None,
    shots: int = 0,
    device: str = "cpu",
    aside: Quarantine | None = None,
    say: Callable[[str], None] = lambda text: None,
    work: KeptWork | None = None,
) -> dict[str, Any]:
    """Score a model on the tasks in ``files``: ``{"suite", "settings", "figures"}`` with the accuracy and the centred
    accuracy of each task, and their mean ``core``.

    Args:
        shots: other rows of the same file, solved, before each question.
        work: keeps what has been scored (``what_scores_depend_on``); None: nothing is kept.

    Raises ConfigError, DataError, ModelError, and TooLong for a question that the context cannot hold."""
    tasks = {Path(file).stem: read_items(file, aside) for file in files}
    if len(tasks) < len(files):
        raise ConfigError(
            f"suite {SUITE!r}: two of {', '.join(files)} have one name; expected a name for each task",
            code="E_CORE_FILES_ALIKE",
        )
    for name, items in tasks.items():
        if len(items) <= shots:
            raise ConfigError(
                f"suite {SUITE!r}: {name!r} has {count_of(len(items), 'row')}; lower --shots {shots}",
                code="E_TOO_FEW_ROWS_FOR_SHOTS",
            )
    network, tokenizer = load_model(model)
    nn.Module.to(network, device)
    figures: dict[str, Estimate] = {}
    for name, items in tasks.items():
        order = list(range(len(items)))
        rng_of(SUITE, name).shuffle(order)
        places = sorted(order[:problems])
        right: list[bool] = []
        for start in range(0, len(places), ROWS_KEPT):
            batch = places[start : start + ROWS_KEPT]
            score = partial(_score_rows, network, tokenizer, name, items, batch, shots)
            right += score() if work is None else work.part(f"{name}, from {start} on", score)
        share = sum(right) / len(right)
        chance = sum(items[place].chance for place in places) / len(places)
        accuracy = dict(zip(("value", "low", "high"), (share, *wilson_interval(share, len(right))), strict=True))
        figures[f"{name}/accuracy"] = Estimate(**accuracy, n=len(right))
        centred = {key: (x - chance) / (1 - chance) for key, x in accuracy.items()}
        figures[f"{name}/centred"] = Estimate(**centred, n=len(right))
        say(f"{name}: {sum(right)} of {len(right)} right, chance {chance:.2f}")
    set_aside = len(aside.refused) if aside is not None else 0
    settings = {"model": model, "data": list(files), "shots": shots, "set_aside": set_aside, "cotrain": __version__}
    mean = sum(figures[f"{name}/centred"].value for name in tasks) / len(tasks)
    figures_json = {name: value.to_json() for name, value in figures.items()}
    return {"suite": SUITE, "settings": settings, "core": mean, "figures": figures_json}


def _score_rows(
    network: nn.Module,
    tokenizer: PreTrainedTokenizerBase,
    name: str,
    items: Sequence[CoreItem],
    places: Sequence[int],
    shots: int,
) -> list[bool]:
    """Whether the model is right in each of these rows of a task."""
    right = []
    for place in places:
        examples = _pick_examples(items, place, shots, rng_of(SUITE, name, place))
        right.append(_score_item(network, tokenizer, items[place], examples, f"{name}, row {place + 1}"))
    return right


def what_scores_depend_on(model: str, files: Sequence[str], problems: int | None, shots: int) -> dict[str, Any]:
    """All that the scores of ``measure_core`` depend on, as JSON: they are kept for others of the same."""
    stamps = [[file, stamp_of(file)] for file in files]
    return {
        "what": SUITE,
        "model": [model, stamp_of(model)],
        "files": stamps,
        "problems": problems,
        "shots": shots,
        "cotrain": __version__,
    }


def read_items(file: str, aside: Quarantine | None = None) -> list[CoreItem]:
    """The rows of one task. Raises DataError with row and what was expected, or sets such a row ``aside``."""
    items = parse_rows(numbered_lines(Path(file)), _item_of_row, aside)
    if aside is not None:
        aside.check_share(file)
    if not items:
        raise DataError(f"{file}: no rows in it; expected {LAYOUTS}", code="E_DATA_EMPTY")
    return items


def _item_of_row(row: dict[str, Any], where: str) -> CoreItem:
    def texts_of(name: str) -> list[str]:
        texts = row[name] if isinstance(row[name], list) else [row[name]]
        if not texts or not all(isinstance(text, str) and text.strip() for text in texts):
            raise DataError(
                f"{where}: {name} is {json.dumps(row[name])[:80]}; expected texts that are not empty",
                code="E_FIELD_BLANK",
            )
        return texts

    layouts = (("query", "choices"), ("context_options", "continuation"), ("context", "continuation"))
    columns = next((pair for pair in layouts if row.keys() >= set(pair)), None)
    if columns is None:
        raise DataError(f"{where}: columns {', '.join(row)}; expected {LAYOUTS}", code="E_CORE_COLUMNS")
    heads, tails = map(texts_of, columns)
    pairs = tuple(_join(head, tail, row.get("delimiter")) for head in heads for tail in tails)

    gold = row.get("gold", 0)
    is_place = type(gold) is int and 0 <= gold < len(pairs)
    is_missing = len(pairs) > 1 and "gold" not in row
    if not is_place or is_missing:
        raise DataError(
            f"{where}: gold is {row.get('gold')!r}; expected the place of the right one, 0 to {len(pairs) - 1}",
            code="E_GOLD_PLACE",
        )
    return CoreItem(pairs=pairs, gold=gold)


def _join(head: str, tail: str, delimiter: object) -> tuple[str, str]:
    if isinstance(delimiter, str):
        return head, delimiter + tail
    has_gap = head[-1].isspace() or tail[0].isspace()
    return head, tail if has_gap else f" {tail}"


def _pick_examples(items: Sequence[CoreItem], place: int, shots: int, rng: random.Random) -> str:
    others = [number for number in range(len(items)) if number != place]
    return "".join(f"{items[number].solved_text}\n\n" for number in rng.sample(others, shots))


def _score_item(
    network: nn.Module, tokenizer: PreTrainedTokenizerBase, item: CoreItem, examples: str, where: str
) -> bool:
    losses, exact = continuation_losses(
        network, tokenizer, [(examples + head, tail) for head, tail in item.pairs], where
    )
    return exact[0] if len(losses) == 1 else losses.index(min(losses)) == item.gold


@torch.no_grad()
def continuation_losses(
    network: nn.Module, tokenizer: PreTrainedTokenizerBase, pairs: Sequence[tuple[str, str]], where: str = ""
) -> tuple[list[float], list[bool]]:
    """For each (context, continuation): the mean of −log p over the continuation's tokens, in nats, and whether each of
    them is the likeliest. A token that holds the end of the one and the beginning of the other belongs to the
    continuation. Raises TooLong where a text does not fit the model's context."""
    begin = [] if tokenizer.bos_token_id is None else [tokenizer.bos_token_id]

    def encode(text: str) -> list[int]:
        return begin + tokenizer(text, add_special_tokens=False, split_special_tokens=True)["input_ids"]

    device = next(network.parameters()).device
    most = getattr(network.config, "max_position_embeddings", None)
    losses: list[float] = []
    exact: list[bool] = []
    for start in range(0, len(pairs), ROWS_AT_ONCE):
        part = pairs[start : start + ROWS_AT_ONCE]
        whole = [encode(head + tail) for head, tail in part]
        firsts = [max(1, _common_length(ids, encode(head))) for ids, (head, _) in zip(whole, part, strict=True)]
        longest = max(map(len, whole))
        if most is not None and longest > most:
            raise TooLong(f"{where}: {longest} tokens, and the model's context holds {most}; lower --shots")
        ids = torch.tensor([row + [0] * (longest - len(row)) for row in whole], device=device)
        logits = network(input_ids=ids, use_cache=False).logits[:, :-1].float()
        each = F.cross_entropy(logits.transpose(1, 2), ids[:, 1:], reduction="none")
        likeliest = logits.argmax(-1) == ids[:, 1:]
        for row, (tokens, first) in enumerate(zip(whole, firsts, strict=True)):
            losses.append(each[row, first - 1 : len(tokens) - 1].mean().item())
            exact.append(bool(likeliest[row, first - 1 : len(tokens) - 1].all()))
    return losses, exact


def _common_length(ids: Sequence[int], head: Sequence[int]) -> int:
    """Leading tokens that both have, so that one token of ``ids`` at least is left."""
    same = takewhile(lambda pair: pair[0] == pair[1], zip(ids, head, strict=False))
    return min(len(list(same)), len(ids) - 1)
