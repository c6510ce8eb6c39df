"""How a real verifier's reviews are read is chosen before anything long begins, from what it writes, or refused in one
line."""

import gzip
import json
from dataclasses import replace

import pytest

from cotrain.cli.main import main
from cotrain.config.edits import overrides_since
from cotrain.config.override import override
from cotrain.core.types import Span
from cotrain.formats.free_verdicts import free_review
from cotrain.formats.role_prompts import REVIEW, REVIEW_FULL, REVIEW_OWN
from cotrain.formats.solutions import Solution
from cotrain.formats.verdicts import Verdict
from cotrain.prompts.templates import SOLVE, fields_of
from cotrain.recipes.critique import critique
from cotrain.recipes.grpo import grpo
from cotrain.recipes.judged import judged
from cotrain.recipes.tango import tango
from cotrain.rollout.common_roles import verifier
from cotrain.runs.changes import rebuild_recipe
from cotrain.runs.choose_formats import (
    VERIFIER_FIELDS,
    AnswerFormat,
    Reading,
    SampledText,
    choose_answer_format,
    choose_verdict_format,
    review_lines,
    reviews_refusal,
)
from tests.helpers import EASY, TINY
from tests.sentences import refuses

TASK = EASY.get("train", 0)
FINAL = "<final>(CORRECT|INCORRECT)</final>"  # what the tiny model writes, read by a pattern


def silent(text):
    """Nobody listens."""


def chosen(recipe, verdict=None, prompt=None, say=silent, look=False, seen=None):
    how = AnswerFormat(verdict=verdict, verifier_prompt=prompt)
    changed = choose_verdict_format(recipe, how, answer_reading=seen, device="cpu", say=say, look=look)
    return overrides_since(recipe, changed)


def solving(model, make=tango):
    """A recipe whose solver is asked as the tiny model was taught."""
    how = [f"roles.solver.prompt={json.dumps(SOLVE)}", "roles.verifier.sampling.max_tokens=160"]
    return override(make(model=model, tasks=EASY, steps=1), how)


def test_a_model_of_the_package_is_not_asked_and_its_recipe_stays_as_it_is():
    heard = []
    assert chosen(tango(model=TINY, tasks=EASY, steps=1), say=heard.append, look=True) == [] and heard == []
    assert chosen(grpo(model=TINY, tasks=EASY, steps=1), look=True) == []


@pytest.mark.parametrize("make", [tango, judged])
@pytest.mark.parametrize("form", sorted(REVIEW_OWN))
def test_a_named_form_brings_its_prompt_and_its_reader(other, make, form):
    recipe = make(model=other, tasks=EASY, steps=1)
    assert recipe.roles["verifier"].prompt == REVIEW_FULL
    role = override(recipe, chosen(recipe, form)).roles["verifier"]
    assert (role.verdict_format, role.prompt) == (form, REVIEW_OWN[form])
    text = {"words": "Step 1: wrong\nVerdict: wrong", "boxed": "\\boxed{No} \\boxed{No}", "first-wrong": "\\boxed{0}"}
    review = role.parse_reply(text[form], {"count": 1})
    assert (tuple(review.steps), review.final) == ((False,), False)
    assert role.parse_reply(text[form], {"count": 2}).ok is (form == "first-wrong")


def test_prompts_have_the_marks_that_a_verifier_is_told():
    assert {fields_of(prompt) for prompt in REVIEW_OWN.values()} == {VERIFIER_FIELDS}


def test_a_prompt_of_ones_own_says_whether_steps_are_judged(other):
    recipe = tango(model=other, tasks=EASY, steps=1)
    role = override(recipe, chosen(recipe, "words", "{problem} {solution} Is it?")).roles["verifier"]
    assert role.parse_reply("Verdict: correct", {"count": 3}).final is True
    asked = override(recipe, chosen(recipe, "words", "{problem} {solution} {count} Is it?")).roles["verifier"]
    assert asked.parse_reply("Verdict: correct", {"count": 3}).reason == "no steps"
    assert role.prompt_fields({"problem": "P", "solution": "So it is correct."})["solution"] == "So it is …."


def test_what_cannot_be_is_refused(other):
    recipe = tango(model=other, tasks=EASY, steps=1)
    with refuses("E_UNKNOWN_FORM", names="'words'"):
        chosen(recipe, "word")
    with refuses("E_PROMPT_MARKS", names="problem"):
        chosen(recipe, "words", "Is {problem} right?")
    with refuses("E_VERDICT_NOT_ASKED"):
        chosen(recipe, FINAL)
    with refuses("E_NO_STEP_VERIFIER"):
        chosen(grpo(model=other, tasks=EASY, steps=1), "words")
    with refuses("E_NO_STEP_VERIFIER"):
        whole = tango(model=other, tasks=EASY, steps=1, review_format="genrm", steps_judged_by="none")
        chosen(whole, "words")
    with refuses("E_REVIEWS_IN_TAGS_ALONE"):
        chosen(critique(model="shipped-roles", tasks=EASY, steps=1), "words")


@pytest.mark.whole
def test_the_model_itself_says_how_it_judges(other):
    """Asked as it was taught, it writes tags; the solver's answers are those that were looked at before."""
    heard = []
    recipe = solving(other)
    recipe, seen = choose_answer_format(recipe, AnswerFormat(answer="auto"), device="cpu", say=silent)
    how = chosen(recipe, "auto", REVIEW, heard.append, look=True, seen=seen)
    assert how == [f"roles.verifier.prompt={json.dumps(REVIEW)}"]
    assert f"for {seen.readable} reviews, to see how it judges (at most " in heard[0]
    assert heard[-1].startswith("verdicts: tags reads ")
    assert sum(line.startswith("  …") for line in heard) == seen.readable  # each review, beside lines of progress
    alone = []
    assert chosen(recipe, "auto", REVIEW, alone.append, look=True) == how  # its own look at the solver's answers
    assert alone[-1] == heard[-1]


@pytest.mark.whole
def test_a_form_that_was_chosen_is_the_one_that_is_read(other):
    """The look said that tags read 8 of 8, and the run read words."""
    recipe = override(
        solving(other), ["roles.verifier.verdict_format=words", f"roles.verifier.prompt={json.dumps(REVIEW)}"]
    )
    heard = []
    how = chosen(recipe, "auto", say=heard.append, look=True)
    assert heard[-1].startswith("verdicts: tags reads ") and how == ['roles.verifier.verdict_format="tags"']
    assert override(recipe, how).roles["verifier"].verdict_format == "tags"


@pytest.mark.whole
def test_a_refusal_names_what_can_be_done(other):
    """Where another role is shown the reviews, they are read in tags alone."""
    for make, words in ((tango, True), (critique, False)):
        recipe = override(solving(other, make), ["roles.verifier.prompt={solution} {problem}\nSolve:"])
        with refuses("E_FORMAT_NOT_FOUND", names="--verdict tags") as refused:
            chosen(recipe, look=True)
        assert "reviews cannot be read" in str(refused.value) and "a --verifier-prompt FILE" in str(refused.value)
        assert "--verdict words" not in str(refused.value), words
        heard = []
        assert chosen(recipe, "tags", say=heard.append, look=True) and heard[-1].startswith("note: ")
        assert ("try --verdict words" in heard[-1]) is words and "goes on" not in heard[-1]


@pytest.mark.whole
def test_reviews_that_cannot_be_read_end_it_before_it_begins_or_are_told(other):
    recipe = override(solving(other), ["roles.verifier.sampling.max_tokens=48"])
    with refuses("E_FORMAT_NOT_FOUND", names=("reviews", "cotrain teach verifier")):
        chosen(recipe, look=True)
    heard = []
    assert chosen(recipe, "tags", look=True, say=heard.append) == ['roles.verifier.verdict_format="tags"']
    assert heard[-1].startswith("note: ") and "cotrain teach verifier" in heard[-1]
    unsolved = override(recipe, ["roles.solver.sampling.max_tokens=2"])
    assert chosen(unsolved, look=True, say=heard.append) == [] and "no review was looked at" in heard[-1]


def test_what_is_shown_of_the_reviews_and_why_they_are_refused():
    texts = ["Step 1: correct\nVerdict: correct", "It all looks fine.", "Verdict: wrong", "Fine!"]
    parsed = [free_review(text, "words", 1) for text in texts]
    right = Solution(steps=(Span(start=0, end=1, text="1"),), answer=TASK.gold)
    wrong = replace(right, answer="no number")
    said = [
        SampledText(task=TASK, text=text, finish="stop", solution=solution)
        for text, solution in zip(texts, [right, wrong, wrong, right], strict=True)
    ]
    role = replace(verifier("verifier", TINY), verdict_format="words")
    reading = Reading(role=role, said=said, parsed=parsed)
    lines = review_lines(reading)
    assert lines[0].endswith("→ right, steps ✓; in truth right") and "unreadable: no final verdict" in lines[1]
    assert lines[-1].startswith("verdicts: words reads 1 of 4 reviews (1 agree with the truth)")
    ungraded = [replace(one, solution=None) for one in said]
    unknown = review_lines(replace(reading, said=ungraded, parsed=[Verdict(final=None, score=0.5), *parsed[1:]]))
    assert unknown[0].endswith("→ no verdict; not graded") and "(0 agree with the truth)" in unknown[-1]
    why = reviews_refusal(reading, others=["words", "boxed"])
    assert why.startswith("3 of 4 reviews cannot be read (most often: no final verdict): …'It all looks fine.'")
    assert "try --verdict words, a --verifier-prompt FILE" in why and "--verdict" not in reviews_refusal(
        reading, others=[]
    )


@pytest.mark.whole
def test_a_run_learns_from_reviews_in_words_of_their_own_and_is_resumed_alike(other, tmp_path, capsys):
    (tmp_path / "ask.txt").write_text(SOLVE)
    (tmp_path / "judge.txt").write_text(REVIEW)
    out = str(tmp_path / "run")
    words = ["run", "tango", "--model", other, "--steps", "2", "--operations", "2", "2", "--tasks-per-step", "2"]
    words += ["--warmup", "1", "--ratio", "1", "1", "--reviews", "2", "--set", "evaluation.tasks=2", "--out", out]
    words += ["--set", "evaluation.group_size=1", "--set", "evaluation.greedy=false", "--set", "evaluation.splits=[]"]
    words += ["--prompt", str(tmp_path / "ask.txt"), "--answer-format", "tags", "--device", "cpu", "--threads", "1"]
    words += [
        "--set",
        "roles.verifier.sampling.max_tokens=160",
        "--verifier-prompt",
        str(tmp_path / "judge.txt"),
        "--verdict",
        FINAL,
    ]
    assert main(words) == 0
    assert "reads" in capsys.readouterr().out
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert any(row.get("verifier/parse_failures", 1.0) < 0.5 for row in rows)
    role = rebuild_recipe(out).roles["verifier"]
    assert (role.verdict_format, role.prompt) == (FINAL, REVIEW)
    assert main(["resume", out, "--steps", "3", "--device", "cpu"]) == 0
    capsys.readouterr()
    with gzip.open(tmp_path / "run" / "episodes" / "episodes.jsonl.gz", "rt") as stream:
        episodes = [json.loads(line) for line in stream]
    found = [t["findings"] for e in episodes if e["step"] == 2 for t in e["traces"] if t["role"] == "verifier"]
    assert found and all("final" in one and "steps" not in one for one in found)  # tags would read the steps too
