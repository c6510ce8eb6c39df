"""Helpers that several commands share: common flags, quiet libraries, threads, and how a figure is printed."""

from __future__ import annotations

import argparse
import os
import sys
import warnings
from typing import Any

from cotrain.cli.flags import add_count, one_of, text_of_file
from cotrain.core.errors import ConfigError
from cotrain.core.threads import choose_threads
from cotrain.core.verbosity import print_aside, print_note, print_progress, shows_all

ANSWER_FLAGS = ("answer_format", "steps_as", "prompt", "verdict", "verifier_prompt")
say = print_progress  # prints a line about what the command is doing


def load_libraries() -> None:
    """Import torch and transformers. Their progress bars and warnings are switched off, except with
    ``--log-level debug``.

    This takes seconds, so a command first checks its arguments as far as it can without them.
    """
    if "torch" not in sys.modules:
        print_aside("loading torch and transformers …")
    if not shows_all():
        _quiet_libraries()
    import torch  # noqa: F401
    import transformers  # noqa: F401


def _quiet_libraries() -> None:
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    for library in ("transformers", "peft"):  # whoever types a command cannot act on their FutureWarnings
        warnings.filterwarnings("ignore", category=FutureWarning, module=library)
    from huggingface_hub.utils import disable_progress_bars
    from transformers.utils import logging

    disable_progress_bars()  # our own downloads enable them again while they run
    logging.disable_progress_bar()


def set_threads(count: int | None) -> None:
    import torch

    torch.set_num_threads(choose_threads(count))


def add_column_flags(parser: argparse._ActionsContainer) -> None:
    usual = "column of --data that has the {0} (default: the one whose name is usual, such as {1})"
    parser.add_argument("--question-column", metavar="NAME", help=usual.format("question", "prompt"))
    parser.add_argument("--answer-column", metavar="NAME", help=usual.format("answer", "solution"))


def add_json_flag(parser: argparse._ActionsContainer) -> None:
    parser.add_argument("--json", action="store_true", help="print the result as JSON, and all else to stderr")


def add_view_flag(parser: argparse._ActionsContainer) -> None:
    parser.add_argument("--view", action="store_true", help="serve the page of the run from its first second on")


def add_device_flag(parser: argparse._ActionsContainer) -> None:
    parser.add_argument(
        "--device",
        default="auto",
        help="device: auto (cuda where there is one, else cpu), cpu, cuda, cuda:1 … or mps, which is untried "
        "(default: auto)",
    )


def device_of(name: str, *, must_exist: bool = True) -> str:
    """The device that ``--device`` means. Raises ConfigError if this machine lacks it, unless ``must_exist`` is False:
    then other machines may have it."""
    from cotrain.distributed.local import check_device, resolve_device

    device = resolve_device(name)
    if must_exist:
        check_device(device)
    if device.startswith("mps"):
        print_note("--device mps is untried: nobody has run cotrain on a GPU of Apple's; compare a trial with cpu")
    return device


def add_backend_flags(parser: argparse._ActionsContainer) -> None:
    parser.add_argument(
        "--backend",
        **one_of("backend", "local", "ray"),
        default="local",
        help="where models run: in this process, or in others by Ray (default: local)",
    )
    parser.add_argument(
        "--cluster",
        metavar="FILE",
        help="with --backend ray: local (the default), or a TOML file that names the machines",
    )
    parser.add_argument(
        "--engine",
        **one_of("engine", "local", "vllm"),
        default="local",
        help="with --backend ray: the engine that samples; vLLM runs in the Python that --cluster names (default: "
        "local)",
    )
    add_count(parser, "--world", "with --backend ray: ranks that hold the learners in shards (default: 1)")


def add_async_steps_flag(parser: argparse._ActionsContainer, default: int | None = 0) -> None:
    usual = "as the run was begun" if default is None else "0: first one, then the other"
    add_count(
        parser,
        "--async-steps",
        f"step t + K is sampled beside the update of step t, with the weights before it (default: {usual})",
        least=0,
        default=default,
        metavar="K",
    )


def backend_of(arguments: argparse.Namespace) -> Any:
    """The backend that ``--backend``, ``--cluster`` and ``--engine`` mean; None for this process. Raises
    ConfigError."""
    if arguments.backend == "local":
        if arguments.engine != "local":
            raise ConfigError(
                f"--engine {arguments.engine} goes with --backend ray; give both, or neither",
                code="E_FLAGS_GO_TOGETHER",
            )
        for flag in ("cluster", "world"):
            if getattr(arguments, flag) is not None:
                raise ConfigError(
                    f"--{flag} goes with --backend ray; give both, or neither", code="E_FLAGS_GO_TOGETHER"
                )
        return None
    from cotrain.distributed.cluster_file import LOCAL, check_world, read_cluster_file, with_gpu_check
    from cotrain.distributed.multi_process import MultiProcessBackend
    from cotrain.distributed.placement import VllmPlacement
    from cotrain.distributed.ray_processes import RayLauncher

    target = arguments.cluster or LOCAL
    device = device_of(arguments.device, must_exist=False)
    world = arguments.world or 1
    cluster = read_cluster_file(target)
    check_world(cluster, device, world)
    launcher = RayLauncher(cluster)
    replicas = cluster.replicas
    if arguments.engine == "local":
        return MultiProcessBackend(launcher, device, world=world, worlds=cluster.worlds, replicas=replicas)
    from cotrain.algorithms.policy_loss import LOOSE

    launcher.check_foreign(f"--cluster {target}")  # vLLM's Python, which is another one than ours
    placing = with_gpu_check(cluster, world, VllmPlacement(settings=cluster.vllm))
    return MultiProcessBackend(
        launcher,
        device,
        world=world,
        worlds=cluster.worlds,
        placing=placing,
        replicas=replicas,
        kind="vllm",
        bounds=LOOSE,  # vLLM's log-probabilities differ a little from the learner's, so ratios are bounded
    )


def add_threads_flag(parser: argparse._ActionsContainer, default: str = "OMP_NUM_THREADS, or all cores") -> None:
    add_count(parser, "--threads", f"CPU threads (default: {default})")


def add_answer_flags(
    parser: argparse._ActionsContainer,
    default: str = "auto, which looks at 8 answers of the model; of the package's own models tags",
    verdict: str = "",
) -> None:
    parser.add_argument(
        "--answer-format",
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
        help=f"how a review is read: {verdict}tags, words, boxed, first-wrong, or a pattern with one group, "
        "and with (?P<step>…) besides where it reads steps",
    )
    parser.add_argument(
        "--verifier-prompt",
        metavar="FILE",
        help="how the verifier is asked: a text with {problem} and {solution}, and with {count} where steps are judged",
    )


def add_tool_flag(parser: argparse._ActionsContainer) -> None:
    parser.add_argument(
        "--tool",
        metavar="NAME",
        help="tool that answers what a nanochat model writes between <|python_start|> and <|python_end|>: calculator, "
        "or my_file.py:function (default: as the run has it)",
    )


def knows_formats(recipe: Any) -> bool:
    """Whether every role is played by a model that knows the package's formats, so that there is nothing to choose."""
    return all(_knows_formats(recipe.policies[role.policy]) for role in recipe.roles.values())


def _knows_formats(spec: Any) -> bool:
    """Whether a policy was made to write the package's formats: a program, or a shipped model."""
    from cotrain.rollout.common_roles import is_terse, taught_roles

    if spec.outside:
        return False
    is_model = bool(spec.head)
    if not is_model:
        return True
    was_taught_its_own = bool(taught_roles(spec.model))  # ``cotrain teach`` stored other formats with the model
    return is_terse(spec.model) and not was_taught_its_own


def answer_format_of(arguments: argparse.Namespace) -> Any:
    """Return the ``AnswerFormat`` that the flags of ``add_answer_flags`` name; files that they name are read."""
    from cotrain.runs.choose_formats import AnswerFormat

    return AnswerFormat(
        answer=arguments.answer_format,
        prompt=prompt_of(arguments.prompt),
        steps_as=arguments.steps_as,
        verdict=arguments.verdict,
        verifier_prompt=prompt_of(arguments.verifier_prompt, "--verifier-prompt"),
    )


def with_answer_formats(recipe: Any, arguments: argparse.Namespace, *, dry: bool = False) -> Any:
    """The recipe with the formats that ``--answer-format``, ``--steps-as``, ``--prompt``, ``--verdict`` and
    ``--verifier-prompt`` name. Any other format is chosen by sampling a few answers and reviews of its models, or left
    as it is with ``dry``."""
    if not any(getattr(arguments, flag) for flag in ANSWER_FLAGS) and knows_formats(recipe):
        return recipe
    from cotrain.runs.choose_formats import choose_formats

    device = device_of(arguments.device, must_exist=False)
    trial = getattr(arguments, "smoke", False)
    return choose_formats(recipe, answer_format_of(arguments), device=device, say=say, look=not dry, trial=trial)


def prompt_of(path: str | None, flag: str = "--prompt") -> str | None:
    """The template that ``--prompt`` or another flag names."""
    return None if path is None else text_of_file(path, flag)
