"""Updates of a whole step, against plain PyTorch in float64: gradient norm and changed weights, computed from a step's
prompt ids, token ids, log-probabilities and rewards alone. ``tests/test_reference.py`` has GRPO, Tango and PRIME."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest
import torch
from transformers import AutoModelForCausalLM

from cotrain import OUTCOME, Objective, Recipe, RunConfig, constant_schedule, critic, recipe, solve
from cotrain.algorithms.policy_gradient import PolicyGradient
from cotrain.algorithms.policy_loss import GSPOClip
from cotrain.algorithms.ppo import PPO, ValueRegression
from cotrain.config.override import override
from cotrain.core.types import Trace
from cotrain.recipes.grpo import grpo
from cotrain.rollout import common_roles
from cotrain.trainer.step_meter import StepResult
from cotrain.trainer.trainer import CoTrainer
from tests.helpers import EASY, TINY

SIZE = {"model": TINY, "tasks": EASY, "steps": 4, "tasks_per_step": 4, "group_size": 4, "evaluation_tasks": 1}
RATE = 1e-3
UPDATES = 3  # from one batch, so that ratios leave 1 and bounds are met
EPSILON = 1e-6  # beside a standard deviation
Tensors = dict[str, torch.Tensor]
Loss = Callable[[torch.nn.Module], torch.Tensor]


@dataclass(frozen=True)
class Row:
    """A rollout as the ledger keeps it, and what it earned."""

    prompt_ids: list[int]
    token_ids: list[int]
    logprobs: torch.Tensor  # [T] float64
    reward: float
    group: str
    truncated: bool


def row_of(trace: Trace) -> Row:
    reward = next(reward.value for reward in trace.rewards if reward.name == "outcome")
    logprobs = torch.tensor(trace.logprobs, dtype=torch.float64)
    truncated = trace.finish == "length"
    return Row(list(trace.prompt_ids), list(trace.token_ids), logprobs, reward, str(trace.group), truncated)


def rows_of(step: StepResult) -> list[Row]:
    return [row_of(trace) for episode in step.episodes for trace in episode.traces if trace.role == "solver"]


def hidden_states(body: torch.nn.Module, row: Row) -> torch.Tensor:
    """``[T, H]``: the last hidden state in front of each sampled token."""
    ids = torch.tensor([row.prompt_ids + row.token_ids])
    hidden = body(input_ids=ids).last_hidden_state[0]
    start = len(row.prompt_ids) - 1
    return hidden[start : start + len(row.token_ids)]


class Speaker(torch.nn.Module):
    """A language model in float64."""

    def __init__(self) -> None:
        super().__init__()
        self.model = AutoModelForCausalLM.from_pretrained(TINY, dtype=torch.float32).double().eval()

    def logprobs(self, row: Row) -> torch.Tensor:
        logits = self.model.lm_head(hidden_states(self.model.model, row))
        chosen = torch.tensor(row.token_ids)[:, None]
        return logits.log_softmax(-1).gather(1, chosen)[:, 0]


class Critic(torch.nn.Module):
    """A language model's body with a head of one number, in float64."""

    def __init__(self, tensors: Tensors) -> None:
        super().__init__()
        self.model = torch.nn.Module()
        self.model.body = AutoModelForCausalLM.from_pretrained(TINY, dtype=torch.float32).double().eval().model
        self.model.head = torch.nn.Linear(*reversed(tensors["model.head.weight"].shape)).double()
        self.load_state_dict({name: tensor.double() for name, tensor in tensors.items()})

    def values(self, row: Row) -> torch.Tensor:
        return self.model.head(hidden_states(self.model.body, row))[:, 0]


def copied(trainer: CoTrainer, policy: str) -> Tensors:
    return {name: tensor.clone() for name, tensor in trainer.policies.tensors()[policy].items()}


def learn(module: torch.nn.Module, loss_of: Loss, updates: int) -> float:
    """Make updates by AdamW, and give the norm that the last gradient had before it was cut to 1."""
    optimizer = torch.optim.AdamW(module.parameters(), lr=RATE, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.0)
    norm = math.nan
    for _ in range(updates):
        optimizer.zero_grad()
        loss_of(module).backward()
        norm = float(torch.nn.utils.clip_grad_norm_(module.parameters(), 1.0))
        optimizer.step()
    return norm


def assert_same_update(module: torch.nn.Module, before: Tensors, trainer: CoTrainer, policy: str) -> None:
    """The change of all weights has the same direction and size, to a thousandth: where a gradient is nothing but
    rounding, AdamW makes a whole step of it."""
    plain = {name: parameter.detach() for name, parameter in module.named_parameters()}
    after = trainer.policies.tensors()[policy]
    assert set(plain) <= set(after)
    mine = torch.cat([(plain[name] - before[name].double()).flatten() for name in plain])
    ours = torch.cat([(after[name].double() - before[name].double()).flatten() for name in plain])
    assert ours.abs().max() > RATE / 2
    assert float((mine - ours).norm() / mine.norm()) < 1e-2


def standardised(values: torch.Tensor) -> torch.Tensor:
    return (values - values.mean()) / (values.std() + EPSILON)


def group_advantages(rows: Sequence[Row], rewards: Sequence[float]) -> list[float]:
    """(r − mean) / std within each group."""
    advantages = []
    for row, reward in zip(rows, rewards, strict=True):
        values = [r for other, r in zip(rows, rewards, strict=True) if other.group == row.group]
        mean = sum(values) / len(values)
        std = math.sqrt(sum((value - mean) ** 2 for value in values) / (len(values) - 1))
        advantages.append(0.0 if max(values) == min(values) else (reward - mean) / (std + EPSILON))
    return advantages


def kept_of(rows: Sequence[Row], advantages: Sequence[float]) -> list[tuple[Row, float]]:
    """Those whose group has a spread."""
    alive = {row.group for row, advantage in zip(rows, advantages, strict=True) if advantage}
    return [(row, a) for row, a in zip(rows, advantages, strict=True) if row.group in alive]


def clipped_loss(log_ratio: torch.Tensor, advantage: torch.Tensor | float, low: float, high: float) -> torch.Tensor:
    ratio = log_ratio.exp()
    return -torch.minimum(ratio * advantage, ratio.clamp(1 - low, 1 + high) * advantage)


# -- PPO


@recipe
def actor_and_critic(run: RunConfig) -> Recipe:
    rewards = {OUTCOME: 1.0}
    return run.recipe(
        "actor-and-critic",
        policies={"generator": run.learner(), "critic": critic(run.model, lr=RATE)},
        roles={"solver": common_roles.solver("generator", run.model)},
        objectives={
            "generator": Objective(
                policy="generator", role="solver", algorithm=PPO(reward_weights=rewards, gamma=0.98, lam=0.9)
            ),
            "values": Objective(
                policy="critic",
                role="solver",
                algorithm=ValueRegression(reward_weights=rewards, gamma=0.98, lam=0.9, clip=0.01),
            ),
        },
        schedule=constant_schedule(solve, "generator", "values", name="both"),
        evaluate=solve,
    )


def advantages_by_definition(reward: float, values: torch.Tensor) -> torch.Tensor:
    """A_t = Σ (γλ)^l δ_{t+l}, summed out and not by recursion; the reward stands on the last token."""
    count = len(values)
    after = torch.cat([values[1:], torch.zeros(1, dtype=torch.float64)])
    paid = torch.zeros(count, dtype=torch.float64)
    paid[-1] = reward
    deltas = paid + 0.98 * after - values
    return torch.stack([sum((0.98 * 0.9) ** (at - t) * deltas[at] for at in range(t, count)) for t in range(count)])


@pytest.mark.whole
def test_ppo_and_its_critic():
    trainer = CoTrainer(actor_and_critic(lr=RATE, lr_warmup=0, updates_per_batch=UPDATES, **SIZE))
    before = {policy: copied(trainer, policy) for policy in ("generator", "critic")}
    step = trainer.step()
    rows = rows_of(step)
    tokens = sum(len(row.token_ids) for row in rows)
    values_model = Critic(before["critic"])
    with torch.no_grad():
        old_values = [values_model.values(row) for row in rows]
    advantages = [advantages_by_definition(row.reward, old) for row, old in zip(rows, old_values, strict=True)]
    targets = [a + old for a, old in zip(advantages, old_values, strict=True)]
    white = standardised(torch.cat(advantages)).split([len(a) for a in advantages])

    def policy_loss(speaker: Speaker) -> torch.Tensor:
        parts = [
            clipped_loss(speaker.logprobs(row) - row.logprobs, a, 0.2, 0.2).sum()
            for row, a in zip(rows, white, strict=True)
        ]
        return sum(parts) / tokens

    def value_loss(model: Critic) -> torch.Tensor:
        total = torch.zeros((), dtype=torch.float64)
        for row, old, target in zip(rows, old_values, targets, strict=True):
            values = model.values(row)
            near = old + (values - old).clamp(-0.01, 0.01)
            total = total + 0.5 * torch.maximum((values - target) ** 2, (near - target) ** 2).sum()
        return total / tokens

    speaker = Speaker()
    assert learn(speaker, policy_loss, UPDATES) == pytest.approx(step.row["generator/grad_norm"], rel=5e-3)
    assert learn(values_model, value_loss, UPDATES) == pytest.approx(step.row["critic/grad_norm"], rel=5e-3)
    assert_same_update(speaker, before["generator"], trainer, "generator")
    assert_same_update(values_model, before["critic"], trainer, "critic")


# -- GSPO


@recipe
def sequence_clip(run: RunConfig) -> Recipe:
    by = PolicyGradient(reward_weights={OUTCOME: 1.0}, loss=GSPOClip(3e-4, 4e-4), normalise="sequence")
    return run.recipe(
        "gspo",
        policies={"generator": run.learner()},
        roles={"solver": common_roles.solver("generator", run.model)},
        objectives={"generator": Objective(policy="generator", role="solver", algorithm=by)},
        schedule=constant_schedule(solve, "generator", name="generator"),
        evaluate=solve,
    )


@pytest.mark.whole
def test_gspo():
    """Each sequence has one ratio, exp(mean of log-ratios), and counts the same whatever its length."""
    trainer = CoTrainer(sequence_clip(lr=RATE, lr_warmup=0, updates_per_batch=UPDATES, kl=0.0, **SIZE))
    before = copied(trainer, "generator")
    step = trainer.step()
    rows = rows_of(step)
    kept = kept_of(rows, group_advantages(rows, [row.reward for row in rows]))

    def loss_of(speaker: Speaker) -> torch.Tensor:
        parts = [clipped_loss((speaker.logprobs(row) - row.logprobs).mean(), a, 3e-4, 4e-4) for row, a in kept]
        return sum(parts) / len(kept)

    speaker = Speaker()
    assert learn(speaker, loss_of, UPDATES) == pytest.approx(step.row["generator/grad_norm"], rel=5e-3)
    assert_same_update(speaker, before, trainer, "generator")


# -- Length


LIMIT = 36  # tokens, at which some answers are cut and others not


def overlong_penalty(row: Row, tokens: int) -> float:
    """DAPO, eq. 13."""
    length = len(row.token_ids)
    if length <= LIMIT - tokens:
        return 0.0
    return (LIMIT - tokens - length) / tokens


def length_reward(row: Row, rows: Sequence[Row], weight: float) -> float:
    """Kimi k1.5, section 2.3.3: λ for a right answer, min(0, λ) for a wrong one."""
    lengths = [len(other.token_ids) for other in rows if other.group == row.group]
    if min(lengths) == max(lengths):
        return 0.0
    lam = 0.5 - (len(row.token_ids) - min(lengths)) / (max(lengths) - min(lengths))
    return weight * (lam if row.reward == 1.0 else min(0.0, lam))


LENGTHS = {
    "overlong": {"overlong_tokens": 4},
    "shorter": {"length_penalty": 0.5},
    "all": {"overlong_tokens": 4, "length_penalty": 0.5, "mask_truncated": True},
}


@pytest.mark.whole
@pytest.mark.parametrize("name", LENGTHS)
def test_lengths(name):
    options = LENGTHS[name]
    made = grpo(lr=RATE, lr_warmup=0, updates_per_batch=UPDATES, kl=0.0, **SIZE, **options)
    trainer = CoTrainer(override(made, [f"roles.solver.sampling.max_tokens={LIMIT}"]))
    before = copied(trainer, "generator")
    step = trainer.step()
    rows = rows_of(step)
    assert {row.truncated for row in rows} == {True, False}
    rewards = [
        row.reward
        + (overlong_penalty(row, options["overlong_tokens"]) if "overlong_tokens" in options else 0.0)
        + length_reward(row, rows, options.get("length_penalty", 0.0))
        for row in rows
    ]
    kept = kept_of(rows, group_advantages(rows, rewards))
    if options.get("mask_truncated"):
        kept = [(row, a) for row, a in kept if not row.truncated]
    tokens = sum(len(row.token_ids) for row, _ in kept)

    def loss_of(speaker: Speaker) -> torch.Tensor:
        parts = [clipped_loss(speaker.logprobs(row) - row.logprobs, a, 0.2, 0.2).sum() for row, a in kept]
        return sum(parts) / tokens

    speaker = Speaker()
    assert learn(speaker, loss_of, UPDATES) == pytest.approx(step.row["generator/grad_norm"], rel=5e-3)
    assert_same_update(speaker, before, trainer, "generator")
