"""What ``cotrain chat`` shows for one problem: each step with its verdict, and what the reviews come to."""

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from cotrain.cli.main import main
from cotrain.data.word_problems.source import study_problems
from cotrain.models.load import load_tokenizer
from cotrain.recipes.tango import tango
from cotrain.rollout.common_roles import keep_taught_roles
from cotrain.runs.choose_formats import DEFAULT_FORMAT, AnswerFormat
from cotrain.serving import chat
from cotrain.trainer.trainer import CoTrainer
from tests.helpers import TINY
from tests.sentences import command_refuses, refuses


class Parrot:
    """A model that says the tokens of ``said``, and is asked with all of the conversation so far."""

    config = SimpleNamespace(max_position_embeddings=60)
    generation_config, device = None, "cpu"

    def __init__(self, said):
        self.said, self.asked = said, []

    def generate(self, ids, **how):
        self.asked.append(ids[0].tolist())
        return torch.cat([ids, torch.tensor([self.said])], dim=1)


def test_a_chat_model_holds_a_conversation_in_its_own_template(monkeypatch, capsys):
    tokenizer = load_tokenizer(TINY)
    said = tokenizer("yes\x1b[31m<|end|>")["input_ids"]
    parrot = Parrot(said)
    monkeypatch.setattr(chat, "load_model", lambda model: (parrot, tokenizer))
    monkeypatch.setattr(chat, "nn", SimpleNamespace(Module=SimpleNamespace(to=lambda model, device: model)))
    talk = chat.Conversation("any", 0.0, "cpu")
    assert talk.reply_lines("Hello", 0) == ["yes<U+001B>[31m"]
    talk.reply_lines("And now", 1)
    shown = tokenizer.decode(parrot.asked[1])
    assert shown.endswith("<|user|>And now<|end|><|assistant|>") and "<|assistant|>yes" in shown
    with refuses("E_PROMPT_TOO_LONG", names="model 60"):
        talk.reply_lines("on and on " * 30, 2)
    assert len(talk.messages) == 4


def test_bytes_that_are_no_text_are_asked_as_replacement_characters(capsys):
    asked = []

    def answer_lines(text, turn):
        return asked.append(text) or []

    lines = iter(["half \udcff\udcfe done"])
    with pytest.raises(StopIteration):
        chat.hold_chat(answer_lines, "heading", lambda prompt: next(lines), None)
    chat.hold_chat(answer_lines, "heading", input, "\udce2 rtl \u202e")
    assert [text.replace("\ufffd", "?") for text in asked] == ["half ?? done", "? rtl \u202e"]


def test_who_converses_and_who_solves(monkeypatch, tmp_path):
    """A model converses; one that was taught to solve is asked as it was taught; a flag, or a run, solves too."""
    asked, model = [], tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    monkeypatch.setattr(chat, "Conversation", lambda *given: SimpleNamespace(reply_lines=lambda text, turn: ["said"]))

    def open_trainer(directory, answer_format, **more):
        asked.append(answer_format)
        raise LookupError

    monkeypatch.setattr(chat.opening, "open_trainer", open_trainer)
    assert chat.run_chat(model, once="Hello") == 0 and not asked
    with pytest.raises(LookupError):
        chat.run_chat(model, once="2 + 2", answer_format=AnswerFormat(answer="boxed"))
    keep_taught_roles(model, {"solver": {"answer": "phrase", "steps_as": "lines", "prompt": "{problem}"}})
    with pytest.raises(LookupError):
        chat.run_chat(model, once="2 + 2")
    assert asked == [AnswerFormat(answer="boxed"), DEFAULT_FORMAT]  # which ``open_trainer`` fills in as it was taught
    (model / "result.json").write_text(json.dumps({"stage": "sft"}))  # it was taught to converse after that
    assert chat.run_chat(model, once="Hello") == 0 and len(asked) == 2


@pytest.fixture(scope="module")
def trainer():
    return CoTrainer(tango(steps=1, votes=3, tasks=study_problems((2, 2))))


@pytest.mark.whole
def test_steps_answer_and_verdicts_of_several_reviews(trainer):
    recipe = trainer.recipe
    executor = trainer.make_runner(recipe.seed)
    for turn in range(8):
        lines = chat.problem_lines(trainer, executor, recipe.tasks.get("validation", turn).prompt, turn)
        if len(lines) >= 4 and "no verdict" not in lines[-1]:
            break
    *steps, answer, verdict = lines
    assert all(line[2] in "✓✗?" for line in steps) and answer.startswith("    answer: ")
    assert "of 3 reviews say CORRECT" in verdict and "probability of CORRECT 0." in verdict


def test_text_that_is_no_solution_is_shown_as_it_is(trainer):
    recipe = trainer.recipe
    executor = trainer.make_runner(recipe.seed)
    lines = chat.problem_lines(trainer, executor, "?", 9)
    assert lines and all(isinstance(line, str) for line in lines)


@pytest.mark.whole
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


@pytest.mark.whole
def test_one_problem_without_a_conversation(trainer, monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(chat.opening, "open_trainer", lambda directory, *how, **more: trainer)
    problem = trainer.recipe.tasks.get("validation", chat.EXAMPLE).prompt
    assert main(["chat", str(tmp_path), "--once", problem]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "Ctrl-D" not in lines[0] and any(line.startswith("    answer: ") for line in lines)
    command_refuses(["chat", str(tmp_path), "--once", " "], "E_ONCE_EMPTY: --once", capsys)


def test_a_problem_that_cannot_be_answered_does_not_end_the_conversation(trainer, monkeypatch, capsys):
    said = iter(["word " * 900])
    monkeypatch.setattr(chat.opening, "open_trainer", lambda directory, *how, **more: trainer)
    assert (
        chat.run_chat("anywhere", read_line=lambda prompt: next(said, None) or (_ for _ in ()).throw(EOFError())) == 0
    )
    assert "exceed the context" in capsys.readouterr().out

    async def fails(task, roles, **options):
        raise RuntimeError("nobody\x1b[31m there")

    recipe = replace(trainer.recipe, evaluation=replace(trainer.recipe.evaluation, protocol=fails))
    executor = trainer.make_runner(recipe.seed)
    with refuses("E_NO_ANSWER", names="test_chat.py") as refused:
        chat.problem_lines(SimpleNamespace(recipe=recipe), executor, "?", 10)
    assert "\x1b" not in str(refused.value)
    command_refuses(["chat", ".", "--once", "word " * 900], "E_NO_ANSWER: 'solver' | context of 1024", capsys)
