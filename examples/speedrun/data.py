"""Write the files that ``make speedrun`` learns from when you bring none: ``python examples/speedrun/data.py DIR``.

    text.txt              worked problems, sums and a small world of animals, for the tokenizer and for pretraining
    chat.jsonl            conversations: greetings, questions about the animals, sums
    questions/train.jsonl problems with worked solutions, and test.jsonl
    reviews.jsonl         solutions, of which half go wrong, and which step is the first wrong one
    core/*.jsonl          three tasks for a base model, in the layouts of DCLM's CORE

Everything is made by a program from a seed, so the files are the same on every machine. Problems of the tests and of
``core`` occur in no text that is learned: they come from other buckets of the problem source.
"""

from __future__ import annotations

import json
import random
import re
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from cotrain.data.word_problems.problem import Problem
from cotrain.data.word_problems.source import WordProblems

PROBLEMS = WordProblems(operations=(1, 2), distractors=(0, 0))
# Rows of each file.
TEXTS = 12_000
CHATS = 4_000
QUESTIONS = 6_000
REVIEWS = 6_000
TESTS = 400
CORE = 200
WORLD = {  # animal → kind, colour, what it does, what it eats
    "robin": ("bird", "red", "fly", "worms"),
    "crow": ("bird", "black", "fly", "seeds"),
    "swan": ("bird", "white", "swim", "grass"),
    "trout": ("fish", "brown", "swim", "flies"),
    "carp": ("fish", "gold", "swim", "weeds"),
    "hare": ("mammal", "grey", "run", "grass"),
    "fox": ("mammal", "red", "run", "hares"),
    "mole": ("mammal", "black", "dig", "worms"),
    "frog": ("amphibian", "green", "jump", "flies"),
    "newt": ("amphibian", "orange", "swim", "worms"),
}
NAMES = ("Ada", "Ben", "Cleo", "Dan", "Eva", "Finn", "Gus", "Hana", "Ivo", "June")
SENTENCES: tuple[Callable[[str], str], ...] = (
    lambda animal: f"A {animal} is a kind of {WORLD[animal][0]}.",
    lambda animal: f"The {animal} is {WORLD[animal][1]}.",
    lambda animal: f"A {animal} likes to {WORLD[animal][2]}.",
    lambda animal: f"It eats {WORLD[animal][3]}, as every {animal} does.",
)
ASKED: tuple[tuple[str, Callable[[str], str]], ...] = (
    ("What kind of animal is a {}?", lambda animal: f"A {animal} is a kind of {WORLD[animal][0]}."),
    ("What colour is the {}?", lambda animal: f"The {animal} is {WORLD[animal][1]}."),
    ("What does a {} like to do?", lambda animal: f"A {animal} likes to {WORLD[animal][2]}."),
    ("What does a {} eat?", lambda animal: f"A {animal} eats {WORLD[animal][3]}."),
)


def write_steps(problem: Problem) -> list[str]:
    """One line a step, such as ``- 14*4=56``."""
    return [f"- {'='.join(step.split('=')[2:]).split(' ')[0]}" for step in problem.steps]


def write_solution(problem: Problem, rng: random.Random) -> dict[str, Any]:
    """A solution and the place of its first wrong step, or -1. A wrong step has a slip, another operation or another
    number of the problem; the steps behind it count on with its result."""
    label = rng.randrange(len(problem.steps)) if rng.random() < 0.5 else -1
    lines = list[str]()
    changed = dict[str, str]()
    for place, line in enumerate(write_steps(problem)):
        left, operator, right, result = re.fullmatch(r"- (\d+)([-+*])(\d+)=(\d+)", line).groups()
        new_left = changed.get(left, left)
        new_right = changed.get(right, right)
        new_operator = operator
        slip = 0
        if place == label:
            kind = rng.random()
            if kind < 0.4:
                slip = rng.choice((-10, -2, -1, 1, 2, 10))
            elif kind < 0.7:
                new_operator = rng.choice([sign for sign in "+-*" if sign != operator])
            else:
                new_right = str(rng.randrange(1, 20))
        compute = {"+": int.__add__, "-": int.__sub__, "*": int.__mul__}[new_operator]
        value = compute(int(new_left), int(new_right)) + slip
        lines.append(f"- {new_left}{new_operator}{new_right}={value}")
        changed[result] = str(value)

    first_wrong = -1
    for place, (line, right_line) in enumerate(zip(lines, write_steps(problem), strict=True)):
        if line != right_line:
            first_wrong = place
            break
    _, _, answer = lines[-1].partition("=")
    return {"problem": problem.text, "steps": [*lines, f"#### {answer}"], "label": first_wrong}


def write_checked_steps(solution: dict[str, Any]) -> list[str]:
    """A problem, and its solution with a verdict behind each line."""
    wrong = len(solution["steps"]) if solution["label"] < 0 else solution["label"]
    verdicts = ["CORRECT" if place < wrong else "INCORRECT" for place in range(len(solution["steps"]))]
    return [solution["problem"], *(f"{line} {word}" for line, word in zip(solution["steps"], verdicts, strict=True))]


def write_story(rng: random.Random) -> str:
    """A few facts about an animal, in any order, told by somebody."""
    animal = rng.choice(sorted(WORLD))
    facts = [write(animal) for write in rng.sample(SENTENCES[:3], 3)]
    return f"{rng.choice(NAMES)} saw a {animal}. " + " ".join([*facts, SENTENCES[3](animal)])


def write_sum(rng: random.Random) -> tuple[str, int]:
    """A sum and its value."""
    left = rng.randrange(60)
    right = rng.randrange(40)
    kind = rng.random()
    if kind < 0.4:
        return f"{left}+{right}", left + right
    if kind < 0.8:
        return f"{left + right}-{right}", left
    return f"{left % 20}*{2 + right % 3}", left % 20 * (2 + right % 3)


def write_paragraph(rng: random.Random) -> str:
    """One paragraph: a worked problem, one that is checked, a line of sums, or a story."""
    kind = rng.random()
    if kind < 0.35:
        problem = PROBLEMS.training_problem(rng, rng.randint(1, 2))
        return "\n".join([problem.text, *write_steps(problem), f"#### {problem.answer}"])
    if kind < 0.65:
        return "\n".join(write_checked_steps(write_solution(PROBLEMS.training_problem(rng, rng.randint(1, 2)), rng)))
    if kind < 0.85:
        sums = [write_sum(rng) for _ in range(12)]
        return " ".join(f"{text}={value}." for text, value in sums)
    return write_story(rng)


def write_conversation(rng: random.Random) -> list[tuple[str, str]]:
    """Turns of user and assistant: a greeting at times, questions, thanks at times."""
    name = rng.choice(NAMES)
    turns = list[tuple[str, str]]()
    if rng.random() < 0.5:
        hello = rng.choice(("Hello", "Hi", "Good morning"))
        turns.append((f"{hello}, I am {name}.", f"{hello}, {name}! Ask me about animals, or give me a sum."))
    if rng.random() < 0.2:
        turns.append(("Who are you?", "I am a small model that was trained on two processor cores."))
    for _ in range(rng.randint(1, 3)):
        if rng.random() < 0.6:
            question, reply = rng.choice(ASKED)
            animal = rng.choice(sorted(WORLD))
            turns.append((question.format(animal), reply(animal)))
        else:
            text, value = write_sum(rng)
            turns.append((f"What is {text}?", f"{text}={value}."))
    if rng.random() < 0.3:
        turns.append(("Thank you.", "You are welcome."))
    return turns


def make_core_tasks(rng: random.Random) -> dict[str, list[dict[str, object]]]:
    """Rows of a task of choices (sums), one of contexts (colours) and one of continuations (the last step)."""
    sums = list[dict[str, object]]()
    colours = list[dict[str, object]]()
    steps = list[dict[str, object]]()
    for index in range(CORE):
        text, value = write_sum(rng)
        wrong = rng.sample([n for n in range(max(0, value - 12), value + 13) if n != value], 3)
        gold = rng.randrange(4)
        choices = [f"{n}." for n in (*wrong[:gold], value, *wrong[gold:])]
        sums.append({"query": f"{text}=", "choices": choices, "gold": gold, "delimiter": ""})
        animal = rng.choice(sorted(WORLD))
        other = rng.choice([one for one in sorted(WORLD) if WORLD[one][1] != WORLD[animal][1]])
        gold = rng.randrange(2)
        options = [f"{rng.choice(NAMES)} saw a {one}. The {one}" for one in (animal, other)]
        row = {"context_options": options[::-1] if gold else options, "continuation": f" is {WORLD[animal][1]}."}
        colours.append({**row, "gold": gold})
        problem = PROBLEMS.problem("test", TESTS + index)
        *before, last = write_steps(problem)
        steps.append({"context": "\n".join([problem.text, *before, "-"]), "continuation": last[1:]})
    return {"sums": sums, "colours": colours, "steps": steps}


def write_rows(path: Path, rows: Iterable[object]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def make_question(problem: Problem) -> dict[str, str]:
    return {"question": problem.text, "answer": "\n".join([*write_steps(problem), f"#### {problem.answer}"])}


def make_chat(turns: list[tuple[str, str]]) -> dict[str, list[dict[str, str]]]:
    """A conversation as a row of a file."""
    messages = []
    for question, reply in turns:
        messages.append({"role": "user", "content": question})
        messages.append({"role": "assistant", "content": reply})
    return {"messages": messages}


def write_files(folder: Path, seed: int = 0) -> None:
    rng = random.Random(seed)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "text.txt").write_text("\n\n".join(write_paragraph(rng) for _ in range(TEXTS)) + "\n", encoding="utf-8")
    write_rows(folder / "chat.jsonl", [make_chat(write_conversation(rng)) for _ in range(CHATS)])
    train = [PROBLEMS.training_problem(rng, rng.randint(1, 2)) for _ in range(QUESTIONS)]
    write_rows(folder / "questions" / "train.jsonl", map(make_question, train))
    reviewed = (PROBLEMS.training_problem(rng, rng.randint(1, 2)) for _ in range(REVIEWS))
    write_rows(folder / "reviews.jsonl", (write_solution(problem, rng) for problem in reviewed))
    tests = [PROBLEMS.problem("test", index) for index in range(TESTS)]
    write_rows(folder / "questions" / "test.jsonl", map(make_question, tests))
    for name, rows in make_core_tasks(rng).items():
        write_rows(folder / "core" / f"{name}.jsonl", rows)


if __name__ == "__main__":
    write_files(Path(sys.argv[1]))
