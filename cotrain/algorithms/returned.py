"""Checks of what an algorithm, or a function that one is made of, returns: it may be a user's own.

Without them a wrong shape shows far from its cause, as an error of an operation on tensors, or never. Each check
returns what it was given, and raises ConfigError, one line that names the function and what it was to return.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cotrain.algorithms.contract import Algorithm, Credit, Loss, Needs, Sample
from cotrain.algorithms.functional.late_torch import torch
from cotrain.core.errors import ConfigError
from cotrain.core.types import State

METHODS = ("needs", "credit", "loss_of")  # of an algorithm


def name_of(function: Callable[..., Any]) -> str:
    """The name of a function, or of the class of an object that is called."""
    return str(getattr(function, "__name__", type(function).__name__))


def shown(value: Any) -> str:
    """What a value is, in few words: a tensor by its shape, all else by its type."""
    if isinstance(value, torch.Tensor):
        return f"a tensor of shape {tuple(value.shape)} and {str(value.dtype).removeprefix('torch.')}"
    if isinstance(value, tuple):
        return f"({', '.join(map(shown, value))})" if value else "()"
    return "None" if value is None else f"a {type(value).__name__}"


def check_row(function: Callable[..., Any], row: Any, length: int, what: str) -> torch.Tensor:
    """A row of floating-point numbers, one for each of ``length`` things. ``what``: those things, for the message."""
    is_row = isinstance(row, torch.Tensor) and row.is_floating_point() and tuple(row.shape) == (length,)
    if not is_row:
        raise ConfigError(
            f"{name_of(function)} returned {shown(row)}; expected a tensor of floating-point numbers of shape "
            f"({length},), one for each of the {what} that it was given",
            code="E_ADVANTAGE_RETURNED",
        )
    return row


def check_edited(edit: Callable[..., Any], returned: Any) -> tuple[list[Sample], dict[str, int]]:
    """What an edit of samples returns: the samples that are kept, and how many were left out by reason."""
    is_pair = isinstance(returned, tuple) and len(returned) == 2
    if not (is_pair and isinstance(returned[0], Sequence) and isinstance(returned[1], Mapping)):
        raise ConfigError(
            f"{name_of(edit)} returned {shown(returned)}; expected (the samples that are kept, "
            "{reason: number of samples left out})",
            code="E_EDIT_RETURNED",
        )
    return list(returned[0]), dict(returned[1])


def check_token_losses(
    loss: Callable[..., Any], returned: Any, mask: torch.Tensor
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """What the loss of each token returns: losses of the shape of ``mask`` ``[B, T]``, and metrics of the same."""
    is_pair = isinstance(returned, tuple) and len(returned) == 2
    is_shaped = is_pair and isinstance(returned[0], torch.Tensor) and returned[0].shape == mask.shape
    if not (is_shaped and isinstance(returned[1], Mapping)):
        raise ConfigError(
            f"loss {name_of(loss)} returned {shown(returned)}; expected (the loss of each token, a tensor of shape "
            f"{tuple(mask.shape)}; a dict of metrics of the same shape, which may be empty)",
            code="E_TOKEN_LOSS_RETURNED",
        )
    wrong = [name for name, value in returned[1].items() if getattr(value, "shape", None) != mask.shape]
    if wrong:
        raise ConfigError(
            f"loss {name_of(loss)} returned the metric {wrong[0]!r} as {shown(returned[1][wrong[0]])}; expected a "
            f"tensor of shape {tuple(mask.shape)}, one value for each token",
            code="E_TOKEN_LOSS_RETURNED",
        )
    return returned


def check_algorithm(where: str, algorithm: Any) -> Needs:
    """Raise ConfigError for what is no algorithm, such as the function ``GRPO`` that was not called; returns what an
    algorithm needs."""
    missing = [method for method in METHODS if not callable(getattr(algorithm, method, None))]
    if missing:
        given = f"{shown(algorithm)}, without {' and '.join(missing)}"
        if callable(algorithm):
            given = f"the function {name_of(algorithm)}, which was not called"
        raise ConfigError(
            f"{where}: algorithm is {given}; expected an algorithm, "
            "such as GRPO(reward_weights={OUTCOME: 1.0}), or an object with the methods needs, credit and loss_of",
            code="E_NOT_ALGORITHM",
        )
    needs = algorithm.needs()
    if not isinstance(needs, Needs):
        raise ConfigError(
            f"{where}: needs() of {type(algorithm).__name__} returned {shown(needs)}; expected "
            "Needs(reward_signals=(OUTCOME,), …) of cotrain.algorithms.contract",
            code="E_NOT_NEEDS",
        )
    return needs


def check_credit(algorithm: Algorithm, returned: Any) -> tuple[Credit, State]:
    """What ``credit`` returns: samples with advantages, and the state for the next batch."""
    is_pair = isinstance(returned, tuple) and len(returned) == 2
    if not (is_pair and isinstance(returned[0], Credit) and isinstance(returned[1], dict)):
        raise ConfigError(
            f"credit of {type(algorithm).__name__} returned {shown(returned)}; expected (Credit(samples=…, "
            "metrics=…), the state for the next batch, a dict, which is {} where nothing is remembered)",
            code="E_CREDIT_RETURNED",
        )
    return returned


def fields_of_object(thing: object) -> dict[str, Any]:
    """The fields of an object as they are now, for ``check_unchanged``."""
    return dict(getattr(thing, "__dict__", {}))


def check_unchanged(algorithm: Algorithm, fields_before: Mapping[str, Any]) -> None:
    """Raise ConfigError for an algorithm that set a field of its own in ``credit``: no checkpoint holds it, and a
    resumed run would begin with the old value."""
    for name, value in fields_of_object(algorithm).items():
        if name in fields_before and fields_before[name] is not value:
            raise ConfigError(
                f"credit of {type(algorithm).__name__} changed self.{name}, which no checkpoint holds; what it "
                f"remembers is its state: read state.get({name!r}), and return the new one as the second value",
                code="E_ALGORITHM_CHANGED_ITSELF",
            )


def check_loss_value(algorithm: Algorithm, returned: Any) -> Loss:
    """What ``loss_of`` returns: one number, by which the weights can be changed."""
    if not isinstance(returned, Loss):
        raise ConfigError(
            f"loss_of of {type(algorithm).__name__} returned {shown(returned)}; expected Loss(value=…, sums={{}}) of "
            "cotrain.algorithms.contract",
            code="E_LOSS_RETURNED",
        )
    value = returned.value
    if not isinstance(value, torch.Tensor) or value.dim():
        raise ConfigError(
            f"loss_of of {type(algorithm).__name__} returned a loss that is {shown(value)}; expected one number, the "
            "sum over tokens divided by the totals",
            code="E_LOSS_RETURNED",
        )
    if not value.requires_grad:
        raise ConfigError(
            f"loss_of of {type(algorithm).__name__} returned a loss that does not depend on the weights, so that "
            "nothing can be learned from it; compute it from `predictions`, without detach() and without numpy",
            code="E_LOSS_WITHOUT_GRADIENT",
        )
    return returned
