"""Search as a function: a library of documents, what fails, and the methods that search for problems of one's own."""

import asyncio
import json

import pytest

from cotrain.config.registry import find_recipe
from cotrain.data.sources import task_source
from cotrain.rollout.tools.search import AskFailed, Library, ask_search
from tests.sentences import refuses

FACTS = ["Mia has 4 apples.", "A pear costs 2 coins.", "There are 12 kites in the shop.", "Kites are red."]


@pytest.fixture
def library(tmp_path):
    (tmp_path / "facts.txt").write_text("\n".join([*FACTS, ""]), encoding="utf-8")
    return Library(tmp_path / "facts.txt")


def test_the_best_documents_come_first_and_strangers_find_nothing(library):
    assert library.search("how many kites are in the shop")[0] == FACTS[2]
    assert set(library.search("kites")) == set(FACTS[2:])
    assert library.search("kites", most=1) == library.search("kites")[:1]
    assert library.search("zebra") == library.search("") == library.search("?!") == []


def test_rows_of_a_library_have_texts_or_contents(tmp_path):
    rows = [{"text": "one fish"}, {"title": "Two", "contents": "red fish"}]
    path = tmp_path / "facts.jsonl"
    path.write_text("\n\n".join(map(json.dumps, rows)), encoding="utf-8")
    assert Library(path).documents == ["one fish", "Two red fish"]


@pytest.mark.parametrize(
    ("name", "content", "code"),
    [
        ("a.txt", "\n \n", "E_DATA_EMPTY"),
        ("a.jsonl", '{"words": 3}', "E_LIBRARY_ROW: line 1"),
        ("a.jsonl", '{"text": "a"}\n{', "E_LIBRARY_ROW: line 2"),
        ("a.jsonl", "[]", "E_LIBRARY_ROW: line 1"),
        ("a.jsonl", "[" * 9999, "E_LIBRARY_ROW: line 1 | nested too deeply"),
        ("E_LIBRARY_UNREADABLE: b.txt", None, "E_LIBRARY_UNREADABLE: b.txt"),
    ],
    ids=["empty", "no text", "no JSON", "a list", "deep", "no file"],
)
def test_what_is_no_library_is_refused_with_its_line(name, content, code, tmp_path):
    if content is not None:
        (tmp_path / name).write_text(content, encoding="utf-8")
    with refuses(code):
        Library(tmp_path / name)


async def raises(query):
    raise TimeoutError(query)


async def one_text(query):
    return "a text"


async def numbers(query):
    return [1, 2]


async def leaves(query):
    raise SystemExit(3)


class Endless(list):
    def __iter__(self):
        raise SystemExit(3)


async def odd(query):
    return Endless()


@pytest.mark.parametrize(
    ("search", "reason"),
    [
        (raises, "search: TimeoutError"),
        (one_text, "search: no list of texts"),
        (numbers, "search: no list of texts"),
        (leaves, "search: SystemExit"),
        (odd, "search: SystemExit"),
    ],
)
def test_a_search_that_fails_has_a_reason(search, reason):
    with pytest.raises(AskFailed) as raised:
        asyncio.run(ask_search(search, "kites"))
    assert raised.value.args == (reason,)


async def found(query):
    return ["nothing of use"]


@pytest.fixture
def questions(tmp_path):
    path = tmp_path / "questions.jsonl"
    rows = [{"question": f"How many kites are {n} and 1 kites?", "answer": str(n + 1)} for n in range(40)]
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return task_source("jsonl", str(path))


def test_problems_of_ones_own_need_a_search(questions):
    with refuses("E_NO_SEARCH"):
        find_recipe("mars")(tasks=questions)
    with refuses("E_NO_SEARCH"):
        find_recipe("ssrl")(tasks=questions, searches="real")
    with refuses("E_SEARCH_WITHOUT_PLAN"):
        find_recipe("mars")(tasks=questions, search=found, plan=False)
    assert set(find_recipe("ssrl")(tasks=questions).roles) == {"solver"}
    assert set(find_recipe("ssrl")(tasks=questions, search=found).roles) == {"solver", "grounded"}


@pytest.mark.parametrize("name", ["mars", "ssrl"])
def test_a_search_that_cannot_be_awaited_is_refused(name):
    def look_up(query):
        return [query]

    with refuses("E_SEARCH_NOT_FUNCTION", names=(name, "'look_up'")):
        find_recipe(name)(search=look_up)


@pytest.mark.whole
@pytest.mark.parametrize("name", ["mars", "ssrl"])
def test_a_method_searches_for_problems_of_ones_own(name, questions, tmp_path):
    from cotrain import api
    from cotrain.config.override import override

    (tmp_path / "mine.py").write_text(
        "from cotrain.rollout.tools.search import Library\n\n"
        f"library = Library({str(tmp_path / 'facts.txt')!r})\n\n\n"
        "async def search(query):\n    return library.search(query)\n",
        encoding="utf-8",
    )
    (tmp_path / "facts.txt").write_text("\n".join(FACTS), encoding="utf-8")
    options = {"searches": "real"} if name == "ssrl" else {}
    sizes = {"steps": 1, "tasks_per_step": 2, "group_size": 2, "evaluation_tasks": 1}
    made = find_recipe(name)(tasks=questions, search=f"{tmp_path / 'mine.py'}:search", **sizes, **options)
    made = override(made, ["evaluation.group_size=1", "evaluation.greedy=false", "evaluation.splits=[]"])
    api.run(made, tmp_path / "run")
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    assert rows[-1] and not any(key.startswith("failures/") for row in rows for key in row)
