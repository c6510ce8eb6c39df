"""RL Tango in plain PyTorch and transformers: what ``cotrain run tango`` does, without the framework.

    python reference/tango.py --warmup 5 --cycles 10

Two models are trained in turn (arXiv 2505.15034). The *generator* solves word problems step by step. The *verifier*
reads a problem and a solution, judges each step and then the answer.

    verifier:   reward = 1 if its final verdict is right + 0.8 if it keeps the format. It never sees a label of a step.
    generator:  reward = 1 if its answer is right; and each step is rewarded by the verifier's word on it.

First the verifier learns alone, then in turn: three updates of the generator, one of the verifier. The two rewards of
the generator are compared with its group one by one, and then mixed: A = (1 − α) · A_outcome + α · A_steps, where α
falls from 0.1 to 0.001 over the generator's updates.

Left out: what grpo.py leaves out. Numbers agree with the framework's (``tests/test_reference.py``).
"""

import argparse
import copy
import json
import math
import re
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

ROOT = Path(__file__).resolve().parents[1]
BASE = ROOT / "cotrain" / "assets" / "base"  # 0.9 million parameters, taught the format below
PROBLEMS = ROOT / "reference" / "problems.jsonl"

SOLVE = "{problem}\nSolve:"
REVIEW = "{problem}\n{solution}\nReview:"
SOLVE_TOKENS = 160
REVIEW_TOKENS = 208
REVIEWS = 8  # of each solution, where the verifier learns
FORMAT_WEIGHT = 0.8
ALPHA_START = 0.1
ALPHA_END = 0.001
COUNT_DECAY = 0.8  # of the running counts of right and wrong solutions

LEARNING_RATE = 2e-4
WARMUP = 5  # updates over which the learning rate rises
CLIP = 0.2  # the ratio is clipped to [1 − CLIP, 1 + CLIP]
KL_WEIGHT = 0.001  # of the generator's KL term; the verifier has none
MAX_GRADIENT_NORM = 1.0


@dataclass
class Sample:
    """One sampled answer."""

    prompt_ids: list[int]
    token_ids: list[int]  # [T], with the token that ended it
    logprobs: Tensor  # [T], under the weights that sampled it
    text: str


# 1. Problems, solutions and reviews


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


@dataclass
class Solution:
    """What a parser reads in a solution."""

    step_ends: list[int]  # where each step's closing tag ends, in characters
    answer: str


def read_solution(text: str) -> Solution | None:
    """Steps in ``<step>`` tags, then one answer in ``<answer>`` tags, and nothing else; None for any other text."""
    if not re.fullmatch(r"(\s*<step>[^<>]*</step>)+\s*<answer>[^<>]+</answer>\s*", text):
        return None
    step_ends = [match.end() for match in re.finditer(r"</step>", text)]
    answer = re.search(r"<answer>([^<>]+)</answer>", text)[1]
    return Solution(step_ends, answer.strip())


@dataclass
class Review:
    """What a parser reads in a review."""

    steps: list[bool]  # does it call each step right?
    final: bool


def read_review(text: str, count: int) -> Review | None:
    """One ``<step>`` that ends in CORRECT or INCORRECT for each of ``count`` steps, then the verdict on the answer."""
    if not re.fullmatch(r"(\s*<step>[^<>]*\b(IN)?CORRECT</step>)+\s*<final>(IN)?CORRECT</final>\s*", text):
        return None
    words = re.findall(r"\b((?:IN)?CORRECT)</", text)
    verdicts = [word == "CORRECT" for word in words]
    if len(verdicts) != count + 1:
        return None
    return Review(verdicts[:-1], verdicts[-1])


# 2. Advantages


def standardise(values: Tensor) -> Tensor:
    """(v − mean) / (std + 1e-6) of one group [N]; 0 where all are equal."""
    if len(values) < 2 or values.max() == values.min():
        return torch.zeros_like(values)
    return (values - values.mean()) / (values.std() + 1e-6)


def token_at(tokenizer, token_ids: list[int], character: int) -> int:
    """The token that writes the last character before this place of the text."""
    for place in range(len(token_ids)):
        if len(tokenizer.decode(token_ids[: place + 1], skip_special_tokens=True)) >= character:
            return place
    raise ValueError(f"the text has no character {character}")


def step_rewards(tokenizer, one: Sample, verdicts: list[bool] | None) -> list[tuple[int, float]]:
    """(token, reward) of each of K steps: ±1/K on the last token of the step. A solution that cannot be read counts as
    one wrong step; one whose review cannot be read has none."""
    solution = read_solution(one.text)
    if solution is None:
        return [(token_at(tokenizer, one.token_ids, len(one.text)), -1.0)] if one.text else []
    if verdicts is None:
        return []
    size = 1.0 / len(verdicts)
    places = [token_at(tokenizer, one.token_ids, end) for end in solution.step_ends]
    return [(place, size if right else -size) for place, right in zip(places, verdicts, strict=True)]


def step_advantages(group: list[Sample], rewards: list[list[tuple[int, float]]]) -> list[Tensor]:
    """All steps of a group are standardised together; a token is worth the sum of the steps that end at it or later."""
    values = torch.tensor([value for steps in rewards for _, value in steps], dtype=torch.float64)
    standardised = iter(standardise(values).tolist())
    advantages = []
    for one, steps in zip(group, rewards, strict=True):
        worth = torch.zeros(len(one.token_ids), dtype=torch.float64)
        for place, _ in steps:
            worth[place] += next(standardised)
        advantages.append(worth.flip(0).cumsum(0).flip(0))
    return advantages


def generator_advantages(
    group: list[Sample], outcomes: list[float], steps: list[list[tuple[int, float]]], alpha: float
) -> list[Tensor]:
    """(1 − α) · outcome + α · steps, for every token of every answer of a group."""
    outcome = standardise(torch.tensor(outcomes, dtype=torch.float64))
    mixed = []
    for value, worth in zip(outcome, step_advantages(group, steps), strict=True):
        mixed.append(((1 - alpha) * value + alpha * worth).float())
    return mixed


def verifier_advantages(group: list[Sample], agreements: list[float], formats: list[float]) -> list[Tensor]:
    """Here the two rewards are added first, and the reviews of one solution are compared with each other."""
    rewards = torch.tensor(agreements, dtype=torch.float64) + FORMAT_WEIGHT * torch.tensor(formats, dtype=torch.float64)
    return [value.float().expand(len(one.token_ids)) for value, one in zip(standardise(rewards), group, strict=True)]


def alpha_at(updates: int, planned: int) -> float:
    """α falls exponentially over the generator's own updates."""
    return max(ALPHA_END, ALPHA_START * math.exp(-updates * math.log(ALPHA_START / ALPHA_END) / planned))


class ClassBalance:
    """Reviews of the rarer kind of solution count more: a weight of 1 / √n, with a running count n of each kind."""

    def __init__(self):
        self.counts = {False: 0.0, True: 0.0}

    def weights(self, labels: list[bool], kept: list[bool]) -> list[float]:
        """Of the reviews that are ``kept``, with mean 1, after all ``labels`` of the batch were counted."""
        for label in self.counts:
            self.counts[label] = COUNT_DECAY * self.counts[label] + (1 - COUNT_DECAY) * labels.count(label)
        weights = [self.counts[label] ** -0.5 for label, keep in zip(labels, kept, strict=True) if keep]
        mean = sum(weights) / len(weights) if weights else 1.0
        return [weight / mean for weight in weights]


# 3. The update


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


def update(
    learner: Learner,
    samples: list[Sample],
    advantages: list[Tensor],
    *,
    weights: list[float] | None = None,
    reference=None,
    batch: int = 16,
) -> None:
    """One update by all samples, of which every token counts the same. ``weights``: of the samples' losses."""
    tokens = sum(len(one.token_ids) for one in samples)
    if not samples:
        return
    factors = weights or [1.0] * len(samples)
    for start in range(0, len(samples), batch):
        part = samples[start : start + batch]
        loss = torch.zeros(())
        logprobs = token_logprobs(learner.model, part)
        for one, mine, advantage, weight in zip(
            part, logprobs, advantages[start : start + batch], factors[start : start + batch], strict=True
        ):
            loss = loss + weight * policy_loss(mine, one.logprobs, advantage).sum() / tokens
        if reference is not None:
            with torch.no_grad():
                reference_logprobs = token_logprobs(reference, part)
            for mine, ref in zip(logprobs, reference_logprobs, strict=True):
                loss = loss + KL_WEIGHT * kl_loss(mine, ref).sum() / tokens
        loss.backward()
    learner.step()


def has_spread(group: list[Tensor]) -> bool:
    """Groups in which no token has an advantage are left out of the update."""
    return any(bool(advantage.any()) for advantage in group)


# 4. The two kinds of step


def solve(model, tokenizer, problems: list[dict]) -> list[Sample]:
    prompts = [encode_prompt(tokenizer, SOLVE.format(problem=p["problem"])) for p in problems]
    return sample(model, tokenizer, prompts, SOLVE_TOKENS)


def review(model, tokenizer, problems: list[dict], solutions: list[Sample], count: int) -> list[list[Sample]]:
    """``count`` reviews of each solution."""
    prompts = []
    for problem, solution in zip(problems, solutions, strict=True):
        prompt = encode_prompt(tokenizer, REVIEW.format(problem=problem["problem"], solution=solution.text))
        prompts += [prompt] * count
    if not prompts:
        return []
    reviews = sample(model, tokenizer, prompts, REVIEW_TOKENS)
    return [reviews[i : i + count] for i in range(0, len(reviews), count)]


def is_right(problem: dict, solution: Sample) -> bool:
    found = read_solution(solution.text)
    return found is not None and found.answer == problem["answer"]


def generator_step(generator: Learner, verifier: Learner, reference, tokenizer, problems, group_size, alpha) -> float:
    """The generator learns from its outcomes and from one review of each solution. Returns the share of right ones."""
    asked = [problem for problem in problems for _ in range(group_size)]
    solutions = solve(generator.model, tokenizer, asked)
    outcomes = [float(is_right(p, s)) for p, s in zip(asked, solutions, strict=True)]

    readable = [i for i, solution in enumerate(solutions) if read_solution(solution.text)]
    reviews = review(verifier.model, tokenizer, [asked[i] for i in readable], [solutions[i] for i in readable], 1)
    verdicts: dict[int, list[bool]] = {}
    for i, [written] in zip(readable, reviews, strict=True):
        read = read_review(written.text, len(read_solution(solutions[i].text).step_ends))
        if read is not None:
            verdicts[i] = read.steps

    kept: list[Sample] = []
    advantages: list[Tensor] = []
    for start in range(0, len(solutions), group_size):
        places = range(start, start + group_size)
        group = [solutions[i] for i in places]
        steps = [step_rewards(tokenizer, solutions[i], verdicts.get(i)) for i in places]
        worth = generator_advantages(group, [outcomes[i] for i in places], steps, alpha)
        if has_spread(worth):
            kept += group
            advantages += worth
    update(generator, kept, advantages, reference=reference)
    return sum(outcomes) / len(outcomes)


def verifier_step(generator: Learner, verifier: Learner, tokenizer, problems, balance: ClassBalance) -> float:
    """The verifier learns from eight reviews of one solution to each problem. Returns the share of right verdicts."""
    solutions = solve(generator.model, tokenizer, problems)
    readable = [(p, s) for p, s in zip(problems, solutions, strict=True) if read_solution(s.text)]
    groups = review(verifier.model, tokenizer, [p for p, _ in readable], [s for _, s in readable], REVIEWS)

    kept: list[Sample] = []
    advantages: list[Tensor] = []
    labels: list[bool] = []
    learned: list[bool] = []
    right_verdicts = 0
    for (problem, solution), group in zip(readable, groups, strict=True):
        label = is_right(problem, solution)
        count = len(read_solution(solution.text).step_ends)
        read = [read_review(one.text, count) for one in group]
        agreements = [float(one is not None and one.final == label) for one in read]
        formats = [float(one is not None) for one in read]
        worth = verifier_advantages(group, agreements, formats)
        spread = has_spread(worth)
        labels += [label] * len(group)
        learned += [spread] * len(group)
        right_verdicts += int(sum(agreements))
        if spread:
            kept += group
            advantages += worth
    update(verifier, kept, advantages, weights=balance.weights(labels, learned))
    return right_verdicts / max(1, len(labels))


# The loop


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--generator", default=str(BASE))
    parser.add_argument("--verifier", default=str(BASE))
    parser.add_argument("--warmup", type=int, default=5, help="updates of the verifier alone")
    parser.add_argument("--cycles", type=int, default=10, help="three updates of the generator, one of the verifier")
    parser.add_argument("--problems", type=int, default=16, help="problems of a step")
    parser.add_argument("--group-size", type=int, default=8, help="solutions of each problem")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()

    torch.manual_seed(options.seed)
    tokenizer = AutoTokenizer.from_pretrained(options.generator)
    model = AutoModelForCausalLM.from_pretrained(options.generator, dtype=torch.float32)
    reference = copy.deepcopy(model).requires_grad_(False)
    generator = Learner(model)
    verifier = Learner(AutoModelForCausalLM.from_pretrained(options.verifier, dtype=torch.float32))
    balance = ClassBalance()
    train, _ = load_problems()

    schedule = ["verifier"] * options.warmup + ["generator", "generator", "generator", "verifier"] * options.cycles
    planned = schedule.count("generator")
    for step, who in enumerate(schedule):
        first = step * options.problems
        problems = [train[(first + i) % len(train)] for i in range(options.problems)]
        if who == "generator":
            alpha = alpha_at(generator.updates, planned)
            reward = generator_step(generator, verifier, reference, tokenizer, problems, options.group_size, alpha)
            print(f"step {step + 1}, generator: {reward:.3f} of its answers are right")
        else:
            reward = verifier_step(generator, verifier, tokenizer, problems, balance)
            print(f"step {step + 1}, verifier: {reward:.3f} of its verdicts are right")


if __name__ == "__main__":
    main()
