"""Programming problems as tasks: MBPP (arXiv 2108.07732) and HumanEval (arXiv 2107.03374) in their published formats.

::

    mbpp       task_id, text or prompt, code, test_list, and where there are: test_setup_code, test_imports
    humaneval  task_id, prompt, entry_point, canonical_solution, test

The program is taken out of the model's answer (``fences.py``), run in a cell (``isolation.py``) and graded by the
problem's tests beside it (``program_worker.py``). A ``Sandbox`` takes the place of both: any function that gets the
whole program with its tests as one text and returns whether it ran to its end, named as ``module:function`` so that a
resumed run has it too. ``--tasks mbpp:my_sandbox:run`` names it on the command line.

A grade is right, or wrong with a reason ("no program", "timeout", "test failed" …), or, where it is not the program's
fault, None with a reason. A program that outstays its deadline, of CPU time or by the clock, is wrong: else a model
could have its failures left out by waiting.

MBPP with the published numbers keeps the published splits (train 601-974, validation 511-600, test 11-510; 1-10 are for
prompts and left out); all else is cut by a hash of the problem as in ``jsonl.py``. Left out: input and output tests,
languages other than Python, MBPP's challenge tests.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as Late
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from cotrain.core.errors import ConfigError, DataError, UnknownName
from cotrain.core.input_files import absolute_path
from cotrain.core.trust import admit_module
from cotrain.core.types import Grade, Task
from cotrain.grading.fences import MAX_PROGRAM, defines_name, program_of
from cotrain.grading.grade_process import GRACE_S
from cotrain.grading.grade_worker import PATIENCE
from cotrain.grading.isolation import JUDGING, MEMORY_BYTES, working_cell
from cotrain.grading.pool import WORKERS, AnswerGrader, GradingPool
from cotrain.tasks.hub import hub_rows, is_hub_name
from cotrain.tasks.jsonl import SPLITS, split_of
from cotrain.tasks.papers import paper_of
from cotrain.tasks.reading import Quarantine, numbered_lines, parse_rows
from cotrain.tasks.rows import Line, files_in, kind_of, text_of

KINDS = {
    "mbpp": "google-research-datasets/mbpp:full",
    "humaneval": "openai/openai_humaneval",
}  # and their public releases
DEADLINE_S = 3.0  # CPU time of a program with its tests
MAX_PAPERS = 4096  # that a grader keeps
SHOWN = "\n\nThese tests must pass:\n"  # what parts a question from its tests
ASK = "Write the whole program, in one block that begins with ```python and ends with ```, inside of the final answer."

Sandbox = Callable[[str], Grade]  # program and tests as one text → right when it runs to its end


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramProblem:
    """One row."""

    question: str  # as a solver sees it
    before: str  # code that stands before the answer and its tests: imports and helpers of the problem
    stub: str  # what a body alone continues; "" where an answer is always whole
    entry: str  # the function that the tests call
    tests: str  # code that raises where the program is wrong, with what it sets up from the answer
    solution: str  # the reference program
    split: str


class ProgramGrader(AnswerGrader):
    """Grades by the tests of each problem. ``sandbox``: what runs a program, where that is not our own process."""

    def __init__(
        self, problems: dict[str, ProgramProblem], workers: int, deadline_s: float, sandbox: Sandbox | None
    ) -> None:
        self._problems, self._sandbox = problems, sandbox
        self._patience = PATIENCE * deadline_s + GRACE_S
        cell = None if sandbox else working_cell()
        self._pool = GradingPool(workers, deadline_s, judging=(JUDGING,), memory=MEMORY_BYTES, cell=cell)
        self._paper = lru_cache(MAX_PAPERS)(_problem_paper)
        self._threads = ThreadPoolExecutor(workers, thread_name_prefix="sandbox") if sandbox else None

    def problem_of(self, task: Task) -> ProgramProblem:
        """The problem of a task."""
        return self._problems[task.id]

    def grade(self, task: Task, text: str) -> Grade:
        """Run the program of an answer with the problem's tests."""
        problem = self.problem_of(task)
        program = program_of(text, problem.entry)
        if program is None or len(program) > MAX_PROGRAM:
            return Grade(value=False, reason="no program" if program is None else "program too long")
        return self.grade_program(problem, program)

    def grade_program(self, problem: ProgramProblem, program: str) -> Grade:
        """Run a program with the tests of a problem, which need not be one of a task."""
        program = whole_program(problem, program)
        if self._sandbox is None or self._threads is None:
            return self._pool.grade_in_process(self._paper(problem), program)
        try:
            return self._threads.submit(self._sandbox, f"{program}\n\n{problem.tests}").result(self._patience)
        except Late:
            return Grade(value=None, reason="sandbox timeout")
        except Exception:  # noqa: BLE001  somebody else's code: whatever fails in it is no verdict on the answer
            return Grade(value=None, reason="sandbox failed")

    async def agrade(self, task: Task, text: str) -> Grade:
        """``grade``, while others go on."""
        return await self._in_thread(task, text)

    def close(self) -> None:
        """End the processes; a sandbox ends its own."""
        super().close()
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)


class ProgramTasks:
    """The problems of ``kind`` at ``path``: a file, a directory of files or a name on the Hub.

    ``deadline_s``: CPU seconds for a program with its tests. ``sandbox``: "module:function". ``lenient`` sets malformed
    rows aside, in ``quarantine``. Raises DataError with file, row and field, ConfigError for a sandbox that cannot be
    imported.
    """

    def __init__(
        self,
        kind: str,
        path: str | Path,
        workers: int = WORKERS,
        deadline_s: float = DEADLINE_S,
        sandbox: str | None = None,
        digest: str | None = None,
        lenient: bool = False,
    ) -> None:
        if kind not in KINDS:
            raise UnknownName("kind of programming problems", kind, KINDS)
        self.name = kind
        self.path = str(path) if is_hub_name(str(path)) else str(absolute_path(path))
        self._settings = {"kind": kind, "workers": workers, "deadline_s": deadline_s, "sandbox": sandbox}
        self.quarantine = Quarantine()
        self._settings |= {"lenient": True} if lenient else {}
        problems = read_problems(kind, self.path, self.quarantine) if lenient else read_problems(kind, self.path)
        self._splits = {split: [p for p in problems if p.split == split] for split in SPLITS}
        named = {f"{kind}/{split}/{i}": p for split, mine in self._splits.items() for i, p in enumerate(mine)}
        self.grader = ProgramGrader(named, workers, deadline_s, None if sandbox is None else sandbox_of(sandbox))
        texts = [[p.split, p.question, p.tests] for p in problems]
        self._digest = hashlib.blake2b(json.dumps(texts).encode(), digest_size=16).hexdigest()
        if digest is not None and digest != self._digest:
            raise DataError(
                f"{self.path}: its rows have changed since they were recorded; restore the file, or start anew"
            )

    def get(self, split: str, index: int) -> Task:
        """Problem ``index`` of a split. Raises UnknownName, and IndexError outside of 0 <= index < size."""
        if not 0 <= index < self.size(split):
            raise IndexError(f"{self.name}: no task {index} in split {split!r} of {self.size(split)}")
        return task_of(self._splits[split][index], f"{self.name}/{split}/{index}", self.grader)

    def size(self, split: str) -> int:
        if split not in self._splits:
            raise UnknownName("split", split, SPLITS)
        return len(self._splits[split])

    def describe(self) -> dict[str, Any]:
        """``ProgramTasks(**source.describe()["settings"])`` is this source, as long as the file is the same."""
        return {"kind": "programs", "settings": {**self._settings, "path": self.path, "digest": self._digest}}

    def close(self) -> None:
        """End the processes."""
        self.grader.close()


def suite_tasks(
    kind: str,
    paths: Sequence[str],
    aside: Quarantine | None = None,
    *,
    workers: int = WORKERS,
    deadline_s: float = DEADLINE_S,
) -> list[Task]:
    """The problems that results are published on: of MBPP those numbered 11 to 510 (all, where none has a published
    number), all of HumanEval. The tasks share a grader, whose ``close`` ends its processes. Malformed rows go
    ``aside``; else raises DataError."""
    lines = [pair for path in paths for pair in _located_rows(path)]
    rows = [(where, row) for where, row in parse_rows(lines, lambda row, where: (where, row), aside)]
    if kind == "mbpp" and any(_published_split(row.get("task_id")) for _, row in rows):
        rows = [(where, row) for where, row in rows if _published_split(row.get("task_id")) == "test"]
    if aside is not None:
        aside.read -= len(rows)  # they are read once more, as problems
    problem_list = parse_rows(rows, ROW_READERS[kind], aside)
    if aside is not None:
        aside.check_share(", ".join(paths))
    problems = {f"{kind}/{i}": problem for i, problem in enumerate(problem_list)}
    if not problems:
        raise DataError(f"{', '.join(paths)}: no row of {kind}'s test set; expected its published file or data set")
    grader = ProgramGrader(problems, workers, deadline_s, None)
    return [task_of(problem, name, grader) for name, problem in problems.items()]


def task_of(problem: ProgramProblem, task_id: str, grader: ProgramGrader) -> Task:
    """One problem as a task; its answer is the reference program."""
    return Task(
        id=task_id,
        prompt=problem.question,
        answer=problem.solution,
        solution=None,
        difficulty=0.0,
        grader=grader,
        whole=True,
    )


def _problem_paper(problem: ProgramProblem) -> str:
    return paper_of(before=problem.before, tests=problem.tests, solution=problem.solution)


# -- rows


def read_problems(kind: str, path: str, aside: Quarantine | None = None) -> list[ProgramProblem]:
    """All problems at a path. Raises DataError; also for an MBPP file without a single problem to train on."""
    problems = parse_rows(_located_rows(path), ROW_READERS[kind], aside)
    if aside is not None:
        aside.check_share(path)
    if not any(problem.split == "train" for problem in problems):
        raise DataError(f"{path}: no row falls into the training split; expected all rows of {kind}, or at least 20")
    return problems


def _located_rows(path: str) -> Iterator[tuple[str, Line]]:
    """Each row of a file, a directory of files or a data set, behind where it stands."""
    if is_hub_name(path):
        for split, found in hub_rows(path).items():
            yield from ((f"{path}, {split}, row {n}", row) for n, row in enumerate(found, start=1))
        return
    folder = Path(path).expanduser()
    for file in files_in(folder) if folder.is_dir() else [folder]:
        yield from numbered_lines(file)


def mbpp_problem(row: dict[str, Any], where: str) -> ProgramProblem:
    """One row of MBPP, of either version. Raises DataError."""
    question = _text_field(row, "text" if "text" in row else "prompt", where)
    code = _text_field(row, "code", where)
    tests = _text_list_field(row, "test_list", where)
    if not tests:
        raise DataError(f"{where}, field 'test_list': expected at least one test, found an empty list")
    setup = _text_field(row, "test_setup_code", where).strip() if row.get("test_setup_code") else ""
    tests_text = "\n".join(tests)
    called = [name for name in re.findall(r"^def (\w+)", code, re.MULTILINE) if f"{name}(" in tests_text]
    return ProgramProblem(
        question=f"{question}{SHOWN}{tests_text}\n\n{ASK}",
        before="\n".join(_text_list_field(row, "test_imports", where)),
        stub="",
        entry=called[-1] if called else "",
        tests=f"{setup}\n{tests_text}" if setup else tests_text,
        solution=code,
        split=_published_split(row.get("task_id")) or split_of(question),
    )


def humaneval_problem(row: dict[str, Any], where: str) -> ProgramProblem:
    """One row of HumanEval. Raises DataError."""
    prompt, entry = _text_field(row, "prompt", where), _text_field(row, "entry_point", where)
    head_start = prompt.rfind(f"def {entry}(")
    if head_start < 0:
        raise DataError(f"{where}, field 'prompt': expected the head of the function {entry!r}, which is not in it")
    return ProgramProblem(
        question=f"Complete this Python function:\n\n{prompt.rstrip()}\n\n{ASK}",
        before=prompt[:head_start],
        stub=prompt[head_start:],
        entry=entry,
        tests=f"{_text_field(row, 'test', where)}\n\ncheck({entry})\n",
        solution=prompt + _text_field(row, "canonical_solution", where),
        split=split_of(prompt),
    )


ROW_READERS: dict[str, Callable[[dict[str, Any], str], ProgramProblem]] = {
    "mbpp": mbpp_problem,
    "humaneval": humaneval_problem,
}


def _published_split(number: object) -> str | None:
    """The split of an MBPP problem; "prompt" is none that is played."""
    if not isinstance(number, int) or not 1 <= number <= 974:
        return None
    return "prompt" if number <= 10 else "test" if number <= 510 else "validation" if number <= 600 else "train"


def _text_field(row: dict[str, Any], column: str, where: str) -> str:
    if column not in row:
        raise DataError(f"{where}: no field {column!r} (there are: {', '.join(map(repr, row)) or 'none'})")
    return text_of(row[column], f"{where}, field {column!r}", numbers=False)


def _text_list_field(row: dict[str, Any], column: str, where: str) -> list[str]:
    value = row.get(column, [] if column == "test_imports" else None)
    if not isinstance(value, list):
        raise DataError(f"{where}, field {column!r}: expected a list of texts, found {kind_of(value)}")
    return [text_of(one, f"{where}, field {column!r}", numbers=False) for one in value]


def whole_program(problem: ProgramProblem, program: str) -> str:
    """The program with what the problem gives: its imports and helpers, and its head where the answer is a body
    alone."""
    if problem.stub and not defines_name(program, problem.entry):
        return problem.before + problem.stub.rstrip("\n") + "\n" + program
    return f"{problem.before}\n\n{program}"


def sandbox_of(name: str) -> Sandbox:
    """The function that "module:function" names. Raises ConfigError."""
    module, colon, function = name.partition(":")
    admit_module(module)
    try:
        found = getattr(importlib.import_module(module), function) if colon else None
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"sandbox {name!r} cannot be imported ({error}); expected module:function") from error
    if not callable(found):
        raise ConfigError(f"sandbox {name!r}: expected module:function, a function of the program's text")
    sandbox: Sandbox = found
    return sandbox
