"""Helpers that several commands share: common flags, ``--config FILE``, quiet libraries, threads, and how a figure is
printed."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cotrain.core.errors import ConfigError, DataError, nearest_name
from cotrain.core.flags import Parser, text_of_file, whole_number
from cotrain.core.threads import choose_threads
from cotrain.core.verbosity import print_progress, shows_all

ANSWER_FLAGS = ("answer", "steps_as", "prompt", "verdict", "verifier_prompt")
say = print_progress  # what a command is busy with


def quiet_libraries() -> None:
    """Keep the libraries' own progress bars and warnings out of ours, but for ``--log-level debug``."""
    if shows_all():
        return
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    from huggingface_hub.utils import disable_progress_bars
    from transformers.utils import logging

    disable_progress_bars()  # a download enables them for itself
    logging.disable_progress_bar()


def set_threads(count: int | None) -> None:
    import torch

    torch.set_num_threads(choose_threads(count))


def figure_text(estimate: dict[str, Any] | None) -> str:
    """``0.412 [0.380, 0.445]``; what is not known of it is a question mark."""
    if estimate is None or estimate.get("value") is None:
        return "–"
    low, high = ("?" if (bound := estimate.get(name)) is None else f"{bound:.3f}" for name in ("low", "high"))
    return f"{estimate['value']:.3f} [{low}, {high}]"


def add_view_flag(parser: argparse._ActionsContainer) -> None:
    parser.add_argument("--view", action="store_true", help="serve the page of the run from its first second on")


def add_device_flag(parser: argparse._ActionsContainer) -> None:
    parser.add_argument(
        "--device", default="auto", help="auto (cuda where there is one, else cpu), cpu, cuda, cuda:1 … (default: auto)"
    )


def device_of(name: str, *, here: bool = True) -> str:
    """The device that ``--device`` means. Raises ConfigError where it is to be ``here`` and is not."""
    from cotrain.backend.local import check_device, resolve_device

    device = resolve_device(name)
    if here:
        check_device(device)
    return device


def add_backend_flags(parser: argparse._ActionsContainer) -> None:
    parser.add_argument(
        "--backend", default="local", choices=("local", "ray"), help="this process, or others by Ray (default: local)"
    )
    parser.add_argument(
        "--cluster",
        metavar="FILE",
        help="with --backend ray: local (the default), or a TOML file that names the machines",
    )
    parser.add_argument(
        "--engine",
        default="embedded",
        choices=("embedded", "vllm"),
        help="with --backend ray: who samples; vLLM runs in the Python that --cluster names (default: embedded)",
    )
    parser.add_argument(
        "--world",
        type=whole_number(1),
        metavar="N",
        help="with --backend ray: ranks that hold the learners in shards (default: 1)",
    )


def add_lag_flag(parser: argparse._ActionsContainer, default: int | None = 0) -> None:
    usual = "as the run was begun" if default is None else "0: first one, then the other"
    parser.add_argument(
        "--lag",
        type=int,
        choices=(0, 1),
        default=default,
        help=f"1: the next step is played beside the update of this one, by the weights before it (default: {usual})",
    )


def backend_of(arguments: argparse.Namespace) -> Any:
    """The backend that ``--backend``, ``--cluster`` and ``--engine`` mean; None for this process. Raises
    ConfigError."""
    if arguments.backend == "local":
        if arguments.engine != "embedded":
            raise ConfigError(f"--engine {arguments.engine} goes with --backend ray; give both, or neither")
        for flag in ("cluster", "world"):
            if getattr(arguments, flag) is not None:
                raise ConfigError(f"--{flag} goes with --backend ray; give both, or neither")
        return None
    from cotrain.backend.cluster_file import LOCAL, check_world, read_cluster_file, with_gpu_check
    from cotrain.backend.multi_process import MultiProcessBackend
    from cotrain.backend.on_ray import RayLauncher
    from cotrain.backend.places import VllmPlacement

    target, device, world = arguments.cluster or LOCAL, device_of(arguments.device, here=False), arguments.world or 1
    cluster = read_cluster_file(target)
    check_world(cluster, device, world)
    launcher, replicas = RayLauncher(cluster), cluster.replicas
    if arguments.engine == "embedded":
        return MultiProcessBackend(launcher, device, world=world, replicas=replicas)
    from cotrain.learn.losses import LOOSE

    launcher.refuse_foreign(f"--cluster {target}")
    placing = with_gpu_check(cluster, world, VllmPlacement(settings=cluster.vllm))
    return MultiProcessBackend(
        launcher, device, world=world, placing=placing, replicas=replicas, kind="vllm", bounds=LOOSE
    )


def add_threads_flag(parser: argparse._ActionsContainer, default: str = "OMP_NUM_THREADS, or all cores") -> None:
    parser.add_argument("--threads", type=whole_number(1), metavar="N", help=f"CPU threads (default: {default})")


def add_answer_flags(
    parser: argparse._ActionsContainer,
    default: str = "auto, which looks at 8 answers of the model; of the package's own models tags",
    verdict: str = "",
) -> None:
    parser.add_argument(
        "--answer",
        metavar="FORMAT",
        help="where the answer of a solution stands: auto, tags, boxed, hash, phrase, last-number, or a pattern with "
        f"one group (default: {default})",
    )
    parser.add_argument(
        "--steps-as",
        metavar="WAY",
        help="what a step of a solution is: tags, lines, numbered, sentences, paragraphs (default: as the answers that "
        "were looked at are written; without a look lines)",
    )
    parser.add_argument("--prompt", metavar="FILE", help="how the solver is asked: a text with the mark {problem}")
    parser.add_argument(
        "--verdict",
        metavar="FORM",
        help=f"how a review is read: {verdict}tags, words, boxed, first-wrong, or a pattern with one group",
    )
    parser.add_argument(
        "--verifier-prompt",
        metavar="FILE",
        help="how the verifier is asked: a text with {problem} and {solution}, and with {count} where steps are judged",
    )


def knows_formats(recipe: Any) -> bool:
    """Whether every role is played by a model that was taught its format, so that there is nothing to choose."""
    from cotrain.rollout.common_roles import speaks_short

    specs = [recipe.policies[role.policy] for role in recipe.roles.values()]
    return all(not spec.head or speaks_short(spec.model) for spec in specs)


def answer_format_of(arguments: argparse.Namespace) -> Any:
    """What the flags of ``add_answer_flags`` say, files read: an ``AnswerFormat``."""
    from cotrain.preflight.formats import AnswerFormat

    return AnswerFormat(
        answer=arguments.answer,
        prompt=prompt_of(arguments.prompt),
        steps_as=arguments.steps_as,
        verdict=arguments.verdict,
        verifier_prompt=prompt_of(arguments.verifier_prompt, "--verifier-prompt"),
    )


def with_answer_formats(recipe: Any, arguments: argparse.Namespace, *, dry: bool = False) -> Any:
    """The recipe with what ``--answer``, ``--steps-as``, ``--prompt``, ``--verdict`` and ``--verifier-prompt`` say, or
    what its models' own answers and reviews say; ``dry``: no model is asked."""
    if not any(getattr(arguments, flag) for flag in ANSWER_FLAGS) and knows_formats(recipe):
        return recipe
    from cotrain.config.override import override
    from cotrain.preflight.formats import choose_format_settings

    device = device_of(arguments.device, here=False)
    chosen = choose_format_settings(recipe, answer_format_of(arguments), device=device, say=say, look=not dry)
    return override(recipe, chosen)


def prompt_of(path: str | None, flag: str = "--prompt") -> str | None:
    """The template that ``--prompt`` or another flag names."""
    return None if path is None else text_of_file(path, flag)


# -- ``cotrain run --config FILE``: flags in a TOML file, one key a flag, as ``--dry-run`` prints them.


RECIPE = "recipe"
NEVER = ("help", "config", "dry_run", "json", "log_level", "smoke", "view")  # they say nothing of the run


def config_of(argv: Sequence[str]) -> tuple[str, dict[str, Any]] | None:
    """Which file ``--config`` names among these arguments, and its keys. Raises DataError and ConfigError."""
    for at, word in enumerate(argv):
        flag, equals, path = word.partition("=")
        if flag == "--config":
            if not equals and at + 1 == len(argv):
                raise ConfigError("--config: expected a TOML file, as `cotrain run RECIPE --dry-run` prints it")
            path = path if equals else argv[at + 1]
            return path, _read_config(path)
    return None


def _read_config(path: str) -> dict[str, Any]:
    from cotrain.core.input_files import read_toml

    try:
        return read_toml(Path(path))
    except DataError as error:
        raise DataError(f"--config {error}; write one key a flag, as in lr = 1e-4") from None


def config_words(path: str, keys: Mapping[str, Any], parser: Parser) -> list[str]:
    """The words that the keys of a file stand for. Raises ConfigError for a key that is no flag, and a value that no
    flag takes."""
    actions = {action.dest: action for action in parser._actions if action.dest not in NEVER}
    words: list[str] = []
    for key, value in keys.items():
        if key == RECIPE:
            continue
        where, action = f"--config {path}: key {key!r}", actions.get(key.replace("-", "_"))
        if action is None:
            near = nearest_name(key, [name.replace("_", "-") for name in (*actions, RECIPE)])
            raise ConfigError(f"{where} is no flag" + (f"; did you mean {near!r}?" if near else ""))
        words += _flag_words(where, action, value)
    return words


def _flag_words(where: str, action: argparse.Action, value: Any) -> list[str]:
    flag = action.option_strings[0]
    many = isinstance(action, argparse._AppendAction)
    if action.nargs == 0:
        if not isinstance(value, bool):
            raise ConfigError(f"{where}: expected true or false, found {value!r}")
        no = [one for one in action.option_strings if one.startswith("--no-")]
        return [flag] if value else no
    entries = value if isinstance(value, list) else [value]
    if any(isinstance(one, bool) or not isinstance(one, str | int | float) for one in entries):
        raise ConfigError(f"{where}: expected text or a number, found {value!r}")
    if isinstance(value, list) and not many and action.nargs is None:
        raise ConfigError(f"{where}: expected one value, found {len(value)}")
    texts = [str(one) for one in entries]
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
