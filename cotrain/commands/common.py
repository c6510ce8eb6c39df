"""What several commands share: quiet libraries, threads, and how a figure is printed."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

from cotrain.core.errors import ConfigError, DataError
from cotrain.core.flags import whole
from cotrain.core.threads import settled_threads
from cotrain.core.verbosity import progress, shows_all

say = progress  # what a command is busy with


def quiet() -> None:
    """Keep the libraries' own progress bars and warnings out of ours, but for ``--log-level debug``."""
    if shows_all():
        return
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    from huggingface_hub.utils import disable_progress_bars
    from transformers.utils import logging

    disable_progress_bars()  # a download enables them for itself
    logging.disable_progress_bar()


def threads(count: int | None) -> None:
    import torch

    torch.set_num_threads(settled_threads(count))


def figure(estimate: dict[str, Any] | None) -> str:
    return "–" if estimate is None else f"{estimate['value']:.3f} [{estimate['low']:.3f}, {estimate['high']:.3f}]"


def add_device(parser: argparse._ActionsContainer) -> None:
    parser.add_argument(
        "--device", default="auto", help="auto (cuda where there is one, else cpu), cpu, cuda, cuda:1 … (default: auto)"
    )


def device_of(name: str) -> str:
    """The device that ``--device`` means."""
    from cotrain.backend.local import settled_device

    return settled_device(name)


def add_backend(parser: argparse._ActionsContainer) -> None:
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
        type=whole(1),
        metavar="N",
        help="with --backend ray: ranks that hold the learners in shards (default: 1)",
    )


def add_lag(parser: argparse._ActionsContainer, default: int | None = 0) -> None:
    usual = "as the run was begun" if default is None else "0: first one, then the other"
    parser.add_argument(
        "--lag",
        type=int,
        choices=(0, 1),
        default=default,
        help=f"1: the next step is played beside the update of this one, by the weights before it (default: {usual})",
    )


def backend_of(given: argparse.Namespace) -> Any:
    """The backend that ``--backend``, ``--cluster`` and ``--engine`` mean; None for this process. Raises
    ConfigError."""
    if given.backend == "local":
        if given.engine != "embedded":
            raise ConfigError(f"--engine {given.engine} goes with --backend ray; give both, or neither")
        for flag in ("cluster", "world"):
            if getattr(given, flag) is not None:
                raise ConfigError(f"--{flag} goes with --backend ray; give both, or neither")
        return None
    from cotrain.backend.cluster_file import LOCAL, check_room, read, roomy
    from cotrain.backend.on_ray import Ray
    from cotrain.backend.places import ByVllm
    from cotrain.backend.several import Several

    target, device, world = given.cluster or LOCAL, device_of(given.device), given.world or 1
    cluster = read(target)
    check_room(cluster, device, world)
    launcher, replicas = Ray(cluster), cluster.replicas
    if given.engine == "embedded":
        return Several(launcher, device, world=world, replicas=replicas)
    from cotrain.learn.mismatch import LOOSE

    launcher.refuse_foreign(f"--cluster {target}")
    placing = roomy(cluster, world, ByVllm(settings=cluster.vllm))
    return Several(launcher, device, world=world, placing=placing, replicas=replicas, kind="vllm", bounds=LOOSE)


def add_threads(parser: argparse._ActionsContainer, default: str = "OMP_NUM_THREADS, or all cores") -> None:
    parser.add_argument("--threads", type=whole(1), metavar="N", help=f"CPU threads (default: {default})")


def add_answers(
    parser: argparse._ActionsContainer,
    default: str = "auto, which looks at 8 answers of the model; of the package's own models tags",
) -> None:
    parser.add_argument(
        "--answer",
        metavar="FORMAT",
        help="where the answer of a solution stands: auto, tags, boxed, hash, phrase, last-number, or a pattern with "
        "one group "
        f"(default: {default})",
    )
    parser.add_argument("--prompt", metavar="FILE", help="how the solver is asked: a text with the mark {problem}")


def answered(recipe: Any, given: argparse.Namespace, *, dry: bool = False) -> Any:
    """The recipe with what ``--answer`` and ``--prompt`` say, or what its model's own answers say; ``dry``: no model is
    asked."""
    from cotrain.loop.answers import AUTO, TAGS, settings_for
    from cotrain.loop.override import override

    if dry and given.answer in (None, AUTO):
        given = argparse.Namespace(**{**vars(given), "answer": None if given.prompt is None else TAGS})
        if given.prompt is None:
            return recipe
    answer, prompt = given.answer, prompt_of(given.prompt)
    return override(recipe, settings_for(recipe, answer, prompt, device=device_of(given.device), say=say))


def prompt_of(path: str | None) -> str | None:
    """The template that ``--prompt`` names."""
    return None if path is None else text_of_file(path, "--prompt")


def text_of_file(path: str, flag: str) -> str:
    """What a text file holds, without the line break at its end."""
    try:
        return Path(path).read_text(encoding="utf-8").removesuffix("\n")
    except OSError as error:
        raise DataError(f"{flag} {path}: {(error.strerror or 'unreadable').lower()}; name a text file") from None
    except UnicodeDecodeError as error:
        raise DataError(f"{flag} {path}: not UTF-8 at byte {error.start}; save the file as UTF-8") from None
