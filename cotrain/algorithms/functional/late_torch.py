"""Torch, imported when something of it is first asked for: ``from cotrain.algorithms.functional.late_torch import
torch``. Why is said in ``core/late.py``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cotrain.core.late import LateModule

__all__ = ["torch"]

if TYPE_CHECKING:
    import torch
else:
    torch = LateModule("torch")
