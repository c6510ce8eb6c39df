"""Graders: answers are compared by mathematics, programs by their tests.

The names below are what other trainers use (``rewards.py``). They are imported when they are first used, without torch
and without Ray."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cotrain.grading.pool import GradingPool
    from cotrain.grading.rewards import AnswerReward, NotGraded, grade_response, grade_responses, score_response

__all__ = ["AnswerReward", "GradingPool", "NotGraded", "grade_response", "grade_responses", "score_response"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r} (there are: {', '.join(__all__)})")
    module = "cotrain.grading.pool" if name == "GradingPool" else "cotrain.grading.rewards"
    return getattr(import_module(module), name)
