"""A model of a real one's shape (SmolLM2-135M, Qwen2.5-0.5B): sampling beside transformers' ``generate``, packed
weights beside plain ones, and a GRPO step beside TRL's, of all weights or of an adapter.

    python benchmarks/real_model.py [--size 0.5B] [--trl-python TRL_ENV/bin/python [--lora 16]] \
      [--vllm-python VLLM_ENV/bin/python] [--rounds 3]

The two environments: ``pip install torch trl peft`` for the one, for the other the line in ``vllm_decode.py``.

In float32, and with bfloat16 arithmetic over float32 weights. Weights are random, as neither time nor memory hangs on
them; the work is the benchmarks' (``work.py``): 4 prompts of 48 tokens, 8 answers to each, 32 tokens on average, of
drawn lengths. The two sides run in turn, each as a process of its own (``harness.py``). Tokens a second are those of
the answers over the seconds of prompts and decoding. Memory is the most that the process held.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from harness import Answer, alternate, check_same, ratio
from models import make
from table import Line

from cotrain.core.threads import usable_cores

HERE = Path(__file__).resolve().parent
SIZE = "135M"
WORK = ("--tasks", "4", "--group", "8", "--prompt", "48", "--new", "32", "--lengths", "drawn", "--steps", "1")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--trl-python", metavar="PATH", help="the interpreter of an environment with TRL")
    parser.add_argument("--vllm-python", metavar="PATH", help="the interpreter of an environment with vLLM")
    parser.add_argument("--threads", type=int, default=usable_cores())
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=("float32", "bfloat16"), help="one kind of arithmetic")
    parser.add_argument("--size", default=SIZE, help="one of models.py")
    parser.add_argument(
        "--lora", type=int, default=0, metavar="RANK", help="rank of the adapter that the GRPO step trains"
    )
    parser.add_argument("--trl-rows", type=int, default=32, metavar="N", help="rows of a backward pass of TRL")
    given = parser.parse_args()
    print("| what | | | ratio | spread |\n|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as models:
        words = ("--model", str(make(given.size, Path(models) / given.size)), "--threads", str(given.threads), *WORK)
        for kind in ("float32", "bfloat16"):
            if given.only in (None, kind):
                arithmetic = ("--bf16",) if kind == "bfloat16" else ()
                compare(kind, (*words, *arithmetic), given.rounds)
                if given.trl_python:
                    compare_trl(kind, (*words, *arithmetic), given)
        if given.vllm_python and given.only != "bfloat16":
            compare_vllm(words, given.rounds, given.vllm_python)


def compare(kind: str, words: tuple[str, ...], rounds: int) -> None:
    """Prints its rows as they come."""
    decode = [sys.executable, str(HERE / "decode.py"), *words]
    pairs = alternate([*decode, "--side", "engine"], [*decode, "--side", "generate"], rounds)
    print_seconds_and_memory(f"sampling, {kind}", "engine", "`generate`", pairs, "peak_mib")
    print(Line(f"sampling, {kind}", "engine", "`generate`", ratio(rated(pairs), "rate"), unit="tokens/s").row())
    if kind == "float32":
        pairs = alternate([*decode, "--side", "packed"], [*decode, "--side", "engine"], rounds)
        print_seconds_and_memory(f"sampling, {kind}, packed weights", "packed", "plain", pairs, "peak_mib")
        rate = ratio(rated(pairs), "rate")
        print(Line(f"sampling, {kind}, packed weights", "packed", "plain", rate, unit="tokens/s").row())


def compare_trl(kind: str, words: tuple[str, ...], given: argparse.Namespace) -> None:
    """A GRPO step. In float32 ours decodes with packed weights, as a run of these sizes does. Prints its rows."""
    what = f"GRPO step, {kind}"
    if given.lora:
        words = (*words, "--lora", str(given.lora))
        what = f"GRPO step of an adapter, {kind}"
    ours = [sys.executable, str(HERE / "grpo_step.py"), *words]
    if kind == "float32":
        ours.append("--packed")
    theirs = [given.trl_python, str(HERE / "trl_step.py"), *words, "--rows", str(given.trl_rows)]
    pairs = alternate(ours, theirs, given.rounds)
    for a, b in pairs:
        check_same(a, b)
    print_seconds_and_memory(what, "cotrain", "TRL", pairs, "step_peak_mib")


def compare_vllm(words: tuple[str, ...], rounds: int, vllm: str) -> None:
    """Sampling in float32 at 32 and at 128 rows, and the time to the first token. Prints its rows as they come."""
    for tasks in (4, 16):
        more = (*words, "--tasks", str(tasks))
        ours = [sys.executable, str(HERE / "decode.py"), *more, "--side", "packed"]
        pairs = alternate(ours, [vllm, str(HERE / "vllm_decode.py"), *more], rounds)
        assert all(a["sampled_tokens"] == b["sampled_tokens"] for a, b in pairs)
        what = f"sampling, float32, {8 * tasks} rows"
        print_seconds_and_memory(what, "engine", "vLLM", pairs, "peak_mib")
        for key, name, unit in (("rate", "", "tokens/s"), ("first_token_seconds", ", start to the first token", "s")):
            print(Line(f"{what}{name}", "engine", "vLLM", ratio(rated(pairs), key), unit=unit).row(), flush=True)


def print_seconds_and_memory(what: str, a: str, b: str, pairs: list[tuple[Answer, Answer]], held: str) -> None:
    for key, name, unit in (("seconds", "", "s"), (held, ", memory", "MiB")):
        print(Line(f"{what}{name}", a, b, ratio(pairs, key), unit=unit).row(), flush=True)


def rated(pairs: list[tuple[Answer, Answer]]) -> list[tuple[Answer, Answer]]:
    """With tokens a second in each answer."""
    first, second = (
        [{**answer, "rate": answer["sampled_tokens"] / answer["seconds"]} for answer in side]
        for side in zip(*pairs, strict=True)
    )
    return list(zip(first, second, strict=True))


if __name__ == "__main__":
    main()
