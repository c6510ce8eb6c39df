r"""Questions and answers in the rows of data files, by the columns in which public benchmarks have them.

``SCHEMAS`` says for each benchmark which columns hold question and answer, in the public release and in common copies::

    math500        problem|question                  answer
    svamp          question_concat|Body+Question     Answer|answer
    olympiadbench  problem|question                  answer|final_answer[]

Columns are written as a text in these forms:

    a|b            the first of the two that a row has
    a+b            both, with a space between
    a[]            a list of texts, joined by commas
    a.b            the field b of an object a, as veRL has reward_model.ground_truth
    ~question      the first usual name of a question, in any spelling: Ground Truth is ground_truth

A question may also be the messages of a conversation with one question of a user, as TRL has them. A system text, in a
column of its own or among these messages, is said before the question.

An answer may be worked text that ends on the answer. What a model thought before it is dropped; then the answer is the
first of these that the text has:

1. the last ``<answer>…</answer>``;
2. what stands behind the last ``####``, as in GSM8K, whose worked text in front of it is kept as a solution;
3. the last ``\boxed{…}``;
4. all of it.

A column ``solution`` is the worked solution, a step a line or in tags; where no other column has the answer, it ends on
that. A column ``paraphrase``, a text or a list of texts, asks the same question in other words. All other columns are
refused or counted (``unread_columns.py``). Whatever is wrong with a row is an error that names file, row and column.
Left out: tolerances and units.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cotrain.core.errors import DataError, UnknownName
from cotrain.core.nearest_names import nearest_name
from cotrain.data.question_text import normal_question
from cotrain.data.row_files import kind_of, text_of
from cotrain.data.unread_columns import (
    check_lost_parts,
    has_content,
    is_system,
    plain_spelling,
    system_text,
    unread_columns,
)
from cotrain.formats.answers import first_line, last_boxed
from cotrain.formats.solutions import Solution, behind_thoughts, blocks_of, tagged_solution, write_solution
from cotrain.grading.notation import without_separators

MAX_ANSWER_WORDS = 12  # of an answer in a column called a solution, where a longer text is worked text


# -- Which columns.


@dataclass(frozen=True, slots=True)
class Schema:
    """The columns of a benchmark with the question and the gold answer, and the place of its public release."""

    question: str
    answer: str
    hub: str = ""  # "owner/name" or "owner/name:config"


USUAL_NAMES = {  # usual names of columns, spelled plainly (``plain_spelling``); the first that a row has is taken
    "~question": ("question", "problem", "prompt", "query", "input", "problemstatement", "questiontext"),
    "~answer": (
        "answer", "finalanswer", "expectedanswer", "correctanswer", "groundtruth", "goldanswer", "gold", "target",
        "reference", "referenceanswer", "solution", "result",
    ),
}  # fmt: skip
ALPACA_COLUMNS = ("instruction", "input")  # a question in two parts, of which one may be empty
ANY = Schema(  # of a file that nothing is known of
    "question_concat|Body+Question|body+question|question|problem|~question",
    "answer|Answer|final_answer[]|~answer|reward_model.ground_truth",
)
SCHEMAS = {
    "jsonl": ANY,
    "gsm8k": Schema("question|problem", "answer", "openai/gsm8k:main"),
    "gsm-plus": Schema("question", "answer", "qintongli/GSM-Plus"),
    "gsm-symbolic": Schema("question", "answer", "apple/GSM-Symbolic:main"),
    "svamp": Schema("question_concat|Body+Question|body+question|question", "Answer|answer|result", "ChilleD/SVAMP"),
    "asdiv": Schema("body+question|question", "answer", "EleutherAI/asdiv"),
    "mawps": Schema("question|input", "answer|result|target", "MU-NLPC/Calc-mawps"),
    "math500": Schema("problem|question", "answer", "HuggingFaceH4/MATH-500"),
    "aime": Schema("problem|question|Problem", "answer|Answer", "HuggingFaceH4/aime_2024"),
    "amc": Schema("problem|question", "answer", "math-ai/amc23"),
    "olympiadbench": Schema("problem|question", "answer|final_answer[]", "Hothan/OlympiadBench:OE_TO_maths_en_COMP"),
    "minerva": Schema("problem|question", "answer", "math-ai/minervamath"),
}


def schema_of(name: str) -> Schema:
    """Raises UnknownName for a benchmark that ``SCHEMAS`` does not have."""
    if name not in SCHEMAS:
        raise UnknownName("benchmark", name, SCHEMAS)
    return SCHEMAS[name]


def plain_name(columns: str) -> str:
    """The name of a column as errors say it: "question" of the usual names, else the first that is written."""
    guessed = _usual_kind(columns)
    if guessed is not None:
        return guessed
    return columns.split("|")[0].split("+")[0].removesuffix("[]")


def _usual_kind(columns: str) -> str | None:
    """Return "question" or "answer" where a usual name of it is among these columns, else None."""
    return next((name.removeprefix("~") for name in USUAL_NAMES if name in columns), None)


# -- A row.


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One problem of a file."""

    question: str
    answer: str | None  # the gold answer alone; None where the row has none and need not
    solution: str | None  # worked text in step tags, from GSM8K's format or a column of its own
    paraphrases: tuple[str, ...] = ()
    system: str = ""  # a text that is said before the question
    columns: tuple[str, str] = field(default=("", ""), compare=False)  # that question and answer were read from
    solution_column: str = field(default="", compare=False)  # that the worked text was read from, beside the answer
    unread: tuple[str, ...] = field(default=(), compare=False)  # columns that have a value and were not read

    @property
    def content(self) -> list[Any]:
        """The values that must not change while a run goes on."""
        system = [self.system] if self.system else []
        solution = [] if self.solution is None else [{"solution": self.solution}]
        return [*system, self.question, self.answer, *self.paraphrases, *solution]

    @property
    def prompt(self) -> str:
        """The question with the system text in front of it: what a role is asked."""
        return with_system_text(self.system, self.question)


def with_system_text(system: str, question: str) -> str:
    """A question with the system text, if there is one, in front of it."""
    return f"{system}\n\n{question}" if system else question


def row_of(row: dict[str, Any], question: str, answer: str, where: str, may_lack_answer: bool = False) -> Row:
    """Read question and answer of an object from these columns. Raises DataError that begins with ``where``."""
    _check_is_problem(row, question, answer, where)
    question_column, question_text = field_of(row, question, where, is_answer=False)
    answer_column = ""
    answer_text = None
    if _has_value(row, answer) or not may_lack_answer:
        answer_column, answer_text = field_of(row, answer, where, is_answer=True)

    columns_read = [
        *question_column.split("+"),
        *_present_columns(row, question),
        *_present_columns(row, answer),
        "paraphrase",
    ]
    unread = unread_columns(row, columns_read)
    # Where one column was named, the user says that it holds all of the question; so does SVAMP's question_concat.
    # Where it was guessed, a column such as "context" may belong to the question.
    is_whole_question = "|" not in question or question_column == "question_concat"
    if not is_whole_question:
        check_lost_parts(row, columns_read, where, can_name_columns=True)

    gold = None
    solution = None
    if answer_text is not None:
        _, _, own_name = answer_column.rpartition(".")
        gold, work = _split_answer(answer_text, own_name, f"{where}, field {answer_column!r}")
        solution = _solution_of(work, gold)
        if solution is None and plain_spelling(own_name) == "solution":
            solution = _solution_in(answer_text, gold)

    solution_column = ""
    if gold is not None and solution is None:
        solution_column, solution = _solution_beside(row, unread, gold)
    return Row(
        question=question_text,
        answer=gold,
        solution=solution,
        paraphrases=_read_paraphrases(row, question_text, f"{where}, field 'paraphrase'"),
        system=system_of(row, question_column, where),
        columns=(question_column, answer_column),
        solution_column=solution_column,
        unread=tuple(name for name in unread if not is_system(name) and name != solution_column),
    )


LAYOUTS_TO_LEARN = {  # column → the layout of data to learn from that has it
    "messages": "messages",
    "conversations": "ShareGPT",
    "completion": "prompt and completion",
    "rejected": "chosen and rejected",
}


def _check_is_problem(row: dict[str, Any], question: str, answer: str, where: str) -> None:
    """Raise DataError for a row to fine-tune on, where a problem with its answer is expected."""
    column = next((name for name in LAYOUTS_TO_LEARN if name in row), None)
    has_answer = any(_columns_of_choice(row, choice) for choice in answer.split("|"))
    if column is None or has_answer:
        return
    how_to_learn = (
        "worked solutions: `cotrain teach solver --data FILE`; conversations: `cotrain sft --data FILE`, or "
        "`cotrain run spin --tasks chats --data FILE`"
    )
    if column == "rejected":
        how_to_learn = "preferences: `cotrain run dpo --data FILE`"
    raise DataError(
        f"{where}: the layout is {LAYOUTS_TO_LEARN[column]}; a run wants a problem and its answer alone, in the "
        f"columns {plain_name(question)!r} and {plain_name(answer)!r}; to learn {how_to_learn}",
        code="E_DATA_LAYOUT_NOT_PLAIN",
    )


# -- The text of a question or an answer.


def field_of(row: dict[str, Any], columns: str, where: str, *, is_answer: bool) -> tuple[str, str]:
    """Return the columns that a row has of those in ``columns``, joined by "+", and their text. An answer may be a
    number, and a question the messages of a conversation."""
    for choice in columns.split("|"):
        names = _columns_of_choice(row, choice)
        if names:
            texts = [_column_text(row, name, where, is_answer=is_answer) for name in names]
            gap = "\n\n" if choice in USUAL_NAMES else " "  # Alpaca's instruction and input are paragraphs
            return "+".join(names), gap.join(texts)
    raise _missing_field(row, columns, where)


def _missing_field(row: dict[str, Any], columns: str, where: str) -> DataError:
    """The error of a row that has none of these columns, with the one that may be meant."""
    first = plain_name(columns)
    usual_kind = _usual_kind(columns)
    present = [*row, *_paths_in(row)]
    near = nearest_name(first, present) or next(iter(_usual_paths(row, usual_kind)), None)
    hint = f"; did you mean {near!r}?" if near else ""
    advice = ""
    if usual_kind is not None and row:
        advice = f"; name the column, as in --{usual_kind}-column {near or 'NAME'!r}"
    if usual_kind == "answer" and row and not near:
        advice += (
            ", or with `cotrain run` say where answers are: --labelled answers (in some rows, or in none where a judge "
            "or a vote pays), --labelled FILE"
        )
    names = ", ".join(map(repr, present)) or "none"
    return DataError(f"{where}: no field {first!r}{hint} (there are: {names}){advice}", code="E_FIELD_MISSING")


def _column_text(row: dict[str, Any], name: str, where: str, *, is_answer: bool) -> str:
    column = name.removesuffix("[]")
    value = value_at(row, column)
    where = f"{where}, field {column!r}"
    if not isinstance(value, list):
        return text_of(value, where, numbers=is_answer)
    if not is_answer:
        return _question_of_conversation(value, where)
    is_list_expected = name.endswith("[]")
    if not is_list_expected:
        return text_of(value, where, numbers=True)  # which refuses it
    if not value:
        raise DataError(f"{where}: expected at least one text, found an empty list", code="E_TEXT_LIST_EMPTY")
    return ", ".join(text_of(item, where, numbers=True) for item in value)


SPEAKERS = {  # who speaks in a message, as data sets call it → the role of a chat template
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "assistant": "assistant",
    "system": "system",
    "developer": "system",  # as OpenAI calls it now
}


def _question_of_conversation(messages: list[Any], where: str) -> str:
    """The question of a conversation: what its one message of a user says."""
    texts = []
    for message in messages:
        if not isinstance(message, dict) or not {"role", "content"} <= message.keys():
            raise DataError(
                f"{where}: expected text, or messages of {{role, content}}, found {kind_of(messages)}",
                code="E_FIELD_NOT_MESSAGES",
            )
        if message["role"] == "user":
            texts.append(message["content"])
        elif SPEAKERS.get(str(message["role"])) != "system":
            raise DataError(
                f"{where}: a message of {message['role']!r}, which is not asked; a problem is a user's alone",
                code="E_MESSAGE_ROLE",
            )
    if len(texts) != 1 or messages[-1].get("role") != "user":
        raise DataError(
            f"{where}: {len(texts)} messages of a user; a problem is one, the last; earlier turns are lost",
            code="E_TWO_USER_MESSAGES",
        )
    return text_of(texts[0], where, numbers=False)


def system_of(row: Mapping[str, Any], question_column: str, where: str) -> str:
    """The system text of a row: of a column of its own, or of the messages in the column of the question; "" for none.
    Raises DataError where there are two."""
    column_text = "" if is_system(question_column) else system_text(row, where)
    messages = value_at(row, question_column)
    if not isinstance(messages, list):
        return column_text

    other_messages = [message for message in messages if message.get("role") != "user"]
    texts = [text_of(message["content"], where, numbers=False) for message in other_messages]
    if not texts:
        return column_text
    if len(texts) > 1 or column_text not in ("", texts[0]):
        raise DataError(
            f"{where}, field {question_column!r}: two system texts; keep one of them", code="E_TWO_SYSTEM_TEXTS"
        )
    return texts[0]


def _read_paraphrases(row: dict[str, Any], question: str, where: str) -> tuple[str, ...]:
    """The optional column ``paraphrase``, without those that repeat the question."""
    value = row.get("paraphrase", [])
    if not isinstance(value, str | list):
        raise DataError(
            f"{where}: expected text or a list of texts, found {kind_of(value)}; leave it out where there is none",
            code="E_FIELD_NOT_TEXTS",
        )
    if isinstance(value, str):
        value = [value]
    texts = [text_of(text, where, numbers=False) for text in value]
    return tuple(text for text in texts if normal_question(text) != normal_question(question))


# -- Worked text, which ends on the answer.


def _split_answer(text: str, column: str, where: str) -> tuple[str, str]:
    """The gold answer in the text of an answer, and GSM8K's worked text in front of it; "" where there is none."""
    text = behind_thoughts(text) or ""
    work = ""
    if blocks := blocks_of(text, "answer"):
        mark = "<answer>"
        gold = blocks[-1].text.strip()
    elif "####" in text:
        mark = "####"
        work, _, behind = text.rpartition("####")
        gold = without_separators(first_line(behind))
    elif "\\boxed" in text or "\\fbox" in text:
        mark = "\\boxed"
        gold = last_boxed(text) or ""
    else:
        mark = "thought"
        gold = text.strip()
        if column.lower() == "solution" and len(gold.split()) > MAX_ANSWER_WORDS:
            raise DataError(
                f"{where}: a worked text without \\boxed{{…}} or ####; name the column that has the answer alone, as "
                "in --answer-column NAME",
                code="E_NO_FINAL_ANSWER",
            )
    if not gold:
        shown = mark if mark == "thought" else repr(mark)
        raise DataError(
            f"{where}: nothing after the last {shown}; expected the final answer there", code="E_MARK_WITHOUT_ANSWER"
        )
    return gold, work


def _solution_of(work: str, gold: str) -> str | None:
    """GSM8K's worked text, a step a line, with the answer behind it in tags; None without any."""
    stripped = [without_calculator(line).strip() for line in work.split("\n")]
    steps = [line for line in stripped if line]
    return write_solution(steps, gold) if steps else None


def solution_column_of(row: Mapping[str, Any], unread: Iterable[str]) -> str:
    """Which of the columns that nothing else is read from holds a worked solution as text; "" for none."""
    for name in unread:
        if plain_spelling(name) == "solution" and isinstance(row.get(name), str):
            return name
    return ""


def solution_note(columns: Sequence[str]) -> str | None:
    """Of the column that each row has its worked solution in, "" for none: "the worked solution is read from 'solution'
    in 3 of 5 rows"; None where no row has one."""
    named = [column for column in columns if column]
    if not named:
        return None
    names = " or ".join(repr(name) for name in dict.fromkeys(named))
    return f"the worked solution is read from {names} in {len(named)} of {len(columns)} rows"


def _solution_beside(row: Mapping[str, Any], unread: Iterable[str], gold: str) -> tuple[str, str | None]:
    """The column of the worked solution, and what it says as steps in tags; "" and None where there is none to read."""
    column = solution_column_of(row, unread)
    solution = _solution_in(row[column], gold) if column else None
    return ("", None) if solution is None else (column, solution)


def _solution_in(text: str, gold: str) -> str | None:
    """The worked text of a column of its own, as steps in tags with the answer behind them; None where it says no more
    than the answer, or where its own tags leave no steps to read."""
    text = behind_thoughts(text) or ""
    parsed = tagged_solution(text)
    if isinstance(parsed, Solution):
        return text
    before_mark, mark, _ = text.rpartition("####")
    work = before_mark if mark else text
    if work.strip(" \n$.") in (gold, f"\\boxed{{{gold}}}"):
        return None
    if parsed.reason == "no answer":
        return write_solution([" ".join(step.text.split()) for step in blocks_of(work, "step")], gold)
    solution = _solution_of(work, gold)
    if solution is None or not tagged_solution(solution).ok:
        return None
    return solution


def without_calculator(line: str) -> str:
    """A line of GSM8K's worked text without its calculator marks: "48/2 = <<48/2=24>>24" → "48/2 = 24"."""
    kept = []
    at = 0
    while True:
        start = line.find("<<", at)
        end = line.find(">>", start)
        if start < 0 or end < 0:
            break
        kept.append(line[at:start])
        at = end + 2
    return "".join(kept) + line[at:]


# -- Which of the columns a row has.


def _columns_of_choice(row: Mapping[str, Any], choice: str) -> list[str]:
    """The columns that one choice of several means in this row; none where it does not have them all."""
    if choice in USUAL_NAMES:
        return _usual_columns(row, choice)
    names = choice.split("+")
    has_all = all(_has_column(row, name.removesuffix("[]")) for name in names)
    return names if has_all else []


def _usual_columns(row: Mapping[str, Any], choice: str) -> list[str]:
    """The column with a usual name, or the two of Alpaca's question; none where the row has neither."""
    by_spelling: dict[str, str] = {}
    for name in row:
        by_spelling.setdefault(plain_spelling(name), name)
    usual = [by_spelling[name] for name in USUAL_NAMES[choice] if name in by_spelling]

    is_alpaca = choice == "~question" and "instruction" in by_spelling
    other_questions = [name for name in usual if plain_spelling(name) not in ALPACA_COLUMNS]
    if is_alpaca and not other_questions:
        parts = [by_spelling[part] for part in ALPACA_COLUMNS if part in by_spelling]
        said = [name for name in parts if has_content(row[name])]
        return said or parts[:1]  # a blank question is refused
    return usual[:1]


def _present_columns(row: Mapping[str, Any], columns: str) -> list[str]:
    """The columns that are read for ``columns``, without the marks of lists."""
    for choice in columns.split("|"):
        names = _columns_of_choice(row, choice)
        if names:
            return [name.removesuffix("[]") for name in names]
    return []


def _has_value(row: Mapping[str, Any], columns: str) -> bool:
    """Whether a row has one of these columns, and something in it."""
    for name in _present_columns(row, columns):
        value = value_at(row, name)
        if isinstance(value, str):
            value = value.strip()
        if value not in (None, [], ""):
            return True
    return False


def value_at(row: Mapping[str, Any], name: str) -> Any:
    """The value of a column or, where no column has this name, of the field of an object: "a.b" is b of a. None where
    there is neither."""
    if name in row:
        return row[name]
    value: Any = row
    for part in name.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def _has_column(row: Mapping[str, Any], name: str) -> bool:
    """Whether there is a value for ``value_at``, be it None."""
    if name in row:
        return True
    parent, dot, field_name = name.rpartition(".")
    inside = value_at(row, parent) if dot else None
    return isinstance(inside, Mapping) and field_name in inside


def _paths_in(row: Mapping[str, Any]) -> list[str]:
    """The fields of the objects in a row, as "reward_model.ground_truth"."""
    objects = {name: value for name, value in row.items() if isinstance(value, Mapping)}
    return [path for name, value in objects.items() for path in _paths_below(name, value, 3)]


def _paths_below(path: str, value: Mapping[str, Any], depth: int) -> list[str]:
    """The fields of an object, and down to ``depth`` levels those of the objects in it."""
    paths: list[str] = []
    for name, inner in value.items():
        paths.append(f"{path}.{name}")
        if isinstance(inner, Mapping) and depth > 1:
            paths += _paths_below(f"{path}.{name}", inner, depth - 1)
    return paths


def _usual_paths(row: Mapping[str, Any], usual_kind: str | None) -> list[str]:
    """The fields inside of objects that are called as questions or answers usually are."""
    usual = USUAL_NAMES.get(f"~{usual_kind}", ())
    return [path for path in _paths_in(row) if plain_spelling(path.rpartition(".")[2]) in usual]
