"""``cotrain run --config FILE``: flags in a TOML file, one key a flag, as ``--dry-run`` prints them."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cotrain.cli.flags import Parser, SwitchOrText
from cotrain.core.errors import ConfigError, DataError
from cotrain.core.nearest_names import nearest_name

RECIPE = "recipe"
NEVER = ("help", "config", "dry_run", "memory", "json", "log_level", "smoke", "view")  # they say nothing of the run


def config_of(argv: Sequence[str]) -> tuple[str, dict[str, Any]] | None:
    """Which file ``--config`` names among these arguments, and its keys. Raises DataError and ConfigError."""
    for at, word in enumerate(argv):
        flag, equals, path = word.partition("=")
        if flag == "--config":
            if not equals and at + 1 == len(argv):
                raise ConfigError(
                    "--config: expected a TOML file, as `cotrain run RECIPE --dry-run` prints it",
                    code="E_CONFIG_FILE_UNNAMED",
                )
            path = path if equals else argv[at + 1]
            return path, _read_config(path)
    return None


def _read_config(path: str) -> dict[str, Any]:
    from cotrain.core.input_files import read_toml

    try:
        return read_toml(Path(path))
    except DataError as error:
        raise DataError(f"--config {error}; write one key a flag, as in lr = 1e-4", code=error.code) from None


def config_words(path: str, keys: Mapping[str, Any], parser: Parser) -> list[str]:
    """The words that the keys of a file stand for. Raises ConfigError for a key that is no flag, and a value that no
    flag takes."""
    actions = {action.dest: action for action in parser._actions if action.dest not in NEVER}
    words: list[str] = []
    for key, value in keys.items():
        if key == RECIPE:
            continue
        where = f"--config {path}: key {key!r}"
        flag = f"--{key.replace('_', '-')}"
        (word,) = parser.own_names([f"{flag}={value}"])  # as another program calls it
        action = actions.get(word.partition("=")[0].removeprefix("--").replace("-", "_"))
        if word.startswith("--set=") and flag != "--set":
            words.append(word)
            continue
        if action is None:
            names = [name.replace("_", "-") for name in (*actions, RECIPE)]
            near = nearest_name(key, names)
            raise ConfigError(
                f"{where} is no flag" + (f"; did you mean {near!r}?" if near else ""), code="E_CONFIG_FILE_FLAG"
            )
        words += _flag_words(where, action, value)
    return words


def _flag_words(where: str, action: argparse.Action, value: Any) -> list[str]:
    flag = action.option_strings[0]
    many = isinstance(action, argparse._AppendAction)
    if action.nargs == 0 or (isinstance(action, SwitchOrText) and isinstance(value, bool)):
        if not isinstance(value, bool):
            raise ConfigError(f"{where}: expected true or false, found {value!r}", code="E_CONFIG_FILE_VALUE")
        no = [string for string in action.option_strings if string.startswith("--no-")]
        return [flag] if value else no
    entries = value if isinstance(value, list) else [value]
    if any(isinstance(entry, bool) or not isinstance(entry, str | int | float) for entry in entries):
        raise ConfigError(f"{where}: expected text or a number, found {value!r}", code="E_CONFIG_FILE_VALUE")
    if isinstance(value, list) and not many and action.nargs is None:
        raise ConfigError(f"{where}: expected one value, found {len(value)}", code="E_CONFIG_FILE_VALUE")
    texts = [str(entry) for entry in entries]
    if many or action.nargs is None:
        return [f"{flag}={text}" for text in texts]
    return [flag, *texts]


def config_lines(recipe: str, parser: Parser, arguments: argparse.Namespace) -> list[str]:
    """The lines of the file that stands for parsed flags, defaults among them."""
    lines = [f"{RECIPE} = {json.dumps(recipe)}"]
    for action in parser._actions:
        value = None if action.dest in NEVER else getattr(arguments, action.dest)
        if value is not None and value != [] and (value is not False or len(action.option_strings) > 1):
            lines.append(f"{action.dest.replace('_', '-')} = {json.dumps(value, ensure_ascii=False)}")
    return lines
