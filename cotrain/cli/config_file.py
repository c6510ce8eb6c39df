"""``cotrain run --config FILE``: flags in a TOML file, one key a flag, as ``--dry-run`` prints them."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from cotrain.cli.flags import Parser, SwitchOrText
from cotrain.core.errors import ConfigError, DataError
from cotrain.core.nearest_names import nearest_name

RECIPE = "recipe"
NOT_IN_FILE = ("help", "config", "dry_run", "memory", "json", "log_level", "smoke", "view")  # flags that change no run


class ConfigFile(NamedTuple):
    """A file that ``--config`` names."""

    path: str
    keys: dict[str, Any]  # flag → value, and "recipe" → its name

    def words(self, parser: Parser) -> list[str]:
        """Its keys as words of a command line. Raises ConfigError for a key that is no flag of ``parser``, and for a
        value that the flag does not take."""
        actions = {f"--{name.replace('_', '-')}": action for name, action in _actions_in_file(parser).items()}
        words: list[str] = []
        for key, value in self.keys.items():
            if key == RECIPE:
                continue
            where = f"--config {self.path}: key {key!r}"
            flag = f"--{key.replace('_', '-')}"
            # The key may be a flag of TRL's or lm-eval's.
            (own_word,) = parser.rename_foreign_flags([f"{flag}={value}"])
            own_flag, _, _ = own_word.partition("=")
            became_setting = own_flag == "--set" and flag != "--set"
            if became_setting:  # max-tokens, in a command without such a flag
                words.append(own_word)
            elif own_flag in actions:
                words += _flag_words(where, actions[own_flag], value)
            else:
                flags = [name.removeprefix("--") for name in actions]
                near = nearest_name(key, [*flags, RECIPE])
                hint = f"; did you mean {near!r}?" if near else ""
                raise ConfigError(f"{where} is no flag{hint}", code="E_CONFIG_FILE_FLAG")
        return words


def config_of(argv: Sequence[str]) -> ConfigFile | None:
    """The file that ``--config`` names among these arguments, None without one. Raises DataError and ConfigError.

    The recipe may stand in the file, and the flags follow from the recipe, so this comes before argparse.
    """
    for index, word in enumerate(argv):
        flag, equals, path = word.partition("=")
        if flag != "--config":
            continue
        if not equals:
            if index + 1 == len(argv):
                raise ConfigError(
                    "--config: expected a TOML file, as `cotrain run RECIPE --dry-run` prints it",
                    code="E_CONFIG_FILE_UNNAMED",
                )
            path = argv[index + 1]
        return ConfigFile(path, _read_config(path))
    return None


def _read_config(path: str) -> dict[str, Any]:
    from cotrain.core.input_files import read_toml

    try:
        return read_toml(Path(path))
    except DataError as error:
        raise DataError(f"--config {error}; write one key a flag, as in lr = 1e-4", code=error.code) from None


def _actions_in_file(parser: Parser) -> dict[str, argparse.Action]:
    """The actions of the flags that may be keys of a file, by their dest."""
    return {action.dest: action for action in parser._actions if action.dest not in NOT_IN_FILE}


def _flag_words(where: str, action: argparse.Action, value: Any) -> list[str]:
    """A flag and its value, which may be one of these:

    - true or false, for a switch: ``--flag`` or ``--no-flag``
    - a list, for a flag that may be repeated: ``--flag=a --flag=b``
    - a list, for a flag with several values: ``--flag a b``
    - text or a number, for any other flag: ``--flag=a``
    """
    flag = action.option_strings[0]
    is_switch = action.nargs == 0
    if is_switch or (isinstance(action, SwitchOrText) and isinstance(value, bool)):
        if not isinstance(value, bool):
            raise ConfigError(f"{where}: expected true or false, found {value!r}", code="E_CONFIG_FILE_VALUE")
        return [flag] if value else _negative_flags(action)

    entries = value if isinstance(value, list) else [value]
    if any(isinstance(entry, bool) or not isinstance(entry, str | int | float) for entry in entries):
        raise ConfigError(f"{where}: expected text or a number, found {value!r}", code="E_CONFIG_FILE_VALUE")

    texts = [str(entry) for entry in entries]
    is_repeatable = isinstance(action, argparse._AppendAction)
    if is_repeatable:
        return [f"{flag}={text}" for text in texts]
    takes_several = action.nargs is not None
    if takes_several:
        return [flag, *texts]
    if isinstance(value, list):
        raise ConfigError(f"{where}: expected one value, found {len(value)}", code="E_CONFIG_FILE_VALUE")
    return [f"{flag}={value}"]


def _negative_flags(action: argparse.Action) -> list[str]:
    """``--no-flag``, if the flag has such a form: one that has none is false where it is left out."""
    return [string for string in action.option_strings if string.startswith("--no-")]


def config_lines(recipe: str, parser: Parser, arguments: argparse.Namespace) -> list[str]:
    """The lines of the file that stands for parsed flags, defaults among them."""
    lines = [f"{RECIPE} = {json.dumps(recipe)}"]
    for name, action in _actions_in_file(parser).items():
        value = getattr(arguments, name)
        is_unset = value is None or value == []
        is_left_out = value is False and not _negative_flags(action)
        if not is_unset and not is_left_out:
            lines.append(f"{name.replace('_', '-')} = {json.dumps(value, ensure_ascii=False)}")
    return lines
