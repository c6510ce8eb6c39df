"""``cotrain sft``: fine-tune a model on conversations.

``cotrain teach`` (``teach.py``) makes conversations of a role, and trains on them with ``fine_tune`` of this file.
"""

from __future__ import annotations

import inspect
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cotrain.cli.flags import Parser, add_count
from cotrain.cli.stages import (
    SAMPLES,
    add_lenient_flag,
    add_stage_flags,
    check_settings_unchanged,
    note_columns,
    note_quarantine,
    prepare_stage,
    quarantine_of,
    ranks_of,
    report_outcome,
    report_to,
    say_plan,
    write_quarantine,
)
from cotrain.core.errors import ConfigError, unknown_message
from cotrain.data.malformed_rows import Quarantine
from cotrain.storage.file_ops import replace_file
from cotrain.storage.jsonl import encode_row

if TYPE_CHECKING:
    from cotrain.cli.stage_ranks import StageCommand
    from cotrain.models.lora import Lora
    from cotrain.pretraining.pretrain import Parts
    from cotrain.pretraining.ranks import Ranks
    from cotrain.storage.kept_work import KeptWork

TAUGHT_ROLES = ("solver", "verifier")  # those that ``cotrain teach`` can teach
TEACH_FLAGS = (  # flags of ``cotrain teach`` that ``cotrain sft`` does not have
    *("--answer-format", "--steps-as", "--prompt", "--verdict", "--verifier-prompt", "--review-format"),
    *("--from-samples", "--samples", "--reviews", "--max-tokens"),
)
SMALL_MODEL_LR = 1e-3  # below 100 million parameters
LARGE_MODEL_LR = 2e-5
LR_DEFAULT = " (default: 1e-3 below 100 million parameters, else 2e-5, with --lora 1e-4)"


def sft(argv: Sequence[str], ranks: Ranks | None = None) -> int:
    """Fine-tune a model on conversations: rows of "messages", of "conversations" (ShareGPT), of "prompt" and
    "completion", or of "instruction" and "output"; or on rows of "text", which are learned whole. What a solver or a
    verifier will say in a run is taught by `cotrain teach`."""
    _refuse_role(argv)
    arguments = _parse_sft(argv, ranks)
    if ranks is None:
        check_same_tuning(arguments)
    quarantine = quarantine_of(arguments)
    if arguments.data is None:
        lessons = _practice_lessons(arguments.seed)
    else:
        lessons = _file_lessons(arguments.data, quarantine)
    return fine_tune(sft, argv, arguments, lessons, quarantine, ranks)


def _parse_sft(argv: Sequence[str], ranks: Ranks | None) -> Any:
    parser = Parser(prog="cotrain sft", description=inspect.getdoc(sft))
    conversations = parser.add_argument_group("what it learns")
    add_model_flag(conversations)
    data_help = "conversations: .jsonl, .json, .csv or .parquet (default: procedural solutions and reviews)"
    conversations.add_argument("--data", metavar="FILE", help=data_help)
    add_lenient_flag(conversations)
    add_lora_flag(conversations)
    add_stage_flags(parser, tokens=1_000_000, lr=None, lr_default=LR_DEFAULT)
    arguments = parser.parse_strictly(argv, _command_of_flag)
    prepare_stage(parser, arguments, ranks)
    return arguments


def add_model_flag(parser: Any) -> None:
    """``--model``, of a fine-tuning."""
    parser.add_argument("--model", required=True, help="directory, Hub name or shipped model to start from")


def add_lora_flag(parser: Any) -> None:
    """``--lora``, of a fine-tuning."""
    add_count(parser, "--lora", "train an adapter of this rank; the model that is written has it in its weights")


def _command_of_flag(flag: str, value: str) -> str:
    """The hint for an unknown flag: that ``cotrain teach`` has it, or ""."""
    if flag not in TEACH_FLAGS:
        return ""
    return "`cotrain teach solver` and `cotrain teach verifier` teach what a role will say"


def _refuse_role(argv: Sequence[str]) -> None:
    """Raise ConfigError for ``--role``. ``cotrain sft --role solver`` was renamed to ``cotrain teach solver``: the
    message has the whole command under its new name."""
    words = list(argv)
    flags = [word.partition("=")[0] for word in words]
    if "--role" not in flags:
        return
    start = flags.index("--role")
    _, equals, role = words[start].partition("=")
    if equals:
        end = start + 1
    else:
        end = start + 2
        role = words[start + 1] if start + 1 < len(words) else ""
    if not role or role.startswith("-"):
        raise ConfigError(
            "cotrain sft: --role is gone; roles are taught by `cotrain teach solver` and `cotrain teach verifier`",
            code="E_ROLE_IS_COMMAND",
        )
    if role not in TAUGHT_ROLES:
        raise ConfigError(f"cotrain teach: {unknown_message('role', role, TAUGHT_ROLES)}", code="E_TEACH_WITHOUT_ROLE")
    command = shlex.join(["cotrain", "teach", role, *words[:start], *words[end:]])
    raise ConfigError(
        f"cotrain sft: --role {role} is a command of its own now, with the same flags: {command}",
        code="E_ROLE_IS_COMMAND",
    )


# -- What is learned.


@dataclass(frozen=True, slots=True, kw_only=True)
class Lessons:
    """The data that a model is fine-tuned on."""

    parts: Parts  # corpora of conversations, each with its weight
    taught: Mapping[str, Any] = field(default_factory=dict)  # prompt and answer format of the role that is taught
    own_rows: Sequence[Mapping[str, Any]] = ()  # conversations that the model wrote itself (``teach --from-samples``)
    sampling: Mapping[str, Any] | None = None  # the flags by which ``own_rows`` were drawn
    kept_work: KeptWork | None = None  # keeps ``own_rows`` on disk until the model is written
    in_own_formats: bool = False  # whether the conversations are in the package's own formats


def _practice_lessons(seed: int) -> Lessons:
    """Solutions and reviews of procedural problems, in the package's own formats."""
    from cotrain.data.word_problems.source import study_problems
    from cotrain.pretraining.corpora import practice_of

    return Lessons(parts=practice_of(study_problems((1, 9)), seed, "settle"), in_own_formats=True)


def _file_lessons(path: str, quarantine: Quarantine | None) -> Lessons:
    """The conversations of a file, or its texts."""
    from cotrain.pretraining.corpora import corpus_file

    return Lessons(parts=[(corpus_file(path, quarantine), 1)])


# -- Learning it.


def fine_tune(
    command: StageCommand,
    argv: Sequence[str],
    arguments: Any,
    lessons: Lessons,
    quarantine: Quarantine | None,
    ranks: Ranks | None,
) -> int:
    """Fine-tune ``--model`` on ``lessons``, write it to ``--out`` and return the exit code. The other ranks of
    ``--world`` run ``command`` with ``argv``; in one of them ``ranks`` is its own rank."""
    from cotrain.pretraining import sft as stage

    lr = arguments.lr or _default_lr(arguments)
    if ranks is None:
        note_quarantine(quarantine, arguments.out)
        note_columns(lessons.parts)
        say_plan(arguments, lessons.parts, lr)
    stage_name = command.__name__.replace("_", " ")
    with (
        ranks_of(command, argv, arguments, ranks) as own_rank,
        report_to(arguments, stage_name, own_rank) as report,
    ):
        outcome = stage.sft(
            arguments.model,
            arguments.out,
            conversations=lessons.parts,
            tokens=arguments.tokens,
            batch_tokens=arguments.batch_tokens,
            length=arguments.length,
            lr=lr,
            optimizer=arguments.optimizer,
            seed=arguments.seed,
            resume=arguments.resume,
            report=report,
            plan={"save_every": arguments.save_every},
            device=arguments.device,
            taught=lessons.taught,
            sampling=lessons.sampling,
            lora=_lora_of(arguments),
            write_more=lambda: _write_beside_model(lessons, quarantine, arguments.out),
            ranks=own_rank,
        )
    if not own_rank.is_first:
        return 0
    if outcome.finished and lessons.kept_work is not None:
        lessons.kept_work.finish()
    return report_outcome(outcome, arguments.out)


def check_same_tuning(arguments: Any, sampling: Mapping[str, Any] | None = None) -> None:
    """Raise RunDirectoryError where ``--resume`` has other settings than the fine-tuning in ``--out`` was begun
    with. ``sampling``: the flags by which the model's own conversations are drawn."""
    lora = _lora_of(arguments)
    about = {"lora": None if lora is None else asdict(lora)}
    lr = arguments.lr or _default_lr(arguments)
    check_settings_unchanged(arguments, start=str(arguments.model), lr=lr, about=about, sampling=sampling)


def _lora_of(arguments: Any) -> Lora | None:
    """The adapter of ``--lora``."""
    from cotrain.models.lora import Lora

    return None if arguments.lora is None else Lora(rank=arguments.lora)


def _default_lr(arguments: Any) -> float:
    """The learning rate without ``--lr``, by the size of the model."""
    from cotrain.config.large_model_defaults import ADAPTER_RATE, are_small

    if are_small([arguments.model]):
        return SMALL_MODEL_LR
    return LARGE_MODEL_LR if arguments.lora is None else ADAPTER_RATE


def _write_beside_model(lessons: Lessons, quarantine: Quarantine | None, out: str) -> None:
    """Write files into the folder of a model: which formats it knows, the conversations that it wrote itself, and
    malformed rows."""
    from cotrain.rollout.common_roles import mark_terse_prompts

    if lessons.in_own_formats:  # roles then ask it in the short prompts of the shipped models
        mark_terse_prompts(Path(out))
    if lessons.own_rows:
        replace_file(Path(out) / SAMPLES, b"".join(map(encode_row, lessons.own_rows)))
    write_quarantine(quarantine, out)
