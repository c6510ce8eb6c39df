"""Search Self-Play: what a search finds, which questions are kept, what each side earns, that the check fails closed,
and the same with a search and tasks of one's own."""

import itertools
import json
import random
from dataclasses import replace
from functools import partial

import pytest

from bases.gaming import missing_noun, next_search, write_question
from cotrain.core.types import Sampling
from cotrain.data.sources import problem_source
from cotrain.data.word_problems.reader import read_problem, task_of
from cotrain.prompts.byte_tokenizer import ByteRenderer
from cotrain.recipes.ssp.recipe import ssp
from cotrain.recipes.ssp.searching import (
    OwnLibrary,
    SearchTrail,
    broken_rule,
    library_of,
    question_aim,
    search_and_play,
    seeker_start,
    truth_of,
)
from cotrain.rollout.common_roles import parse_search, parse_solution
from cotrain.rollout.readers import TextReader
from cotrain.rollout.role import Role
from cotrain.rollout.runner import RolloutRunner
from cotrain.rollout.stores import TaskPool
from cotrain.trainer.trainer import CoTrainer
from tests.helpers import EASY, TINY, Talks, spoken
from tests.sentences import refuses

TEXT = (
    "There are 5 apples. There are 4 more pears than apples. There are 2 times as many nuts as pears. "
    "How many nuts are there?"
)
TASK = task_of(read_problem(TEXT), "mine")  # 18 nuts
NOUN, AIM, STEP = question_aim(TASK)
QUESTION = write_question(TASK, random.Random(0))
LIBRARY = replace(EASY, operations=(1, 2))
SMALL = {"model": TINY, "tasks": LIBRARY, "tasks_per_step": 3, "group_size": 4, "evaluation_tasks": 2}


def say_search(fields, rng):
    return f"<search> {next_search(fields['question'])}</search>"


def played(answers, *, question=QUESTION, read=str(AIM), seek=say_search, pool=None, task=TASK, **options):
    """One question, and solvers that give these answers in turn: the traces by role, and the episode."""
    left = iter(answers)
    programs = {
        "seeker": seek,
        "searcher": say_search,
        "proposer": lambda fields, rng: question,
        "reader": lambda fields, rng: f"<step>x</step><answer>{read() if callable(read) else read}</answer>",
        "solver": lambda fields, rng: f"<step>x</step><answer>{next(left)}</answer>",
    }
    searches, writes = Sampling(max_tokens=99), Sampling(max_tokens=99)
    roles = {
        name: Role(policy=name, prompt="{question} Plan:", parse=parse_search, sampling=searches)
        for name in ("seeker", "searcher")
    }
    roles["proposer"] = Role(policy="proposer", prompt="{hint}", sampling=writes)
    for name in ("reader", "solver"):
        roles[name] = Role(policy=name, prompt="{problem} Solve:", parse=parse_solution, sampling=writes)
    executor = RolloutRunner(spoken(programs), dict.fromkeys(roles, ByteRenderer()), roles, 0)
    options = {"samples": len(answers), "pool": TaskPool() if pool is None else pool} | options
    [episode] = executor.collect(partial(search_and_play, **options), [task], step=0, group_size=1)
    assert episode.failure is None, episode.failure
    return {name: [t for t in episode.traces if t.role == name] for name in roles}, episode


def values(traces):
    return [t.rewards[0].value for t in traces]


def prompts(traces):
    return [ByteRenderer().decode(t.prompt_ids) for t in traces]


def test_a_search_finds_the_sentence_that_defines_a_noun():
    assert library_of(TEXT)["pears"] == "There are 4 more pears than apples." and len(library_of(TEXT)) == 3
    assert missing_noun("There are 4 more pears than apples.") == "apples"
    assert missing_noun("There are 5 apples. There are 4 more pears than apples.") is None
    assert truth_of(TEXT, QUESTION).answer == AIM == 18 + STEP and NOUN == "nuts"
    trail = SearchTrail("x", hits=["There are 4 more pears than apples.", "There are 5 apples."])
    assert trail.passages == "There are 5 apples. There are 4 more pears than apples."


def test_programs_search_until_nothing_is_missing():
    shown, asked = seeker_start(TASK), []
    for _ in range(4):
        said = next_search(shown)
        asked.append(said)
        shown += " " + library_of(TEXT).get(said, "")
    assert asked == ["nuts", "pears", "apples", "nothing"]


def test_the_proposers_side_earns_what_solvers_fail():
    found, episode = played([AIM, AIM, 0, AIM])
    assert values(found["seeker"]) == [0.25] * 4 and values(found["proposer"]) == [0.25]  # 1 − 3/4
    assert values(found["solver"]) == [1.0, 1.0, 0.0, 1.0]
    assert found["proposer"][0].metadata == {"valid": True, "verified": True, "solved": 0.75}
    assert {t.group for t in found["solver"]} == {str(found["proposer"][0].address)}
    assert len({t.group for t in found["searcher"]}) == 1 and not any(t.rewards for t in found["reader"])
    [item] = TaskPool().with_episodes([episode], step=2).items
    assert (item.problem, item.answer, item.solved) == (f"{TEXT}\n{QUESTION}", str(AIM), 0.75)


def test_all_turns_of_a_solver_earn_what_its_answer_earns():
    found, _ = played([AIM, 0])
    assert values(found["searcher"]) == [1.0, 0.0] * 4  # in turn: nuts, pears, apples, nothing
    assert found["solver"][0].metadata["gathered"] == 1.0 and found["solver"][0].metadata["correct"] is True
    assert all(TEXT.split(" How")[0] in text for text in prompts(found["solver"]))  # put in order
    hidden, _ = played([AIM], turns=2)
    assert "There are 5 apples." not in prompts(hidden["solver"])[0] and hidden["solver"][0].metadata["gathered"] < 1.0


def test_the_reader_sees_noise_and_nothing_else_of_the_library():
    found, _ = played([AIM], noise=4)
    [text] = set(prompts(found["reader"]))
    assert all(sentence in text for sentence in library_of(TEXT).values()) and QUESTION in text
    [without] = set(prompts(played([AIM], noise=0)[0]["reader"]))
    assert len(text) > len(without) and all(sentence in without for sentence in library_of(TEXT).values())
    skipped, _ = played([AIM], verify=False, read="?")
    assert not skipped["reader"] and values(skipped["solver"]) == [1.0]


def test_what_is_not_read_back_is_not_kept_and_an_old_question_takes_its_place():
    pool = TaskPool().with_episodes([played([AIM])[1]], step=0)
    found, episode = played([AIM, 0], read="1", pool=pool, invalid=-0.1)
    assert values(found["proposer"]) == [-0.1] and found["proposer"][0].findings["failure"] == "not verified"
    assert found["proposer"][0].metadata == {"valid": True, "verified": False}
    assert values(found["solver"]) == [1.0, 0.0]
    after = pool.with_episodes([episode], step=1)
    assert [(item.played, item.solved, item.born) for item in after.items] == [(2, 0.5, 0)]
    nobody, _ = played([AIM], read="unreadable </answer>")
    assert not nobody["solver"] and values(nobody["proposer"]) == [0.0]


@pytest.mark.parametrize("said, kept", [((AIM, AIM, 1), True), ((AIM, 1, 2), False), ((AIM, "?", "?"), False)])
def test_more_than_half_of_the_readers_decide_whoever_answers_first(said, kept):
    for order in itertools.permutations(said):
        answers = iter(order)
        found, _ = played([AIM], read=lambda it=answers: next(it), reads=3)
        assert found["proposer"][0].metadata["verified"] is kept, order


@pytest.mark.parametrize(
    "question, queries, reason",
    [
        ("Nonsense.", ["nuts", "pears"], "no question"),
        (QUESTION + " How many?", ["nuts", "pears"], "no question"),
        (QUESTION, [], "nothing found"),
        (QUESTION, ["nuts"], "one search"),
        (QUESTION, ["nuts", "nuts"], "searched twice"),
        (f"There are {AIM} cats. How many nuts are there?", ["nuts", "pears"], "tells the answer"),
        (QUESTION, ["nuts", "pears"], None),
    ],
)
def test_rules(question, queries, reason):
    trail = SearchTrail("", hits=["x"] * len(queries), queries=queries)
    assert broken_rule(question, str(AIM), trail) == reason


@pytest.mark.parametrize(
    "answer, question, reason",
    [
        ("3", "How many are 13 and 2.35?", None),
        ("3", "Which are 3 of them?", "tells the answer"),
        ("Paris", "Where do Parisians live?", None),
        ("Paris", "What is the capital, if not paris?", "tells the answer"),
        ("x^2", "What is x^2 called?", "tells the answer"),
    ],
)
def test_a_question_tells_a_number_by_itself_and_a_name_by_a_whole_word(answer, question, reason):
    trail = SearchTrail("", hits=["x", "y"], queries=["a", "b"])
    assert broken_rule(question, answer, trail) == reason


OWN_QUESTION = "How many legs have the insects of the second box?"


@pytest.fixture
def own(tmp_path):
    """A library of one's own, what was searched for in it, and the first training task, whose answer is a number."""
    rows = [{"question": f"How many things are in box {n}?", "answer": str(n + 10)} for n in range(60)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    source, asked = problem_source(None, str(tmp_path / "rows.jsonl")), []

    async def search(query):
        asked.append(query)
        return ["Boxes are made of wood.", f"About {query}."]

    return OwnLibrary(search=search, reader=TextReader(source=source)), asked, source.get("train", 0)


def played_own(library, task, answers, queries=("beetle", "box", "nothing"), question=OWN_QUESTION, **options):
    """One question of one's own library, as ``played``; both sides search for these things in turn."""

    def seek(fields, rng):
        return f"<search> {queries[fields['question'].count('Search: ')]}</search>"

    options = {"read": task.gold, "noise": 2} | options
    return played(answers, question=question, seek=seek, task=task, own=library, **options)


def test_a_search_of_ones_own_is_the_library_and_the_grader_compares(own):
    library, asked, task = own
    found, episode = played_own(library, task, [f"{task.gold}.0", "7", task.gold, "8"])
    seen = prompts(found["seeker"])
    assert (
        seen[0].startswith(f"Answer: {task.gold} Plan:")
        and "Search: beetle\nBoxes are made of wood.\nAbout beetle." in seen[1]
    )
    assert not any(task.prompt in text for text in [*seen, *prompts(found["proposer"])])  # it sees the answer alone
    assert values(found["solver"]) == [1.0, 0.0, 1.0, 0.0]  # by value: 10.0 is 10
    assert values(found["proposer"]) == [0.5] and found["proposer"][0].metadata == {"verified": True, "solved": 0.5}
    assert not any("correct" in trace.metadata for trace in found["solver"])  # nobody knows the truth of the question
    [text] = set(prompts(found["reader"]))
    others = [query for query in asked if query.startswith("How many things") and query != task.prompt]
    assert len(others) == 2 and all(f"About {query}." in text for query in others)  # noise of other searches
    assert text.count("Boxes are made of wood.") == 1 and "About box." in text
    [item] = TaskPool().with_episodes([episode], step=0).items
    assert (item.problem, item.answer) == (OWN_QUESTION, task.gold)
    asked.clear()
    played_own(library, task, [task.gold], noise=99)  # more than there are: the question itself is no noise
    others = [query for query in asked if query.startswith("How many things")]
    assert len(others) == library.reader.source.size("train") - 1 and task.prompt not in others


def test_an_old_question_of_ones_own_is_graded_by_its_own_answer(own):
    library, _, task = own
    pool = TaskPool().with_episodes([played_own(library, task, [task.gold])[1]], step=0)
    other = library.reader.source.get("train", 1)
    found, _ = played_own(library, other, [task.gold, other.gold], read="1", pool=pool)
    assert found["proposer"][0].findings["failure"] == "not verified" and values(found["solver"]) == [1.0, 0.0]
    held_out, _ = played_own(library, task, [], question=library.reader.source.get("test", 0).prompt, samples=1)
    assert held_out["proposer"][0].findings["failure"] == "held out" and not held_out["reader"]


def test_a_search_that_fails_is_counted_and_ends_nothing(own):
    library, _, task = own

    async def broken(query):
        raise TimeoutError

    async def without_noise(query):
        return [query] if len(query) < 10 else 7

    found, _ = played_own(replace(library, search=broken), task, [], samples=1)
    assert [t.findings.get("failure") for t in found["seeker"]] == ["search: TimeoutError"] * 2 + [None]
    assert found["proposer"][0].findings["failure"] == "nothing found" and values(found["proposer"]) == [0.0]
    found, _ = played_own(replace(library, search=without_noise), task, [], samples=1)
    failed = [*found["seeker"], *found["proposer"]]
    assert {trace.failure for trace in failed} == {"search: no list of texts"} and not found["reader"]


@pytest.mark.whole
def test_the_pool_of_a_run_is_in_its_state():
    made = ssp(steps=3, verify=False, **SMALL | {"model": "shipped-search"})
    trainer = CoTrainer(made)
    row = trainer.step().row
    assert row["generator/updates"] >= 1 and trainer.stores["pool"].items
    other = CoTrainer(made)
    other.load(trainer.state(), trainer.policies.tensors())
    assert other.stores == trainer.stores


def test_controls_and_refusals():
    made = ssp(**SMALL)
    assert made.schedule.phases[0].in_turn == ("proposer", "generator") and made.roles["reader"].policy == "reference"
    made = ssp(proposer="frozen", **SMALL)
    assert "proposer" not in made.objectives and made.roles["seeker"].policy == "proposer"
    assert not made.policies["proposer"].is_trained
    with refuses("E_NO_SEARCH", names="talks"):
        ssp(tasks=Talks())

    async def search(query):
        return []

    with refuses("E_TASK_WITHOUT_ANSWER"):
        ssp(tasks=Talks(), search=search)
    with refuses("E_SEARCH_NOT_FUNCTION"):
        ssp(**SMALL, search=len)
    full = ssp(**SMALL | {"model": "a/chat-model"}, search=search)
    assert "<search>nothing</search>" in full.roles["seeker"].prompt and full.roles["proposer"].parse is not None
    with refuses("E_MODEL_NOT_TAUGHT_FORMAT", names="'shipped-proposer'"):
        ssp(model="shipped-proposer")
    with refuses("E_SETTING_RANGE"):
        ssp(turns=0)
