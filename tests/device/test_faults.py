"""Faults planted in a copy of the package are found, each by its test."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.whole, pytest.mark.nightly]


@pytest.mark.parametrize("part", ["1/2", "2/2"])
def test_planted_faults_are_found(part):
    """In a process that has imported neither package nor device."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.device.faults", "--part", part],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0 and done.stdout.count("found ") >= 5, done.stdout + done.stderr
