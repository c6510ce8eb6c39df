"""Command-line flags from a recipe function's parameters, and a parser whose errors are one line.

The parameters of a recipe are its flags, typed by their annotations: ``steps: int = 160`` becomes ``--steps 160``,
``balance: bool = True`` becomes ``--balance`` / ``--no-balance``, and what a ``Literal`` allows is shown in the help. A
mistyped flag suggests the nearest one. The comment behind a parameter is the help of its flag.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import io
import itertools
import math
import os
import re
import shutil
import textwrap
import tokenize
import typing
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from cotrain.config.large_model_defaults import defaults_by_size
from cotrain.core.arguments import Argument, strip_optional
from cotrain.core.errors import ConfigError, DataError, unknown_message
from cotrain.core.nearest_names import nearest_name
from cotrain.core.verbosity import LEVELS, set_level


class Help(argparse.HelpFormatter):
    """Help as prose and a table: paragraphs wrapped one by one, and only the defaults that say something."""

    def __init__(self, prog: str) -> None:
        width = max(60, min(100, shutil.get_terminal_size().columns)) - 2
        super().__init__(prog, width=width, max_help_position=26)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        paragraphs = text.replace("``", "`").split("\n\n")
        return "\n\n".join("\n".join(_wrap_paragraph(p, width, indent)) for p in paragraphs)

    def _get_help_string(self, action: argparse.Action) -> str:
        text = (action.help or "").removesuffix(" (default: %(default)s)")
        default = action.default
        silent = default is None or default is False or default in ("", [], argparse.SUPPRESS) or action.required
        if silent or "(default" in text:
            return text
        shown = action.option_strings[0] if default is True else typed_words(default).replace("%", "%%")
        return f"{text} (default: {shown})".strip()


_MARKED = re.compile(r"\s*(?:[-*]|\d+[.)]) ")
_ITEM = re.compile(r"(?P<mark>\s*(?:[-*] |\d+[.)] )|\s+(?:\S.*?\s{2,})?)(?P<text>\S.*)")  # a line of a list, or a term


def _wrap_paragraph(paragraph: str, width: int, indent: str) -> list[str]:
    """The lines of a paragraph of prose, or of a list, whose items stay apart:

    ::

        none      nothing: whole batches of labelled problems
        learning  a verifier that goes on learning, whose long description goes on
                  in the column in which it began

    The rows of a table, whose columns are set apart by ``|``, stay as they are.
    """
    if all(" | " in line for line in paragraph.splitlines()):
        return [f"{indent}{line}" for line in paragraph.splitlines()]

    items: list[tuple[str, list[str]]] = []  # what is before the text, and the lines of the text
    for line in paragraph.splitlines():
        match = _ITEM.fullmatch(line)
        mark, texts = items[-1] if items else ("", [])
        goes_on = len(line) - len(line.lstrip()) == len(mark) and not _MARKED.match(line)
        if texts and goes_on:
            texts.append(line.strip())
        elif match is not None:
            items.append((match["mark"], [match["text"]]))
        else:
            items.append(("", [line]))
    return [line for mark, texts in items for line in _wrap_item(mark, " ".join(texts), width, indent)]


def _wrap_item(mark: str, text: str, width: int, indent: str) -> list[str]:
    """The lines of an item; a mark that takes half of the width has no column of its own."""
    if len(mark) > width // 2:
        mark, text = mark[: len(mark) - len(mark.lstrip())], mark.strip() + " " + text
    column = " " * len(mark)
    words = " ".join(text.split())
    return textwrap.wrap(
        words, width, initial_indent=indent + mark, subsequent_indent=indent + column, break_on_hyphens=False
    )


_ARGUMENTS = re.compile(r"``(?P<code>[a-z_]+=[^`]+)``")  # arguments of a function, as docstrings write them
_NEXT_ARGUMENT = re.compile(r",\s+(?=[a-z_]+=)")


def with_flag_names(text: str, names: Collection[str]) -> str:
    """A docstring that names arguments, as in ``verifier="frozen"`` or ``balance=False``, for somebody who types flags:
    ``--verifier frozen``, ``--no-balance``. What is no argument among ``names`` stays as it is."""

    def as_typed(match: re.Match[str]) -> str:
        arguments = _split_arguments(match["code"])
        if not arguments.keys() <= set(names):
            return match[0]
        return f"``{' '.join(as_flag(name, value) for name, value in arguments.items())}``"

    return _ARGUMENTS.sub(as_typed, text)


def named_arguments(text: str, names: Collection[str]) -> list[str]:
    """Those of ``names`` that a docstring gives a value."""
    named: dict[str, None] = {}  # a set that keeps its order
    for match in _ARGUMENTS.finditer(text):
        named |= dict.fromkeys(_split_arguments(match["code"]))
    return [name for name in named if name in names]


def _split_arguments(code: str) -> dict[str, str]:
    """``rate=1, rate_end=1`` → each name with its value as it is written."""
    values = {}
    for part in _NEXT_ARGUMENT.split(code):
        name, _, value = part.partition("=")
        values[name] = value
    return values


def as_flag(name: str, value: str) -> str:
    """An argument as one types it; ``value`` as Python writes it."""
    flag = name.replace("_", "-")
    if value == "True":
        return f"--{flag}"
    if value == "False":
        return f"--no-{flag}"
    plain = value.replace('"', "").strip("()").replace(", ", " ")
    return f"--{flag} {plain}"


class Parser(argparse.ArgumentParser):
    """argparse that raises ConfigError with one line instead of printing its usage."""

    def __init__(self, *args: Any, **options: Any) -> None:
        options.setdefault("allow_abbrev", False)
        options.setdefault("formatter_class", Help)
        options["add_help"] = False
        description = options.get("description")
        if description:
            options["description"] = inspect.cleandoc(description)  # a docstring keeps the margin of its code
        super().__init__(*args, **options)
        self._shown_first: frozenset[str] | None = None  # flags that ``--help`` shows; None: all
        self.add_argument("-h", "--help", action=_HelpAction, help="show this message and exit")
        self.add_argument(
            "--log-level",
            **one_of("level", *LEVELS) | {"metavar": "LEVEL"},
            help="debug (with what libraries say, and where an error came from), info, warning (without progress), "
            "error (default: info)",
        )

    def show_first(self, names: Collection[str]) -> None:
        """Let ``--help`` show these flags, and say that ``--help all`` shows the others too."""
        self._shown_first = frozenset(names)
        (action,) = (action for action in self._actions if isinstance(action, _HelpAction))
        action.nargs = "?"
        action.metavar = "all"
        action.help = "show this message, or with `all` every flag, and exit"

    def short_help(self) -> str:
        """The help with the flags of ``show_first`` alone."""
        if self._shown_first is None:
            return self.format_help()
        hidden = [action for action in self._actions if action.dest not in (*self._shown_first, "help")]
        texts = [action.help for action in hidden]
        try:
            for action in hidden:
                action.help = argparse.SUPPRESS
            shown = self.format_help()
        finally:
            for action, text in zip(hidden, texts, strict=True):
                action.help = text
        return f"{shown}\n{len(hidden)} more flags: `{self.prog} --help all`\n"

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{self.prog}: {message}; see `{self.prog} --help`", code="E_COMMAND_LINE")

    def rename_foreign_flags(self, words: Sequence[str]) -> list[str]:
        """The words, where flags of other programs, such as TRL's, have the names that this command has for them."""
        flags = {flag for action in self._actions for flag in action.option_strings}
        if all(word.partition("=")[0] in flags for word in words if word.startswith("--")):
            return list(words)
        from cotrain.cli.foreign_flags import rename_flags

        return rename_flags(words, flags, self.prog)

    def parse_strictly(
        self, words: Sequence[str], explain_unknown: Callable[[str, str], str] = lambda flag, value: ""
    ) -> argparse.Namespace:
        """Parse all of ``words``; an unknown flag names the nearest known one, or what ``explain_unknown`` says of it
        and its value, such as which command has it."""
        words = self.rename_foreign_flags([*map(expand_home, words)])
        unknown = self._from_unknown_flag(words)  # before argparse misses what the flag should have given
        if not unknown:
            values, unknown = self.parse_known_args(words)
        if unknown:
            self._refuse_unknown(unknown, explain_unknown)
        self._check_usable(values)
        _make_absolute(values)
        set_level(values.log_level)
        return values

    def _from_unknown_flag(self, words: Sequence[str]) -> list[str]:
        """The words from the first flag on that this command does not have; none where it has them all, or where help
        is asked for before."""
        for place, word in enumerate(words):
            if word in ("-h", "--help", "--"):
                return []
            flag = word.partition("=")[0]
            if flag.startswith("--") and " " not in flag and flag not in self._option_string_actions:
                return list(words[place:])
        return []

    def _refuse_unknown(self, unknown: Sequence[str], explain_unknown: Callable[[str, str], str]) -> NoReturn:
        """The error of words that are no flags, of which the first is named."""
        first, *behind = unknown
        word, _, value = first.partition("=")
        if not value and behind:
            value = behind[0]
        hint = explain_unknown(word, value) or self._flag_meant(first)
        self.error(f"unknown argument {first!r}; {hint}" if hint else f"unknown argument {first!r}")

    def _flag_meant(self, typed: str) -> str:
        """The question whether a known flag was meant: by its name of before, with typing errors, or as ``steps=3``; ""
        where none is near."""
        name, equals, value = typed.partition("=")
        flags = _long_flags(self)
        if name.startswith("-"):
            near = nearest_name(name.lstrip("-"), flags)
            return f"did you mean --{near}?" if near else ""
        flag = name.replace("_", "-")
        return f"did you mean --{flag}={value}?" if equals and flag in flags else ""

    def _check_usable(self, values: argparse.Namespace) -> None:
        """Nothing in the place of a path, a name or a number, as of a variable of the shell that is not set: "" would
        be this folder; and an --out that is a link to nothing."""
        for action in self._actions:
            value = getattr(values, action.dest, None)
            entries = value if isinstance(value, list) else [value]
            if "" in entries and value != action.default and action.metavar not in (None, "TEXT"):
                name = "/".join(action.option_strings) or str(action.metavar)
                self.error(f"argument {name}: expected a value, found ''")
        out = getattr(values, "out", None)
        if not out:
            return
        for place in (Path(out), *Path(out).parents):
            if place.is_symlink() and not place.exists():
                what = f"{place} is a symbolic link to {os.readlink(place)}, which is not there"
                self.error(f"argument --out: {what}; make it, or choose another")


def _long_flags(parser: argparse.ArgumentParser) -> list[str]:
    """The flags of a parser that begin with two dashes, without these."""
    flags: list[str] = []
    for action in parser._actions:
        flags += [flag[2:] for flag in action.option_strings if flag.startswith("--")]
    return flags


class _HelpAction(argparse.Action):
    """``--help``, and ``--help all`` of a command with more flags than one reads at once."""

    def __init__(self, option_strings: Sequence[str], dest: str, help: str | None = None) -> None:
        super().__init__(option_strings, dest, nargs=0, default=argparse.SUPPRESS, help=help)

    def __call__(
        self, parser: argparse.ArgumentParser, space: argparse.Namespace, value: Any, option: str | None = None
    ) -> NoReturn:
        assert isinstance(parser, Parser)
        if value not in ([], None, "all"):
            parser.error(f"argument --help: expected nothing or `all`, found {value!r}")
        print(parser.format_help() if value == "all" else parser.short_help(), end="")
        parser.exit()


PLACES = ("out", "record", "quarantine", "directory", "directories", "one", "other")  # flags that name a place


def _make_absolute(values: argparse.Namespace) -> None:
    """Places that a command works in stay what they are though code of the user's changes the working directory. What
    is read may also be a name of the Hub: it becomes absolute only where it is there."""
    for name in PLACES:
        value = getattr(values, name, None)
        if isinstance(value, list):
            setattr(values, name, [_absolute_place(one) for one in value])
        elif isinstance(value, str):
            is_written = name in ("out", "record", "quarantine")
            setattr(values, name, os.path.abspath(value) if is_written else _absolute_place(value))


def _absolute_place(value: str) -> str:
    return os.path.abspath(value) if os.path.lexists(value) else value


def expand_home(word: str) -> str:
    """The word with the ~ of a path written out: a shell leaves one that is quoted, or stands behind a flag's =."""
    flag = ""
    path = word
    if word.startswith("--"):
        name, equals, path = word.partition("=")
        flag = f"{name}{equals}"
    if path == "~" or path.startswith("~/"):
        return f"{flag}{os.path.expanduser(path)}"
    return word


class SwitchOrText(argparse.BooleanOptionalAction):
    """``--gate``, ``--no-gate`` and ``--gate my_file.py:check``: of ``bool | str``."""

    def __init__(self, *args: Any, **rules: Any) -> None:
        super().__init__(*args, **rules)
        self.nargs = "?"
        self.metavar = "TEXT"

    def __call__(
        self, parser: argparse.ArgumentParser, space: argparse.Namespace, value: Any, option: str | None = None
    ) -> None:
        switch = not (option or "").startswith("--no-")
        if value is not None and not switch:
            parser.error(f"argument {option}: expected no value, found {value!r}")
        setattr(space, self.dest, switch if value is None else value)


def add_trust_flag(parser: argparse._ActionsContainer) -> None:
    parser.add_argument(
        "--trust-code",
        action=_TrustAction,
        nargs=0,
        help="run the Python that the run names, though no run of yours was begun with it; it may do all that you may",
    )


def add_changed_code_flag(parser: argparse._ActionsContainer) -> None:
    parser.add_argument(
        "--changed-code",
        action="store_true",
        help="go on though code of yours is not what the run was begun with; the run records both",
    )


class _TrustAction(argparse.Action):
    def __call__(self, *_: Any) -> None:
        from cotrain.core.trust import set_consent

        set_consent()


def one_of(kind: str, *choices: str) -> dict[str, Any]:
    """How argparse reads a flag that takes one of ``choices``: a wrong one names the nearest of them, which argparse's
    own ``choices`` does not do. ``kind``: what they are, for the error."""

    def parse_choice(text: str) -> str:
        if text not in choices:
            raise argparse.ArgumentTypeError(unknown_message(kind, text, choices))
        return text

    return {"type": parse_choice, "metavar": "{" + ",".join(choices) + "}"}


def check_set_paths(parser: argparse.ArgumentParser, overrides: Sequence[str], settings: Collection[str]) -> None:
    """Raise ConfigError for a ``--set`` that begins with none of these ``settings`` and means a flag of the command, as
    in ``--set lr=1e-4``."""
    flags = set(_long_flags(parser))
    for one in overrides:
        path, _, value = one.partition("=")
        meant = nearest_name(re.sub(r"[._]", "-", path), flags)
        if path.partition(".")[0] not in settings and meant is not None:
            typed = {"true": f"--{meant}", "false": f"--no-{meant}"}.get(value, f"--{meant} {value}")
            raise ConfigError(
                f"--set {one!r}: there is no such setting; did you mean the flag `{typed}`?", code="E_NO_SUCH_SETTING"
            )


def typed_words(value: Any) -> str:
    """A value as one types it behind its flag: ``(3, 1)`` as ``3 1``."""
    return " ".join(map(str, value)) if isinstance(value, tuple | list) else str(value)


def whole_number(least: int | None = None, most: int | None = None) -> Callable[[str], int]:
    """The type of a flag that is a whole number, of at least ``least`` and at most ``most``."""

    def parse_whole(text: str) -> int:
        value = _parse_number(text, int, "a whole number")
        if least is not None and value < least:
            raise argparse.ArgumentTypeError(f"{text!r} is too small, expected at least {least}")
        if most is not None and value > most:
            raise argparse.ArgumentTypeError(f"{text!r} is too large, expected at most {most}")
        return value

    return parse_whole


def real_number(least: float | None = None, above: float | None = None) -> Callable[[str], float]:
    """The type of a flag that is a finite number, of at least ``least`` or greater than ``above``."""

    def parse_real(text: str) -> float:
        value = _parse_number(text, float, "a number")
        if not math.isfinite(value):
            raise argparse.ArgumentTypeError(f"{text!r} is not finite, expected a number")
        if least is not None and value < least:
            raise argparse.ArgumentTypeError(f"{text!r} is too small, expected at least {least:g}")
        if above is not None and value <= above:
            raise argparse.ArgumentTypeError(f"{text!r} is too small, expected a number above {above:g}")
        return value

    return parse_real


def add_count(
    parser: argparse._ActionsContainer,
    flag: str,
    about: str,
    *,
    least: int = 1,
    default: int | None = None,
    metavar: str = "N",
) -> None:
    """Add a flag that is a whole number, of at least ``least``."""
    parser.add_argument(flag, type=whole_number(least), default=default, metavar=metavar, help=about)


def _parse_number(text: str, kind: Callable[[str], Any], name: str) -> Any:
    try:
        return kind(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected {name}, found {text!r}") from None


def comments_of(build: Callable[..., Any]) -> dict[str, str]:
    """The comments behind the parameters of a function or the fields of a class, as one line each; {} without source.

    A comment may go on in the lines below: those that begin in its column, or with no capital letter. Any other line
    is about what follows."""
    try:
        source = textwrap.dedent(inspect.getsource(build))
        definition = ast.parse(source).body[0]
    except (OSError, TypeError, SyntaxError, IndexError):
        return {}
    comments = {}
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            comments[token.start[0]] = token
    texts = {}
    for name, first_line, last_line in _lines_of_parameters(definition):
        line = first_line if first_line in comments else last_line
        if line in comments:
            texts[name] = _whole_comment(comments, line).replace("``", "`")
    return texts


def _lines_of_parameters(definition: ast.stmt) -> list[tuple[str, int, int]]:
    """The name of each parameter or field, the line in which it begins and the one in which its default ends."""
    if isinstance(definition, ast.ClassDef):
        fields = [node for node in definition.body if isinstance(node, ast.AnnAssign)]
        return [(ast.unparse(node.target), node.lineno, node.end_lineno or node.lineno) for node in fields]
    if not isinstance(definition, ast.FunctionDef | ast.AsyncFunctionDef):
        return []
    arguments = definition.args
    positional = [*arguments.posonlyargs, *arguments.args]
    without_default: list[ast.expr | None] = [None] * (len(positional) - len(arguments.defaults))
    parameters = [
        *zip(positional, [*without_default, *arguments.defaults], strict=True),
        *zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True),
    ]
    lines = []
    for parameter, default in parameters:
        end = parameter if default is None else default
        lines.append((parameter.arg, parameter.lineno, end.end_lineno or end.lineno))
    return lines


def _whole_comment(comments: Mapping[int, tokenize.TokenInfo], line: int) -> str:
    """The comment in a line, and the lines below that go on with it."""
    behind = comments[line]
    texts = [_comment_text(behind)]
    for below in itertools.count(line + 1):
        comment = comments.get(below)
        stands_alone = comment is not None and not comment.line[: comment.start[1]].strip()
        if comment is None or not stands_alone:
            break
        text = _comment_text(comment)
        is_new = text[:1].isupper() or text.startswith("-") or not text
        if is_new and comment.start[1] != behind.start[1]:
            break
        texts.append(text)
    return " ".join(texts).strip()


def _comment_text(comment: tokenize.TokenInfo) -> str:
    return comment.string.lstrip("#").strip()


def add_parameters(
    parser: argparse._ActionsContainer,
    recipe: str,
    arguments: Mapping[str, Argument],
    *,
    about: Mapping[str, str] | None = None,
) -> list[str]:
    """Add one flag for each argument of a recipe that a flag can hold, with what is said ``about`` it; return their
    names."""
    by_size = defaults_by_size({name: argument.default for name, argument in arguments.items()})
    names = []
    for name, argument in arguments.items():
        flag = "--" + name.replace("_", "-")
        kind = strip_optional(argument.hint)
        default = None if argument.is_required else argument.default
        rules = _rules_of_flag(argument.hint)
        if rules is None:
            continue
        try:
            action = parser.add_argument(flag, default=default, required=argument.is_required, **rules)
        except argparse.ArgumentError as error:
            raise ConfigError(
                f"{recipe}: parameter {name!r} has the name of a flag of the command, {flag}; rename it, for "
                f"instance {f'{recipe}_{name}'!r}",
                code="E_PARAMETER_IS_FLAG",
            ) from error
        if default is not None:
            if kind is bool:
                default_text = flag if default else f"--no-{flag[2:]}"
            else:
                default_text = typed_words(default)
            of_large_models = f"; {by_size[name]}" if name in by_size else ""
            action.help = f"(default: {default_text.replace('%', '%%')}{of_large_models})"

        text = (about or {}).get(name, "").replace("%", "%%")
        action.help = f"{text} {action.help or ''}".strip()
        names.append(name)
    return names


def _rules_of_flag(hint: Any) -> dict[str, Any] | None:
    """How argparse reads an argument of this type; None for one that no flag can hold."""
    kind = strip_optional(hint)
    inner = typing.get_args(kind)
    if typing.get_origin(kind) is typing.Literal:  # the recipe itself says which is nearest to a wrong one
        return {"metavar": "{" + ",".join(map(str, inner)) + "}"}
    if kind is bool:
        return {"action": argparse.BooleanOptionalAction}
    if bool in typing.get_args(hint):
        return {"action": SwitchOrText}
    is_fixed_tuple = typing.get_origin(kind) is tuple and bool(inner) and Ellipsis not in inner
    if is_fixed_tuple:
        return {"type": TYPES[inner[0]], "nargs": len(inner), "metavar": METAVARS[inner[0]]}
    if kind in TYPES:
        return {"type": TYPES[kind], "metavar": METAVARS[kind]}
    return None


TYPES: dict[Any, Callable[[str], Any]] = {int: whole_number(), float: real_number(), str: str}
METAVARS: dict[Any, str] = {int: "N", float: "X", str: "TEXT"}


def parsed_values(namespace: argparse.Namespace, names: Sequence[str]) -> dict[str, Any]:
    """The parsed values of these parameters; lists as tuples."""
    values = {}
    for name in names:
        value = getattr(namespace, name)
        values[name] = tuple(value) if isinstance(value, list) else value
    return values


def typed_flags(words: Sequence[str], parser: argparse.ArgumentParser) -> set[str]:
    """Names of the flags that are among these words; what a parser has of others are defaults."""
    flags = {word.partition("=")[0] for word in words}
    return {action.dest for action in parser._actions if flags & set(action.option_strings)}


def text_of_file(path: str, flag: str) -> str:
    """Return the content of a text file, without the line break at its end."""
    from cotrain.core.input_files import text_of_file as content_of

    try:
        return content_of(Path(path)).removesuffix("\n")
    except DataError as error:
        raise DataError(f"{flag} {error}", code=error.code) from None
