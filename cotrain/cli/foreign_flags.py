"""Flags of TRL and lm-eval in a command of ours: ``--learning-rate 1e-4`` is read as ``--lr 1e-4``.

Underscores are as good as hyphens. A flag that the command has itself is never renamed. Left out: all other spellings;
an unknown flag names the nearest one that there is.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from cotrain.core.errors import ConfigError

COMMON = {  # foreign name → our flags in order of preference: the first that the command has takes its place
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
MAX_TOKENS = "--max-tokens"
MAX_TOKENS_SETTING = "roles.solver.sampling.max_tokens"  # for a command that has --set, but not --max-tokens


def rename_flags(words: Sequence[str], own_flags: Collection[str], prog: str) -> list[str]:
    """``words`` with flags of other programs replaced by the command's own, which are ``own_flags``.

    Unknown words stay as they are. Where a command has no ``--max-tokens``, the ``--set`` that means the same takes its
    place. Raises ConfigError for ``--max-tokens`` without a value.
    """
    limit_is_setting = "--set" in own_flags and MAX_TOKENS not in own_flags
    renamed: list[str] = []
    settings: list[str] = []
    rest = iter(words)
    for word in rest:
        if word == "--":  # no word behind it is a flag
            renamed += [word, *rest]
            break
        flag, equals, value = word.partition("=")
        own_flag = _own_flag(flag, own_flags)
        if limit_is_setting and own_flag not in own_flags and MAX_TOKENS in _our_names(flag):
            limit = value if equals else next(rest, None)
            if limit is None or limit.startswith("--"):
                raise ConfigError(f"{prog}: argument {flag}: expected one argument", code="E_COMMAND_LINE")
            settings.append(f"--set={MAX_TOKENS_SETTING}={limit}")
        else:
            renamed.append(f"{own_flag}{equals}{value}")
    return [*settings, *renamed]  # the last --set of a path counts: one that the user typed stays behind ours


def _own_flag(flag: str, own_flags: Collection[str]) -> str:
    """The name that a command has for a flag; the flag itself where it has none."""
    if flag in own_flags:
        return flag
    return next((name for name in _our_names(flag) if name in own_flags), flag)


def _our_names(flag: str) -> list[str]:
    """What our commands may call a flag; [] for a word that is no flag."""
    if not flag.startswith("--"):
        return []
    name = flag.lstrip("-").replace("_", "-").lower()
    return [f"--{name}", *COMMON.get(name, ())]
