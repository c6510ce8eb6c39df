"""What several commands share: quiet libraries, threads, and how a figure is printed."""

from __future__ import annotations

import os
from typing import Any

from cotrain.core.threads import usual_threads


def quiet() -> None:
    """Keep the libraries' own progress bars and warnings out of ours."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    from transformers.utils import logging

    logging.disable_progress_bar()


def threads(count: int | None) -> None:
    import torch

    torch.set_num_threads(count or usual_threads())


def figure(estimate: dict[str, Any] | None) -> str:
    return "–" if estimate is None else f"{estimate['value']:.3f} [{estimate['low']:.3f}, {estimate['high']:.3f}]"
