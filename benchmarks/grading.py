"""Throughput of grading with 5 % hostile answers against none: ``python benchmarks/grading.py [DEADLINE_SECONDS [ANSWERS [unseen]]]``.

One step's worth of answers that need algebra, all asked at once as the training loop does, by warm workers. Both sides are
measured in turn; the line printed last is JSON. These hostile answers are known (``tasks/sizes.py``) and cost next to nothing.
With ``unseen`` they go to the processes as if they were not: each keeps one worker until the deadline, so that

    ratio ≈ 1 / (1 + share · deadline / time of a good answer)

and the cost of a step is what matters: seconds for each hostile answer, by how many workers there are.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time

from cotrain.tasks.grading import WORKERS, GradingPool

BOMBS = ("9^{9^{9^9}}", "(10^9)!", "7^{40000000}", "(" * 3000 + "1" + ")" * 3000, "\\sum_{n=1}^{10^9} \\frac{1}{n^2}")
GOLD, SHARE, ROUNDS = "\\frac{7}{2}", 0.05, 3


async def grade_all(pool: GradingPool, answers: list[str], unseen: bool) -> list[bool | None]:
    async def one(answer: str) -> bool | None:
        if unseen and answer in BOMBS:
            return (await asyncio.get_running_loop().run_in_executor(None, pool.ask, GOLD, answer)).value
        return (await pool.agrade(GOLD, answer)).value

    return await asyncio.gather(*map(one, answers))


def measure(pool: GradingPool, count: int, share: float, unseen: bool = False) -> float:
    """Seconds for ``count`` answers; each good one must be graded right."""
    every = round(1 / share) if share else count + 1
    hostile = [i for i in range(count) if i % every == every - 1]
    answers = [f"\\frac{{{7 * (i + 1)}}}{{{2 * (i + 1)}}}" for i in range(count)]
    for turn, i in enumerate(hostile):
        answers[i] = BOMBS[turn % len(BOMBS)]
    start = time.perf_counter()
    values = asyncio.run(grade_all(pool, answers, unseen))
    seconds = time.perf_counter() - start
    wrong = [i for i, value in enumerate(values) if value is not True and i not in hostile]
    assert not wrong, f"good answers {wrong[:5]} were graded {[values[i] for i in wrong[:5]]}"
    return seconds


def main(deadline_s: float = 5.0, count: int = 400, unseen: str = "") -> None:
    with GradingPool(workers=WORKERS, deadline_s=deadline_s) as pool:
        measure(pool, 8 * WORKERS, 0.0)
        pairs = [(measure(pool, count, 0.0), measure(pool, count, SHARE, bool(unseen))) for _ in range(ROUNDS)]
    clean, hostile = (sorted(side)[ROUNDS // 2] for side in zip(*pairs, strict=True))
    bombs = round(SHARE * count)
    print(
        json.dumps(
            {
                "workers": WORKERS,
                "deadline_s": deadline_s,
                "answers": count,
                "hostile": "unseen" if unseen else "known",
                "clean_s": round(clean, 3),
                "hostile_s": round(hostile, 3),
                "throughput_ratio": round(clean / hostile, 4),
                "s_for_each_hostile": round((hostile - clean) / bombs, 3),
            }
        )
    )


if __name__ == "__main__":
    main(*(kind(word) for kind, word in zip((float, int, str), sys.argv[1:], strict=False)))
