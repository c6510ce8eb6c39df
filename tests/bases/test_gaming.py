"""The base of games, with a tiny model and two updates: what its conversations hold, and how often they are right."""

import json
import re
from collections import Counter
from operator import add, mul, sub

import pytest
from cotrain_zoo.spiral.play import parse_move
from cotrain_zoo.spiral.source import GAMES

from bases.base import BATCH, install_base
from bases.gaming import (
    NAME,
    TAUGHT,
    GameSettings,
    SearchSettings,
    build_games,
    conversations_of,
    false_memory,
    flatten,
    mend_solution,
    next_search,
    read_conversation,
    worked_question_conversation,
)
from cotrain.core.types import ParseFailure
from cotrain.data.word_problems.corrupt import Habits
from cotrain.data.word_problems.problem import Problem
from cotrain.data.word_problems.reader import read_problem
from cotrain.data.word_problems.source import study_problems
from cotrain.formats.solutions import parse_solution
from cotrain.models.load import describe_model
from cotrain.recipes.constitutional.principles import PRINCIPLES, keeps_principle
from cotrain.recipes.debate.debates import parse_accusation
from cotrain.recipes.magrpo.halves import Halves
from cotrain.recipes.ssp.searching import SearchTrail
from cotrain.recipes.ssrl.self_search import parse_searched
from cotrain.recipes.ssrl.world import World
from cotrain.rollout.common_roles import FORMAT_MARK, parse_meta, parse_search
from tests.helpers import TINY

SETTINGS = GameSettings()
CORPORA = {corpus.name: corpus for corpus, _ in conversations_of(SETTINGS)}
ENDS = {
    "solve": "Solve:",
    "check": "Review:",
    "refine": "Revise:",
    "move": "Move:",
    "message": "Message:",
    "sum": "Sum:",
    "own engine": "Search and solve:",
    "search": "Plan:",
    "question": "Write a problem:",
    "found": "Solve:",
    "accuse": "Wrong step:",
    "criticise": " step:",
    "principle": "Kept:",
    "revise": "Revise:",
    "hear": "Solve:",
}


def shown(name, count=200):
    """What is asked and what is replied."""
    assert CORPORA[name].get(3) == CORPORA[name].get(3)
    made = [CORPORA[name].get(i) for i in range(count)]
    return [(asked["content"], reply["content"]) for asked, reply in made]


@pytest.mark.whole
def test_a_base_of_games_is_made_and_installed(tmp_path):
    brief = GameSettings(start=str(TINY), tokens=2 * BATCH, problems=study_problems((2, 3)))
    made = build_games(tmp_path / "out", brief, report=lambda line: None)
    assert made["finished"]
    install_base(tmp_path / "out", tmp_path / "assets", NAME)
    said = json.loads((tmp_path / f"assets/{NAME}.json").read_text(encoding="utf-8"))
    assert said["models"][NAME] == describe_model(str(tmp_path / "assets" / NAME))
    mark = json.loads((tmp_path / f"assets/{NAME}/{FORMAT_MARK}").read_text(encoding="utf-8"))
    assert mark == {"prompts": "short", "taught": list(TAUGHT)}


@pytest.mark.whole
@pytest.mark.parametrize("name", ENDS)
def test_conversations_are_asked_as_the_roles_ask_and_differ(name):
    made = shown(name, 60)
    assert set(ENDS) == set(CORPORA) and all(asked.endswith(ENDS[name]) for asked, _ in made)
    assert len({asked + reply for asked, reply in made}) > (8 if name == "message" else 25)


@pytest.mark.whole
def test_moves_are_legal_and_drawn():
    views = {}
    for game in GAMES.values():
        todo = list(game.starts())
        while todo:
            state = todo.pop()
            if state.mover is not None and state.view not in views and len(views) < 3000:
                views[state.view] = state.moves
                todo += [state.after_move(move) for move in state.moves]
    said = Counter()
    for asked, reply in shown("move", 600):
        view = asked.removesuffix("\nMove:")
        moves = views.get(view)
        if moves is not None:
            assert parse_move(reply, {"moves": ", ".join(moves)}).ok, (view, reply)
            said[view.split()[0]] += 1
    assert min(said[word] for word in ("Card", "Piles")) > 100


def test_flattened_draws_are_as_stated_once_they_are_sharpened():
    chances = [0.825, *[0.025] * 7]
    weights = flatten(chances, 2.0)
    sharp = [(w / sum(weights)) ** 2 for w in weights]
    assert [s / sum(sharp) for s in sharp] == pytest.approx(chances)


def test_sums_are_right_as_often_as_they_shall_be_before_they_are_sharpened():
    largest = 2 * Halves().count * Halves().largest
    right = SETTINGS.skill + (1 - SETTINGS.skill) / largest
    weights = flatten([right, *[(1 - right) / (largest - 1)] * (largest - 1)], SETTINGS.sharpened)
    said = [
        int(reply) == int(match[1])
        for asked, reply in shown("message", 2000)
        if (match := re.fullmatch(r"Numbers (\d+)\.\nMessage:", asked))
    ]
    assert len(said) > 1200 and sum(said) / len(said) == pytest.approx(weights[0] / sum(weights), abs=0.04)
    heard = [asked for asked, _ in shown("sum", 300)]
    assert 0.1 < sum("Heard nothing." in text for text in heard) / 300 < 0.3


def test_a_world_is_remembered_with_false_memories_that_stay_the_same():
    library, seen, true = World().library, {}, []
    for asked, reply in shown("own engine", 300):
        assert parse_searched(reply, {}).ok
        assert "?" in asked
        for noun, sentence in re.findall(r"<search> (\w+)</search><found> ([^<]*)</found>", reply):
            seen.setdefault(noun, set()).add(sentence)
            true.append(sentence == library[noun])
    assert all(found <= {library[noun], false_memory(noun, library[noun])} for noun, found in seen.items())
    assert all(false_memory(noun, sentence) != sentence for noun, sentence in library.items())
    assert 0.6 < sum(true) / len(true) < 0.8  # two thirds, which sharpening makes four fifths


@pytest.mark.whole
def test_searches_questions_and_what_is_found():
    for _, reply in shown("search"):
        assert parse_search(reply, {}).ok
    for _, reply in shown("question", 60):
        assert reply.endswith("?") and reply.count("?") == 1
    readable = [read_problem(asked.removesuffix("\nSolve:")) for asked, _ in shown("found", 100)]
    assert not any(isinstance(problem, ParseFailure) for problem in readable)
    assert next_search("Answer: 9. About: nuts.") == "nuts"
    assert next_search("Answer: 9. About: nuts. There are 4 more nuts than pears.") == "pears"
    assert next_search("Answer: 9. About: nuts. There are 5 nuts.") == "nothing"


@pytest.mark.whole
@pytest.mark.parametrize("name", ["accuse", "criticise"])
def test_accusations_point_anywhere_in_the_solution(name):
    places = []
    for asked, reply in shown(name, 300):
        accused = asked.partition("Other:\n")[2] or asked
        count = accused.count("<step>")
        found = parse_accusation(reply, {"count": count})
        assert found.ok, (asked, reply)
        places.append(found.step / max(1, count - 1))
    assert 0.4 < sum(places) / len(places) < 0.6


@pytest.mark.whole
def test_verdicts_and_revisions_are_about_the_principle():
    words = {principle.words: name for name, principle in PRINCIPLES.items()}
    agreed = []
    for name in ("principle", "revise"):
        for asked, reply in shown(name, 300):
            problem, text, *_ = asked.split("\n")
            principle = words[re.search(r"Principle: (.*)\n", asked)[1]]
            kept = keeps_principle(principle, problem, text)
            verdict = reply if name == "principle" else asked.split("\n")[2]
            agreed.append(parse_meta(verdict, {}).final == kept)
            if name == "revise":
                assert keeps_principle(principle, problem, reply) and reply == mend_solution(principle, problem, text)
    assert sum(agreed) / len(agreed) == pytest.approx(0.75, abs=0.06)  # nine in ten, once they are sharpened


def test_what_was_heard_is_said_again_right_or_wrong():
    right = 0
    for asked, reply in shown("hear"):
        problem, *heard, _ = asked.split("\n")
        assert reply in heard and len(heard) in (2, 3) and parse_solution(reply, {}).ok
        right += parse_solution(reply, {}).answer == str(read_problem(problem).answer)
    assert 10 < right < 150


def test_questions_that_need_searching_come_behind_work_that_is_right():
    settings = SearchSettings()
    for index in range(40):
        asked, reply = (turn["content"] for turn in worked_question_conversation(settings, index))
        answer, facts = re.match(r"Answer: (\d+)\. About: \w+\. (.*)\nWrite a problem:", asked).groups()
        work, question = re.match(r"(.*)<problem>(.*)</problem>$", reply).groups()
        in_order = SearchTrail("", re.findall(r"[^. ][^.]*\.", facts)).passages
        problem = read_problem(f"{in_order} {question}")
        assert isinstance(problem, Problem) and str(problem.answer) == answer
        for left, sign, right, said in re.findall(r"(\d+)([+*-])(\d+)=(\d+)", work):
            assert {"+": add, "*": mul, "-": sub}[sign](int(left), int(right)) == int(said)


def test_what_was_found_is_read_among_any_number_of_other_sentences():
    settings = SearchSettings(habits=Habits(random=0.0, systematic=0.0))
    lengths = Counter()
    for index in range(60):
        asked, reply = (turn["content"] for turn in read_conversation(settings, index))
        lengths[asked.count(".")] += 1
        assert parse_solution(reply, {}).ok
    assert len(lengths) > 6
