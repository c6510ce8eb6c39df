"""What ``cotrain chat`` shows for one problem: each step with its verdict, and what the reviews come to."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from cotrain import chat
from cotrain.cli import main
from cotrain.methods.tango import tango
from cotrain.tasks.words.source import study_problems
from cotrain.train.trainer import CoTrainer


@pytest.fixture(scope="module")
def trainer():
    return CoTrainer(tango(steps=1, votes=3, tasks=study_problems((2, 2))))


@pytest.mark.whole
def test_steps_answer_and_verdicts_of_several_reviews(trainer):
    recipe = trainer.recipe
    executor = trainer.make_executor(recipe.seed)
    for turn in range(8):
        lines = chat.problem_lines(trainer, executor, recipe.tasks.get("validation", turn).prompt, turn)
        if len(lines) >= 4 and "no verdict" not in lines[-1]:
            break
    *steps, answer, verdict = lines
    assert all(line[2] in "✓✗?" for line in steps) and answer.startswith("    answer: ")
    assert "of 3 reviews say CORRECT" in verdict and "probability of CORRECT 0." in verdict


def test_text_that_is_no_solution_is_shown_as_it_is(trainer):
    recipe = trainer.recipe
    executor = trainer.make_executor(recipe.seed)
    lines = chat.problem_lines(trainer, executor, "?", 9)
    assert lines and all(isinstance(line, str) for line in lines)


def test_the_conversation_ends_with_the_input(trainer, monkeypatch, capsys):
    said = iter(["", EOFError()])

    def read(prompt):
        line = next(said)
        if isinstance(line, BaseException):
            raise line
        return line

    monkeypatch.setattr(chat.opening, "open_trainer", lambda directory, *how, **more: trainer)
    assert chat.run_chat("anywhere", read_line=read) == 0
    out = capsys.readouterr().out
    assert trainer.recipe.tasks.get("validation", chat.EXAMPLE).prompt in out


def test_one_problem_without_a_conversation(trainer, monkeypatch, capsys):
    monkeypatch.setattr(chat.opening, "open_trainer", lambda directory, *how, **more: trainer)
    problem = trainer.recipe.tasks.get("validation", chat.EXAMPLE).prompt
    assert main(["chat", "anywhere", "--once", problem]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "Ctrl-D" not in lines[0] and any(line.startswith("    answer: ") for line in lines)
    assert main(["chat", "anywhere", "--once", " "]) == 2
    assert "--once is empty" in capsys.readouterr().err


def test_a_problem_that_cannot_be_answered_does_not_end_the_conversation(trainer, monkeypatch, capsys):
    said = iter(["word " * 900])
    monkeypatch.setattr(chat.opening, "open_trainer", lambda directory, *how, **more: trainer)
    assert (
        chat.run_chat("anywhere", read_line=lambda prompt: next(said, None) or (_ for _ in ()).throw(EOFError())) == 0
    )
    assert "exceed the context" in capsys.readouterr().out

    async def refuses(task, roles, **options):
        raise RuntimeError("nobody\x1b[31m there")

    recipe = replace(trainer.recipe, evaluation=replace(trainer.recipe.evaluation, protocol=refuses))
    executor = trainer.make_executor(recipe.seed)
    (line,) = chat.problem_lines(SimpleNamespace(recipe=recipe), executor, "?", 10)
    assert "no answer: test_chat.py, line " in line and ": RuntimeError: nobody" in line and "\x1b" not in line
