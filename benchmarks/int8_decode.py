"""Decoding on a CPU in float32 and with int8 weights, in pairs: tokens a second, memory, what a publish costs, and how
far the sampler is from the learner.

    python benchmarks/models.py 135M DIR
    python benchmarks/int8_decode.py --model DIR [--rows 8 32 64 128] [--tokens 16] [--pairs 3] [--answers 16]

Both sides are the local engine over one model in one process: with packed weights in float32
(``inference/packed_weights.py``), and with weights and inputs of 8 bits (``inference/int8_weights.py``). Rows are
decoded in groups of eight with one prompt of 48 tokens. A pair is one turn of each side; the speed is that of decode
steps, by processor time, and the ratio that of a pair: its median, least and largest. A first turn of each side is not
counted. ``laid out`` is what happens at a publish: all copies made anew.

``--answers``: so many answers of at most ``ANSWER`` tokens to word problems, at temperature 1. The learner's
log-probabilities are held against those with which they were sampled, as ``sampler_trainer_diff`` and
``sampler_trainer_kl`` do.
"""

from __future__ import annotations

import argparse
import statistics
import time
from dataclasses import replace

import torch
from decode import completions_of
from decode_parts import calls, requests, seconds, timed
from torch import Tensor, nn

from cotrain.data.word_problems.source import WordProblems
from cotrain.inference.int8_weights import lay_out_int8
from cotrain.inference.local import LocalEngine
from cotrain.inference.packed_weights import LayOut, PackedWeights, can_lay_out, lay_out_onednn
from cotrain.learner.logprobs import Scorer
from cotrain.models.load import load_model, load_renderer
from cotrain.prompts.chat_template import Message

ANSWER = 40  # tokens of an answer whose log-probabilities are compared
SIDES: dict[str, LayOut] = {"float32": lay_out_onednn, "int8": lay_out_int8}


def tokens_a_second(engine: LocalEngine, rows: int, tokens: int, vocabulary: int) -> float:
    """Of decode steps, by processor time."""
    seconds.clear()
    calls.clear()
    completions_of(engine, requests(rows, tokens, vocabulary))
    return rows * calls["_decode_step"] / seconds["_decode_step"]


def log_ratios(engine: LocalEngine, model: nn.Module, name: str, answers: int) -> list[Tensor]:
    """log π_learner − log π_sampler of the tokens of each answer."""
    renderer = load_renderer(name)
    asked = []
    for number, request in enumerate(requests(answers, ANSWER, vocabulary=1000)):
        problem = WordProblems().get("test", number).prompt
        prompt = tuple(renderer.render([Message("user", problem)]))
        asked.append(replace(request, prompt_ids=prompt, stop_ids=tuple(renderer.stop_ids)))
    completions = completions_of(engine, asked)
    texts = [(request.prompt_ids, answer.token_ids) for request, answer in zip(asked, completions, strict=True)]
    exact = Scorer(model).logprobs(texts)
    return [own - torch.tensor(answer.logprobs) for own, answer in zip(exact, completions, strict=True)]


def print_agreement(engines: dict[str, LocalEngine], model: nn.Module, name: str, answers: int) -> None:
    print("\n| sampler | nats a token apart | KL (k3) | ratios outside 0.8 to 1.2 | mean log ratio of an answer |")
    print("|---|---|---|---|---|")
    for side, engine in engines.items():
        ratios = log_ratios(engine, model, name, answers)
        tokens = torch.cat(ratios)
        outside = ((tokens.exp() - 1).abs() > 0.2).float().mean()
        kl = (tokens.exp() - 1 - tokens).mean()
        means = torch.stack([ratio.mean() for ratio in ratios])
        apart = f"{tokens.abs().mean():.2g} | {kl:.2g}"
        print(f"| {side} | {apart} | {outside:.1%} | {means.min():.3f} to {means.max():.3f} |", flush=True)


def seconds_to_lay_out(model: nn.Module, lay_out: LayOut) -> float:
    copies = PackedWeights(model, lay_out)
    began = time.process_time()
    copies.refresh()
    return time.process_time() - began


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", required=True, metavar="DIR")
    parser.add_argument("--rows", type=int, nargs="+", default=[8, 32, 64, 128])
    parser.add_argument("--tokens", type=int, default=16, help="of each answer")
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--answers", type=int, default=16)
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    model, _ = load_model(given.model)

    numbers = sum(module.weight.numel() for module in model.modules() if can_lay_out(module))
    print(f"{numbers:,} weights are laid out: float32 {4 * numbers / 2**20:.0f} MiB, int8 {numbers / 2**20:.0f} MiB")
    for side, lay_out in SIDES.items():
        taken = [seconds_to_lay_out(model, lay_out) for _ in range(given.pairs)]
        print(f"{side}: laid out in {statistics.median(taken):.2f} s ({min(taken):.2f} to {max(taken):.2f})")

    most = max(given.rows)
    engines = {
        "float32": LocalEngine({"a": model}, max_rows=most, pack_weights=["a"]),
        "int8": LocalEngine({"a": model}, max_rows=most, int8_weights=["a"]),
    }
    print_agreement(engines, model, given.model, given.answers)
    timed("_decode_step")
    print("\n| rows | float32, tokens/s | int8, tokens/s | int8 / float32 |\n|---|---|---|---|")
    for rows in given.rows:
        speeds: dict[str, list[float]] = {side: [] for side in SIDES}
        for turn in range(1 + given.pairs):
            for side, engine in engines.items():
                speed = tokens_a_second(engine, rows, given.tokens, model.config.vocab_size)
                if turn > 0:
                    speeds[side].append(speed)
        ratios = [new / old for old, new in zip(*speeds.values(), strict=True)]
        float32, int8 = (statistics.median(found) for found in speeds.values())
        spread = f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
        print(f"| {rows} | {float32:.0f} | {int8:.0f} | {spread} |", flush=True)


if __name__ == "__main__":
    main()
