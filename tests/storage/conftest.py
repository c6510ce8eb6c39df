"""Where tests that write thousands of small files do so."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def memory_path() -> Iterator[Path]:
    """Like ``tmp_path``, in memory where the system offers that."""
    shared = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=shared if os.access(shared, os.W_OK) else None) as path:
        yield Path(path)
