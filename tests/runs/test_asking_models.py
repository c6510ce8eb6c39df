"""How a real model's answers are read is chosen before anything long begins, from what it says, or refused in one
line."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from cotrain_zoo.dsm import dsm

from cotrain.cli.main import main
from cotrain.config.edits import overrides_since
from cotrain.config.override import override
from cotrain.formats.role_prompts import SOLVE_OWN
from cotrain.prompts.templates import SOLVE, SOLVE_FULL
from cotrain.recipes.genprm import genprm
from cotrain.recipes.grpo import grpo
from cotrain.recipes.tango import tango
from cotrain.recipes.votes import co_rewarding
from cotrain.rollout.common_roles import solver
from cotrain.runs import opening
from cotrain.runs.changes import rebuild_recipe
from cotrain.runs.choose_formats import (
    AnswerFormat,
    SampledText,
    answer_lines,
    answers_refusal,
    choose_answer_format,
    read_texts,
)
from tests.helpers import EASY, TINY
from tests.sentences import command_refuses, refuses

TASK = EASY.get("train", 0)


def silent(text):
    """Nobody listens."""


def chosen(recipe, answer=None, prompt=None, say=silent, steps=None, look=False):
    how = AnswerFormat(answer=answer, prompt=prompt, steps_as=steps)
    changed, _ = choose_answer_format(recipe, how, device="cpu", say=say, look=look)
    return overrides_since(recipe, changed)


def said(*texts, finish="stop"):
    return [SampledText(task=TASK, text=text, finish=finish) for text in texts]


def reading_of(answer, texts):
    return read_texts(replace(solver("generator", TINY), answer_format=answer), texts)


def test_a_model_of_the_package_is_not_asked_and_its_recipe_stays_as_it_is():
    recipe, heard = grpo(model=TINY, tasks=EASY, steps=1), []
    assert chosen(recipe, say=heard.append) == [] and heard == []
    assert chosen(dsm(model=TINY, tasks=EASY, steps=1)) == []


def test_a_named_format_brings_its_prompt_and_is_remembered(other):
    recipe = grpo(model=other, tasks=EASY, steps=1)
    assert recipe.roles["solver"].prompt == SOLVE_FULL
    role = override(recipe, chosen(recipe, "phrase")).roles["solver"]
    assert (role.answer_format, role.prompt) == ("phrase", SOLVE_OWN["phrase"])
    mine = override(recipe, chosen(recipe, r"A: (\d+)", "{problem} A:")).roles["solver"]
    assert (mine.answer_format, mine.prompt) == (r"A: (\d+)", "{problem} A:")


@pytest.mark.parametrize(("variant", "second"), [("II", "teacher"), ("I", "rephrased")])
def test_all_who_are_asked_as_the_solver_is_answer_as_it_does(other, variant, second):
    """A teacher that was still asked for tags taught nothing: not one of its answers could be read."""
    recipe = co_rewarding(model=other, tasks=EASY, variant=variant, steps=1)
    roles = override(recipe, chosen(recipe, "phrase", "{problem} Say it.")).roles
    assert {(one.answer_format, one.prompt) for one in (roles["solver"], roles[second])} == {
        ("phrase", "{problem} Say it.")
    }
    named = override(recipe, chosen(recipe, "phrase")).roles
    assert named[second].prompt == named["solver"].prompt == SOLVE_OWN["phrase"]
    judged = tango(model=other, tasks=EASY, steps=1)
    assert override(judged, chosen(judged, "phrase")).roles["verifier"] == judged.roles["verifier"]


def test_steps_in_words_reach_all_who_are_asked_as_the_solver(other):
    recipe = co_rewarding(model=other, tasks=EASY, variant="II", steps=1)
    roles = override(recipe, chosen(recipe, "phrase", steps="numbered")).roles
    assert {roles[name].step_format for name in ("solver", "teacher")} == {"numbered"}
    assert "numbered steps (1., 2., 3.)" in roles["solver"].prompt and "The answer is" in roles["teacher"].prompt
    read_as = roles["solver"].parse_reply("1. Two\nand two.\n2. The answer is 4.", {})
    assert [step.text for step in read_as.steps] == ["Two\nand two.", "The answer is 4."]
    tagged = override(recipe, chosen(recipe, "tags", steps="lines")).roles["solver"]
    assert tagged.parse_reply("3 + 4\nis 7 <answer>7</answer>", {}).answer == "7" and "<answer>" in tagged.prompt


@pytest.mark.whole
def test_steps_are_cut_as_the_model_writes_them_and_a_named_format_is_shown(other):
    """The tiny model writes <step>…</step>…<answer>…</answer> on one line, which is one sentence."""
    heard, recipe = [], grpo(model=other, tasks=EASY, steps=1)
    how = chosen(recipe, "<answer>(.*)</answer>", SOLVE, heard.append, look=True)
    assert how[-1] == 'roles.solver.step_format="sentences"' and "; steps as sentences, 1.0 of an answer" in heard[-1]
    assert sum(line.startswith("  …") for line in heard) == 8 and "8 problems" in heard[0]
    heard.clear()
    assert chosen(recipe, "hash", SOLVE, heard.append, look=True)[-1] == 'roles.solver.answer_format="hash"' or heard
    assert heard[-1].startswith("note: 8 of 8 answers cannot be read")  # told, and not refused
    named = chosen(recipe, "<answer>(.*)</answer>", SOLVE, heard.append, steps="tags", look=True)
    assert named[-1] == 'roles.solver.step_format="tags"' and "steps as tags" in heard[-1]
    assert chosen(recipe, "auto", SOLVE, steps="lines")[-1] == 'roles.solver.step_format="lines"'


def test_what_cannot_be_is_refused(other):
    recipe = grpo(model=other, tasks=EASY, steps=1)
    with refuses("E_UNKNOWN_FORMAT", names="'boxed'"):
        chosen(recipe, "boxes")
    with refuses("E_PROMPT_MARKS", names="none"):
        chosen(recipe, "phrase", "Solve it.")
    with refuses("E_ANSWERS_IN_TAGS_ALONE"):
        chosen(genprm(tasks=EASY, steps=1), "phrase")
    with refuses("E_ANSWERS_IN_TAGS_ALONE", names="--steps-as lines"):
        chosen(genprm(tasks=EASY, steps=1), steps="lines")
    with refuses("E_UNKNOWN_WAY_TO_CUT_STEPS", names="'numbered'"):
        chosen(recipe, "phrase", steps="number")
    with refuses("E_ROLE_SETTING_UNSUITED", names="steps 'lines'"):
        override(opening.recipe_of(TINY, judging=True), ['roles.verifier.step_format="lines"'])
    with refuses("E_NO_PLAIN_SOLVER"):
        chosen(dsm(model=TINY, tasks=EASY, steps=1), "phrase")
    with refuses("E_ROLE_SETTING_UNSUITED"):
        override(opening.recipe_of(TINY, judging=True), ['roles.verifier.answer_format="phrase"'])


@pytest.mark.whole
def test_the_model_itself_says_how_it_answers(other):
    """Asked as it was taught, it writes tags; the choice is said in one line, with what was read."""
    heard = []
    assert chosen(grpo(model=other, tasks=EASY, steps=1), "auto", SOLVE, heard.append) == [
        f"roles.solver.prompt={json.dumps(SOLVE)}"
    ]
    assert "8 problems" in heard[0] and heard[-1].startswith("answers: tags reads ") and len(heard) == 10


@pytest.mark.whole
def test_a_look_says_how_many_rounds_there_are_and_a_trial_is_short_and_goes_on(other):
    """Asked to "say something", the tiny model writes nothing that can be read as an answer in a box."""
    heard = []
    plain = override(grpo(model=other, tasks=EASY, steps=1), ["roles.solver.sampling.max_tokens=150"])
    limit = 150
    with refuses("E_FORMAT_NOT_FOUND", names="answers"):
        chosen(plain, "auto", say=heard.append)
    assert [line.split(" took ")[0] for line in heard if " took " in line] == ["  round 1 of 3", "  round 2 of 3"]
    assert (
        f"8 problems, to see how it answers (up to 3 rounds, each of at most {8 * limit:,} tokens in all)" in heard[0]
    )
    heard.clear()
    recipe = override(plain, ["roles.solver.prompt=Say something {problem}"])
    how = AnswerFormat(answer="auto")
    choose_answer_format(recipe, how, device="cpu", say=heard.append, trial=True)
    assert f"2 problems, to see how it answers (at most {2 * limit:,} tokens in all)" in heard[0]
    assert sum(line.startswith("  …") for line in heard) == 2 and heard[-1].startswith("note: 2 of 2 answers ")


@pytest.mark.whole
def test_a_format_that_was_chosen_is_the_one_that_is_read(other):
    """The look read tags, and the run what was set before."""
    heard, recipe = [], override(grpo(model=other, tasks=EASY, steps=1), ["roles.solver.answer_format=phrase"])
    how = chosen(recipe, "auto", SOLVE, heard.append)
    assert heard[-1].startswith("answers: tags reads ") and how[-1] == 'roles.solver.answer_format="tags"'
    lines = override(recipe, ["roles.solver.answer_format=tags", "roles.solver.step_format=lines"])
    assert override(lines, chosen(lines, "auto", SOLVE, heard.append)).roles["solver"].step_format == "lines"
    assert "; steps as lines, " in heard[-1]  # and the look cuts them as the run does


def test_a_run_with_a_model_that_cannot_be_read_ends_before_it_begins(other, tmp_path, capsys):
    (tmp_path / "ask.txt").write_text("Say something of {problem}\n")
    out = tmp_path / "run"
    words = ["run", "grpo", "--model", other, "--steps", "1", "--prompt", str(tmp_path / "ask.txt"), "--out", str(out)]
    words += ["--set", "roles.solver.sampling.max_tokens=4"]
    command_refuses(words, "E_FORMAT_NOT_FOUND: of 8 answers were cut off", capsys)
    assert not out.exists()


def with_context(folder, tokens):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"max_position_embeddings": tokens}))


@pytest.mark.whole
@pytest.mark.parametrize("words", [["--answer-format", "auto"], ["--answer-format", "boxed"]])
@pytest.mark.parametrize("suite", [False, True])
def test_a_context_that_is_too_short_asks_for_a_lower_limit(other, tmp_path, capsys, monkeypatch, words, suite):
    other = str(shutil.copytree(other, tmp_path / "short"))  # the fixture's is shared
    with_context(Path(other), 512)
    monkeypatch.chdir(tmp_path)
    rows = [{"question": f"What is {n} + 1?", "answer": str(n + 1)} for n in range(9)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    command = ["run", "grpo", "--model", other, "--steps", "1", "--out", "run"]
    command = ["eval", other, "--suite", "gsm8k", "--data", "rows.jsonl", "--samples", "1"] if suite else command
    found = main([*command, *words])
    told = capsys.readouterr()
    last, said = told.err.splitlines()[-1], told.err + told.out
    assert "context" in last and "lower" in last and "0 of 0" not in said and "raise" not in said
    assert found == 2
    if suite:
        assert main([*command, *words, "--max-tokens", "8"]) in (0, 2)  # and what is said to help does
        assert "context" not in capsys.readouterr().err


def test_a_limit_is_not_to_be_raised_where_the_context_ends(other):
    reading = reading_of("phrase", said("I think", "so", finish="length"))
    assert "raise their limit" in answers_refusal(reading) and "raise their limit" in answers_refusal(
        replace(reading, room=100)
    )
    full = answers_refusal(replace(reading, room=3))
    assert full.startswith("2 of 2 answers were cut off before they ended, ") and "raise" not in full
    assert "no problem was there" in answers_refusal(reading_of("phrase", []))


def test_a_format_is_as_good_as_what_it_reads():
    answers = said(f"The answer is {TASK.gold}.", "So it is 5.", "\\boxed{3}")
    reading = reading_of("phrase", answers)
    assert [f.answer if f.ok else None for f in reading.parsed] == [TASK.gold, None, None]
    assert ", right" in answer_lines(reading)[0] and "unreadable" in answer_lines(reading)[1]
    assert answers_refusal(reading).startswith(
        "2 of 3 answers cannot be read: …'So it is 5.'; try --answer-format last-number"
    )
    cut = reading_of("phrase", said("a", "b", finish="length"))
    assert reading_of("last-number", said("so 12", finish="length")).readable == 0
    assert answers_refusal(cut).startswith("2 of 2 answers were cut off")


@pytest.mark.whole
def test_a_run_earns_reward_in_free_words_and_is_resumed_alike(other, tmp_path, capsys):
    """The tiny model writes <answer>N</answer>; read by a pattern, the same answers are right."""
    out, tags = str(tmp_path / "run"), str(tmp_path / "tags")
    words = ["run", "grpo", "--model", other, "--steps", "2", "--operations", "2", "2", "--tasks-per-step", "2"]
    words += ["--set", "evaluation.tasks=2", "--set", "roles.solver.sampling.max_tokens=96"]
    words += ["--set", "evaluation.group_size=1", "--set", "evaluation.greedy=false", "--set", "evaluation.splits=[]"]
    (tmp_path / "ask.txt").write_text(SOLVE)
    words += ["--prompt", str(tmp_path / "ask.txt")]
    assert main([*words, "--answer-format", "<answer>(.*)</answer>", "--out", out]) == 0
    assert main([*words, "--answer-format", "tags", "--out", tags]) == 0
    rows = [json.loads((tmp_path / name / "metrics.jsonl").read_text().splitlines()[0]) for name in ("run", "tags")]
    assert rows[0]["solver/accuracy"] == rows[1]["solver/accuracy"]
    assert rebuild_recipe(out).roles["solver"].answer_format == "<answer>(.*)</answer>"
    assert main(["resume", out, "--steps", "3"]) == 0
    last = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1])
    assert (last["step"], last["solver/parse_failures"], last["solver/steps"]) == (2, 0.0, 1.0)  # in tags 2 steps
    capsys.readouterr()


@pytest.mark.parametrize("flag", ["--model", "--verifier-model"])
def test_a_model_that_is_not_there_is_told_before_any_is_asked(flag, tmp_path, capsys):
    models = {"--model": TINY, "--verifier-model": TINY} | {flag: f"{tmp_path}/nomodel"}
    words = [word for pair in models.items() for word in pair]
    words = ["run", "tango", *words, "--threads", "1", "--out", str(tmp_path / "run")]
    assert main(words) == 2 and "asking" not in "".join(capsys.readouterr())
    command_refuses(words, f"E_MODEL_NOT_FOUND: '{tmp_path}/nomodel'", capsys)
