"""A model and data for the study of domains: arithmetic of reasoning-gym and short programs, beside word problems.

    python benchmarks/domains.py --out runs/domains [--tokens 2400000] [--lessons 4000] [--programs 2000]
    cotrain study domains

``embedded`` has never seen a puzzle of reasoning-gym nor a program. Here it is taught by worked solutions of training
problems (its own word problems among them): partial sums (``chain_sum``), partial products (``products``), Euclid's
steps (``gcd``), and functions of one line. Written to --out:

    programs.jsonl   the programs' problems in MBPP's format, for ``--tasks mbpp --data``
    lessons.jsonl    conversations, as a run will ask and read them
    taught           the model

Needs ``pip install 'cotrain[gym]'``. After 1.2M tokens it was greedily right (48 test problems each) in 0.60 of the
word problems, 0.58 of the programs, 0.13 of ``gcd``, 0.04 of ``products`` and 0.00 of ``chain_sum``, whose numbers have
up to four digits; after 6M nobody has looked. AdamW at 1e-3 taught no program in 2M tokens.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable, Iterator
from math import gcd
from pathlib import Path
from random import Random
from typing import Any

from cotrain import study_problems
from cotrain.core.types import Task, TaskSource
from cotrain.stages.base import mark
from cotrain.stages.corpora import corpus_file
from cotrain.stages.sft import sft
from cotrain.tasks.programs import ProgramTasks
from cotrain.tasks.sources import task_source
from cotrain.text.parsers import write_solution
from cotrain.text.prompts import SOLVE, fill

Worked = Callable[[Task], str]  # a solution in the solver's format


def chain_sum(task: Task) -> str:
    """``87 - 68 - 66``: one step for each sign."""
    terms = re.findall(r"([+-]?)\s*(\d+)", task.prompt.partition(":")[2])
    total, steps = int(terms[0][1]), []
    for sign, number in terms[1:]:
        after = total + int(number) if sign == "+" else total - int(number)
        steps.append(f"{total} {sign} {number} = {after}")
        total = after
    return write_solution(steps or [str(total)], str(total))


def products(task: Task) -> str:
    """``98 * 84``: one step for each digit of the second factor that is not 0, then their sums."""
    one, other = map(int, re.findall(r"\d+", task.prompt)[:2])
    parts = [int(digit) * 10**place for place, digit in enumerate(reversed(str(other))) if digit != "0"][::-1]
    steps = [f"{one} * {part} = {one * part}" for part in parts]
    total = one * parts[0] if parts else 0
    for part in parts[1:]:
        steps.append(f"{total} + {one * part} = {total + one * part}")
        total += one * part
    return write_solution(steps or [f"{one} * 0 = 0"], str(total))


def euclid(task: Task) -> str:
    """``519, 333``: remainders, from the first pair on."""
    numbers, steps = list(map(int, re.findall(r"\d+", task.prompt.partition(":")[2]))), []
    found = numbers[0]
    for number in numbers[1:]:
        large, small = max(found, number), min(found, number)
        while small:
            steps.append(f"{large} % {small} = {large % small}")
            large, small = small, large % small
        found = gcd(found, number)
    return write_solution(steps, str(found))


GYM: dict[str, Worked] = {  # with numbers that a model of a million parameters can learn to work with
    "gym:chain_sum:max_terms=3,max_digits=2": chain_sum,
    "gym:products:max_digits=2": products,
    "gym:gcd:max_value=100": euclid,
}


KINDS: tuple[tuple[str, str, Callable[[Any, int, int], int]], ...] = (  # what it does, its line, and the same here
    ("returns x times {a} plus {b}", "x * {a} + {b}", lambda x, a, b: x * a + b),
    ("returns {b} less than x times {a}", "x * {a} - {b}", lambda x, a, b: x * a - b),
    ("returns the larger of x and {b}", "max(x, {b})", lambda x, a, b: max(x, b)),
    ("returns the rest of x plus {b} divided by {a}", "(x + {b}) % {a}", lambda x, a, b: (x + b) % a),
    ("returns the sum of the list x plus {b}", "sum(x) + {b}", lambda x, a, b: sum(x) + b),
    (
        "returns how many numbers of the list x are above {b}",
        "len([y for y in x if y > {b}])",
        lambda x, a, b: len([y for y in x if y > b]),
    ),
)


def program_rows(count: int, seed: int = 0) -> Iterator[dict[str, Any]]:
    """Problems in MBPP's format, each with three tests, no two with one text."""
    rng, seen = Random(f"programs {seed}"), set[str]()
    while len(seen) < count:
        a, b = rng.randint(2, 30), rng.randint(1, 60)
        text, body, does = rng.choice(KINDS)
        text, body = text.format(a=a, b=b), body.format(a=a, b=b)
        if text in seen:
            continue
        seen.add(text)
        values = [rng.sample(range(99), 4) if "list" in text else rng.randint(0, 99) for _ in range(3)]
        tests = [f"assert f({value!r}) == {does(value, a, b)!r}" for value in values]
        yield {
            "task_id": f"short-{len(seen)}",
            "text": f"Write a function f(x) that {text}.",
            "code": f"def f(x):\n    return {body}",
            "test_list": tests,
        }


def program(task: Task) -> str:
    return write_solution([str(task.prompt).splitlines()[0]], f"```python\n{task.answer}\n```")


def lessons(source: TaskSource, worked: Worked, count: int) -> Iterator[dict[str, Any]]:
    """Conversations on training problems, in the words of a run's solver. Raises ValueError for a solution whose answer
    the source calls wrong."""
    size = source.size("train")
    for index in range(count if size is None else min(count, size)):
        task = source.get("train", index)
        said = worked(task)
        if index < 20 and not task.grade(said).value:
            raise ValueError(f"{source.name}: the solution {said!r} of {task.prompt!r} is graded as wrong")
        asked = {"role": "user", "content": fill(SOLVE, problem=task.prompt)}
        yield {"messages": [asked, {"role": "assistant", "content": said}]}


def write(out: Path, *, count: int, programs: int) -> Path:
    """``programs.jsonl`` and ``lessons.jsonl``; returns the latter."""
    out.mkdir(parents=True, exist_ok=True)
    tasks = out / "programs.jsonl"
    tasks.write_text("".join(json.dumps(row) + "\n" for row in program_rows(programs)), encoding="utf-8")
    short = ProgramTasks("mbpp", tasks)
    made = [row for name, worked in GYM.items() for row in lessons(task_source(name), worked, count)]
    made += lessons(short, program, count)
    made += lessons(study_problems((2, 4)), lambda task: str(task.solution), count)
    short.close()
    Random("order").shuffle(made)
    file = out / "lessons.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in made), encoding="utf-8")
    return file


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--tokens", type=int, default=2_400_000)
    parser.add_argument("--lessons", type=int, default=4000, help="of each domain")
    parser.add_argument("--programs", type=int, default=2000)
    given = parser.parse_args()
    file = write(given.out, count=given.lessons, programs=given.programs)
    how: dict[str, Any] = {"optimizer": "muon", "lr": 0.01, "tokens": given.tokens, "report": print}  # as the base was
    sft("embedded", given.out / "taught", conversations=[(corpus_file(str(file)), 1)], **how)
    mark(given.out / "taught")
    print(f"{given.out / 'taught'} and {given.out / 'programs.jsonl'}; now: cotrain study domains")


if __name__ == "__main__":
    main()
