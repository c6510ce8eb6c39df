"""Training conversations for a role: its prompt, and a solution in the format in which its answers will be read.

::

    {"question", "answer": "… #### 39"}     {"problem", "solution", "answer"}     {"prompt", "completion"}
    {"messages": [{"role", "content"}, …]}  {"conversations": [{"from": "human", "value"}, …]}

Rows of JSON lines, of one JSON array, of CSV or of parquet. Of each the problem, the worked text and the answer are
taken, and written as ``<step>``s and an ``<answer>``, or in the words of another format (``formats/answers.py``). Where
a row does not say its answer alone, it is looked for in the text: in tags, a box, after ``####`` or "the answer is".
A thought in front of the worked text stays there as it is, since a model that thinks has to be taught one (``sft``). A
run leaves it out (``data/columns.py``): there the solution is shown, or preferred to another one.

Or the solutions are the model's own: it answers each problem several times, and what is right is kept, word for word
(rejection sampling: Yuan et al., arXiv 2308.01825; STaR, arXiv 2203.14465, without rationalisation). A verifier's
conversations are made in ``reviews.py``. Left out: several turns, other roles.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from cotrain.config.policies import frozen
from cotrain.core.errors import DataError
from cotrain.core.notes import CORRECT, FAILURE
from cotrain.core.seeding import seed_of
from cotrain.core.types import Episode, Task
from cotrain.core.verbosity import ProgressPrinter, count_of
from cotrain.data.columns import (
    ANY,
    SPEAKERS,
    Row,
    field_of,
    row_of,
    solution_column_of,
    system_of,
    value_at,
    with_system_text,
    without_calculator,
)
from cotrain.data.files import task_of
from cotrain.data.malformed_rows import Quarantine
from cotrain.data.marks import check_message_marks, check_row_marks
from cotrain.data.read_rows import numbered_lines, parse_rows
from cotrain.data.unread_columns import (
    check_lost_parts,
    columns_note,
    count_columns,
    is_system,
    system_text,
    unread_columns,
)
from cotrain.distributed.local import LocalBackend
from cotrain.formats.answers import ENDS, READERS, final_answer, write_answer
from cotrain.formats.role_prompts import solve_own
from cotrain.formats.solutions import TAGS, behind_thoughts, write_solution
from cotrain.formats.steps import steps_in, steps_kind_of, write_steps
from cotrain.grading.pool import AnswerGrader
from cotrain.pretraining.corpora import Corpus, Item, from_items, with_column_note
from cotrain.prompts.templates import SOLVE_FULL, fill_template
from cotrain.rollout.common_roles import is_terse, solver
from cotrain.rollout.protocols import examine
from cotrain.rollout.role import Role
from cotrain.rollout.runner import JointProgress, Roles, RolloutRunner
from cotrain.runs.choose_formats import STEP as LOOK_STEP
from cotrain.runs.choose_formats import SampledText, ask_solver, read_texts, spread_indices
from cotrain.storage.kept_work import KeptWork
from cotrain.trainer.policy_store import PolicyStore

LAYOUTS = "question and answer, prompt and completion, messages, or conversations (ShareGPT)"
CHUNK = 32  # problems that are answered at a time
T = TypeVar("T")


def solver_of(
    model: str,
    answer: str | None = None,
    prompt: str | None = None,
    max_tokens: int | None = None,
    steps: str | None = None,
) -> Role:
    """The role ``solver`` as a run will have it, with these changes."""
    role = replace(solver("solver", model, max_tokens=max_tokens), answer_format=answer or TAGS, step_format=steps)
    # The usual prompt asks for tags; another format is asked for by its own.
    if prompt is None and role.is_free_form and role.prompt == SOLVE_FULL:
        prompt = solve_own(role.answer_format, steps)
    return replace(role, prompt=prompt or role.prompt)


def gold_solutions(path: str, role: Role, aside: Quarantine | None = None) -> Corpus:
    """The file's own solutions. Raises DataError with the layouts expected, or sets such a row ``aside``."""
    rows = read_rows(path, _worked_row, aside)
    conversations = from_items(path, [_gold_conversation(row, role) for row in rows])
    return with_column_note(conversations, [row.unread for row in rows])


def read_rows(path: str, read: Callable[[dict[str, Any], str], T], aside: Quarantine | None) -> list[T]:
    """Return ``read(row, where)`` of each row of a file. Raises DataError for the first row that it refuses, or sets
    such rows ``aside``."""
    rows = parse_rows(numbered_lines(Path(path)), read, aside)
    if aside is not None:
        aside.check_share(path)
    return rows


def own_solutions(
    model: str,
    path: str,
    role: Role,
    *,
    samples: int,
    device: str = "cpu",
    seed: int = 0,
    aside: Quarantine | None = None,
    say: Callable[[str], None],
    work: KeptWork | None = None,
) -> tuple[Corpus, list[dict[str, Any]]]:
    """Return the model's own solutions that are right, of ``samples`` tried for each problem, as a corpus and as rows
    of ``messages``; ``work`` keeps each chunk of problems. Raises DataError where none is right."""
    conversations: dict[tuple[str, str], Item] = {}  # a solution that is found twice is learned once
    solved: set[str] = set()
    lost_reasons = Counter[str]()
    with open_runner(model, path, {"solver": role}, device=device, seed=seed, aside=aside, say=say) as (tasks, runner):
        printer = ProgressPrinter(samples * len(tasks), "{} answers drawn", say)
        runner.progress = JointProgress(printer)
        for start, chunk in in_chunks(tasks):
            step = -1 - start  # each chunk has draws of its own
            make = partial(_solve_chunk, runner, role, chunk, step=step, samples=samples)
            solutions = make() if work is None else work.part(f"problems from {start}", make)
            for task_id, text, conversation in solutions["right"]:
                conversations[task_id, text] = conversation
                solved.add(task_id)
            lost_reasons.update(solutions["lost"])
            answered = min(start + CHUNK, len(tasks))
            progress = f"{count_of(len(conversations), 'right solution')} of {count_of(len(solved), 'problem')}"
            say(f"{answered} of {len(tasks)} problems answered: {progress}{lost_suffix(lost_reasons)}")
        count = samples * len(tasks)
    if len(conversations) < 2:
        raise DataError(
            f"{path}: of {count} solutions of {model} {len(conversations)} are right and can be read"
            f"{lost_suffix(lost_reasons)}; bring easier problems, raise --samples, or leave out --from-samples",
            code="E_NO_SOLUTIONS",
        )
    items = list(conversations.values())
    return from_items(f"right solutions of {path}", items), [{"messages": item} for item in items]


def _solve_chunk(
    runner: RolloutRunner, role: Role, chunk: Sequence[Task], *, step: int, samples: int
) -> dict[str, Any]:
    """Right and readable solutions of these problems, each as problem, text and conversation; and how many were lost,
    by reason."""
    right: list[tuple[str, str, Item]] = []
    lost_reasons = Counter[str]()
    for episode in runner.collect(_solve_and_examine, chunk, step=step, group_size=samples):
        lost_reasons.update(why_lost(episode))
        for trace in episode.traces:
            task = chunk[episode.task]
            sample = SampledText(task=task, text=trace.text, finish=trace.finish)
            if CORRECT.of(trace) and read_texts(role, [sample]).readable:
                right.append((task.id, trace.text, _solver_conversation(role, task.prompt, trace.text)))
    return {"right": right, "lost": dict(lost_reasons)}


@contextmanager
def open_runner(
    model: str,
    path: str,
    roles: Mapping[str, Role],
    *,
    device: str,
    seed: int,
    aside: Quarantine | None,
    say: Callable[[str], None],
) -> Iterator[tuple[list[Task], RolloutRunner]]:
    """The problems of a file, and a runner whose ``roles`` are those of the policy "solver", which is the model as it
    is. Problems are graded outside of this process for as long as the context is open. ``say`` hears which columns of
    the file are not read."""
    rows = read_rows(path, _problem_row, aside)
    unread = columns_note(count_columns(row.unread for row in rows))
    if unread:
        say(f"note: {path}: {unread}")
    grader = AnswerGrader()
    tasks = [task_of(row, f"sft/{i}", grader) for i, row in enumerate(rows)]
    backend = LocalBackend(device)
    policies = PolicyStore(backend.open({"solver": frozen(model)}, seed=seed))
    sample_seed = seed_of("samples", seed)
    try:
        yield tasks, RolloutRunner(backend.engine, policies.renderers, roles, sample_seed)
    finally:
        grader.close()


def choose_step_format(
    role: Role,
    model: str,
    path: str,
    *,
    device: str = "cpu",
    seed: int = 0,
    aside: Quarantine | None = None,
    say: Callable[[str], None],
) -> Role:
    """The solver with its solutions cut into steps as the model writes them, as a run cuts them
    (``runs/choose_formats.py``). It stays as it is where its steps were chosen, its answers are in tags, or the model
    is one of the package's."""
    if role.step_format is not None or role.answer_format == TAGS or is_terse(model):
        return role
    # ``own_solutions`` and ``gold_solutions`` read the file once more: malformed rows are set aside, and notes about it
    # are said, there.
    own_aside = None if aside is None else Quarantine()
    opened = open_runner(model, path, {"solver": role}, device=device, seed=seed, aside=own_aside, say=_keep_quiet)
    with opened as (tasks, runner):
        chosen_tasks = [tasks[i] for i in spread_indices(len(tasks))]
        episodes = runner.collect(ask_solver, chosen_tasks, step=LOOK_STEP, group_size=1)
    samples = [
        SampledText(task=chosen_tasks[episode.task], text=trace.text, finish=trace.finish)
        for episode in episodes
        for trace in episode.traces
    ]
    solutions = read_texts(role, samples).parsed
    readable = [sample.text for sample, solution in zip(samples, solutions, strict=True) if solution.ok]
    steps = steps_kind_of(readable)
    say(f"steps as {steps}, as most of {len(samples)} answers are written; --steps-as chooses otherwise")
    return replace(role, step_format=steps)


def _keep_quiet(text: str) -> None:
    """Hear a message and pass it over."""


def in_chunks(tasks: Sequence[Task]) -> Iterator[tuple[int, Sequence[Task]]]:
    """``CHUNK`` problems at a time, each with where it starts."""
    for start in range(0, len(tasks), CHUNK):
        yield start, tasks[start : start + CHUNK]


def why_lost(episode: Episode) -> list[str]:
    """Why nothing is known of the solution of an episode; [] where it can be read and was graded."""
    if episode.failure is not None:
        return [episode.failure]
    solution = next(trace for trace in episode.traces if trace.role == "solver")
    reason = solution.failure or FAILURE.of(solution)
    return [reason] if reason else []


def lost_suffix(lost_reasons: Mapping[str, int]) -> str:
    """How many solutions were lost, and the most frequent reason; "" for none."""
    if not lost_reasons:
        return ""
    count = sum(lost_reasons.values())
    most_frequent = max(lost_reasons, key=lambda reason: lost_reasons[reason])
    return f"; {count} could not be read or graded (most often: {most_frequent})"


async def _solve_and_examine(task: Task, roles: Roles) -> None:
    await examine(task, roles, await roles.solver(problem=task.prompt))


def _solver_conversation(role: Role, problem: str, text: str) -> Item:
    system = [] if role.system is None else [{"role": "system", "content": role.system}]
    prompt = fill_template(role.prompt, problem=problem)
    return [*system, {"role": "user", "content": prompt}, {"role": "assistant", "content": text}]


def _gold_conversation(row: WorkedRow, role: Role) -> Item:
    """The worked text of a row as this role will be asked for it and read."""
    problem = with_system_text(row.system, row.problem)
    text = _free_solution(row, role) if role.is_free_form else _tagged_solution(row)
    return _solver_conversation(role, problem, row.thought + text)


def _tagged_solution(row: WorkedRow) -> str:
    """The worked text in tags."""
    if "</answer>" in row.work:
        return row.work
    work = without_calculator(row.work)
    steps = _tagged_steps(work) or _lines_of(work) or [row.answer]  # a row may have its answer alone
    return write_solution(steps, row.answer)


def _free_solution(row: WorkedRow, role: Role) -> str:
    """The worked text in another format than the package's tags."""
    work = row.work
    plain_work = without_calculator(work)
    lines = _lines_of(plain_work)
    tagged_steps = _tagged_steps(plain_work)
    if tagged_steps:
        lines = tagged_steps
        if role.answer_format not in ENDS:  # nobody knows how to write the answer in it, so what is there stays
            _, _, behind_steps = plain_work.rpartition("</step>")
            lines = [*tagged_steps, *_lines_of(behind_steps)]
        work = "\n".join(lines)
    work = _write_steps_as(role.step_format, work, lines)
    if _says_answer(work, row.answer, role.answer_format):
        return work
    return f"{work}\n{write_answer(row.answer, role.answer_format)}".strip()


def _tagged_steps(worked: str) -> list[str]:
    """The steps of a text that has them in tags, each in one line; [] for others."""
    return [" ".join(_lines_of(step.text)) for step in steps_in(worked, "tags")]


def _says_answer(work: str, answer: str, answer_format: str) -> bool:
    """Whether a text ends with its answer in this format, or nobody knows how to write that."""
    if answer_format == TAGS:
        return "</answer>" in work
    if answer_format not in ENDS:
        return True
    return READERS[answer_format](work) == answer


def _lines_of(text: str) -> list[str]:
    return [line.strip() for line in text.split("\n") if line.strip()]


def _write_steps_as(steps: str | None, work: str, lines: Sequence[str]) -> str:
    """A worked text whose steps are written in this way, made of its lines where they are not so already."""
    if steps in (None, "lines", "sentences") or not lines:  # any text has lines and sentences
        return work
    has_such_steps = len(steps_in(work, str(steps))) > 1
    return work if has_such_steps else write_steps(lines, str(steps))


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkedRow:
    """A problem of a file and the worked text that solves it."""

    problem: str
    thought: str  # in front of the worked text, in its tags and with the blank behind it; "" for none
    work: str  # without the mark of its answer
    answer: str
    system: str = ""  # what is said before the problem
    solution_column: str = ""  # that the worked text was read from, where the answer has another
    unread: tuple[str, ...] = ()  # columns that have a value and were not read


def _worked_row(row: dict[str, Any], where: str) -> WorkedRow:
    """A row whose worked text is learned. Raises DataError also for a thought that never ends."""
    parsed_row = _parse_row(row, where)
    if behind_thoughts(parsed_row.thought) is None:
        raise DataError(
            f"{where}: the worked text begins a thought and never ends it; expected </think> in front of the solution",
            code="E_SOLUTION_IN_THOUGHT",
        )
    return parsed_row


def _split_thought(text: str) -> tuple[str, str]:
    """The thought in front of a text, and the text behind it; no text where the thought never ends."""
    spoken = behind_thoughts(text)
    if spoken == text:
        return "", text
    solution = (spoken or "").lstrip()
    return text.removesuffix(solution), solution


def _parse_row(row: dict[str, Any], where: str) -> WorkedRow:
    """Problem, worked text and answer of a row in any of the layouts above. Raises DataError."""
    check_row_marks(row, where)
    if "messages" in row or "conversations" in row or "completion" in row:
        return _parse_reply(row, where)
    try:
        question_row = row_of(row, ANY.question, ANY.answer, where)
    except DataError as error:
        raise DataError(f"{error}; expected {LAYOUTS}", code=error.code) from error
    answer_text = question_row.answer or ""
    bare_answer = _answer_in(answer_text) or answer_text  # the column may hold worked text
    _, answer_column = question_row.columns
    solution_column = question_row.solution_column or solution_column_of(row, question_row.unread)
    thought, work = _split_thought(str(value_at(row, solution_column or answer_column) or ""))
    if "####" in work:
        work = work.rpartition("####")[0].strip()
    return WorkedRow(
        problem=question_row.question,
        thought=thought,
        work="" if work.strip() == bare_answer else work,
        answer=bare_answer,
        system=question_row.system,
        solution_column=solution_column,
        unread=tuple(name for name in question_row.unread if name != solution_column),
    )


def _parse_reply(row: dict[str, Any], where: str) -> WorkedRow:
    """A row whose worked text is a reply: in messages, or a completion next to its prompt."""
    is_dialogue = "messages" in row or "conversations" in row
    if is_dialogue:
        column = "messages" if "messages" in row else "conversations"
        problem, work, system = _one_dialogue(row, column, where)
        read = [column]
    else:
        # "~question" has the usual names, and takes both parts of a row with an "instruction" (``columns.py``).
        prompt = "~question" if "instruction" in row else "prompt|question|problem"
        question_column, problem = field_of(row, prompt, where, is_answer=False)
        _, work = field_of(row, "completion", where, is_answer=False)
        system = system_of(row, question_column, where)
        read = [*question_column.split("+"), "completion"]
    check_lost_parts(row, read, where, is_conversation=is_dialogue)
    answer = _answer_in(work)
    if answer is None:
        raise DataError(
            f"{where}: no answer in {work[-40:]!r}; expected <answer>…</answer>, \\boxed{{…}}, #### or 'The answer "
            "is …' at its end",
            code="E_NO_FINAL_ANSWER",
        )
    thought, work = _split_thought(work)
    return WorkedRow(
        problem=problem,
        thought=thought,
        work=work.rpartition("####")[0].strip() or work,
        answer=answer,
        system=system,
        unread=tuple(name for name in unread_columns(row, read) if not is_system(name)),
    )


def _answer_in(work: str) -> str | None:
    return final_answer(work) or READERS["phrase"](work)


def _problem_row(row: dict[str, Any], where: str) -> Row:
    """The problem of a row, whose worked text is not read: the model's own solutions take its place."""
    parsed_row = _parse_row(row, where)
    return Row(
        question=parsed_row.problem,
        answer=parsed_row.answer,
        solution=None,
        system=parsed_row.system,
        unread=tuple(filter(None, (parsed_row.solution_column, *parsed_row.unread))),
    )


def _one_dialogue(row: Mapping[str, Any], name: str, where: str) -> tuple[str, str, str]:
    """The one question, the one reply and the system text of the conversation in the column ``name``."""
    turns: dict[str, list[str]] = {"user": [], "assistant": [], "system": []}
    said_by: list[str] = []  # who speaks, message by message
    messages = row[name] if isinstance(row[name], list) else [None]  # None is refused below, as no message
    for turn in messages:
        fields = turn if isinstance(turn, dict) else {}
        who = SPEAKERS.get(str(fields.get("role", fields.get("from"))))
        text = fields.get("content", fields.get("value"))
        if who is None or not isinstance(text, str):
            raise DataError(
                f"{where}, field {name!r}: found {turn!r:.60}; expected {{role, content}} or {{from, value}} of user "
                "and assistant",
                code="E_MESSAGES_SHAPE",
            )
        if who == "assistant":
            check_message_marks(fields, f"{where}, field {name!r}")
        turns[who].append(text)
        said_by.append(who)

    questions, replies = turns["user"], turns["assistant"]
    if len(questions) != 1 or len(replies) != 1:
        raise DataError(
            f"{where}, field {name!r}: {len(questions)} questions and {len(replies)} replies; a solver's conversation "
            "has one of each",
            code="E_NOT_ONE_EXCHANGE",
        )
    if said_by.index("assistant") < said_by.index("user"):
        raise DataError(
            f"{where}, field {name!r}: the reply stands before its question; put them in order",
            code="E_NOT_ONE_EXCHANGE",
        )
    column_text = system_text(row, where)
    system_texts = set(turns["system"])
    if column_text:
        system_texts.add(column_text)
    if len(turns["system"]) > 1 or len(system_texts) > 1:
        raise DataError(f"{where}, field {name!r}: two system texts; keep one of them", code="E_TWO_SYSTEM_TEXTS")
    return questions[0], replies[0], next(iter(system_texts), "")
