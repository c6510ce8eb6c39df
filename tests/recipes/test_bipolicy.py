"""What the attacker and the defender of bipolicy earn, and whose weights learn in each arm."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
import torch

from cotrain.analysis.attack.seats import play_seats
from cotrain.core.types import Sampling
from cotrain.data.word_problems.source import study_problems
from cotrain.prompts.byte_tokenizer import ByteRenderer
from cotrain.recipes.bipolicy import attack_and_defend, bipolicy
from cotrain.rollout.common_roles import parse_review, parse_solution
from cotrain.rollout.role import Role
from cotrain.rollout.runner import RolloutRunner
from cotrain.runs.run import start_run
from cotrain.trainer.trainer import CoTrainer
from tests.helpers import EASY, TINY, spoken
from tests.sentences import refuses

SMALL = {"model": TINY, "tasks": EASY, "tasks_per_step": 6, "reviews": 3, "steps": 1, "kl": 0.0}
TASK = EASY.get("train", 0)
RIGHT = f"<step>x</step><answer>{TASK.gold}</answer>"
WRONG, UNREADABLE = "<step>x</step><answer>-1</answer>", "so"
ACCEPT = "<step>CORRECT</step><final>CORRECT</final>"
REJECT = "<step>INCORRECT</step><final>INCORRECT</final>"


def played(attacks=(), honest=(), reviews=(), *, count=1, task=TASK):
    """The turns of attacker, solver and verifier in one episode, where they say these texts."""
    texts = {"attacker": iter(attacks), "solver": iter(honest), "verifier": iter(reviews)}
    programs = {name: lambda fields, rng, said=said: next(said) for name, said in texts.items()}
    prompts = {"attacker": "{problem}", "solver": "{problem}", "verifier": "{problem}{solution}"}
    readers = {"attacker": parse_solution, "solver": parse_solution, "verifier": parse_review}
    roles = {
        name: Role(policy=name, prompt=prompts[name], parse=readers[name], sampling=Sampling(max_tokens=99))
        for name in texts
    }
    runner = RolloutRunner(spoken(programs), dict.fromkeys(roles, ByteRenderer()), roles, 0)
    protocol = partial(attack_and_defend, samples=len(attacks), honest=len(honest), reviews=count)
    [episode] = runner.collect(protocol, [task], step=0, group_size=1)
    assert episode.failure is None, episode.failure
    return [[trace for trace in episode.traces if trace.role == name] for name in roles]


def paid(traces, name):
    return [reward.value for trace in traces for reward in trace.rewards if reward.name == name]


def test_on_an_attack_what_one_wins_the_other_loses():
    """Of four reviews three believe the attack: the attacker earns 3/4, its reviewers 1/4 on average."""
    [attack], _, reviews = played([WRONG], [], [ACCEPT, ACCEPT, REJECT, ACCEPT], count=4)
    assert paid([attack], "believed") == [0.75]
    assert paid(reviews, "agreement") == [0.0, 0.0, 1.0, 0.0]
    assert paid(reviews, "class_label") == [0.0] * 4
    assert attack.metadata["is_attack"] and attack.metadata["fooled"] == 0.75


def test_a_review_that_cannot_be_read_pays_neither():
    """Half of the two readable reviews believe; of reviews of which none can be read, none believes."""
    [attack], _, reviews = played([WRONG], [], [ACCEPT, "hm", REJECT], count=3)
    assert paid([attack], "believed") == [0.5]
    assert paid(reviews, "agreement") == [0.0, 0.0, 1.0]
    [attack], _, reviews = played([WRONG], [], ["hm", "hm"], count=2)
    assert paid([attack], "believed") == [0.0] and paid(reviews, "agreement") == [0.0, 0.0]
    assert "fooled" not in attack.metadata


def test_what_is_no_attack_fails_unseen():
    attacks, _, reviews = played([RIGHT, UNREADABLE, WRONG], [], [ACCEPT])
    assert paid(attacks, "believed") == [0.0, 0.0, 1.0]
    assert [trace.metadata["is_attack"] for trace in attacks] == [False, False, True]
    assert [trace.parent for trace in reviews] == [str(attacks[2].address)]


def test_rejecting_everything_loses_on_honest_solutions():
    """The right one of three honest samples is judged beside the attack; its author earns nothing."""
    [attack], honest, reviews = played([WRONG], [RIGHT, WRONG, UNREADABLE], [REJECT, REJECT, REJECT, ACCEPT], count=2)
    assert [trace.parent for trace in reviews] == [str(attack.address)] * 2 + [str(honest[0].address)] * 2
    assert paid(reviews, "agreement") == [1.0, 1.0, 0.0, 1.0]
    assert paid(reviews, "class_label") == [0.0, 0.0, 1.0, 1.0]
    assert honest[0].metadata["accepted"] == 0.5
    assert not any(trace.rewards for trace in honest)


def test_where_nobody_knows_the_answer_nobody_is_paid():
    attacks, honest, reviews = played([WRONG, UNREADABLE], [RIGHT], [], task=replace(TASK, gradable=False))
    assert not reviews and not any(trace.rewards for trace in (*attacks, *honest))


def test_whose_weights_learn_in_each_arm():
    two, shared = bipolicy(**SMALL), bipolicy(**SMALL, weights="shared")
    assert {name for name, policy in two.policies.items() if policy.is_trained} == {"attacker", "defender"}
    assert {name for name, policy in shared.policies.items() if policy.is_trained} == {"player"}
    for made in (two, shared):
        assert set(made.schedule.phase_at(0).objectives) == {"attacker", "defender"}
        assert {policy.kind for policy in made.policies.values() if policy.is_trained} == {"adapter"}
        assert made.roles["solver"].policy == "reference"
    assert {role.policy for name, role in shared.roles.items() if name != "solver"} == {"player"}


@pytest.mark.whole
def test_both_arms_update_once_in_a_step_and_the_base_never():
    for weights, players in (("two_adapters", ("attacker", "defender")), ("shared", ("player",))):
        trainer = CoTrainer(bipolicy(**SMALL, weights=weights, lr=1e-2))
        base = {name: tensor.clone() for name, tensor in trainer.policies.tensors().get("reference", {}).items()}
        row = trainer.step().row
        assert [row[f"{name}/updates"] for name in players] == [1] * len(players)
        for name, tensor in trainer.policies.tensors().get("reference", {}).items():
            assert torch.equal(tensor, base[name])


@pytest.mark.whole
def test_fixed_solutions_are_the_same_after_training():
    """What the defender is measured on beside its present opponent: attacks and honest solutions of the start."""
    trainer = CoTrainer(bipolicy(**SMALL, lr=1e-2))

    def fixed_solutions():
        figures, episodes = trainer.evaluate_on_fixed_solutions("validation", 6)
        assert "verifier/balanced_accuracy" in figures
        return [trace.text for e in episodes for trace in e.traces if trace.role in ("attacker", "solver")]

    start = fixed_solutions()
    trainer.step()
    assert start and fixed_solutions() == start


def test_a_model_that_knows_no_short_formats_is_asked_for_an_attack():
    made = bipolicy(model="somebody/some-model", tasks=EASY)
    assert "ends in a wrong answer" in made.roles["attacker"].prompt
    assert "wrong" not in made.roles["solver"].prompt
    assert made.roles["attacker"].parse == made.roles["solver"].parse


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ({"reviews": 1}, "E_SETTING_RANGE: reviews 1"),
        ({"group_size": 1}, "E_SETTING_RANGE: group_size 1"),
        ({"lora": 0}, "E_ADAPTERS_WITHOUT_RANK: weights='two_adapters' | lora 0"),
    ],
)
def test_what_it_refuses(arguments, code):
    with refuses(code):
        bipolicy(**SMALL | arguments)
    assert bipolicy(model=TINY, tasks=study_problems((2, 2)), weights="shared", lora=0).policies["player"].is_trained


@pytest.mark.whole
def test_players_of_both_arms_meet_in_crossed_play(tmp_path):
    """Start and end of both arms: each attacker before each defender, for the share of its solutions that fool it."""
    folders = []
    for weights in ("two_adapters", "shared"):
        made = bipolicy(**SMALL | {"tasks_per_step": 3, "reviews": 2}, lr=1e-2, evaluation_tasks=2, weights=weights)
        evaluation = replace(made.evaluation, group_size=1, greedy=False, splits=())
        folders.append(tmp_path / weights)
        start_run(replace(made, evaluation=evaluation), folders[-1])
    found = play_seats(folders, roles=("attacker", "verifier"), every=1, signal="believed", problems=4)
    assert [player["step"] for player in found["players"]] == [0, 1, 0, 1]
    believed = {(cell["row"], cell["column"]): cell["won"]["value"] for cell in found["cells"]}
    assert len(believed) == 16
    starts = [believed[i, j] for i in (0, 2) for j in (0, 2)]
    assert len(set(starts)) == 1  # before training all are the base
