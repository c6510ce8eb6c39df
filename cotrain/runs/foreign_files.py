"""Rollouts that another trainer wrote, read from its files: what was asked, what was answered, what the judge said.

::

    TRL         completions/completions_00010.parquet   prompt, completion, a column for each reward function
    veRL        rollout_data_dir/10.jsonl               input, output, gts, score, step, and what the reward adds
    verifiers   traces.jsonl, results.jsonl             episodes with their traces; rows with prompt and completion
    OpenRLHF    samples as JSON lines or wandb's table  input, output, reward; global_step, text, reward
    miles, slime  samples as JSON lines                 rollout_id, prompt, response, label, reward
    others      JSON lines, one JSON array, CSV, parquet  columns by their usual names, or by the flags of the audit

A column is found by its name in any spelling, ``Ground Truth`` is ``ground_truth``; which was taken for what is kept in
``Columns``, and columns that nothing reads are counted. Every numeric column that is no step, number, count or time is
a *score*: one of them is the judge's, whose verdicts are audited, the others are cheap judges beside it.

A response may be a list of messages: what an assistant wrote in them is joined. A trainer that logs one batch several
times (TRL does, where a batch is learned from in several steps) has its repetitions left out and counted.

Left out: pickles (``.pt`` of ``--save-debug-rollout-data``), which run code when they are read; images and tools.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from cotrain.core.errors import ConfigError, DataError
from cotrain.core.input_files import MOST_ROW, MOST_WHOLE, text_of_file
from cotrain.core.nearest_names import nearest_name
from cotrain.data.row_files import RawRow, lines_of
from cotrain.data.unread_columns import has_content, plain_spelling

# Usual names of columns, in the order in which they are looked for, as ``plain_spelling`` writes them.
PROMPT = ("prompt", "input", "question", "problem", "query", "instruction")
RESPONSE = ("completion", "response", "output", "generation", "generatedtext", "modelresponse", "text")
GOLD = (
    *("gts", "groundtruth", "gold", "goldanswer", "reference", "referenceanswer", "expectedanswer", "target", "label"),
    *("answer", "solution"),
)
TRUTH = ("truth", "iscorrect", "isright", "correct", "humanlabel")
STEP = ("step", "globalstep", "rolloutid", "trainstep", "trainingstep", "iteration")
PROBLEM = ("exampleid", "problemid", "taskid", "questionid", "promptid")
TRUNCATED = ("istruncated", "truncated")
JUDGE = (
    "verdict",
    "judge",
    "reward",
    "score",
    "finalreward",
    "judgescore",
    "totalreward",
    "rewardscore",
    "rewardtotal",
)

# A numeric column with one of these in its name counts or numbers something, and is no score.
_NO_SCORE = re.compile(
    r"(?:^|_)(?:step|id|idx|index|uid|seed|epoch|turns?|rank|version|advantages?|logprobs?|kl|entropy)(?:_|$)"
    r"|tokens?|length|seconds|_ms$|time|count|^num_|^n_|^rollout",
    re.IGNORECASE,
)
_YES = frozenset(("true", "yes", "correct", "right", "1", "1.0", "pass", "passed", "accept", "accepted"))
_NO = frozenset(("false", "no", "incorrect", "wrong", "0", "0.0", "-1", "-1.0", "fail", "failed", "reject", "rejected"))
_PICKLES = (".pt", ".pth", ".pkl", ".pickle", ".bin")
READABLE = (".jsonl", ".jsonl.gz", ".ndjson", ".json", ".json.gz", ".csv", ".csv.gz", ".parquet")
LARGEST = 1e100  # a larger number is not taken for a score


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """Which column is what; "" where there is none."""

    response: str = ""
    prompt: str = ""
    judge: str = ""  # the score whose verdicts are audited
    truth: str = ""
    gold: str = ""  # the reference answer
    step: str = ""
    problem: str = ""  # tells problems apart where there is no prompt
    truncated: str = ""
    others: tuple[str, ...] = ()  # further scores: cheap judges

    @property
    def scores(self) -> tuple[str, ...]:
        """The judge's column and the others."""
        return (self.judge, *self.others) if self.judge else self.others

    def named(self) -> dict[str, str]:
        """The columns by what is read from them."""
        pairs = {
            "response": self.response,
            "prompt": self.prompt,
            "judge": self.judge,
            "truth": self.truth,
            "reference answer": self.gold,
            "step": self.step,
            "problem": self.problem,
            "cut off": self.truncated,
        }
        return {meaning: column for meaning, column in pairs.items() if column}


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignRollout:
    """An answer by a policy of another program."""

    step: int
    task: int = 0  # which problem of its step
    member: int = 0  # which of the answers to it
    where: str  # file and row
    problem: str  # the same for the same problem, in every step
    prompt: str
    response: str
    scores: Mapping[str, float]  # column → value; those that a row lacks are not there
    verdict: bool | None = None  # does the judge accept it? None where its score is missing
    truth: bool | None = None  # is it right? None where nobody knows
    gold: str | None = None
    is_cut: bool = False  # at the token limit, where the file says so

    @property
    def address(self) -> str:
        """``12:3:0``: step, problem and answer, as `cotrain why` takes it."""
        return f"{self.step}:{self.task}:{self.member}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignRun:
    """All rollouts of some files, by step, problem and answer."""

    paths: tuple[Path, ...]
    kind: str  # the program that writes such files, as messages name it
    columns: Columns
    right_at: float | None  # the judge accepts from this score on; None where there is no judge
    rollouts: tuple[ForeignRollout, ...]
    unread: Mapping[str, int] = field(default_factory=dict)  # column that nothing reads → rows that have it
    notes: tuple[str, ...] = ()  # sentences about rows that were left out, and about guesses

    @property
    def steps(self) -> tuple[int, ...]:
        """The steps that there are, rising."""
        return tuple(sorted({rollout.step for rollout in self.rollouts}))

    @property
    def has_truth(self) -> bool:
        return any(rollout.truth is not None for rollout in self.rollouts)


# -- files


def rollout_files(paths: Iterable[Path]) -> list[Path]:
    """The files that these paths name: of a folder those in it that can be read, in the order of the numbers in their
    names. Raises DataError where there is none."""
    found: list[Path] = []
    for path in dict.fromkeys(paths):
        found += _files_of_folder(path) if path.is_dir() else [path]
    for file in found:
        if file.suffix.lower() in _PICKLES:
            raise DataError(
                f"{file}: a pickle runs code when it is read, so it is not; write the samples as JSON lines, an "
                "object each with prompt, response, label and reward",
                code="E_PICKLE",
            )
    return found


def _files_of_folder(folder: Path) -> list[Path]:
    """The files to read in a folder: of TRL's output those in ``completions``, of one of verifiers its traces; else all
    of one kind, lines before arrays, since other ``.json`` files of a trainer hold settings."""
    if (folder / "recipe.json").is_file():
        raise DataError(
            f"{folder}: a run that cotrain reads as it is; `cotrain view {folder}` and `cotrain why {folder}` show "
            "where judge and truth differ",
            code="E_RUN_OF_COTRAIN",
        )
    below = folder / "completions"
    if below.is_dir():
        return _files_of_folder(below)
    inside = [file for file in folder.iterdir() if file.is_file() and file.name.lower().endswith(READABLE)]
    known = [file for file in inside if file.name in ("traces.jsonl", "results.jsonl")]
    lines = [file for file in inside if not file.name.lower().endswith((".json", ".json.gz"))]
    tables = [file for file in inside if file.name.lower().endswith(".table.json")]
    chosen = known[:1] or lines or tables or inside
    if not chosen:
        raise DataError(
            f"{folder}: no file of rollouts in this folder; expected names that end in {', '.join(READABLE)}",
            code="E_NO_ROLLOUT_FILE",
        )
    return sorted(chosen, key=lambda file: (_numbers_in(file.name), file.name))


def _numbers_in(name: str) -> tuple[int, ...]:
    return tuple(int(digits) for digits in re.findall(r"\d{1,18}", name))


def read_foreign_run(
    paths: Sequence[Path], *, named: Mapping[str, str] | None = None, right_at: float | None = None
) -> ForeignRun:
    """Read rollouts from files and folders.

    Args:
        paths: files, or folders of them.
        named: field of ``Columns`` → the column that the user says it is.
        right_at: the score from which on the judge accepts; None: as its values say.

    Raises:
        DataError: for a file that cannot be read, or holds no rollouts; ConfigError for a column that is not there.
    """
    files = rollout_files(paths)
    rows: list[tuple[str, Path, dict[str, Any]]] = []
    notes: list[str] = []
    for file in files:
        rows += [(where, file, row) for where, row in _rows_of(file, notes)]
    if not rows:
        raise DataError(f"{files[0]}: no rows in it; expected a rollout each", code="E_DATA_EMPTY")
    kind = _writer_of(rows[0][2])
    columns = _find_columns([row for _, _, row in rows], named or {}, str(files[0]))
    rollouts, unread = _as_rollouts(rows, columns, notes)
    rollouts = _without_repetitions(rollouts, notes)
    accepts_from = _threshold(rollouts, columns.judge, right_at, notes)
    judged = [_with_verdict(rollout, columns.judge, accepts_from) for rollout in rollouts]
    return ForeignRun(
        paths=tuple(files),
        kind=kind,
        columns=columns,
        right_at=accepts_from,
        rollouts=tuple(_with_addresses(judged)),
        unread=unread,
        notes=tuple(notes),
    )


def _rows_of(file: Path, notes: list[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The rows of a file as plain columns, each with where it stands."""
    if file.name.lower().endswith(".json") and (table := _wandb_table(file)) is not None:
        yield from table
        return
    broken: list[str] = []
    for number, line in lines_of(file):
        where = f"{file}, row {number}"
        if broken:
            raise DataError(broken[0], code="E_ROWS_BROKEN")
        try:
            row = _object_of(line, where)
        except DataError as error:
            broken.append(str(error))  # a last line may be half written, as of a run that goes on
            continue
        yield from _plain_rows(row, where)
    if broken:
        notes.append(f"left out the last line of {file.name}, which is not whole")


def _object_of(line: RawRow, where: str) -> dict[str, Any]:
    """The object of a line. NaN, which Python's writer knows, is a value that is missing."""
    if isinstance(line, dict):
        return line
    if len(line) > MOST_ROW:
        raise DataError(f"{where}: more than {MOST_ROW} bytes in one row; shorten it", code="E_ROW_TOO_LARGE")
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}: no JSON ({error}); expected an object a line", code="E_ROW_NOT_JSON") from error
    if not isinstance(row, dict):
        raise DataError(
            f'{where}: expected an object such as {{"prompt": …}}, found {type(row).__name__}', code="E_ROW_NOT_OBJECT"
        )
    return row


def _wandb_table(file: Path) -> list[tuple[str, dict[str, Any]]] | None:
    """The rows of a table as wandb keeps it, ``{"columns": …, "data": …}``; None where the file is none."""
    try:
        table = json.loads(text_of_file(file, MOST_WHOLE))
    except (ValueError, RecursionError):
        return None
    if not isinstance(table, dict):
        return None
    names = table.get("columns")
    data = table.get("data")
    if not isinstance(names, list) or not isinstance(data, list):
        return None
    rows = [dict(zip(map(str, names), row, strict=False)) for row in data if isinstance(row, list)]
    return [(f"{file}, row {number}", row) for number, row in enumerate(rows, start=1)]


# -- what other programs nest, as plain columns


def _plain_rows(row: dict[str, Any], where: str) -> list[tuple[str, dict[str, Any]]]:
    """An episode of verifiers is a row for each of its trained agents; of every other row objects of numbers become
    columns of their own, ``{"reward": {"score": 1.0}}`` the column ``reward.score``."""
    traces = row.get("traces")
    if not isinstance(traces, list) or "task" not in row:
        return [(where, _with_flat_numbers(row))]
    agents = [trace for trace in traces if isinstance(trace, dict)]
    trained = [trace for trace in agents if _nested(trace, "agent", "trainable") is not False]
    return [
        (where if len(trained) == 1 else f"{where}, trace {number}", _row_of_trace(row, trace))
        for number, trace in enumerate(trained, start=1)
    ]


def _with_flat_numbers(row: dict[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in row.items():
        if isinstance(value, dict) and value and all(isinstance(one, int | float | None) for one in value.values()):
            flat |= {f"{name}.{part}": one for part, one in value.items() if f"{name}.{part}" not in row}
        else:
            flat[name] = value
    return flat


def _row_of_trace(episode: Mapping[str, Any], trace: Mapping[str, Any]) -> dict[str, Any]:
    """The columns of one trace: its messages, its task's data, its rewards and metrics by name, and their sum."""
    nodes = [node for node in trace.get("nodes", ()) if isinstance(node, dict)]
    data = _nested(trace, "task", "data") or _nested(episode, "task", "data") or {}
    asked = [node["message"] for node in nodes if not node.get("sampled") and isinstance(node.get("message"), dict)]
    written = [node["message"] for node in nodes if node.get("sampled") and isinstance(node.get("message"), dict)]
    row: dict[str, Any] = {
        "prompt": asked or data.get("prompt"),
        "completion": written,
        "answer": data.get("answer"),
        "example_id": _nested(trace, "task", "key"),
        "step": _nested(episode, "run", "work", "step"),
        "is_truncated": trace.get("stop_condition") in ("length", "max_tokens", "truncated"),
    }
    rewards = _mapping(trace, "rewards")
    given = {name: reward for name, reward in rewards.items() if isinstance(reward, dict)}
    if given:
        row["reward"] = math.fsum(
            float(one.get("score", 0.0)) * float(one.get("weight", 1.0)) for one in given.values()
        )
    if len(given) > 1:
        row |= {name: reward.get("score") for name, reward in given.items()}
    row |= {name: value for name, value in _mapping(trace, "metrics").items() if name not in row}
    return {name: value for name, value in row.items() if value is not None}


def _mapping(saved: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = saved.get(name)
    return value if isinstance(value, Mapping) else {}


def _nested(saved: Any, *names: str) -> Any:
    for name in names:
        saved = saved.get(name) if isinstance(saved, Mapping) else None
    return saved


def _writer_of(row: Mapping[str, Any]) -> str:
    """The program that writes rows with these columns, as far as they tell."""
    names = set(row)
    if {"prompt", "completion", "advantage"} <= names:
        return "TRL's completions"
    if {"input", "output", "score"} <= names:
        return "veRL's rollouts"
    if "example_id" in names and "completion" in names:
        return "verifiers' results"
    if {"rollout_id", "prompt"} <= names:
        return "samples of slime or miles"
    if {"global_step", "text", "reward"} <= names or {"input", "output", "reward"} <= names:
        return "OpenRLHF's samples"
    return "rows of columns"


# -- which column is what


def _find_columns(rows: Sequence[Mapping[str, Any]], named: Mapping[str, str], where: str) -> Columns:
    """Which column is what, of all rows together: a column may begin late."""
    there = list(dict.fromkeys(name for row in rows for name in row))
    _check_named_columns(named, there, where)
    free = [name for name in there if name not in named.values()]

    def usual(meaning: str, names: Sequence[str]) -> str:
        if meaning in named:
            return named[meaning]
        by_spelling = {plain_spelling(name): name for name in reversed(free)}
        found = next((by_spelling[name] for name in names if name in by_spelling), "")
        if found:
            free.remove(found)
        return found

    response = usual("response", RESPONSE)
    if not response:
        raise DataError(
            f"{where}: no column of responses among {', '.join(there[:32])}; name it with --response-column",
            code="E_RESPONSE_COLUMN",
        )
    prompt = usual("prompt", PROMPT)
    step = usual("step", STEP)
    problem = usual("problem", PROBLEM)
    truncated = usual("truncated", TRUNCATED)
    truth = usual("truth", TRUTH)
    gold = usual("gold", GOLD)
    scores = [name for name in there if name in free and _is_score(name, rows)]
    judge = usual("judge", [plain_spelling(name) for name in _judge_names(scores)])
    return Columns(
        response=response,
        prompt=prompt,
        judge=judge,
        truth=truth,
        gold=gold,
        step=step,
        problem=problem,
        truncated=truncated,
        others=tuple(name for name in scores if name != judge and name not in named.values()),
    )


def _check_named_columns(named: Mapping[str, str], there: Sequence[str], where: str) -> None:
    """Raise ConfigError for a column that the user named and that is not there. ``named``: meaning → column."""
    for meaning, column in named.items():
        if column not in there:
            near = nearest_name(column, there)
            hint = f"; did you mean {near!r}?" if near else ""
            flag = "--judge" if meaning == "judge" else f"--{meaning}-column"
            raise ConfigError(
                f"{flag}: {where} has no column {column!r}{hint} (there are: {', '.join(there[:32])})",
                code="E_NO_SUCH_COLUMN",
            )


def _judge_names(scores: Sequence[str]) -> list[str]:
    """The names of scores, the likeliest to be the judge's first."""
    rank = {name: place for place, name in enumerate(JUDGE)}
    return sorted(scores, key=lambda name: rank.get(plain_spelling(name), len(JUDGE)))


def _is_score(name: str, rows: Sequence[Mapping[str, Any]]) -> bool:
    """Are all values that this column has numbers, or yes and no?"""
    if _NO_SCORE.search(name) and plain_spelling(name) not in JUDGE:
        return False
    values = [row[name] for row in rows if name in row and has_content(row[name]) and not _is_nan(row[name])]
    return bool(values) and all(_number_of(value) is not None for value in values)


def _is_nan(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)


def _number_of(value: Any) -> float | None:
    """A score as a number, True as 1; None for what is none."""
    if isinstance(value, bool):
        return float(value)
    if isinstance(value, str):
        word = value.strip().casefold()
        if word in _YES or word in _NO:
            return _number_of_word(word)
        value = _number_in_word(word)
    if isinstance(value, int | float) and abs(value) <= LARGEST:  # which NaN is not
        return float(value)
    return None


def _number_of_word(word: str) -> float:
    number = _number_in_word(word)
    return float(word in _YES) if number is None else number


def _number_in_word(word: str) -> float | None:
    try:
        return float(word)
    except ValueError:
        return None


def truth_of(value: Any) -> bool | None:
    """A cell of a truth or of a label: True, False, or None where it says nothing."""
    if isinstance(value, bool):
        return value
    if isinstance(value, int | float):
        if value in (0, -1):
            return False
        return True if value == 1 else None
    word = str(value).strip().casefold()
    if word in _YES:
        return True
    if word in _NO:
        return False
    return None


# -- rows as rollouts


def _as_rollouts(
    rows: Sequence[tuple[str, Path, dict[str, Any]]], columns: Columns, notes: list[str]
) -> tuple[list[ForeignRollout], dict[str, int]]:
    """The rollouts, and how many rows have each column that is not read."""
    read = {*columns.named().values(), *columns.scores}
    unread: Counter[str] = Counter()
    rollouts = []
    without_response = 0
    for where, file, row in rows:
        unread.update(name for name, value in row.items() if name not in read and has_content(value))
        if row.get(columns.response) is None and not _is_csv(file):
            without_response += 1
            continue
        rollouts.append(_rollout_of(row, columns, where, file))
    if without_response:
        notes.append(f"left out {without_response} of {len(rows)} rows, which have no {columns.response!r}")
    if not rollouts:
        raise DataError(
            f"{rows[0][1]}: no row has a {columns.response!r}; name the column with --response-column",
            code="E_RESPONSE_COLUMN",
        )
    if columns.truth and all(rollout.truth is None for rollout in rollouts):
        raise DataError(
            f"{rows[0][1]}: nothing in column {columns.truth!r} says right or wrong; expected true or false, 1 or 0",
            code="E_TRUTH_COLUMN",
        )
    return rollouts, dict(unread)


def _is_csv(file: Path) -> bool:
    """In CSV an empty cell is an empty text: an answer that says nothing."""
    return file.name.lower().endswith((".csv", ".csv.gz"))


def _rollout_of(row: Mapping[str, Any], columns: Columns, where: str, file: Path) -> ForeignRollout:
    prompt = _said_text(row.get(columns.prompt), every_role=True) if columns.prompt else ""
    problem = prompt or str(row.get(columns.problem) or where)
    scores = {name: value for name in columns.scores if (value := _number_of(row.get(name))) is not None}
    gold = row.get(columns.gold) if columns.gold else None
    return ForeignRollout(
        step=_step_of(row, columns.step, where, file),
        where=where,
        problem=problem,
        prompt=prompt,
        response=_said_text(row.get(columns.response)),
        scores=scores,
        truth=truth_of(row[columns.truth]) if columns.truth in row else None,
        gold=None if gold is None else _gold_text(gold),
        is_cut=truth_of(row.get(columns.truncated)) is True,
    )


def _step_of(row: Mapping[str, Any], column: str, where: str, file: Path) -> int:
    """The step of a row; without a column the last number in the name of its file, else 0."""
    if not column:
        numbers = _numbers_in(file.name)
        return numbers[-1] if numbers else 0
    value = _number_of(row.get(column))
    if value is None or value < 0 or value != int(value) or value > 1e15:
        raise DataError(
            f"{where}: {column!r} is {row.get(column)!r:.40}, expected a step: a whole number from 0 on",
            code="E_STEP_NOT_NUMBER",
        )
    return int(value)


def _gold_text(gold: Any) -> str:
    """A reference answer as text; of several the first, as veRL's lists of one have it."""
    if isinstance(gold, list | tuple) and gold:
        return _gold_text(gold[0])
    if isinstance(gold, float) and abs(gold) < 1e15 and gold == int(gold):
        return str(int(gold))
    return _whole_text(gold if isinstance(gold, str) else json.dumps(gold, ensure_ascii=False, default=str))


def _whole_text(text: str) -> str:
    """Without halves of characters, which JSON may hold and no file of UTF-8 can."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")


def _said_text(value: Any, *, every_role: bool = False) -> str:
    """A text, or the texts of messages: of a response those of the assistant alone."""
    if isinstance(value, str):
        return _whole_text(value)
    if isinstance(value, Mapping):
        return _content_text(value)
    if isinstance(value, list | tuple):
        messages = [message for message in value if isinstance(message, Mapping)]
        spoken = [message for message in messages if every_role or message.get("role") in (None, "assistant")]
        return "\n".join(filter(None, map(_content_text, spoken or messages)))
    return "" if value is None else str(value)


def _content_text(message: Mapping[str, Any]) -> str:
    content = message.get("content")
    if isinstance(content, list):
        parts = [part.get("text") for part in content if isinstance(part, Mapping)]
        return "\n".join(_whole_text(part) for part in parts if isinstance(part, str))
    return _whole_text(content) if isinstance(content, str) else ""


def _without_repetitions(rollouts: Sequence[ForeignRollout], notes: list[str]) -> list[ForeignRollout]:
    """The rollouts without steps that repeat the step before them, answer by answer."""
    by_step: dict[int, list[ForeignRollout]] = {}
    for rollout in rollouts:
        by_step.setdefault(rollout.step, []).append(rollout)
    kept: list[ForeignRollout] = []
    before: list[Any] = []
    repeated = []
    for step in sorted(by_step):
        content = [(rollout.problem, rollout.response, dict(rollout.scores)) for rollout in by_step[step]]
        if content == before:
            repeated.append(step)
            continue
        kept += by_step[step]
        before = content
    if repeated:
        notes.append(
            f"left out {_steps_text(len(repeated))} that {'repeats' if len(repeated) == 1 else 'repeat'} the rollouts "
            "of the step before: one batch, logged again"
        )
    return kept


def _steps_text(count: int) -> str:
    return "1 step" if count == 1 else f"{count} steps"


def _with_addresses(rollouts: Iterable[ForeignRollout]) -> list[ForeignRollout]:
    """Problems of a step are numbered as they first come, and so are the answers to each."""
    tasks: dict[tuple[int, str], int] = {}
    in_step: Counter[int] = Counter()
    members: Counter[tuple[int, str]] = Counter()
    numbered = []
    for rollout in sorted(rollouts, key=lambda one: one.step):
        place = (rollout.step, rollout.problem)
        if place not in tasks:
            tasks[place] = in_step[rollout.step]
            in_step[rollout.step] += 1
        numbered.append(replace(rollout, task=tasks[place], member=members[place]))
        members[place] += 1
    return sorted(numbered, key=lambda one: (one.step, one.task, one.member))


# -- verdicts


def _threshold(
    rollouts: Sequence[ForeignRollout], judge: str, right_at: float | None, notes: list[str]
) -> float | None:
    """From which score on the judge accepts. Of two values it is the higher one, of scores from 0 to 1 a half, from -1
    to 1 zero. Raises ConfigError for other scores, of which nobody can tell."""
    if not judge:
        if right_at is not None:
            raise ConfigError(
                "--right-at: there is no column of a judge; name it with --judge", code="E_NO_JUDGE_COLUMN"
            )
        return None
    values = sorted({rollout.scores[judge] for rollout in rollouts if judge in rollout.scores})
    missing = sum(judge not in rollout.scores for rollout in rollouts)
    if missing:
        notes.append(f"{missing} of {len(rollouts)} answers have no {judge!r}: the judge said nothing of them")
    if right_at is not None or not values:
        return right_at
    low = values[0]
    high = values[-1]
    if len(values) == 1:
        return high if high > 0 else high + 1.0
    if len(values) == 2:
        return high
    if low >= 0.0 and high <= 1.0:
        return 0.5
    if low >= -1.0 and high <= 1.0:
        return 0.0
    raise ConfigError(
        f"the judge {judge!r} gives {len(values)} different scores, from {low:g} to {high:g}; say from which on it "
        f"accepts an answer, as in --right-at {(low + high) / 2:g}, or name another column with --judge",
        code="E_JUDGE_THRESHOLD",
    )


def _with_verdict(rollout: ForeignRollout, judge: str, right_at: float | None) -> ForeignRollout:
    if right_at is None or judge not in rollout.scores:
        return rollout
    return replace(rollout, verdict=rollout.scores[judge] >= right_at)
