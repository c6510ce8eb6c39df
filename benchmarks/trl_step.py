"""One GRPO step of TRL's ``GRPOTrainer`` with transformers' ``generate``, on the benchmark's work.

    TRL_PYTHON benchmarks/trl_step.py --model DIR [--lengths drawn] [--steps 3] [--rows 64]

Runs in an environment of its own, without cotrain (``pip install torch trl``, and peft for ``--lora``). Settings are
the cheapest that do the same work: float32, no reference, no gradient checkpointing, nothing logged or saved, fused
AdamW; one generation of all rows, then backward passes of ``--rows`` rows each and one optimiser step. TRL computes
every token's entropy beside the loss, which cannot be switched off.

Seconds are from the end of one step to the end of the next. A row's length is imposed by a logits processor: the stop
token is out of the question until it is due. It costs one column of the logits a step.
"""

from __future__ import annotations

import functools
import tempfile
from typing import Any

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, LogitsProcessor, LogitsProcessorList, TrainerCallback
from trl import GRPOConfig, GRPOTrainer
from work import STOP, Work, answer, middle, now, peak, reward, side, word, work_of

LR = 1e-4


class Imposed(LogitsProcessor):
    """Row i stops at ``lengths[i]`` tokens, and not before."""

    def __init__(self, work: Work, step: int) -> None:
        self.prompt = work.prompt
        self.due: dict[int, list[int]] = {}  # length → rows, but for those that the limit ends
        for row, length in enumerate(work.answers(step)):
            if length < work.longest:
                self.due.setdefault(length, []).append(row)

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        scores[:, STOP] = -torch.inf
        rows = self.due.get(input_ids.shape[1] - self.prompt + 1)
        if rows is not None:
            scores[rows] = -torch.inf
            scores[rows, STOP] = 0.0
        return scores


class Counting(GRPOTrainer):
    """Counts the tokens that the loss is made of."""

    learned = 0

    def compute_loss(self, model: Any, inputs: Any, *arguments: Any, **options: Any) -> Any:
        mask, advantages = inputs["completion_mask"], inputs["advantages"]
        self.learned += int(mask[advantages != 0].sum())
        return super().compute_loss(model, inputs, *arguments, **options)


class Watch(TrainerCallback):
    """Notes the end of every step and the number of optimiser steps."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.ends: list[float] = []
        self.peaks: list[float] = []
        self.optimizer_steps = 0

    def on_optimizer_step(self, *_: Any, **__: Any) -> None:
        self.optimizer_steps += 1

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self.ends.append(now(self.device))
        self.peaks.append(peak(self.device))


def adapter(rank: int) -> Any:
    """PEFT's settings of an adapter on all linear layers, with those of the other side; None for a rank of 0."""
    if rank == 0:
        return None
    from peft import LoraConfig

    return LoraConfig(task_type="CAUSAL_LM", r=rank, lora_alpha=2 * rank, target_modules="all-linear")


def main() -> None:
    parser = side(__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=64, help="rows of one forward and backward pass")
    given = parser.parse_args()
    work, device = work_of(given), given.device
    steps, rows = given.warmup + given.steps, min(given.rows, work.rows)
    model = AutoModelForCausalLM.from_pretrained(given.model, dtype=torch.float32, attn_implementation="sdpa")
    model.generation_config.eos_token_id = STOP
    prompts = [" ".join(map(word, prompt)) for prompt in work.prompts(work.tasks * steps)]
    generated, sampled = [], []

    def generate(*arguments: Any, original: Any = model.generate, **options: Any) -> torch.Tensor:
        began = now(device)
        imposed = LogitsProcessorList([Imposed(work, len(generated))])
        out = original(*arguments, logits_processor=imposed, **options)
        generated.append(now(device) - began)
        return out

    def rewards(completion_ids: list[list[int]], **_: Any) -> list[float]:
        sampled.append(sum(map(len, completion_ids)))
        return [reward(ids) for ids in completion_ids]

    model.generate = functools.wraps(model.generate)(generate)
    with tempfile.TemporaryDirectory() as directory:
        settings = GRPOConfig(
            output_dir=directory,
            max_steps=steps,
            per_device_train_batch_size=rows,
            gradient_accumulation_steps=work.rows // rows,
            num_generations=work.group,
            max_completion_length=work.longest,
            temperature=1.0,
            beta=0.0,
            learning_rate=LR,
            lr_scheduler_type="constant",
            optim="adamw_torch_fused",
            weight_decay=0.0,
            max_grad_norm=1.0,
            shuffle_dataset=False,
            bf16=given.bf16,
            gradient_checkpointing=False,
            use_cpu=not device.startswith("cuda"),
            save_strategy="no",
            logging_strategy="no",
            report_to="none",
            disable_tqdm=True,
        )
        watch = Watch(device)
        trainer = Counting(
            model=model,
            reward_funcs=rewards,
            args=settings,
            train_dataset=Dataset.from_dict({"prompt": prompts}),
            processing_class=AutoTokenizer.from_pretrained(given.model),
            callbacks=[watch],
            peft_config=adapter(given.lora),
        )
        at_start = peak(device)
        trainer.train()
    assert len(generated) == len(watch.ends) == steps
    assert sampled == [sum(work.answers(step)) for step in range(steps)], "lengths were not as imposed"
    measured = [
        {"seconds": watch.ends[i] - watch.ends[i - 1], "generate_seconds": generated[i]}
        for i in range(given.warmup, steps)
    ]
    answer(
        **middle(measured),
        sampled_tokens=sum(sampled),
        learned_tokens=trainer.learned,
        optimizer_steps=watch.optimizer_steps,
        parameters=sum(p.numel() for p in model.parameters() if p.requires_grad),
        growth_mib=watch.peaks[-1] - at_start,
        step_peak_mib=watch.peaks[-1],
        rows=rows,
    )


if __name__ == "__main__":
    main()
