"""GRPO in plain PyTorch and transformers: what ``cotrain run grpo`` does, without the framework.

    python reference/grpo.py --steps 40

One model answers arithmetic word problems and learns from its own answers (DeepSeekMath, arXiv 2402.03300, §4). A step:

    1. sample G answers to each of P problems
    2. reward an answer with 1 if it is right, else 0
    3. compare it with its group: advantage = (reward − mean) / standard deviation
    4. make one update: clipped policy gradient, plus a KL term to the model of the start

The answers are sampled from the weights that learn from them and each batch is used once, so the ratio of the two is 1
and the clip has nothing to do. Both are written out because every GRPO has them.

Left out, and what the framework is for: a second model (tango.py), a batching engine, checkpoints, resuming, intervals,
alarms, a record of every answer, several processes, answers of other formats. Numbers agree with the framework's:
``tests/test_reference.py`` gives both the same answers and compares advantages and updated weights.
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
LEARNING_RATE = 2e-4
WARMUP = 5  # updates over which the learning rate rises
CLIP = 0.2  # the ratio is clipped to [1 − CLIP, 1 + CLIP]
KL_WEIGHT = 0.001
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


# 2. Rewards


def outcome_reward(problem: dict, text: str) -> float:
    """1 for the right number between the tags of the answer, else 0."""
    found = re.search(r"<answer>(.*?)</answer>\s*$", text, re.DOTALL)
    return float(found is not None and found[1].strip() == problem["answer"])


# 3. Advantages


def group_advantages(rewards: Tensor) -> Tensor:
    """(r − mean) / (std + 1e-6) within each row of ``rewards`` [P, G]; 0 where all answers of a group earn the same."""
    mean = rewards.mean(dim=1, keepdim=True)
    std = rewards.std(dim=1, keepdim=True)
    advantages = (rewards - mean) / (std + 1e-6)
    same = rewards.max(dim=1, keepdim=True).values == rewards.min(dim=1, keepdim=True).values
    return torch.where(same, torch.zeros_like(rewards), advantages)


# 4. The update


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


def kl_loss(logprobs: Tensor, reference: Tensor) -> Tensor:
    """Schulman's estimate k3 of KL(π ‖ π_ref) for each token [T]: r − 1 − log r, with r = π_ref / π."""
    log_ratio = reference - logprobs
    return log_ratio.exp() - 1 - log_ratio


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


def update(learner: Learner, reference, samples: list[Sample], advantages: list[Tensor], batch: int = 16) -> None:
    """One update by all answers whose group has a spread; every token counts the same."""
    kept = [(one, advantage) for one, advantage in zip(samples, advantages, strict=True) if bool(advantage.any())]
    tokens = sum(len(one.token_ids) for one, _ in kept)
    if not kept:
        return
    for start in range(0, len(kept), batch):
        part = kept[start : start + batch]
        answers = [one for one, _ in part]
        with torch.no_grad():
            reference_logprobs = token_logprobs(reference, answers)
        loss = torch.zeros(())
        for (one, advantage), logprobs, ref in zip(
            part, token_logprobs(learner.model, answers), reference_logprobs, strict=True
        ):
            loss = loss + policy_loss(logprobs, one.logprobs, advantage).sum() / tokens
            loss = loss + KL_WEIGHT * kl_loss(logprobs, ref).sum() / tokens
        loss.backward()
    learner.step()


# The loop


def accuracy(model, tokenizer, problems: list[dict]) -> float:
    """The share of problems whose greedy answer is right."""
    prompts = [encode_prompt(tokenizer, PROMPT.format(problem=p["problem"])) for p in problems]
    answers = sample(model, tokenizer, prompts, MAX_TOKENS, greedy=True)
    return sum(outcome_reward(p, a.text) for p, a in zip(problems, answers, strict=True)) / len(problems)


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
    reference = copy.deepcopy(model).requires_grad_(False)
    learner = Learner(model)
    train, test = load_problems()
    test = test[: options.held_out]
    print(f"greedy accuracy before: {accuracy(model, tokenizer, test):.3f}")

    for step in range(options.steps):
        first = step * options.problems
        problems = [train[(first + i) % len(train)] for i in range(options.problems)]
        asked = [problem for problem in problems for _ in range(options.group_size)]
        prompts = [encode_prompt(tokenizer, PROMPT.format(problem=problem["problem"])) for problem in asked]

        answers = sample(model, tokenizer, prompts, MAX_TOKENS)
        rewards = torch.tensor([outcome_reward(p, a.text) for p, a in zip(asked, answers, strict=True)])
        advantages = group_advantages(rewards.view(options.problems, options.group_size)).flatten()
        on_tokens = [a.expand(len(one.token_ids)) for a, one in zip(advantages, answers, strict=True)]
        update(learner, reference, answers, on_tokens)
        print(f"step {step + 1}: reward {rewards.mean():.3f}")

    print(f"greedy accuracy after: {accuracy(model, tokenizer, test):.3f}")


if __name__ == "__main__":
    main()
