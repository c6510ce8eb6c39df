"""PRIME in plain PyTorch and transformers: what ``cotrain run prime`` does, without the framework.

    python reference/prime.py --steps 40

Process rewards without process labels (arXiv 2502.01456). Beside the generator learns a second model φ, the *implicit
reward model*, which never speaks. Its reward for a token is a log-ratio to the model of the start:

    r_t = log π_φ(y_t | ·) − log π_start(y_t | ·)

and it learns, from outcomes alone, that the sum over a right answer is high: CE(σ(β Σ_t r_t), outcome). A step:

    1. sample G answers to each of P problems; the outcome is 1 or 0
    2. keep the groups of which 20 to 80 % are right
    3. φ scores the tokens; both rewards are compared with the others of the group (RLOO), added and whitened
    4. one clipped update of the generator; then one update of φ, on all answers

Left out: what grpo.py leaves out. Numbers agree with the framework's (``tests/test_reference.py``).
"""

import argparse
import copy
import json
import re
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

ROOT = Path(__file__).resolve().parents[1]
BASE = ROOT / "cotrain" / "assets" / "base"  # 0.9 million parameters, taught the format below
PROBLEMS = ROOT / "reference" / "problems.jsonl"

PROMPT = "{problem}\nSolve:"
MAX_TOKENS = 160
BETA = 0.05
KEEP = (0.2, 0.8)  # share of right answers of a group that the generator learns from
OUTCOME_WEIGHT = 5.0
PROCESS_WEIGHT = 5.0

LEARNING_RATE = 2e-4
WARMUP = 5  # updates over which the learning rate rises
CLIP = 0.2  # the ratio is clipped to [1 − CLIP, 1 + CLIP]
MAX_GRADIENT_NORM = 1.0


@dataclass
class Sample:
    """One sampled answer."""

    prompt_ids: list[int]
    token_ids: list[int]  # [T], with the token that ended it
    logprobs: Tensor  # [T], under the weights that sampled it
    text: str


# 1. Problems and answers


def load_problems(path: Path = PROBLEMS) -> tuple[list[dict], list[dict]]:
    """Problems to train on, and held-out ones."""
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    train = [row for row in rows if row["split"] == "train"]
    test = [row for row in rows if row["split"] == "test"]
    return train, test


def encode_prompt(tokenizer, text: str) -> list[int]:
    """The text as a user's message, up to where the model's reply begins."""
    message = {"role": "user", "content": text}
    return tokenizer.apply_chat_template([message], add_generation_prompt=True, return_dict=False)


@torch.no_grad()
def sample(model, tokenizer, prompts: list[list[int]], max_tokens: int, *, greedy: bool = False) -> list[Sample]:
    """One answer to each prompt, drawn at temperature 1."""
    longest = max(len(prompt) for prompt in prompts)
    ids = torch.tensor([[tokenizer.pad_token_id] * (longest - len(p)) + p for p in prompts])
    mask = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts])
    how = {"do_sample": False} if greedy else {"do_sample": True, "temperature": 1.0, "top_k": 0}
    output = model.generate(input_ids=ids, attention_mask=mask, max_new_tokens=max_tokens, **how)

    samples = []
    for prompt, row in zip(prompts, output[:, longest:].tolist(), strict=True):
        token_ids = row
        if tokenizer.eos_token_id in row:
            token_ids = row[: row.index(tokenizer.eos_token_id) + 1]
        text = tokenizer.decode(token_ids, skip_special_tokens=True)
        samples.append(Sample(prompt, token_ids, torch.zeros(len(token_ids)), text))
    for one, logprobs in zip(samples, token_logprobs(model, samples), strict=True):
        one.logprobs = logprobs
    return samples


def outcome_reward(problem: dict, text: str) -> float:
    """1 for the right number between the tags of the answer, else 0."""
    found = re.search(r"<answer>(.*?)</answer>\s*$", text, re.DOTALL)
    return float(found is not None and found[1].strip() == problem["answer"])


# 2. Advantages


def leave_one_out(values: Tensor) -> Tensor:
    """Each value of a group [G] minus the mean of the others; 0 where all are equal."""
    if len(values) < 2 or values.max() == values.min():
        return torch.zeros_like(values)
    return (values - values.mean()) * len(values) / (len(values) - 1)


def to_go(rewards: Tensor) -> Tensor:
    """The sum of the rewards at a token and behind it, [T]."""
    return rewards.flip(0).cumsum(0).flip(0)


def scale_rewards(rewards: list[Tensor]) -> list[Tensor]:
    """Divided by the largest return of the batch, so that none exceeds 1."""
    largest = max((float(to_go(one).abs().max()) for one in rewards), default=0.0)
    return [one / largest for one in rewards] if largest > 0 else rewards


def group_returns(outcomes: Tensor, rewards: list[Tensor]) -> list[Tensor]:
    """What each token of a group of G answers returns, before whitening. ``outcomes``: [G]; ``rewards``: [T] each.

    A token's process reward is compared with the mean token reward of the other answers.
    """
    count = len(rewards)
    outcome = leave_one_out(outcomes)
    shift = leave_one_out(torch.stack([one.mean() for one in rewards]))
    returns = []
    for i, one in enumerate(rewards):
        process = (one - one.mean()) * count / (count - 1) + shift[i]
        returns.append(OUTCOME_WEIGHT * outcome[i] + PROCESS_WEIGHT * to_go(process))
    return returns


def whiten(returns: list[Tensor]) -> list[Tensor]:
    """(x − mean) / (std + 1e-6) over all tokens of the batch."""
    every = torch.cat(returns)
    if every.max() == every.min():
        return [torch.zeros_like(one).float() for one in returns]
    return [((one - every.mean()) / (every.std() + 1e-6)).float() for one in returns]


# 3. The updates


def token_logprobs(model, samples: list[Sample]) -> list[Tensor]:
    """log π of every sampled token, one [T] for each sample."""
    rows = [one.prompt_ids + one.token_ids for one in samples]
    longest = max(len(row) for row in rows)
    ids = torch.tensor([row + [0] * (longest - len(row)) for row in rows])
    mask = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in rows])
    logits = model(input_ids=ids, attention_mask=mask).logits.float()

    logprobs = []
    for one, row in zip(samples, logits, strict=True):
        start = len(one.prompt_ids) - 1  # these logits predict the first sampled token
        predicted = row[start : start + len(one.token_ids)].log_softmax(-1)
        chosen = torch.tensor(one.token_ids)[:, None]
        logprobs.append(predicted.gather(1, chosen)[:, 0])
    return logprobs


def policy_loss(logprobs: Tensor, old: Tensor, advantages: Tensor) -> Tensor:
    """−min(r·A, clip(r)·A) for each token [T], with the ratio r = π / π_old."""
    ratio = (logprobs - old).exp()
    clipped = ratio.clamp(1 - CLIP, 1 + CLIP)
    return -torch.minimum(ratio * advantages, clipped * advantages)


class Learner:
    """A model, its optimizer, and the number of updates that were made."""

    def __init__(self, model, lr: float = LEARNING_RATE):
        self.model = model
        self.lr = lr
        self.updates = 0
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=lr, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.0)

    def step(self) -> None:
        """One update by the gradients that were added up."""
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), MAX_GRADIENT_NORM)
        rate = self.lr * min(1.0, (self.updates + 1) / WARMUP)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.updates += 1


def update_generator(learner: Learner, samples: list[Sample], advantages: list[Tensor], batch: int = 16) -> None:
    """One clipped update, in which every token counts the same."""
    tokens = sum(len(one.token_ids) for one in samples)
    if not samples:
        return
    for start in range(0, len(samples), batch):
        part = samples[start : start + batch]
        loss = torch.zeros(())
        for one, logprobs, advantage in zip(
            part, token_logprobs(learner.model, part), advantages[start : start + batch], strict=True
        ):
            loss = loss + policy_loss(logprobs, one.logprobs, advantage).sum() / tokens
        loss.backward()
    learner.step()


def update_reward_model(
    learner: Learner, start_model, samples: list[Sample], outcomes: Tensor, batch: int = 16
) -> None:
    """One update of φ: the sum of its rewards, times β, is the logit of a right answer."""
    for start in range(0, len(samples), batch):
        part = samples[start : start + batch]
        with torch.no_grad():
            before = token_logprobs(start_model, part)
        loss = torch.zeros(())
        for mine, reference, outcome in zip(
            token_logprobs(learner.model, part), before, outcomes[start : start + batch], strict=True
        ):
            logit = BETA * (mine - reference).sum()
            target = outcome.to(logit)
            loss = loss + torch.nn.functional.binary_cross_entropy_with_logits(logit, target) / len(samples)
        loss.backward()
    learner.step()


def process_rewards(reward_model, start_model, samples: list[Sample], batch: int = 16) -> list[Tensor]:
    """log π_φ − log π_start of each token, [T] for each sample."""
    rewards = []
    with torch.no_grad():
        for start in range(0, len(samples), batch):
            part = samples[start : start + batch]
            pairs = zip(token_logprobs(reward_model, part), token_logprobs(start_model, part), strict=True)
            rewards += [(mine - reference).double() for mine, reference in pairs]
    return rewards


# The loop


def accuracy(model, tokenizer, problems: list[dict]) -> float:
    """The share of problems whose greedy answer is right."""
    prompts = [encode_prompt(tokenizer, PROMPT.format(problem=p["problem"])) for p in problems]
    answers = sample(model, tokenizer, prompts, MAX_TOKENS, greedy=True)
    return sum(outcome_reward(p, a.text) for p, a in zip(problems, answers, strict=True)) / len(problems)


def train_step(generator: Learner, reward_model: Learner, start_model, answers: list[Sample], outcomes: Tensor) -> None:
    """Both updates, from the answers to P problems. ``outcomes``: [P, G]."""
    size = outcomes.shape[1]
    groups = [answers[i : i + size] for i in range(0, len(answers), size)]
    kept = [i for i, row in enumerate(outcomes) if KEEP[0] <= float(row.mean()) <= KEEP[1]]
    learned = [one for i in kept for one in groups[i]]

    rewards = scale_rewards(process_rewards(reward_model.model, start_model, learned))
    returns = []
    for place, i in enumerate(kept):
        mine = rewards[place * size : (place + 1) * size]
        returns += group_returns(outcomes[i].double(), mine)
    if learned:
        update_generator(generator, learned, whiten(returns))
    update_reward_model(reward_model, start_model, answers, outcomes.flatten())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default=str(BASE))
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--problems", type=int, default=16, help="problems of a step")
    parser.add_argument("--group-size", type=int, default=8, help="answers to each problem")
    parser.add_argument("--held-out", type=int, default=64, help="problems that are measured before and after")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()

    torch.manual_seed(options.seed)
    tokenizer = AutoTokenizer.from_pretrained(options.model)
    model = AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.float32)
    start_model = copy.deepcopy(model).requires_grad_(False)
    generator = Learner(model)
    reward_model = Learner(copy.deepcopy(model))
    train, test = load_problems()
    test = test[: options.held_out]
    print(f"greedy accuracy before: {accuracy(model, tokenizer, test):.3f}")

    for step in range(options.steps):
        first = step * options.problems
        problems = [train[(first + i) % len(train)] for i in range(options.problems)]
        asked = [problem for problem in problems for _ in range(options.group_size)]
        prompts = [encode_prompt(tokenizer, PROMPT.format(problem=problem["problem"])) for problem in asked]

        answers = sample(model, tokenizer, prompts, MAX_TOKENS)
        outcomes = torch.tensor([outcome_reward(p, a.text) for p, a in zip(asked, answers, strict=True)])
        train_step(generator, reward_model, start_model, answers, outcomes.view(options.problems, options.group_size))
        print(f"step {step + 1}: {outcomes.mean():.3f} of the answers are right")

    print(f"greedy accuracy after: {accuracy(model, tokenizer, test):.3f}")


if __name__ == "__main__":
    main()
