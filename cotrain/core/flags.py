"""Command-line flags from a recipe function's parameters, and a parser whose errors are one line.

The parameters of a recipe are its flags, typed by their annotations: ``steps: int = 160`` becomes ``--steps 160``,
``balance: bool = True`` becomes ``--balance`` / ``--no-balance``. A mistyped flag suggests the nearest one.
"""

from __future__ import annotations

import argparse
import difflib
import inspect
import types
import typing
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from cotrain.core.errors import ConfigError


class Parser(argparse.ArgumentParser):
    """argparse that raises ConfigError with one line instead of printing its usage."""

    def __init__(self, *args: Any, **options: Any) -> None:
        options.setdefault("allow_abbrev", False)
        options.setdefault("formatter_class", argparse.ArgumentDefaultsHelpFormatter)
        super().__init__(*args, **options)

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{self.prog}: {message}; see `{self.prog} --help`")

    def strict(self, words: Sequence[str]) -> argparse.Namespace:
        """Parse all of ``words``; an unknown flag names the nearest known one."""
        values, unknown = self.parse_known_args(words)
        if unknown:
            flags = [flag for action in self._actions for flag in action.option_strings if flag.startswith("--")]
            word = unknown[0].split("=")[0]
            near = difflib.get_close_matches(word, flags, n=1, cutoff=0.5)
            self.error(f"unknown argument {unknown[0]!r}" + (f"; did you mean {near[0]}?" if near else ""))
        return values


def add_parameters(parser: argparse.ArgumentParser, build: Callable[..., Any], skip: Sequence[str] = ()) -> list[str]:
    """Add one flag for each parameter of ``build`` that a flag can hold; return their names."""
    hints = typing.get_type_hints(build)
    names = []
    for name, parameter in inspect.signature(build).parameters.items():
        if name in skip:
            continue
        names.append(name)
        flag, kind = "--" + name.replace("_", "-"), _plain(hints.get(name, str))
        required = parameter.default is inspect.Parameter.empty
        default = None if required else parameter.default
        if kind is bool:
            parser.add_argument(flag, action=argparse.BooleanOptionalAction, default=default, required=required)
        elif typing.get_origin(kind) is tuple:
            inner = typing.get_args(kind)
            parser.add_argument(
                flag, type=inner[0], nargs=len(inner), default=default, required=required, help="(default: %(default)s)"
            )
        elif kind in (int, float, str):
            parser.add_argument(
                flag,
                type=kind,
                default=default,
                required=required,
                metavar=kind.__name__.upper(),
                help="(default: %(default)s)",
            )
        else:
            names.remove(name)
    return names


def _plain(hint: Any) -> Any:
    """``X | None`` → ``X``."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        rest = [a for a in typing.get_args(hint) if a is not type(None)]
        return rest[0] if len(rest) == 1 else str
    return hint


def values_of(namespace: argparse.Namespace, names: Sequence[str]) -> dict[str, Any]:
    """The parsed values of these parameters; lists as tuples."""
    found = {name: getattr(namespace, name) for name in names}
    return {name: tuple(value) if isinstance(value, list) else value for name, value in found.items()}
