"""Paraphrases of problems, written by a model: the column ``paraphrase`` that Co-rewarding reads (arXiv 2508.00410).

A writer is asked for each problem of a file, and sees the problem alone. What it writes is kept where it has the same
numbers as the problem, counted; is of another wording, by more than a word or two; is of like length and script; asks
something where the problem does; and is no other problem of the file. Else it is asked again. Left out: whether a
paraphrase means the same, which nothing here can tell; and problems that a run on this file would hold out, which need
none.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, fields, replace
from difflib import SequenceMatcher
from functools import partial
from pathlib import Path
from typing import Any

from cotrain import __version__
from cotrain.config.policies import frozen
from cotrain.core.errors import ConfigError, DataError
from cotrain.core.seeding import seed_of
from cotrain.core.shipped import SHIPPED_LANGUAGE_MODELS
from cotrain.core.types import ParseFailure, Sampling, Task
from cotrain.core.verbosity import ProgressPrinter
from cotrain.data.columns import Row, row_of
from cotrain.data.files import SPLITS, cut_into_splits, task_of
from cotrain.data.malformed_rows import Quarantine, RefusedRow
from cotrain.data.question_text import normal_question, words_in
from cotrain.data.read_rows import numbered_lines, parse_rows
from cotrain.distributed.local import LocalBackend
from cotrain.grading.pool import AnswerGrader
from cotrain.pretraining.solutions import CHUNK
from cotrain.rollout.proposals import parse_proposal
from cotrain.rollout.role import Role
from cotrain.rollout.runner import Roles, RolloutRunner
from cotrain.storage.file_ops import digest_of, replace_file
from cotrain.storage.jsonl import read_jsonl
from cotrain.storage.kept_work import KeptWork, kept_work, stamp_of
from cotrain.storage.schemas import QUARANTINE
from cotrain.trainer.policy_store import PolicyStore

PARAPHRASE = """Say the problem below in other words. Keep all of its numbers, names and units, and what it asks for; \
leave nothing out and add nothing. Do not solve it. Write the new wording alone, as <problem> ... </problem>

{problem}"""
SLACK = 40  # characters that a paraphrase may have above twice those of its problem
MOST_SHARED = 0.9  # of its words, in their order: one word of twenty put in another's place leaves 0.95
NUMBER_WORDS = {  # without "one", which is a pronoun more often
    **{"two": "2", "three": "3", "four": "4", "five": "5", "six": "6", "seven": "7", "eight": "8", "nine": "9"},
    **{"ten": "10", "eleven": "11", "twelve": "12", "twenty": "20", "thirty": "30", "forty": "40", "fifty": "50"},
    **{"sixty": "60", "seventy": "70", "eighty": "80", "ninety": "90"},
}
_NUMBER_OR_WORD = re.compile(r"\d+(?:,\d{3})*(?:\.\d+)?|[^\W\d_]+")


@dataclass(slots=True, kw_only=True)
class ProblemRow:
    """A row of the file, and what became of it."""

    where: str
    fields: dict[str, Any]  # as it is
    row: Row
    held_out: bool  # a run on the file would test on it
    text: str = ""  # what was written last
    reason: str | None = None  # why that is no paraphrase


def read_problems(path: str, question: str, answer: str) -> list[ProblemRow]:
    """The rows of a file with these columns (``data/columns.py``). All rows of a file that is called train, validation
    or test are asked for. Raises DataError."""
    is_split = Path(path).name.partition(".")[0] in SPLITS

    def read(fields: dict[str, Any], where: str) -> ProblemRow:
        row = row_of(fields, question, answer, where, may_lack_answer=True)
        return ProblemRow(where=where, fields=fields, row=row, held_out=False)

    problems = parse_rows(numbered_lines(Path(path)), read)
    if is_split:
        return problems
    splits = cut_into_splits([problem.row.question for problem in problems])
    return [replace(problem, held_out=split != "train") for problem, split in zip(problems, splits, strict=True)]


def count_numbers(text: str) -> Counter[str]:
    """The numbers of a text, each with how often it is there: "1,200", "1200" and "two" are 1200, 1200 and 2."""
    numbers = (NUMBER_WORDS.get(one, one.replace(",", "")) for one in _NUMBER_OR_WORD.findall(normal_question(text)))
    return Counter(one for one in numbers if one[0].isdigit())


def wording_of(text: str) -> str:
    """A text by its letters, digits and signs: two texts with the same are of one wording."""
    return re.sub(r"[\s.,;:!?'\"‘’“”«»…]+", "", normal_question(text))


def share_of_words(question: str, text: str) -> float:
    """The share of the words of two texts that both have, in the same order."""
    question_words = words_in(normal_question(question))
    text_words = words_in(normal_question(text))
    return SequenceMatcher(None, question_words, text_words, autojunk=False).ratio()


def script_of(text: str) -> str:
    """The script of most letters, by their Unicode names: "LATIN", "CYRILLIC"; "CJK" with kana; "" for no letters."""
    names = [unicodedata.name(letter, "").partition(" ")[0] for letter in text if letter.isalpha()]
    counts = Counter("CJK" if name in ("HIRAGANA", "KATAKANA") else name for name in names)
    return counts.most_common(1)[0][0] if counts else ""


def refusal_of(question: str, text: str, others: Collection[str]) -> str | None:
    """Why a text is no paraphrase of a question; None where it may be one. ``others``: wordings of other problems."""
    if not text:
        return "nothing written"
    if wording_of(text) == wording_of(question):
        return "same wording"
    if wording_of(text) in others:
        return "another problem"
    if count_numbers(text) != count_numbers(question):
        return "other numbers"
    if share_of_words(question, text) > MOST_SHARED:
        return "nearly the same wording"
    if not len(question) / 2 <= len(text) <= 2 * len(question) + SLACK:
        return "another length"
    if script_of(text) != script_of(question):
        return "another script"
    return "asks nothing" if "?" in question and "?" not in text else None


def write_paraphrases(
    runner: RolloutRunner,
    problems: Sequence[ProblemRow],
    *,
    tries: int,
    say: Callable[[str], None],
    work: KeptWork | None = None,
) -> None:
    """Ask the role ``writer`` for each problem that needs a paraphrase, up to ``tries`` times, until one is kept.
    ``text`` and ``reason`` of the problems have what became of it; each chunk of them is kept in ``work``."""
    grader = AnswerGrader()
    unwritten = [problem for problem in problems if not problem.held_out and not problem.row.paraphrases]
    wordings = {wording_of(text) for problem in problems for text in (problem.row.question, *problem.row.paraphrases)}
    pace = ProgressPrinter(len(unwritten), "{} problems paraphrased", say)
    for start in range(0, len(unwritten), CHUNK):
        chunk = unwritten[start : start + CHUNK]
        first_step = -1 - start * tries
        make = partial(_write_chunk, runner, chunk, set(wordings), grader, tries=tries, first_step=first_step)
        written = make() if work is None else work.part(f"problems from {start}", make)
        for problem, (text, reason) in zip(chunk, written, strict=True):
            problem.text = text
            problem.reason = reason
            if reason is None:
                wordings.add(wording_of(text))
        pace.add(len(chunk))


def _write_chunk(
    runner: RolloutRunner,
    chunk: Sequence[ProblemRow],
    wordings: set[str],
    grader: AnswerGrader,
    *,
    tries: int,
    first_step: int,
) -> list[tuple[str, str | None]]:
    """Return the last text written for each of these problems, and the reason why it is no paraphrase; None where it is
    one."""
    pending = list(chunk)
    for attempt in range(tries):
        bare = [Row(question=problem.row.question, answer=None, solution=None) for problem in pending]
        tasks = [task_of(row, problem.where, grader) for row, problem in zip(bare, pending, strict=True)]
        for episode in runner.collect(_ask_writer, tasks, step=first_step - attempt, group_size=1):
            problem = pending[episode.task]
            reply = episode.traces[0].text if episode.traces else ""
            proposal = parse_proposal(reply, {})
            problem.text = "" if isinstance(proposal, ParseFailure) else proposal.text
            problem.reason = episode.failure or refusal_of(problem.row.question, problem.text, wordings)
            if problem.reason is None:
                wordings.add(wording_of(problem.text))
        pending = [problem for problem in pending if problem.reason is not None]
    return [(problem.text, problem.reason) for problem in chunk]


async def _ask_writer(task: Task, roles: Roles) -> None:
    await roles.writer(problem=task.prompt)


def paraphrase_file(
    model: str,
    path: str,
    out: Path,
    *,
    columns: tuple[str, str],
    tries: int,
    device: str,
    seed: int,
    say: Callable[[str], None],
) -> dict[str, Any]:
    """Write the rows of a file with their paraphrases to ``out``, and those that got none next to it, with the reason.
    Returns counts: of what was ``written``, was ``present``, is ``held_out``, and is ``refused``, by reason.

    A command that was stopped or killed goes on with what it has written. Raises ConfigError for one of the package's
    models, which cannot write, and for files that are there; DiskError for a place that takes none; DataError.
    """
    aside = out.with_name(f"{out.stem}.{QUARANTINE}")
    if model in SHIPPED_LANGUAGE_MODELS:
        raise ConfigError(
            f"the model {model!r} knows the package's own formats alone; expected a chat model", code="E_NOT_CHAT_MODEL"
        )
    if out.suffix != ".jsonl":
        raise ConfigError(f"--out {out}: expected a name that ends in .jsonl", code="E_OUT_NOT_JSONL")
    if out.exists():
        raise ConfigError(f"{out} exists; choose another --out, or move it away", code="E_OUT_EXISTS")
    if aside.exists() and not _is_quarantine(aside):
        raise ConfigError(
            f"{aside} exists and is something else; choose another --out, or move it away", code="E_OUT_EXISTS"
        )
    problems = read_problems(path, *columns)
    settings = {
        "model": [model, stamp_of(model)],
        "rows": digest_of(json.dumps([problem.fields for problem in problems], default=str).encode()).sha256,
        "columns": columns,
        "tries": tries,
        "seed": seed,
        "cotrain": __version__,
    }
    with kept_work(out, settings, say) as work:  # before the model is opened
        backend = LocalBackend(device)
        policies = PolicyStore(backend.open({"writer": frozen(model)}, seed=seed))
        role = Role(policy="writer", prompt=PARAPHRASE, sampling=Sampling(max_tokens=512, temperature=0.7))
        runner = RolloutRunner(backend.engine, policies.renderers, {"writer": role}, seed_of("paraphrases", seed))
        write_paraphrases(runner, problems, tries=tries, say=say, work=work)
        try:
            return save_paraphrases(problems, out, aside)
        except DataError:  # all of it was tried, and is in the quarantine
            work.finish()
            raise


def _is_quarantine(path: Path) -> bool:
    """Whether a file is what an earlier try has left: rows that were refused."""
    try:
        rows = read_jsonl(path)
    except (DataError, OSError):
        return False
    names = {field.name for field in fields(RefusedRow)}
    return all(row.keys() == names for row in rows)


def save_paraphrases(problems: Sequence[ProblemRow], out: Path, aside: Path) -> dict[str, Any]:
    """Write both files, see ``paraphrase_file``. Raises DataError where no paraphrase could be kept."""
    kept = [problem for problem in problems if problem.reason is None]
    refused = [(problem, problem.reason) for problem in problems if problem.reason is not None]
    reasons = dict(Counter(reason for _, reason in refused).most_common())
    if refused:
        set_aside = Quarantine()
        for one, reason in refused:
            text = json.dumps(one.fields | {"paraphrase": one.text}, default=str)
            set_aside.refused.append(RefusedRow(where=one.where, reason=reason, row=text, code="E_PARAPHRASE_REFUSED"))
        set_aside.write(aside)
    counts = {
        "written": sum(bool(one.text) for one in kept),
        "present": sum(bool(one.row.paraphrases) and not one.held_out for one in kept),
        "held_out": sum(one.held_out for one in kept),
    }
    if refused and not counts["written"]:
        raise DataError(
            f"none of {len(refused)} paraphrases can be used (most often: {next(iter(reasons))}; all in {aside}); "
            "choose another --model, or raise --tries",
            code="E_NO_PARAPHRASE",
        )
    rows = [one.fields | ({"paraphrase": one.text} if one.text else {}) for one in kept]
    replace_file(out, "".join(json.dumps(row, default=str) + "\n" for row in rows).encode())
    return {"out": str(out), "quarantine": str(aside) if refused else None, **counts, "refused": reasons}
