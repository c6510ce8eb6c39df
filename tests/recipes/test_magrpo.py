"""Two agents and one reward: who hears what, what every answer is paid, and what is measured of a team."""

import asyncio
import json
import re
from functools import partial
from pathlib import Path

import pytest

from cotrain.algorithms.contract import Batch
from cotrain.algorithms.samples import sample_of
from cotrain.cli.main import main
from cotrain.core.types import Sampling
from cotrain.data.sources import from_description, task_source
from cotrain.prompts.byte_tokenizer import ByteRenderer
from cotrain.recipes.magrpo.halves import Halves, halves_grader_of
from cotrain.recipes.magrpo.recipe import magrpo
from cotrain.recipes.magrpo.rewarded import ACT_AGAIN, act_together, measure_joint_reward
from cotrain.recipes.magrpo.teams import AGENTS, cooperate, parse_sum, together_and_apart
from cotrain.rollout.role import Role
from cotrain.rollout.runner import RolloutRunner
from tests.helpers import EASY, TINY, letter_tasks, spoken
from tests.sentences import refuses

SOURCE = Halves(count=2, largest=9)
TASK = SOURCE.get("train", 0)


def numbers(text):
    return [int(part) for part in text.split(", ")]


def honest(fields, rng):
    return str(sum(numbers(fields["seen"])))


def adding(fields, rng):
    heard = 0 if fields["heard"] == "nothing" else int(fields["heard"])
    return f"<answer>{sum(numbers(fields['seen'])) + heard}</answer>"


def played(protocol=cooperate, says=None, **options):
    """The traces of one episode by role; ``says``: programs for some of the roles in the place of honest ones."""
    names = [p + a + b for p in ("", "silent_", "swapped_") for a in AGENTS for b in ("", "_answer")]
    programs = {n: adding if n.endswith("_answer") else honest for n in names} | (says or {})
    prompts = {n: "{seen} {said} {heard}" if n.endswith("_answer") else "{seen}" for n in names}
    parses = {n: parse_sum if n.endswith("_answer") else None for n in names}
    roles = {n: Role(policy=n, prompt=prompts[n], parse=parses[n], sampling=Sampling(max_tokens=9)) for n in names}
    executor = RolloutRunner(spoken(programs), dict.fromkeys(names, ByteRenderer()), roles, 0)
    [episode] = executor.collect(partial(protocol, **options), [TASK], step=0, group_size=1)
    assert episode.failure is None, episode.failure
    return {n: [t for t in episode.traces if t.role == n] for n in names}


def joint(traces):
    return [t.rewards[0].value for t in traces]


def test_honest_agents_are_both_right_and_everybody_is_paid():
    found = played(samples=2)
    assert joint(found["alice_answer"]) == joint(found["bob_answer"]) == [1.0] * 4  # two nodes of two
    assert joint(found["alice"]) == joint(found["bob"]) == [0.9, 0.9]
    assert all(t.metadata["both"] for t in found["alice_answer"]) and found["alice"][0].metadata["tells"] is True
    groups = {t.group for t in found["alice_answer"]}
    assert len(groups) == 2 and groups.isdisjoint(t.group for t in found["bob_answer"])


def test_crossed_actions_make_every_combination_a_node():
    found = played(samples=2, pairing="crossed")
    assert len(found["alice_answer"]) == 4 * 2  # of each of K² nodes, K answers
    assert joint(found["alice_answer"]) == [2.0] * 8  # each is in K joint actions
    assert joint(found["alice"]) == [2 * 0.9] * 2


def test_one_agents_fault_is_both_agents_loss():
    found = played(samples=2, says={"bob": lambda fields, rng: "0"})  # what Alice hears is wrong, so only Bob is right
    assert joint(found["alice_answer"]) == joint(found["bob_answer"]) == [0.5] * 4
    assert joint(found["alice"]) == joint(found["bob"]) == [pytest.approx(0.45)] * 2
    assert not any(t.metadata["both"] for t in found["alice_answer"])


def test_each_agent_sees_its_half_and_hears_the_other():
    found = played()
    seen = halves_grader_of(TASK).numbers
    shown = {name: ByteRenderer().decode(traces[0].prompt_ids) for name, traces in found.items() if traces}
    assert shown["alice"] == ", ".join(map(str, seen[0])) and shown["bob"] == ", ".join(map(str, seen[1]))
    assert shown["alice_answer"].split() == [*shown["alice"].split(), str(sum(seen[0])), str(sum(seen[1]))]
    assert str(halves_grader_of(TASK).total) not in shown["bob_answer"].split()
    mute = played(silent=True)
    assert joint(mute["alice_answer"]) == [0.0]
    both = played(silent=True, sees="all")
    assert joint(both["alice_answer"]) == joint(both["bob_answer"]) == [1.0]


def test_the_threshold_does_not_end_the_game_unless_it_is_set():
    assert played()["alice_answer"]
    ended = played(threshold=-0.2)  # the authors' default, where no reward is negative
    assert not ended["alice_answer"] and joint(ended["alice"]) == [0.0]


def test_a_team_is_measured_with_and_without_messages_and_swapped():
    found = played(together_and_apart, says={"swapped_alice_answer": lambda fields, rng: "<answer>0</answer>"})
    assert [found[f"{p}alice_answer"][0].metadata["correct"] for p in ("", "silent_", "swapped_")] == [
        True,
        False,
        False,
    ]
    assert not any(t.rewards for traces in found.values() for t in traces)
    made = magrpo(model=TINY)
    assert made.roles["swapped_alice"].policy == "bob" and made.roles["swapped_bob_answer"].policy == "alice"


def test_an_advantage_is_a_return_minus_the_mean_of_its_node():
    left = iter([True, False] * 9)
    says = {"bob_answer": lambda fields, rng: adding(fields, rng) if next(left) else "<answer>0</answer>"}
    found = played(samples=2, says=says)
    learn = magrpo(model=TINY).objectives["bob"].algorithm
    samples = tuple(sample_of(t) for t in (*found["bob"], *found["bob_answer"]))
    credit, _ = learn.credit(Batch(samples=samples), {})
    assert [float(s.advantages[0]) for s in credit.samples] == [0.25, -0.25] * 2  # 1 and 1/2; both messages led to 3/4


def test_halves_are_a_task_source():
    source = task_source("halves")
    assert source.describe() == from_description(source.describe()).describe() and source.guessing_accuracy == 0.25
    assert SOURCE.guessing_accuracy == pytest.approx(9 / 81)
    task = source.get("train", 3)
    assert task.grade(f"<answer>{task.gold}</answer>").value is True
    assert task.grade("<answer>many</answer>").value is False and task.grade("7").reason == "no answer"
    seen = {split: {SOURCE.get(split, i).prompt for i in range(200)} for split in ("train", "test")}
    assert seen["train"].isdisjoint(seen["test"])
    with refuses("E_SETTING_RANGE", names="largest 2"):
        Halves(largest=2)


def test_what_it_refuses():
    with refuses("E_NO_JOINT_REWARD", names="words"):
        magrpo(tasks=EASY)
    with refuses("E_MODEL_NOT_TAUGHT_FORMAT", names=("magrpo", "'shipped'")):
        magrpo(model="shipped")
    with refuses("E_SETTING_RANGE"):
        magrpo(gamma=2.0)
    with refuses("E_TASKS_UNSUITED"):
        halves_grader_of(letter_tasks(1)[0])
    with refuses("E_NO_JOINT_REWARD", names=("3 agents", "2 turns")):
        magrpo(agents=3)


# -- a joint reward of one's own

WORD = letter_tasks(1)[0]
PAGE = Path(__file__).parents[2] / "docs" / "methods" / "magrpo.md"


def acted(reward, says, **options):
    """The traces of one episode by role; ``says``: what each agent says at each of its calls, in order."""
    texts = {f"agent{i}{later}": iter(()) for i in range(1, len(says) + 1) for later in ("", "_answer")}
    texts |= {f"agent{i}": iter(own) for i, own in enumerate(says, 1)}
    texts |= {f"agent{i}_answer": texts[f"agent{i}"] for i in range(1, len(says) + 1)}
    programs = {name: lambda fields, rng, own=own: next(own) for name, own in texts.items()}
    roles = {n: Role(policy=n, prompt="{problem}|{agent}/{agents}", sampling=Sampling(max_tokens=20)) for n in texts}
    for name in (name for name in texts if name.endswith("_answer")):
        roles[name] = Role(policy=name, prompt=ACT_AGAIN, sampling=Sampling(max_tokens=20))
    executor = RolloutRunner(spoken(programs), dict.fromkeys(texts, ByteRenderer()), roles, 0)
    play = partial(act_together, reward=reward, agents=len(says), **options)
    [episode] = executor.collect(play, [WORD], step=0, group_size=1)
    assert episode.failure is None, episode.failure
    return {n: [t for t in episode.traces if t.role == n] for n in texts}, episode


def length(task, texts):
    assert task is WORD
    return float(len("".join(texts)))


def test_three_agents_are_paid_at_every_turn_for_what_they_say_together():
    """Aligned, K = 2, γ = 1/2. Rewards are lengths: turn 1 gives 3 and 6; the two nodes below give 3, 3 and 6, 12."""
    one = ["a", "aa", "a", "a", "aa", "aaaa"]  # two answers, then two at each node
    found, _ = acted(length, [one, one, one], samples=2, turns=2, gamma=0.5)
    assert [joint(found[f"agent{i}"]) for i in (1, 2, 3)] == [[3 + 0.5 * 3, 6 + 0.5 * 9]] * 3
    assert [joint(found[f"agent{i}_answer"]) for i in (1, 2, 3)] == [[3.0, 3.0, 6.0, 12.0]] * 3
    assert [t.metadata["joint_reward"] for t in found["agent1_answer"]] == [3.0, 3.0, 6.0, 12.0]
    assert len({t.group for t in found["agent1_answer"]}) == 2  # of each node


def test_crossed_rewards_of_two_agents_by_hand():
    """Lengths 1, 2 against 1, 3: of alice 1+1 and 1+3, 2+1 and 2+3; of bob 1+1 and 2+1, 1+3 and 2+3."""
    found, _ = acted(length, [["a", "aa"], ["b", "bbb"]], samples=2, turns=1, pairing="crossed")
    assert [joint(found["agent1"]), joint(found["agent2"])] == [[6.0, 8.0], [5.0, 9.0]]
    assert [t.metadata["joint_reward"] for t in found["agent1"]] == [3.0, 4.0]


def test_agents_see_the_problem_and_all_that_was_said():
    found, _ = acted(length, [["<think>no</think>one", "x", "y"], ["two", "x", "y"]], turns=3)
    first, *later = [ByteRenderer().decode(t.prompt_ids) for t in (found["agent2"][0], *found["agent2_answer"])]
    assert first == f"{WORD.prompt}|2/2"
    assert all(re.search(r"<agent 1 turn 1 id=\w+>\none\n", text) and WORD.prompt in text for text in later)
    assert "<agent 2 turn 2" not in later[0] and re.search(r"<agent 2 turn 2 id=\w+>\nx\n", later[1])


def test_a_reward_may_be_awaited():
    async def late(task, texts):
        await asyncio.sleep(0.001)
        return length(task, texts)

    found, _ = acted(late, [["a"], ["bb"]], turns=1)
    assert joint(found["agent2"]) == [3.0]


def odd(task, texts):
    if "x" in texts[0]:
        raise ValueError("not that")
    if "l" in texts[0]:
        raise SystemExit(3)
    return {"s": "much", "n": float("nan"), "h": 10**400}.get(texts[0], 1.0)


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ("x", r"joint reward: test_magrpo.py, line \d+: ValueError"),
        ("s", "joint reward: no number"),
        ("n", "joint reward: out of range"),
        ("h", "joint reward: out of range"),
        ("l", r"joint reward: test_magrpo.py, line \d+: SystemExit"),
    ],
)
def test_a_reward_that_fails_is_a_counted_failure_of_its_joint_action(said, reason):
    found, episode = acted(odd, [[said, "a"], ["b", "b"]], samples=2, turns=1)
    assert all(re.fullmatch(reason, found[name][0].failure) for name in ("agent1", "agent2"))
    assert [joint(found[name][1:]) for name in ("agent1", "agent2")] == [[1.0], [1.0]]
    assert measure_joint_reward([episode])["agent1/metadata/joint_reward"].value == 1.0  # of what has a reward
    crossed, _ = acted(odd, [[said, "a"], ["b", "b"]], samples=2, turns=1, pairing="crossed")
    assert [t.failure is None for t in crossed["agent1"]] == [False, True]
    assert not any(t.failure is None for t in crossed["agent2"])  # each met the answer without a reward


def test_what_led_to_failures_alone_has_no_return():
    """Below the first joint action one of two has a reward, below the second none."""
    found, _ = acted(odd, [["a", "a", "x", "a", "x", "x"], ["b"] * 6], samples=2, turns=2, gamma=0.5)
    assert joint(found["agent1"][:1]) == [1.0 + 0.5 * 1.0]
    assert [t.failure for t in (found["agent1"][1], found["agent2"][1])] == ["joint reward: unknown"] * 2
    ended, _ = acted(odd, [["x", "a", "a", "a"], ["b"] * 4], samples=2, turns=2, gamma=0.5)
    assert len(ended["agent1_answer"]) == 2  # nobody answers to what has no reward


def test_every_agent_has_a_policy_and_an_optimiser_of_its_own():
    made = magrpo(model="shipped", joint_reward=length, agents=3, turns=1, tasks=EASY)  # no format to be taught
    assert {name: (one.policy, one.extra_roles) for name, one in made.objectives.items()} == {
        f"agent{i}": (f"agent{i}", ()) for i in (1, 2, 3)
    }
    assert set(made.roles) == set(made.policies) == {"agent1", "agent2", "agent3"}


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"joint_reward": lambda task: 0.0}, "E_JOINT_REWARD_NOT_FUNCTION"),
        ({"joint_reward": 7}, "E_JOINT_REWARD_NOT_FUNCTION: joint_reward"),
        ({"joint_reward": length, "agents": 9}, "E_SETTING_RANGE: 9 agents | 8 agents"),
        ({"joint_reward": length, "silent": True}, "E_SETTING_RANGE: True"),
        ({"joint_reward": "mine.py:reward"}, "E_CODE_FILE_MISSING: joint_reward of magrpo | mine.py"),
        ({"joint_reward": length, "turns": 0}, "E_ARGUMENT_TYPE: turns of magrpo"),
    ],
)
def test_what_is_no_joint_reward_is_refused_when_the_recipe_is_built(options, code):
    with refuses(code):
        magrpo(tasks=EASY, **options)


@pytest.mark.whole
def test_a_run_with_a_joint_reward_of_ones_own_goes_on_bit_for_bit(tmp_path, monkeypatch, capsys):
    (source,) = re.findall(r"^```py\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    (tmp_path / "mine.py").write_text(source, encoding="utf-8")
    rows = [{"question": f"Write about {n} kites.", "answer": "none"} for n in range(40)]
    (tmp_path / "problems.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    words = ["run", "magrpo", "--joint-reward", "mine.py:reward", "--agents", "3", "--data", "problems.jsonl"]
    words += ["--model", TINY, "--threads", "1", "--tasks-per-step", "2", "--group-size", "2"]
    words += ["--evaluation-tasks", "2", "--set", "evaluation.group_size=1", "--set", "evaluation.greedy=false"]
    for role in (f"agent{i}{later}" for i in (1, 2, 3) for later in ("", "_answer")):
        words += ["--set", f"roles.{role}.sampling.max_tokens=6"]
    assert main([*words, "--steps", "2", "--out", "whole"]) == 0
    assert main([*words, "--steps", "1", "--out", "other"]) == 0
    monkeypatch.chdir("/")  # the run names its file by the whole path
    whole, other = tmp_path / "whole", tmp_path / "other"
    assert main(["resume", str(other), "--steps", "2", "--threads", "1"]) == 0
    for name in ("metrics.jsonl", "episodes/episodes.jsonl.gz"):
        assert (whole / name).read_bytes() == (other / name).read_bytes(), name
    ends = [json.loads((folder / "summary.json").read_text())["after"] for folder in (whole, other)]
    assert ends[0] == ends[1]  # by the last weights
    last = json.loads((whole / "metrics.jsonl").read_text().splitlines()[-1])
    assert all(f"agent{i}/grad_norm" in last for i in (1, 2, 3)), sorted(last)
    assert main(["eval", str(other), "--problems", "2", "--threads", "1"]) == 0
    assert "agent1_answer/metadata/joint_reward" in capsys.readouterr().out
