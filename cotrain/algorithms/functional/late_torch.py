"""Torch, imported at the first use of an attribute: ``from cotrain.algorithms.functional.late_torch import torch``.
``core/late.py`` says why."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cotrain.core.late import LateModule

__all__ = ["torch"]

if TYPE_CHECKING:
    import torch
else:
    torch = LateModule("torch")
