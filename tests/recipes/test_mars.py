"""MARS played by programs: who is asked what, who is paid, and how the losses are cut."""

from dataclasses import replace
from functools import partial

import pytest

from cotrain.algorithms.contract import Batch
from cotrain.algorithms.policy_gradient import drop_flat_groups
from cotrain.algorithms.samples import sample_of
from cotrain.core.types import Sampling
from cotrain.data.word_problems import search_corpus
from cotrain.data.word_problems.source import study_problems
from cotrain.prompts.byte_tokenizer import ByteRenderer
from cotrain.recipes.mars.recipe import NOTHING, mars, research
from cotrain.rollout.common_roles import parse_search, parse_solution
from cotrain.rollout.role import Role
from cotrain.rollout.runner import RolloutRunner
from tests.helpers import spoken
from tests.sentences import refuses

SOURCE = study_problems((3, 4))
TASKS = [SOURCE.get("train", i) for i in range(3)]
FACTS = {
    search_corpus.facts_and_question(t.prompt)[1]: set(search_corpus.facts_and_question(t.prompt)[0]) for t in TASKS
}
NOUN = {search_corpus.facts_and_question(t.prompt)[1]: SOURCE.problem("train", i).question for i, t in enumerate(TASKS)}
ANSWER = {search_corpus.facts_and_question(t.prompt)[1]: t.gold for t in TASKS}


def extract(fields, rng):
    wanted = [
        s
        for d in fields["documents"].split("\n")
        for s in search_corpus.split_sentences(d)
        if s in FACTS[fields["purpose"]]
    ]
    return " ".join(wanted) or NOTHING


def solve(fields, rng):
    """Right if and only if every fact has come through."""
    *facts, question = search_corpus.split_sentences(fields["problem"])
    right = FACTS[question] <= set(facts)
    return f"<step> a</step><answer>{ANSWER[question] if right else -1}</answer>"


def played(plan=None, digest=extract, tasks=TASKS, **options):
    programs = {
        "planner": plan or (lambda fields, rng: f"<search> {NOUN[fields['question']]}</search>"),
        "digester": digest,
        "solver": solve,
    }
    one = Sampling(max_tokens=1)
    roles = {
        "planner": Role(policy="planner", prompt="{question}", parse=parse_search, sampling=one),
        "digester": Role(policy="digester", prompt="{documents} {purpose}", sampling=one),
        "solver": Role(policy="solver", prompt="{problem}", parse=parse_solution, sampling=one),
    }
    executor = RolloutRunner(spoken(programs), dict.fromkeys(programs, ByteRenderer()), roles, 0)
    episodes = executor.collect(partial(research, **options), tasks, step=0, group_size=4)
    assert all(e.failure is None for e in episodes), episodes[0].failure
    return episodes


def test_a_right_search_and_right_digests_lead_to_the_answer():
    for episode in played(bin_size=200):
        spoken = {role: [t for t in episode.traces if t.role == role] for role in ("planner", "digester", "solver")}
        assert len(spoken["digester"]) > 1
        assert {s.value for t in episode.traces for s in t.rewards} == {1.0}
        assert {t.group for t in episode.traces} == {f"{episode.task}:{role}" for role in spoken}
        assert spoken["planner"][0].metadata["found"] is True and spoken["solver"][0].metadata["informed"] == 1.0
        assert all(t.metadata.get("recall", 1.0) == t.metadata.get("precision", 1.0) == 1.0 for t in spoken["digester"])
        shown = ByteRenderer().decode(spoken["planner"][0].prompt_ids)
        assert shown == search_corpus.facts_and_question(TASKS[episode.task].prompt)[1]  # the question alone


@pytest.mark.parametrize("said", ["<search> unicorns</search>", "no search at all"])
def test_a_wrong_search_costs_everybody(said):
    for episode in played(plan=lambda fields, rng: said):
        assert {s.value for t in episode.traces for s in t.rewards} == {0.0}
        assert episode.traces[-1].metadata["informed"] == 0.0
        assert any(t.role == "digester" for t in episode.traces) == ("unicorns" in said)


def test_every_digest_fits_its_bin_and_all_documents_are_read():
    seen = {}

    def look(fields, rng):
        seen.setdefault(fields["purpose"], []).append(fields["documents"])
        return extract(fields, rng)

    played(digest=look, bin_size=250)
    for shown in seen.values():
        assert all(len(d.replace("\n", "")) <= 250 for d in shown if "\n" in d)


def test_system_one_is_brought_to_the_number_of_trajectories():
    recipe = mars(model="shipped", tasks=SOURCE, group_size=4)

    def forgetful(fields, rng):
        return extract(fields, rng) if rng.random() < 0.8 else NOTHING

    episodes = played(digest=forgetful, bin_size=200)
    calls = [t for e in episodes for t in e.traces if t.role == "digester"]
    system1, system2 = recipe.objectives["system1"], recipe.objectives["system2"]
    assert (system1.role, system2.roles) == ("digester", ("solver", "planner"))
    credit, _ = system1.algorithm.credit(Batch(samples=tuple(map(sample_of, calls))), {})
    mixed = {t.group for t in calls if len({s.value for u in calls if u.group == t.group for s in u.rewards}) > 1}
    assert mixed and len(credit.samples) == 4 * len(mixed) < len(calls)


def test_one_loss_or_two():
    joint = mars(model="shipped", tasks=SOURCE, decoupled=False).objectives
    assert list(joint) == ["system2"] and joint["system2"].roles == ("solver", "planner", "digester")
    assert joint["system2"].algorithm.edit_after[-1].size == 8
    frozen = mars(model="shipped", tasks=SOURCE, system1="frozen")
    assert list(frozen.objectives) == ["system2"] and frozen.roles["digester"].policy == "reference"
    assert mars(model="shipped", balance=False).objectives["system1"].algorithm.edit_after == (drop_flat_groups,)
    alone = mars(model="shipped", system1="none", plan=False)
    assert list(alone.roles) == ["solver"]
    for wrong, code in (
        ({"system1": "x"}, "E_UNKNOWN_CHOICE: mars"),
        ({"sampling": "x"}, "E_UNKNOWN_CHOICE: mars"),
        ({"bin_size": 0}, "E_SETTING_RANGE: mars"),
    ):
        with refuses(code):
            mars(**wrong)


def test_no_prompt_holds_the_gold_answer():
    tasks = [replace(task, gold="31337042", solution="31337042") for task in TASKS]
    for trace in (t for e in played(tasks=tasks) for t in e.traces):
        assert "31337042" not in ByteRenderer().decode(trace.prompt_ids)
