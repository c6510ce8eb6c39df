"""Sampling by vLLM alone, on the benchmark's work; ``real_model.py --vllm-python`` puts it beside the local engine.

    VLLM_PYTHON benchmarks/vllm_decode.py --model DIR [--lengths drawn] [--tasks 4 --group 8]

Runs in an environment of its own: docs/cluster.md has the commands that make it.
All rows of a step at once; answers' lengths are imposed, the stop token is ignored, the sampled token's log-probability
is asked for, as learning needs it. ``first_token_seconds`` is the time from the start of the process to the end of the
first answer of one token: importing, loading, compiling.
"""

from __future__ import annotations

import os

os.environ.update(
    VLLM_ENABLE_V1_MULTIPROCESSING="0",
    VLLM_CPU_OMP_THREADS_BIND="nobind",
    VLLM_LOGGING_LEVEL="ERROR",
    VLLM_NO_USAGE_STATS="1",
    HF_HUB_OFFLINE="1",
)

from work import answer, middle, now, peak, process_age, side, work_of


def main() -> None:
    given = side(__doc__.splitlines()[0]).parse_args()
    os.environ["OMP_NUM_THREADS"] = str(given.threads)
    from vllm import LLM, SamplingParams

    work = work_of(given)
    engine = LLM(
        model=given.model,
        skip_tokenizer_init=True,
        dtype="bfloat16" if given.bf16 else "float32",
        max_model_len=work.prompt + work.longest,
        max_num_seqs=work.rows,
        enable_prefix_caching=True,
        kv_cache_memory_bytes=2 * 2**30,
        disable_log_stats=True,
    )

    def sample(prompts: list[tuple[int, ...]], lengths: list[int]) -> int:
        options = [
            SamplingParams(temperature=1.0, max_tokens=n, ignore_eos=True, logprobs=0, detokenize=False)
            for n in lengths
        ]
        outputs = engine.generate([{"prompt_token_ids": list(ids)} for ids in prompts], options, use_tqdm=False)
        return sum(len(output.outputs[0].token_ids) for output in outputs)

    sample(work.prompts(1), [1])
    first_token_seconds = process_age()
    measured = []
    for step in range(given.warmup + given.steps):
        prompts = [prompt for prompt in work.prompts(work.tasks * (step + 1))[-work.tasks :] for _ in range(work.group)]
        began = now()
        tokens = sample(prompts, work.answers(step))
        if step >= given.warmup:
            measured.append({"seconds": now() - began, "sampled_tokens": tokens})
    answer(**middle(measured), peak_mib=peak(), first_token_seconds=first_token_seconds)


if __name__ == "__main__":
    main()
