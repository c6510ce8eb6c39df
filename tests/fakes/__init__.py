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
def on_the_path(folder, package, **modules):
    """``modules``, name to text, importable from ``folder``, beside the "real" ``verifiers`` or its "fake". Skips where
    there is no real one."""
    if package == "real" and not is_installed("verifiers"):
        pytest.skip("verifiers is not installed")
    for name, text in modules.items():
        (folder / f"{name}.py").write_text(text)
    ours = {"verifiers", *modules}
    kept = {name: sys.modules.pop(name) for name in list(sys.modules) if name.partition(".")[0] in ours}
    added = [str(folder), *([str(HERE)] if package == "fake" else [])]
    sys.path[:0] = added
    try:
        yield folder
    finally:
        sys.path[:] = [one for one in sys.path if one not in added]
        for name in [n for n in sys.modules if n.partition(".")[0] in ours]:
            del sys.modules[name]
        sys.modules.update(kept)
