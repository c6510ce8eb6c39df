"""A model and data for the study of domains: arithmetic of reasoning-gym and short programs, beside word problems.

    python benchmarks/domains.py --out runs/domains [--tokens 5000000] [--lessons 3000] [--programs 2000] [--taught 250]
    cotrain study domains

``shipped`` has never seen a puzzle of reasoning-gym nor a program. Here it is taught by solutions of training problems
(its own word problems among them): partial sums (``chain_sum``), partial products (``products``), Euclid's steps
(``gcd``), and functions of one line; and by true reviews of such solutions, half of them with a slip in one step.
Written to --out:

    programs.jsonl   the programs' problems in MBPP's format, for ``--tasks mbpp --data``
    lessons.jsonl    conversations, as a run will ask and read them
    taught           the model

Needs ``pip install 'cotrain[gym]'``, and a quarter of an hour on a free core. Taught by solutions alone it writes no
review that can be read, not even of a word problem; 1,600 lessons of programs leave nothing to learn there (0.96
greedy). AdamW at 1e-3 taught no program in 2M tokens.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

from cotrain.core.types import Task, TaskSource
from cotrain.data.programs import ProgramTasks
from cotrain.data.sources import task_source
from cotrain.data.word_problems.practice import check_practice
from cotrain.data.word_problems.source import study_problems
from cotrain.formats.role_prompts import REVIEW
from cotrain.formats.role_replies import write_review
from cotrain.formats.solutions import Solution, tagged_solution, write_solution
from cotrain.pretraining.corpora import corpus_file
from cotrain.pretraining.sft import sft
from cotrain.prompts.templates import SOLVE, fill_template
from cotrain.rollout.common_roles import mark_terse_prompts

Slip = Callable[[int, int], int]  # what is written as the result of step k instead of the right one
Worked = Callable[[Task, Slip], str]  # a solution in the solver's format; its later steps follow from what is written


def exact(step: int, result: int) -> int:
    """The slip that is none."""
    return result


def chain_sum(task: Task, slip: Slip = exact) -> str:
    """``87 - 68 - 66``: one step for each sign."""
    terms = re.findall(r"([+-]?)\s*(\d+)", task.prompt.partition(":")[2])
    total, steps = int(terms[0][1]), list[str]()
    for sign, number in terms[1:]:
        after = slip(len(steps), total + int(number) if sign == "+" else total - int(number))
        steps.append(f"{total} {sign} {number} = {after}")
        total = after
    return write_solution(steps or [str(total)], str(total))


def products(task: Task, slip: Slip = exact) -> str:
    """``98 * 84``: one step for each digit of the second factor that is not 0, then their sums."""
    one, other = map(int, re.findall(r"\d+", task.prompt)[:2])
    digits = [int(digit) * 10**place for place, digit in enumerate(reversed(str(other))) if digit != "0"][::-1] or [0]
    parts = [slip(step, one * digit) for step, digit in enumerate(digits)]
    steps = [f"{one} * {digit} = {part}" for digit, part in zip(digits, parts, strict=True)]
    total = parts[0]
    for part in parts[1:]:
        after = slip(len(steps), total + part)
        steps.append(f"{total} + {part} = {after}")
        total = after
    return write_solution(steps, str(total))


def euclid(task: Task, slip: Slip = exact) -> str:
    """``519, 333``: remainders, from the first pair on. A slip that is no remainder is not made."""
    numbers, steps = list(map(int, re.findall(r"\d+", task.prompt.partition(":")[2]))), list[str]()
    found = numbers[0]
    for number in numbers[1:]:
        large, small = max(found, number), min(found, number)
        while small:
            rest = large % small
            said = slip(len(steps), rest)
            rest = said if 0 <= said < small else rest
            steps.append(f"{large} % {small} = {rest}")
            large, small = small, rest
        found = large
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


def program(task: Task, slip: Slip = exact) -> str:
    """The problem's first line, and the function; a slip is another number in its line."""
    head, line = str(task.gold).split("\n", 1)
    numbers = list(re.finditer(r"\d+", line))
    for k, found in reversed(list(enumerate(numbers))):
        line = line[: found.start()] + str(slip(k, int(found.group()))) + line[found.end() :]
    return write_solution([str(task.prompt).splitlines()[0]], f"```python\n{head}\n{line}\n```")


def lessons(source: TaskSource, worked: Worked, count: int) -> Iterator[dict[str, Any]]:
    """Solutions of training problems, in the words of a run's solver. Raises ValueError for one whose answer the source
    calls wrong."""
    for index in range(available(source, count)):
        task = source.get("train", index)
        said = worked(task, exact)
        if index < 20 and not task.grade(said).value:
            raise ValueError(f"{source.name}: the solution {said!r} of {task.prompt!r} is graded as wrong")
        yield conversation(fill_template(SOLVE, problem=task.prompt), said)


def reviews(source: TaskSource, worked: Worked, count: int) -> Iterator[dict[str, Any]]:
    """True reviews of solutions of later training problems, half of them with a slip in one step: each step is written
    as it should be, and is called right up to the slip. A solution that is right in spite of a slip is left out."""
    for index in range(available(source, count), available(source, 2 * count)):
        task = source.get("train", index)
        rng = Random(f"review {task.id}")
        right = tagged_solution(worked(task, exact))
        assert isinstance(right, Solution)
        said = worked(task, slip_at(rng.randrange(len(right.steps)), rng)) if rng.random() < 0.5 else right_text(right)
        shown = tagged_solution(said)
        assert isinstance(shown, Solution)
        correct = said == right_text(right)
        if not correct and task.grade(said).value:
            continue
        should = [step.text for step in right.steps]
        same = [step.text == known for step, known in zip(shown.steps, should, strict=False)]
        verdicts = [all(same[: k + 1]) and k < len(same) for k in range(len(shown.steps))]
        if worked is program:  # its one step is the problem's text
            should = [str(task.gold).splitlines()[-1].strip()]
        derivations = (should + should[-1:] * len(verdicts))[: len(verdicts)]
        asked = fill_template(REVIEW, problem=task.prompt, solution=said)
        yield conversation(asked, write_review(derivations, verdicts, correct))


def slip_at(at: int, rng: Random) -> Slip:
    """Step ``at`` is off by a little, and keeps its sign."""
    off = rng.choice((-10, -3, -2, -1, 1, 2, 3, 10))

    def slip(step: int, result: int) -> int:
        if step != at:
            return result
        return result - off if (result + off < 0) != (result < 0) else result + off

    return slip


def right_text(solution: Solution) -> str:
    return write_solution([step.text for step in solution.steps], solution.answer)


def conversation(asked: str, said: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": asked}, {"role": "assistant", "content": said}]}


def available(source: TaskSource, count: int) -> int:
    size = source.size("train")
    return count if size is None else min(count, size)


def write(out: Path, *, count: int, programs: int, taught: int) -> Path:
    """``programs.jsonl`` and ``lessons.jsonl``; returns the latter."""
    out.mkdir(parents=True, exist_ok=True)
    tasks = out / "programs.jsonl"
    tasks.write_text("".join(json.dumps(row) + "\n" for row in program_rows(programs)), encoding="utf-8")
    short, words = ProgramTasks("mbpp", tasks), study_problems((2, 4))
    made = [
        row
        for kind in (lessons, reviews)
        for name, worked in GYM.items()
        for row in kind(task_source(name), worked, count)
    ]
    made += [row for kind in (lessons, reviews) for row in kind(short, program, taught)]
    made += lessons(words, lambda task, slip: str(task.solution), count)
    made += [{"messages": check_practice(words, "domains", 0, index)} for index in range(count)]
    short.close()
    Random("order").shuffle(made)
    file = out / "lessons.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in made), encoding="utf-8")
    return file


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--tokens", type=int, default=5_000_000)
    parser.add_argument("--lessons", type=int, default=3000, help="solutions and as many reviews, of each domain")
    parser.add_argument("--programs", type=int, default=2000, help="problems")
    parser.add_argument("--taught", type=int, default=250, help="solutions and as many reviews, of programs")
    given = parser.parse_args()
    file = write(given.out, count=given.lessons, programs=given.programs, taught=given.taught)
    how: dict[str, Any] = {"optimizer": "muon", "lr": 0.01, "tokens": given.tokens, "report": print}  # as the base was
    sft("shipped", given.out / "taught", conversations=[(corpus_file(str(file)), 1)], **how)
    mark_terse_prompts(given.out / "taught")
    print(f"{given.out / 'taught'} and {given.out / 'programs.jsonl'}; now: cotrain study domains")


if __name__ == "__main__":
    main()
