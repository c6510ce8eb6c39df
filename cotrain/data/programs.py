"""Programming problems as tasks: MBPP (arXiv 2108.07732) and HumanEval (arXiv 2107.03374) in their published formats.

::

    mbpp       task_id, text or prompt, code, test_list, and where there are: test_setup_code, test_imports
    humaneval  task_id, prompt, entry_point, canonical_solution, test

The program is taken out of the model's answer (``fences.py``), run in a sandbox (``isolation.py``) and graded by the
problem's tests next to it (``program_worker.py``). A ``RunProgram`` takes the place of both: any function that gets the
whole program with its tests as one text and returns whether it ran to its end, named as ``module:function`` so that a
resumed run has it too. ``--tasks mbpp:my_sandbox:run`` names it on the command line.

A grade is right, or wrong with a reason ("no program", "timeout", "test failed" …), or, where it is not the program's
fault, None with a reason. A program that outstays its deadline, of CPU time or by the clock, is wrong: else a model
could have its failures left out by waiting.

MBPP itself keeps its published splits (train 601-974, validation 511-600, test 11-510; 1-10 are for prompts and left
out). It is known by its name on the Hub, by all of its numbers, or by what single numbers are about (``PUBLISHED``);
tasks of one's own in the same layout may be numbered in any way. They, and all else, are cut as in ``files.py``: by a
hash of the question, or, of a directory or data set with train and test, as these are. Columns that are not read are
refused or counted (``unread_columns.py``). Left out: input and output tests, languages other than Python, MBPP's
challenge tests.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as Late
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any

from cotrain.core.errors import ConfigError, DataError, UnknownName
from cotrain.core.input_files import absolute_path
from cotrain.core.trust import admit_module
from cotrain.core.types import Grade, Task
from cotrain.data.columns import with_system_text
from cotrain.data.files import SPLITS, arrange_splits, split_of
from cotrain.data.hub import hub_rows, is_hub_name
from cotrain.data.malformed_rows import Quarantine
from cotrain.data.program_tests import paper_of
from cotrain.data.read_rows import numbered_lines, parse_rows
from cotrain.data.row_files import RawRow, files_by_split, kind_of, text_of
from cotrain.data.unread_columns import (
    check_lost_parts,
    columns_note,
    count_columns,
    is_system,
    system_text,
    unread_columns,
)
from cotrain.grading.fences import MAX_PROGRAM, defines_name, program_of
from cotrain.grading.grade_process import GRACE_S
from cotrain.grading.grade_worker import PATIENCE
from cotrain.grading.isolation import JUDGING, MEMORY_BYTES, working_sandbox
from cotrain.grading.pool import WORKERS, AnswerGrader, GradingPool

KINDS = {  # kind → its public release on the Hub
    "mbpp": "google-research-datasets/mbpp:full",
    "humaneval": "openai/openai_humaneval",
}
# A sample of MBPP, by which ``is_mbpp`` knows its problems: number → the function that it asks for, in the full and in
# the sanitized version.
PUBLISHED = {
    **{2: "similar_elements", 3: "is_not_prime", 4: "heap_queue_largest", 6: "differ_At_One_Bit_Pos"},
    **{11: "remove_Occ", 12: "sort_matrix", 14: "find_Volume", 16: "text_lowercase_underscore"},
    **{17: "square_perimeter", 18: "remove_dirty_chars", 20: "is_woodall", 57: "find_Max_Num", 58: "opposite_Signs"},
    **{59: "is_octagonal", 61: "count_Substrings", 63: "max_difference", 64: "subject_marks", 68: "is_Monotonic"},
    **{585: "expensive_items", 586: "split_Arr", 587: "list_tuple", 588: "big_diff", 590: "polar_rect"},
    **{593: "removezero_ip", 597: "find_kth", 598: "armstrong_number", 602: "first_repeated_char", 603: "get_ludic"},
    **{604: "reverse_words", 606: "radian_degree", 607: "find_literals", 610: "remove_kth_element", 611: "max_of_nth"},
}
NUMBERS = range(1, 975)  # numbers of MBPP's problems
READ = {  # kind → the columns that are read
    "mbpp": ("code", "test_list", "test_setup_code", "test_imports", "task_id"),
    "humaneval": ("prompt", "entry_point", "canonical_solution", "test", "task_id"),
}
DEADLINE_S = 3.0  # CPU time of a program with its tests
# A problem's paper is what the grading process gets beside the program: its tests, and the names and imports that they
# need (``program_tests.py``).
MAX_PAPERS = 4096  # papers that a grader keeps
SHOWN = "\n\nThese tests must pass:\n"  # what parts a question from its tests
ASK = "Write the whole program, in one block that begins with ```python and ends with ```, inside of the final answer."

# A sandbox of the user's: gets the program and its tests as one text; right means that it runs to its end.
RunProgram = Callable[[str], Grade]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramProblem:
    """One row."""

    question: str  # as a solver sees it
    before: str  # code that is before the answer and its tests: imports and helpers of the problem
    stub: str  # what a body alone continues; "" where an answer is always whole
    entry: str  # the function that the tests call
    tests: str  # code that raises where the program is wrong, with what it sets up from the answer
    solution: str  # the reference program
    bare_question: str  # without names and tests, by which splits are kept apart
    number: int | None = None  # its ``task_id``, where that is a number
    unread: tuple[str, ...] = ()  # columns that have a value and were not read


class ProgramGrader(AnswerGrader):
    """Grades by the tests of each problem. ``run_program``: a sandbox of the user's, in place of ours."""

    def __init__(
        self, problems: dict[str, ProgramProblem], workers: int, deadline_s: float, run_program: RunProgram | None
    ) -> None:
        self._problems = problems
        self._run_program = run_program
        self._wait_s = PATIENCE * deadline_s + GRACE_S  # for an answer of the user's sandbox, by the clock
        sandbox = None if run_program else working_sandbox()
        self._pool = GradingPool(workers, deadline_s, judging=(JUDGING,), memory=MEMORY_BYTES, sandbox=sandbox)
        self._paper = lru_cache(MAX_PAPERS)(_problem_paper)
        self._threads = ThreadPoolExecutor(workers, thread_name_prefix="sandbox") if run_program else None

    def problem_of(self, task: Task) -> ProgramProblem:
        """The problem of a task."""
        return self._problems[task.id]

    def grade(self, task: Task, text: str) -> Grade:
        """Run the program of an answer with the problem's tests."""
        problem = self.problem_of(task)
        program = program_of(text, problem.entry)
        if program is None:
            return Grade(value=False, reason="no program")
        if len(program) > MAX_PROGRAM:
            return Grade(value=False, reason="program too long")
        return self.grade_program(problem, program)

    def grade_program(self, problem: ProgramProblem, program: str) -> Grade:
        """Run a program with the tests of a problem, which need not be one of a task."""
        program = whole_program(problem, program)
        if self._run_program is None or self._threads is None:
            return self._pool.grade_in_process(self._paper(problem), program)
        try:
            return self._threads.submit(self._run_program, f"{program}\n\n{problem.tests}").result(self._wait_s)
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
        if lenient:
            self._settings["lenient"] = True
        self.quarantine = Quarantine()
        aside = self.quarantine if lenient else None
        self._splits, self._is_published, self.left_out = read_problems(kind, self.path, aside)
        problem_by_id: dict[str, ProgramProblem] = {}  # id of a task → its problem
        texts = []
        for split, problems in self._splits.items():
            for i, problem in enumerate(problems):
                problem_by_id[f"{kind}/{split}/{i}"] = problem
                texts.append([split, problem.question, problem.before, problem.tests, problem.solution])
        run_program = None if sandbox is None else run_program_of(sandbox)
        self.grader = ProgramGrader(problem_by_id, workers, deadline_s, run_program)
        self._digest = hashlib.blake2b(json.dumps(texts).encode(), digest_size=16).hexdigest()
        if digest is not None and digest != self._digest:
            raise DataError(
                f"{self.path}: its rows have changed since they were recorded; restore the file, or start anew",
                code="E_DATA_CHANGED",
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

    @property
    def notes(self) -> list[str]:
        """The notes that are printed as a run begins: how own tasks in MBPP's layout are split, and the columns that
        are not read."""
        problems = [problem for split_problems in self._splits.values() for problem in split_problems]
        notes: list[str] = []
        if self.name == "mbpp" and not self._is_published and any(problem.number is not None for problem in problems):
            notes.append("task_id is not MBPP's own, so these tasks are split as those of other files are")
        if unread := columns_note(count_columns(problem.unread for problem in problems)):
            notes.append(unread)
        if self.left_out:
            rows = f"{self.left_out} of {len(problems) + self.left_out} rows"
            notes.append(f"left out, as they ask a held-out question or lie in no split: {rows}")
        return [f"note: {self.path}: {note}" for note in notes]

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
    say: Callable[[str], None] = lambda text: None,
) -> list[Task]:
    """The problems that results are published on: of MBPP those numbered 11 to 510, all of HumanEval; of a file of
    one's own all, of a directory of one's own its test split where it has one. The tasks share a grader, whose
    ``close`` ends its processes. Malformed rows go ``aside``; else raises DataError."""
    parts_by_path = [_problems_by_part(kind, path, aside) for path in paths]
    if aside is not None:
        aside.check_share(", ".join(paths))
    all_problems = [problem for parts in parts_by_path for part in parts.values() for problem in part]
    if kind == "mbpp" and is_mbpp(all_problems, paths):
        test_problems = [problem for problem in all_problems if _published_split(problem.number) == "test"]
    else:
        test_problems = []
        for parts in parts_by_path:
            test_parts = [parts["test"]] if "test" in parts else parts.values()
            for part in test_parts:
                test_problems += part

    note = columns_note(count_columns(problem.unread for problem in test_problems))
    if note:
        say(f"note: suite {kind}: {note}")
    problems = {f"{kind}/{i}": problem for i, problem in enumerate(test_problems)}
    if not problems:
        raise DataError(
            f"{', '.join(paths)}: no row of {kind}'s test set; expected its published file or data set",
            code="E_NO_TEST_ROWS",
        )
    grader = ProgramGrader(problems, workers, deadline_s, None)
    return [task_of(problem, name, grader) for name, problem in problems.items()]


def task_of(problem: ProgramProblem, task_id: str, grader: ProgramGrader) -> Task:
    """One problem as a task; its answer is the reference program."""
    return Task(
        id=task_id,
        prompt=problem.question,
        gold=problem.solution,
        solution=None,
        difficulty=0.0,
        grader=grader,
        whole=True,
    )


def _problem_paper(problem: ProgramProblem) -> str:
    return paper_of(before=problem.before, tests=problem.tests, solution=problem.solution)


# -- rows


def read_problems(
    kind: str, path: str, aside: Quarantine | None = None
) -> tuple[dict[str, tuple[ProgramProblem, ...]], bool, int]:
    """The problems at a path in three splits, whether these are MBPP's published ones, and how many rows of one's own
    are in none. Raises DataError; also where there is no problem to train on."""
    parts = _problems_by_part(kind, path, aside)
    if aside is not None:
        aside.check_share(path)
    problems = [problem for part in parts.values() for problem in part]
    is_published = kind == "mbpp" and is_mbpp(problems, [path])
    if is_published:
        problems_by_split: dict[str, list[ProgramProblem]] = {split: [] for split in SPLITS}
        for problem in problems:
            # A row without MBPP's number may stand among its problems; it is put where a hash puts it.
            split = _published_split(problem.number) or split_of(problem.bare_question)
            if split in problems_by_split:  # not "prompt", whose problems are left out
                problems_by_split[split].append(problem)
        splits = {split: tuple(members) for split, members in problems_by_split.items()}
    else:
        splits = arrange_splits(_own_parts(path, parts, problems), _bare_question)

    if not splits["train"]:
        raise DataError(
            f"{path}: no row falls into the training split; expected all rows of {kind}, or at least 20",
            code="E_TOO_FEW_QUESTIONS",
        )
    left_out = 0 if is_published else len(problems) - sum(map(len, splits.values()))
    return splits, is_published, left_out


def _problems_by_part(kind: str, path: str, aside: Quarantine | None) -> dict[str, list[ProgramProblem]]:
    """The problems at a path, by the parts of ``_located_rows``. Raises DataError."""
    return {name: list(parse_rows(lines, ROW_READERS[kind], aside)) for name, lines in _located_rows(path).items()}


def _own_parts(
    path: str, parts: Mapping[str, list[ProgramProblem]], problems: list[ProgramProblem]
) -> Mapping[str, list[ProgramProblem]]:
    """Return the problems to split: the splits that a directory has, or all in one part where no file is named after a
    split. Raises DataError for some of these names without the others, since a held-out file is not to be trained
    on."""
    named = {split: parts[split] for split in SPLITS if split in parts}
    if {"train", "test"} <= named.keys():
        return named
    if named and len(parts) > 1:
        raise DataError(
            f"{path}: it has {', '.join(parts)}; expected train and test, and perhaps validation; else name one file",
            code="E_SPLITS_MISSING",
        )
    return {"all": problems}


def is_mbpp(problems: Sequence[ProgramProblem], paths: Sequence[str]) -> bool:
    """Whether these problems are MBPP's, so that its published splits hold for their numbers: by the name of its
    release, by all of its numbers, or where at least half of those in ``PUBLISHED`` define the function that MBPP's
    problem of that number asks for."""
    release, _, _ = KINDS["mbpp"].partition(":")
    if release in [path.partition(":")[0] for path in paths]:
        return True
    if {problem.number for problem in problems} >= set(NUMBERS):
        return True

    n_published = 0
    n_right = 0
    for problem in problems:
        asked_function = PUBLISHED.get(problem.number or 0)  # no problem has the number 0
        if asked_function is not None:
            n_published += 1
            n_right += f"def {asked_function}(" in problem.solution
    return n_right > 0 and 2 * n_right >= n_published


def _bare_question(problem: ProgramProblem) -> str:
    return problem.bare_question


def _located_rows(path: str) -> dict[str, Iterable[tuple[str, RawRow]]]:
    """The rows of a file, of each file of a directory or of each split of a data set, behind where they stand."""
    if is_hub_name(path):
        located: dict[str, Iterable[tuple[str, RawRow]]] = {}
        for split, rows in hub_rows(path).items():
            located[split] = [(f"{path}, {split}, row {n}", row) for n, row in enumerate(rows, start=1)]
        return located
    folder = Path(path).expanduser()
    if not folder.is_dir():
        return {"all": numbered_lines(folder)}
    return {part: chain.from_iterable(map(numbered_lines, files)) for part, files in files_by_split(folder).items()}


def mbpp_problem(row: dict[str, Any], where: str) -> ProgramProblem:
    """One row of MBPP, of either version. Raises DataError."""
    column = "text" if "text" in row else "prompt"
    question = _text_field(row, column, where)
    code = _text_field(row, "code", where)
    tests = _text_list_field(row, "test_list", where)
    if not tests:
        raise DataError(
            f"{where}, field 'test_list': expected at least one test, found an empty list", code="E_TESTS_EMPTY"
        )
    setup = _text_field(row, "test_setup_code", where).strip() if row.get("test_setup_code") else ""
    tests_text = "\n".join(tests)
    # The functions of the reference program that the tests call; the last one is what is asked for.
    called = [name for name in re.findall(r"^def (\w+)", code, re.MULTILINE) if f"{name}(" in tests_text]
    number = row.get("task_id")
    read = (column, *READ["mbpp"])
    check_lost_parts(row, read, where)
    return ProgramProblem(
        question=with_system_text(system_text(row, where), f"{question}{SHOWN}{tests_text}\n\n{ASK}"),
        before="\n".join(_text_list_field(row, "test_imports", where)),
        stub="",
        entry=called[-1] if called else "",
        tests=f"{setup}\n{tests_text}" if setup else tests_text,
        solution=code,
        bare_question=question,
        number=number if isinstance(number, int) else None,
        unread=_unread_in(row, read),
    )


def humaneval_problem(row: dict[str, Any], where: str) -> ProgramProblem:
    """One row of HumanEval. Raises DataError."""
    prompt = _text_field(row, "prompt", where)
    entry = _text_field(row, "entry_point", where)
    head_start = prompt.rfind(f"def {entry}(")
    if head_start < 0:
        raise DataError(
            f"{where}, field 'prompt': expected the head of the function {entry!r}, which is not in it",
            code="E_FUNCTION_HEAD_MISSING",
        )
    check_lost_parts(row, READ["humaneval"], where)
    question = f"Complete this Python function:\n\n{prompt.rstrip()}\n\n{ASK}"
    return ProgramProblem(
        question=with_system_text(system_text(row, where), question),
        before=prompt[:head_start],
        stub=prompt[head_start:],
        entry=entry,
        tests=f"{_text_field(row, 'test', where)}\n\ncheck({entry})\n",
        solution=prompt + _text_field(row, "canonical_solution", where),
        bare_question=prompt,
        unread=_unread_in(row, READ["humaneval"]),
    )


def _unread_in(row: dict[str, Any], read: Sequence[str]) -> tuple[str, ...]:
    return tuple(name for name in unread_columns(row, read) if not is_system(name))


ROW_READERS: dict[str, Callable[[dict[str, Any], str], ProgramProblem]] = {
    "mbpp": mbpp_problem,
    "humaneval": humaneval_problem,
}


def _published_split(number: object) -> str | None:
    """The split of an MBPP problem; "prompt" is none that is used."""
    if not isinstance(number, int) or not 1 <= number <= 974:
        return None
    if number <= 10:
        return "prompt"
    if number <= 510:
        return "test"
    if number <= 600:
        return "validation"
    return "train"


def _text_field(row: dict[str, Any], column: str, where: str) -> str:
    if column not in row:
        raise DataError(
            f"{where}: no field {column!r} (there are: {', '.join(map(repr, row)) or 'none'})", code="E_FIELD_MISSING"
        )
    return text_of(row[column], f"{where}, field {column!r}", numbers=False)


def _text_list_field(row: dict[str, Any], column: str, where: str) -> list[str]:
    value = row.get(column, [] if column == "test_imports" else None)
    if not isinstance(value, list):
        raise DataError(
            f"{where}, field {column!r}: expected a list of texts, found {kind_of(value)}", code="E_FIELD_NOT_TEXTS"
        )
    return [text_of(one, f"{where}, field {column!r}", numbers=False) for one in value]


def whole_program(problem: ProgramProblem, program: str) -> str:
    """The program with what the problem gives: its imports and helpers, and its head where the answer is a body
    alone."""
    if problem.stub and not defines_name(program, problem.entry):
        return problem.before + problem.stub.rstrip("\n") + "\n" + program
    return f"{problem.before}\n\n{program}"


def run_program_of(name: str) -> RunProgram:
    """The function that "module:function" names. Raises ConfigError."""
    module, colon, function = name.partition(":")
    admit_module(module)
    try:
        named_object = getattr(importlib.import_module(module), function) if colon else None
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(
            f"sandbox {name!r} cannot be imported ({error}); expected module:function", code="E_SANDBOX_NOT_IMPORTABLE"
        ) from error
    if not callable(named_object):
        raise ConfigError(
            f"sandbox {name!r}: expected module:function, a function of the program's text", code="E_SANDBOX_NAME"
        )
    run_program: RunProgram = named_object
    return run_program
