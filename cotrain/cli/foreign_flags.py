"""The ten flags of TRL and lm-eval that are typed most, and ``--max-tokens``, in the names of a command of ours.

Underscores are as good as hyphens. A flag that the command has itself is never renamed. Left out: all other spellings;
an unknown flag names the nearest one that there is.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from cotrain.core.errors import ConfigError

COMMON = {  # as others call it → ours, of which a command has the first or the next
    "learning-rate": ("--lr",),
    "output-dir": ("--out",),
    "max-steps": ("--steps",),
    "num-generations": ("--group-size", "--samples"),
    "model-name-or-path": ("--model",),
    "dataset-name": ("--data",),
    "beta": ("--kl",),
    "limit": ("--problems", "--evaluation-tasks"),
    "save-steps": ("--checkpoint-every", "--save-every"),
    "max-completion-length": ("--max-tokens",),
}
LIMIT_SETTING = "roles.solver.sampling.max_tokens"  # what --max-tokens sets in a command that has no flag of this name


def rename_flags(words: Sequence[str], own_flags: Collection[str], prog: str) -> list[str]:
    """The words with flags of other programs in the names of a command whose flags are ``own_flags``. What nobody knows
    stays as it is. Raises ConfigError for ``--max-tokens`` without a value."""
    renamed: list[str] = []
    limits: list[str] = []
    rest = iter(words)
    for word in rest:
        if word == "--":
            renamed += [word, *rest]
            break
        flag, equals, value = word.partition("=")
        own = flag if flag in own_flags else own_flag(flag, own_flags)
        if own == "--max-tokens" and own not in own_flags:
            limit = value if equals else next(rest, "--")
            if limit.startswith("--"):
                raise ConfigError(f"{prog}: argument {flag}: expected one argument", code="E_COMMAND_LINE")
            limits.append(f"--set={LIMIT_SETTING}={limit}")
        else:
            renamed.append(f"{own}{equals}{value}")
    return [*limits, *renamed]  # a --set of the user's is behind them, and counts more


def own_flag(flag: str, own_flags: Collection[str]) -> str:
    """The name that a command has for a flag; the flag itself where it has none."""
    if not flag.startswith("--"):
        return flag
    name = flag.lstrip("-").replace("_", "-").lower()
    candidates = [f"--{name}", *COMMON.get(name, ())]
    if "--set" in own_flags:
        own_flags = {*own_flags, "--max-tokens"}
    return next((candidate for candidate in candidates if candidate in own_flags), flag)
