"""Stand-ins for packages that a machine may not have, and modules of one's own, on Python's path."""

import importlib.metadata
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

HERE = Path(__file__).parent


def is_installed(name):
    try:
        return bool(importlib.metadata.version(name))
    except importlib.metadata.PackageNotFoundError:
        return False


@contextmanager
def on_the_path(folder, which, *, packages=("verifiers",), **modules):
    """``modules``, name to text, importable from ``folder``, beside the "real" ``packages`` or the "fake" ones. Skips
    where a real one is missing."""
    if which == "real":
        for package in packages:
            if not is_installed(package):
                pytest.skip(f"{package} is not installed")
    for name, text in modules.items():
        (folder / f"{name}.py").write_text(text)
    ours = {*packages, *modules}
    kept = {name: sys.modules.pop(name) for name in list(sys.modules) if name.partition(".")[0] in ours}
    added = [str(folder), *([str(HERE)] if which == "fake" else [])]
    sys.path[:0] = added
    try:
        yield folder
    finally:
        sys.path[:] = [one for one in sys.path if one not in added]
        for name in [n for n in sys.modules if n.partition(".")[0] in ours]:
            del sys.modules[name]
        sys.modules.update(kept)
