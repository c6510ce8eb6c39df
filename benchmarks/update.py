"""One update of the learner: micro-batches with shared prompts and no padding, padded rows, or batches as they were
drawn.

    python benchmarks/update.py --layout shared|padded|drawn --model DIR [--lengths drawn]

The same samples, loss and weights for both; the loss and the norm of the first gradient are reported, so that whoever
compares can see that both computed the same. The padded layout is the learner's own for models whose attention cannot
be replaced: rows sorted by length, so that little is padded, under the same budget of tokens. Drawn is what trainers do
that know neither: so many rows at a time, in the order of drawing, each padded to the longest beside it.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from transformers import PreTrainedModel
from work import FIRST, VOCABULARY, Work, answer, middle, now, side, work_of

from cotrain.algorithms.contract import LossTerm, Sample, UpdateReport
from cotrain.algorithms.grpo import GRPO
from cotrain.config.policies import Trained
from cotrain.core.seeding import rng_of
from cotrain.core.signals import OUTCOME
from cotrain.learner.batching import plan_update
from cotrain.learner.learner import TorchLearner
from cotrain.models.load import load_model

LAYOUTS = ("shared", "padded", "drawn")
ROWS = 32  # of a batch as drawn, the number at which TRL was fastest in float32 (``run.py``)
BUDGET: int = Trained.__dataclass_fields__["micro_tokens"].default  # of tokens in a pass, as a run has it


def learner_of(model: PreTrainedModel, layout: str, budget: int = BUDGET, autocast: bool = False) -> TorchLearner:
    learner = TorchLearner(model, lr=1e-4, micro_tokens=budget, autocast=autocast)
    learner.scorer.shared = learner.scorer.shared and layout == "shared"
    return learner


def update(learner: TorchLearner, layout: str, term: LossTerm, budget: int = BUDGET) -> UpdateReport:
    """One update; in the layout "drawn" in batches of ``ROWS`` samples as they come."""
    plan = plan_update([term], micro_tokens=budget, shared=learner.scorer.shared)
    if layout == "drawn":
        count = len(term.samples)
        batches = tuple(tuple(range(i, min(i + ROWS, count))) for i in range(0, count, ROWS))
        plan = tuple(replace(planned, batches=batches) for planned in plan)
    return learner.apply_plan(plan)


def samples_of(work: Work, step: int, learner: TorchLearner) -> tuple[Sample, ...]:
    """Random answers with random advantages; behaviour is what the model says of them."""
    rng = rng_of("update", step)
    prompts = [p for p in work.prompts(work.tasks * (step + 1))[-work.tasks :] for _ in range(work.group)]
    answers = [tuple(rng.randrange(FIRST, VOCABULARY) for _ in range(length)) for length in work.answers(step)]
    sampler_logprobs = learner.logprobs(list(zip(prompts, answers, strict=True)))
    return tuple(
        Sample(
            key=str(i),
            prompt_ids=prompt,
            token_ids=tokens,
            sampler_logprobs=said,
            advantages=torch.full((len(tokens),), rng.gauss(0.0, 1.0)),
        )
        for i, (prompt, tokens, said) in enumerate(zip(prompts, answers, sampler_logprobs, strict=True))
    )


def main() -> None:
    parser = side(__doc__.splitlines()[0])
    parser.add_argument("--layout", choices=LAYOUTS, required=True)
    given = parser.parse_args()
    work, device = work_of(given), given.device
    learner = learner_of(load_model(given.model)[0].to(device), given.layout)
    algorithm, measured, first = GRPO(reward_weights={OUTCOME: 1.0}), [], {}
    for step in range(given.warmup + given.steps):
        samples = samples_of(work, step, learner)
        began = now(device)
        report = update(learner, given.layout, LossTerm(name="a", algorithm=algorithm, samples=samples))
        seconds = now(device) - began
        assert report.stepped
        first = first or {"loss": report.metrics["a/loss"], "grad_norm": report.metrics["grad_norm"]}
        if step >= given.warmup:
            measured.append({"seconds": seconds, "learned_tokens": report.metrics["tokens"]})
    answer(**middle(measured), **first)


if __name__ == "__main__":
    main()
