"""``cotrain teach solver`` and ``cotrain teach verifier``: fine-tune a model on what a role of a run will see and say.

The conversations are made of worked solutions or of labelled ones, or, with ``--from-samples``, of what the model
itself says and is right (``pretraining/solutions.py``, ``pretraining/reviews.py``). Then they are learned as ``cotrain
sft`` learns any conversations.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from cotrain import __version__
from cotrain.cli.common import prompt_of
from cotrain.cli.flags import Parser, add_count, one_of
from cotrain.cli.sft import (
    LR_DEFAULT,
    TAUGHT_ROLES,
    Lessons,
    add_lora_flag,
    add_model_flag,
    check_same_tuning,
    fine_tune,
)
from cotrain.cli.stages import (
    add_lenient_flag,
    add_stage_flags,
    prepare_stage,
    quarantine_of,
    report_finished,
    was_finished,
)
from cotrain.core.errors import ConfigError, unknown_message
from cotrain.core.verbosity import print_progress
from cotrain.data.malformed_rows import Quarantine
from cotrain.storage.kept_work import KeptWork, stamp_of

if TYPE_CHECKING:
    from cotrain.pretraining.ranks import Ranks
    from cotrain.rollout.role import Role

USAGE = """\
usage: cotrain teach ROLE --model MODEL --data FILE --out DIR [...]

Fine-tune a model on what a role of a run will see and say.

  cotrain teach solver      solutions of problems: worked ones of a file, or the
                            model's own that are right
  cotrain teach verifier    reviews of solutions: of labelled ones of a file, or
                            of the model's own

`cotrain teach solver --help` and `cotrain teach verifier --help` list the flags
of each. Conversations of any other kind are learned by `cotrain sft`."""

ROW_FILES = ".jsonl, .json, .csv or .parquet"
DEFAULT_SAMPLES = 4  # tries of a problem
DEFAULT_REVIEWS = 4  # reviews of a solution
SOLVER_SAMPLING = ("samples", "max_tokens")  # flags that --from-samples alone looks at, when a solver is taught
VERIFIER_SAMPLING = (*SOLVER_SAMPLING, "reviews", "answer_format", "steps_as", "prompt")  # when a verifier is taught
VERIFIER_ONLY = ("--review-format", "--verdict", "--verifier-prompt", "--reviews")  # flags that no solver has


def teach(argv: Sequence[str]) -> int:
    """``cotrain teach ROLE``. Raises ConfigError without a role, and for one that cannot be taught."""
    commands = {"solver": teach_solver, "verifier": teach_verifier}
    role = argv[0] if argv else ""
    if role in ("-h", "--help", "help"):
        print(USAGE)
        return 0
    if not role or role.startswith("-"):
        raise ConfigError(
            "cotrain teach: the role stands first, as in `cotrain teach solver --model …` or `cotrain teach verifier "
            "--model …`",
            code="E_TEACH_WITHOUT_ROLE",
        )
    if role not in commands:
        raise ConfigError(f"cotrain teach: {unknown_message('role', role, TAUGHT_ROLES)}", code="E_TEACH_WITHOUT_ROLE")
    return commands[role](argv[1:])


# -- A solver.
#
# The docstring of ``teach_solver`` is the description of its --help. ``ranks``: with --world N, the group to which this
# process belongs; None in the process that the user began. ``fine_tune`` begins the others with the same function.


def teach_solver(argv: Sequence[str], ranks: Ranks | None = None) -> int:
    """Teach a model to solve problems in the format in which a run will read its answers.

    --data has worked solutions: question and answer, prompt and completion, messages, or conversations (ShareGPT). With
    --from-samples it has problems and answers, and the model learns its own solutions that are right."""
    arguments = _parse_solver(argv, ranks)
    if ranks is None:
        check_same_tuning(arguments, _sampling_flags(arguments))
    if arguments.from_samples and arguments.resume and was_finished(arguments):
        return report_finished(arguments)
    quarantine = quarantine_of(arguments)
    if arguments.from_samples:
        lessons = _own_solutions(arguments, quarantine)
    else:
        lessons = _worked_solutions(arguments, quarantine)
    return fine_tune(teach_solver, argv, arguments, lessons, quarantine, ranks)


def _parse_solver(argv: Sequence[str], ranks: Ranks | None) -> Any:
    parser = Parser(prog="cotrain teach solver", description=inspect.getdoc(teach_solver))
    _add_lesson_flags(parser, f"worked solutions, or problems and answers: {ROW_FILES}")
    _add_solver_flags(parser.add_argument_group("how the solver is asked and read"))
    samples = parser.add_argument_group("its own solutions")
    samples_help = "learn the model's own right answers; --data has problems and answers"
    samples.add_argument("--from-samples", action="store_true", help=samples_help)
    _add_sampling_flags(samples)
    add_stage_flags(parser, tokens=1_000_000, lr=None, lr_default=LR_DEFAULT)

    arguments = parser.parse_strictly(argv, _hint_for_solver)
    _check_sampling(parser, arguments, SOLVER_SAMPLING)
    prepare_stage(parser, arguments, ranks)
    return arguments


def _hint_for_solver(flag: str, value: str) -> str:
    """The hint for a flag that ``cotrain teach solver`` does not have; "" where none is known."""
    if flag == "--role":
        return "the role is in the name of the command; leave it out"
    if flag in VERIFIER_ONLY:
        return f"`cotrain teach verifier` has {flag}"
    return ""


def _worked_solutions(arguments: Any, quarantine: Quarantine | None) -> Lessons:
    """The solutions of --data, as the solver would write them."""
    from cotrain.pretraining.solutions import gold_solutions, solver_of

    prompt = prompt_of(arguments.prompt)
    role = solver_of(arguments.model, arguments.answer_format, prompt, steps=arguments.steps_as)
    corpus = gold_solutions(arguments.data, role, quarantine)
    return Lessons(parts=[(corpus, WHOLE)], taught=_taught_solver(role))


def _own_solutions(arguments: Any, quarantine: Quarantine | None) -> Lessons:
    """The model's own right solutions of the problems in --data."""
    from cotrain.pretraining.solutions import own_solutions

    role = _sampled_solver(arguments)
    work = _open_kept_work(arguments, "solver")
    corpus, rows = own_solutions(
        arguments.model,
        arguments.data,
        role,
        samples=arguments.samples or DEFAULT_SAMPLES,
        device=arguments.device,
        seed=arguments.seed,
        aside=quarantine,
        say=print_progress,
        work=work,
    )
    return Lessons(
        parts=[(corpus, WHOLE)],
        taught=_taught_solver(role),
        own_rows=rows,
        sampling=_sampling_flags(arguments),
        kept_work=work,
    )


def _taught_solver(role: Role) -> dict[str, Any]:
    """How a solver is asked and read, for the file by which later runs know it."""
    return {"role": "solver", "answer": role.answer_format, "steps_as": role.step_format, "prompt": role.prompt}


# -- A verifier.


def teach_verifier(argv: Sequence[str], ranks: Ranks | None = None) -> int:
    """Teach a model to review solutions in the format in which a run will read its verdicts.

    --data has labelled solutions: problem, steps and label, the first wrong step or -1. With --from-samples it has
    problems and answers: the model solves them, and learns reviews of these solutions, its own right ones, or with
    --reviews 0 such as are written from the truth."""
    arguments = _parse_verifier(argv, ranks)
    if ranks is None:
        check_same_tuning(arguments, _sampling_flags(arguments))
    if arguments.from_samples and arguments.resume and was_finished(arguments):
        return report_finished(arguments)
    quarantine = quarantine_of(arguments)
    if arguments.from_samples:
        lessons = _own_reviews(arguments, quarantine)
    else:
        lessons = _labelled_reviews(arguments, quarantine)
    return fine_tune(teach_verifier, argv, arguments, lessons, quarantine, ranks)


def _parse_verifier(argv: Sequence[str], ranks: Ranks | None) -> Any:
    parser = Parser(prog="cotrain teach verifier", description=inspect.getdoc(teach_verifier))
    _add_lesson_flags(parser, f"labelled solutions, or problems and answers: {ROW_FILES}")

    review = parser.add_argument_group("how the verifier is asked and read")
    review.add_argument(
        "--review-format", **one_of("format of a review", "steps", "genrm"), help="format of a review (default: steps)"
    )
    review.add_argument(
        "--verdict", metavar="FORM", help="form of a verdict: tags, words, boxed, first-wrong (default: tags)"
    )
    prompt_help = "how the verifier is asked: a text with the marks {problem} and {solution}"
    review.add_argument("--verifier-prompt", metavar="FILE", help=prompt_help)

    samples = parser.add_argument_group("reviews of its own solutions")
    samples_help = "learn reviews of the model's own solutions; --data has problems and answers"
    samples.add_argument("--from-samples", action="store_true", help=samples_help)
    reviews_help = f"reviews of a solution; 0: one that is written from the truth (default: {DEFAULT_REVIEWS})"
    add_count(samples, "--reviews", reviews_help, least=0, metavar="K")
    _add_sampling_flags(samples)
    _add_solver_flags(samples, steps_default="as the solver writes")
    add_stage_flags(parser, tokens=1_000_000, lr=None, lr_default=LR_DEFAULT)

    arguments = parser.parse_strictly(argv, _hint_for_verifier)
    _check_sampling(parser, arguments, VERIFIER_SAMPLING)
    if arguments.review_format == "genrm" and (arguments.verdict or arguments.verifier_prompt):
        parser.error("--verdict and --verifier-prompt go with --review-format steps; leave out --review-format")
    prepare_stage(parser, arguments, ranks)
    return arguments


def _hint_for_verifier(flag: str, value: str) -> str:
    """The hint for a flag that ``cotrain teach verifier`` does not have; "" where none is known."""
    return "the role is in the name of the command; leave it out" if flag == "--role" else ""


def _labelled_reviews(arguments: Any, quarantine: Quarantine | None) -> Lessons:
    """Reviews of the solutions in --data, written from their labels."""
    from cotrain.pretraining.reviews import gold_reviews

    role = _verifier_to_teach(arguments)
    corpus = gold_reviews(arguments.data, role, _review_format(arguments), quarantine, say=print_progress)
    return Lessons(parts=[(corpus, WHOLE)], taught=_taught_verifier(role, arguments))


def _own_reviews(arguments: Any, quarantine: Quarantine | None) -> Lessons:
    """Reviews of the model's own solutions of the problems in --data."""
    from cotrain.pretraining.reviews import own_reviews
    from cotrain.pretraining.solutions import choose_step_format

    verifier = _verifier_to_teach(arguments)
    solver = choose_step_format(
        _sampled_solver(arguments),
        arguments.model,
        arguments.data,
        device=arguments.device,
        seed=arguments.seed,
        aside=quarantine,
        say=print_progress,
    )
    work = _open_kept_work(arguments, "verifier")
    corpus, rows = own_reviews(
        arguments.model,
        arguments.data,
        solver,
        _review_format(arguments),
        samples=arguments.samples or DEFAULT_SAMPLES,
        reviews=DEFAULT_REVIEWS if arguments.reviews is None else arguments.reviews,
        max_tokens=arguments.max_tokens,
        verdict=arguments.verdict,
        prompt=prompt_of(arguments.verifier_prompt, "--verifier-prompt"),
        device=arguments.device,
        seed=arguments.seed,
        aside=quarantine,
        say=print_progress,
        work=work,
    )
    taught = _taught_verifier(verifier, arguments)
    return Lessons(
        parts=[(corpus, WHOLE)], taught=taught, own_rows=rows, sampling=_sampling_flags(arguments), kept_work=work
    )


def _review_format(arguments: Any) -> Literal["steps", "genrm"]:
    return "genrm" if arguments.review_format == "genrm" else "steps"


def _verifier_to_teach(arguments: Any) -> Role:
    from cotrain.pretraining.reviews import verifier_of

    prompt = prompt_of(arguments.verifier_prompt, "--verifier-prompt")
    return verifier_of(arguments.model, _review_format(arguments), verdict=arguments.verdict, prompt=prompt)


def _taught_verifier(role: Role, arguments: Any) -> dict[str, Any]:
    """How a verifier is asked and read, for the file by which later runs know it."""
    form = _review_format(arguments)
    return {"role": "verifier", "form": form, "verdict": role.verdict_format, "prompt": role.prompt}


# -- What both have.


WHOLE = 1  # weight of a corpus that is the only one


def _add_lesson_flags(parser: Parser, data_help: str) -> None:
    """Add the flags that name the data and the model."""
    lessons = parser.add_argument_group("what it learns")
    add_model_flag(lessons)
    lessons.add_argument("--data", required=True, metavar="FILE", help=data_help)
    add_lenient_flag(lessons)
    add_lora_flag(lessons)


def _add_solver_flags(parser: Any, steps_default: str = "lines") -> None:
    """How a solver is asked and read."""
    parser.add_argument(
        "--answer-format", metavar="FORMAT", help="format of answers: tags, boxed, hash, phrase … (default: tags)"
    )
    steps_help = f"what a step is: tags, lines, numbered, sentences, paragraphs (default: {steps_default})"
    parser.add_argument("--steps-as", metavar="WAY", help=steps_help)
    prompt_help = "how the solver is asked: a text with the mark {problem}"
    parser.add_argument("--prompt", metavar="FILE", help=prompt_help)


def _add_sampling_flags(parser: Any) -> None:
    """How much is drawn from the model."""
    add_count(parser, "--samples", f"tries of a problem (default: {DEFAULT_SAMPLES})", metavar="K")
    add_count(parser, "--max-tokens", "tokens of an answer, at most")


def _check_sampling(parser: Parser, arguments: Any, sampling_flags: Sequence[str]) -> None:
    """Refuse flags that only ``--from-samples`` looks at, where it is left out, and ``--world`` next to it."""
    if arguments.from_samples and arguments.world is not None:
        parser.error("--from-samples draws in one process; do without --world, or learn its OUT/samples.jsonl with it")
    if arguments.from_samples:
        return
    for name in sampling_flags:
        if getattr(arguments, name) is not None:
            flag = f"--{name.replace('_', '-')}"
            parser.error(f"{flag} is about what the model samples; add --from-samples, or leave out {flag}")


def _sampled_solver(arguments: Any) -> Role:
    """The solver whose answers are drawn: as the flags say, and what they leave open as the model was taught."""
    from cotrain.pretraining.solutions import solver_of
    from cotrain.rollout.common_roles import taught_roles

    answer_format = arguments.answer_format
    step_format = arguments.steps_as
    prompt = prompt_of(arguments.prompt)
    taught = taught_roles(arguments.model).get("solver")
    if answer_format is None and taught:
        answer_format = taught.get("answer")
        step_format = step_format or taught.get("steps_as")
        prompt = prompt or taught.get("prompt")
        print_progress(f"note: {arguments.model} was taught to answer as {answer_format!r}, and is asked and read so")
    return solver_of(arguments.model, answer_format, prompt, arguments.max_tokens, step_format)


NOT_OF_SAMPLES = (  # flags that change no sample, so that a command with other ones takes up the samples that are kept
    *("out", "resume", "save_every", "tracker", "json", "log_level"),
    *("tokens", "batch_tokens", "length", "lr", "optimizer", "lora"),
    *("device", "threads", "backend", "world"),
)


def _sampling_flags(arguments: Any) -> dict[str, Any] | None:
    """The flags that the model's own samples depend on; None where it draws none."""
    if not arguments.from_samples:
        return None
    return {name: value for name, value in vars(arguments).items() if name not in NOT_OF_SAMPLES}


def _open_kept_work(arguments: Any, role: str) -> KeptWork:
    """Where samples are kept until the model is written, so that the same command takes them up again. They are the
    same as long as the flags, the files that these name, and cotrain itself are."""
    sampling_flags = _sampling_flags(arguments) or {}
    files = [arguments.data, arguments.model, arguments.prompt, getattr(arguments, "verifier_prompt", None)]
    stamps = [stamp_of(file) for file in files if file]
    work = KeptWork(Path(arguments.out), {"role": role, **sampling_flags, "files": stamps, "cotrain": __version__})
    if work.found:
        print_progress(f"going on with what an earlier try has left in {work.path}")
    return work
