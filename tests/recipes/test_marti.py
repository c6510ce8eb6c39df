"""Workflows of agents: who hears whom, what a turn is paid for getting better, and a vote in which nobody hears."""

from functools import partial
from types import SimpleNamespace

import pytest

from cotrain.core.types import Sampling
from cotrain.prompts.byte_tokenizer import ByteRenderer
from cotrain.recipes.marti.recipe import marti
from cotrain.recipes.marti.workflows import SOLVE_AMONG_FULL, elect_turn, play_workflow, shaped_reward
from cotrain.rollout.common_roles import parse_review, parse_solution
from cotrain.rollout.role import Role
from cotrain.rollout.runner import RolloutRunner
from cotrain.trainer.trainer import CoTrainer
from tests.helpers import EASY, TINY, spoken
from tests.sentences import refuses

TASK = EASY.get("train", 0)
RIGHT = f"<step>x</step><answer>{TASK.gold}</answer>"
WRONG = "<step>x</step><answer>-1</answer>"
YES, NO = (f"<step>x {w}</step><final>{w}</final>" for w in ("CORRECT", "INCORRECT"))
SMALL = {"model": TINY, "tasks": EASY, "tasks_per_step": 2, "group_size": 4, "evaluation_tasks": 2}


def played(said, prompt="{problem}\n{answers}", **options):
    """The traces by role of one game; ``said``: role → its texts, in turn."""
    left = {name: iter(texts) for name, texts in said.items()}
    programs = {name: lambda fields, rng, texts=texts: next(texts) for name, texts in left.items()}
    roles = {}
    for name in said:
        review = name == "agent1" and options.get("workflow") == "chain"
        shown = prompt if name.endswith("_hears") else "{problem} {solution}" if review else "{problem}"
        shown = "{problem} {solution} {review}" if name == "agent2" and options.get("workflow") == "chain" else shown
        parse = parse_review if review else parse_solution
        roles[name] = Role(policy=name, prompt=shown, parse=parse, sampling=Sampling(max_tokens=99))
    executor = RolloutRunner(spoken(programs), dict.fromkeys(roles, ByteRenderer()), roles, 0)
    [episode] = executor.collect(partial(play_workflow, **options), [TASK], step=0, group_size=1)
    assert episode.failure is None, episode.failure
    return {name: [t for t in episode.traces if t.role == name] for name in roles}


def values(traces):
    return [t.rewards[0].value for t in traces]


def prompts(traces):
    return [ByteRenderer().decode(t.prompt_ids) for t in traces]


def test_shaping_by_hand():
    """α = 1/2. After 1, 0 Q is 1/2. Margin: 1 + (1 − 1/2)/2 = 5/4 and 0 + (0 − 1/2)/2 = −1/4. Quality: 1 + (1/2)/2 =
    5/4 and 0 − (1/2)/2 = −1/4. After 1, 1, 1, 0 Q is 3/4: margin 9/8 and −3/8, quality 11/8 and −1/8."""
    assert [shaped_reward(r, [1.0, 0.0], "margin", 0.5) for r in (1.0, 0.0)] == [1.25, -0.25]
    assert [shaped_reward(r, [1.0, 0.0], "quality", 0.5) for r in (1.0, 0.0)] == [1.25, -0.25]
    assert [shaped_reward(r, [1.0, 1.0, 1.0, 0.0], "margin", 0.5) for r in (1.0, 0.0)] == [1.125, -0.375]
    assert [shaped_reward(r, [1.0, 1.0, 1.0, 0.0], "quality", 0.5) for r in (1.0, 0.0)] == [1.375, -0.125]
    assert shaped_reward(1.0, [0.0], "local", 0.5) == shaped_reward(1.0, [], "margin", 0.5) == 1.0
    with refuses("E_UNKNOWN_SHAPING"):
        shaped_reward(1.0, [0.0], "margins", 0.5)


DEBATE = {"agent0": [RIGHT], "agent1": [WRONG], "agent0_hears": [RIGHT], "agent1_hears": [RIGHT]}


def test_a_debate_pays_for_getting_better():
    found = played(DEBATE)  # margin, α = β = 1/2; the team's majority is right
    assert values(found["agent0"]) == [1.5] and values(found["agent1"]) == [0.5]
    assert values(found["agent0_hears"]) == [1.5] and values(found["agent1_hears"]) == [2.0]  # Q = 1; Q = 0
    assert found["agent0"][0].metadata["team"] is True
    everybody = played(DEBATE, history="all")
    assert values(everybody["agent0_hears"]) == values(everybody["agent1_hears"]) == [1.75]  # Q = 1/2
    quality = played(DEBATE, shaping="quality", beta=0.0)
    assert values(quality["agent0_hears"]) == [1.5] and values(quality["agent1_hears"]) == [1.0]


def test_a_debate_is_heard():
    found = played(DEBATE)
    for text in prompts([*found["agent0_hears"], *found["agent1_hears"]]):
        assert RIGHT in text and WRONG in text
    assert all(RIGHT not in text for text in prompts([*found["agent0"], *found["agent1"]]))
    guarded = played(DEBATE, prompt=SOLVE_AMONG_FULL)
    assert all(text.count("id=") > 2 for text in prompts(guarded["agent0_hears"]))


def test_of_answers_given_equally_often_one_is_drawn():
    """Both agents are read and differ: whose answer is the team's does not hang on who has which number."""

    def team(game, *texts):
        turns = [SimpleNamespace(id=f"{game}:{n}", parsed=parse_solution(text, {})) for n, text in enumerate(texts)]
        return elect_turn(turns).parsed.answer

    right, wrong = (parse_solution(text, {}).answer for text in (RIGHT, WRONG))
    for pair in ((RIGHT, WRONG), (WRONG, RIGHT)):
        said = [team(i, *pair) for i in range(200)]
        assert 70 < said.count(right) < 130 and said.count(right) + said.count(wrong) == 200
    assert elect_turn([]) is None


def test_a_chain_pays_the_reviewer_for_its_verdict():
    """Nobody speaks twice in it, so Q is always over all who spoke before."""
    found = played({"agent0": [WRONG], "agent1": [NO], "agent2": [RIGHT]}, workflow="chain", agents=3)
    assert values(found["agent0"]) == [0.5]
    assert values(found["agent1"]) == [2.0]  # right after Q = 0, and the team's answer
    assert values(found["agent2"]) == [1.75]  # Q = (0 + 1) / 2
    cut = played({"agent0": ["what?"], "agent1": [], "agent2": []}, workflow="chain", agents=3)
    assert values(cut["agent0"]) == [0.0] and not cut["agent1"]


def test_the_last_of_a_mixture_hears_the_others():
    said = {"agent0": [WRONG], "agent1": [WRONG], "agent2_hears": [RIGHT]}
    found = played(said, workflow="mixture", agents=3)
    assert values(found["agent2_hears"]) == [2.0] and values(found["agent0"]) == [0.5]
    assert WRONG in prompts(found["agent2_hears"])[0]


def test_nobody_hears_anybody_in_a_vote():
    found = played({"agent0": [RIGHT, RIGHT], "agent1": [WRONG, RIGHT]}, workflow="vote")
    assert values(found["agent0"]) == [1.5, 1.5] and values(found["agent1"]) == [0.5, 1.5]  # never shaped
    assert found["agent0"][0].metadata["team"] is True
    assert len({t.group for traces in found.values() for t in traces}) == 4
    lost = played({"agent0": [RIGHT, WRONG], "agent1": [WRONG, WRONG]}, workflow="vote")
    assert values(lost["agent0"]) == [1.0, 0.0] and lost["agent0"][0].metadata["team"] is False


@pytest.mark.whole
def test_who_learns():
    made = marti(frozen_agent=1, **SMALL)
    assert set(made.objectives) == {"agent0"} and not made.policies["agent1"].is_trained
    made = marti(workflow="chain", models=(TINY, "shipped-roles", "shipped"), **SMALL)
    assert [made.policies[f"agent{i}"].model for i in range(3)] == [TINY, "shipped-roles", "shipped"]
    row = CoTrainer(marti(workflow="chain", **SMALL | {"tasks_per_step": 4})).step().row
    assert row["agent0/updates"] == 1


def test_what_it_refuses():
    with refuses("E_SETTING_RANGE", names="3 agents"):
        marti(workflow="chain", agents=2)
    with refuses("E_MODEL_NOT_TAUGHT_FORMAT", names=("marti", "'shipped-roles'")):
        marti(models=(TINY, "shipped-roles"))
    assert marti(workflow="vote", model="shipped-roles").name == "marti-vote-margin"  # nobody hears anybody
    with refuses("E_AGENT_MODELS"):
        marti(models=(TINY,))
    with refuses("E_AGENT_MODELS"):
        marti(workflow="vote", agents=1, frozen_agent=0)
    with refuses("E_UNKNOWN_WORKFLOW"):
        played({"agent0": [RIGHT]}, workflow="debates")
