"""How answers are read is settled once for all runs of a comparison, by ``--answer-format`` and ``--prompt``."""

import json
import shutil
from dataclasses import replace

import pytest
import torch

from cotrain.analysis.comparison import asking
from cotrain.analysis.comparison.study_file import read_study
from cotrain.cli.main import main
from cotrain.config.override import override
from cotrain.prompts.templates import SOLVE
from cotrain.recipes.grpo import grpo
from cotrain.recipes.tango import tango
from cotrain.rollout.common_roles import FORMAT_MARK
from cotrain.runs.choose_formats import AnswerFormat
from tests.helpers import EASY, TINY
from tests.sentences import refuses

PROMPT = "Solve: {problem}"


@pytest.fixture
def model(tmp_path):
    """A model of its own, that nobody knows the formats of."""
    torch.set_num_threads(1)
    shutil.copytree(TINY, tmp_path / "model")
    (tmp_path / "model" / FORMAT_MARK).unlink()
    return str(tmp_path / "model")


def settled(recipes, answer, prompt=None, *, out, say):
    return asking.answer_settings(recipes, AnswerFormat(answer=answer, prompt=prompt), out=out, device="cpu", say=say)


def brief(recipe):
    return override(recipe, ["roles.solver.sampling.max_tokens=128"])


@pytest.mark.whole
def test_every_arm_is_asked_and_read_alike(model, tmp_path):
    recipes = {"a": brief(grpo(model=model)), "b": brief(grpo(model=model, seed=1)), "c": brief(grpo(model=TINY))}
    found = settled(recipes, "last-number", PROMPT, out=tmp_path, say=print)
    wanted = {f"roles.solver.prompt={json.dumps(PROMPT)}", 'roles.solver.answer_format="last-number"'}
    assert all(wanted <= set(mine) for mine in found.values()) and found["a"] == found["b"]
    with refuses("E_PROMPT_MARKS", names=("arm 'a'", "{problem}")):
        settled(recipes, "tags", "no mark", out=tmp_path, say=print)


@pytest.mark.whole
def test_a_model_is_looked_at_once_for_all_runs(model, tmp_path):
    said = []
    a, b = grpo(model=model, seed=1, tasks=EASY), grpo(model=model, lr=1e-3, tasks=EASY)
    recipes = {"a": brief(a), "b": brief(b), "c": grpo(model=TINY)}
    found = settled(recipes, None, SOLVE, out=tmp_path, say=said.append)
    assert len([line for line in said if line.startswith("asking ")]) == 1
    asked = f"roles.solver.prompt={json.dumps(SOLVE)}"
    assert found == {
        "a": [asked, 'roles.solver.answer_format="tags"'],
        "b": [asked, 'roles.solver.answer_format="tags"'],
        "c": [asked],
    }
    asking.save_answers(tmp_path, found)
    assert settled(recipes, None, SOLVE, out=tmp_path, say=said.append) == found and len(said) < 20
    (tmp_path / asking.FILE).write_text("[")
    with refuses("E_COMPARISON_DAMAGED", names="answers.json"):
        settled(recipes, None, out=tmp_path, say=print)


def test_what_was_set_for_an_arm_stays(model, tmp_path):
    """An arm that was set to words came out in tags."""
    words = override(tango(model=model), ["roles.solver.answer_format=hash", "roles.verifier.verdict_format=words"])
    found = settled({"a": words}, None, out=tmp_path, say=print)["a"]
    roles = override(words, found).roles
    assert (roles["solver"].answer_format, roles["verifier"].verdict_format) == ("hash", "words") and len(found) == 2


def test_arms_without_a_verifier_are_not_asked_for_verdicts(model, tmp_path):
    """A study of both was refused."""
    said, judged = [], AnswerFormat(answer="hash", verdict="words")
    recipes = {"a": grpo(model=model, tasks=EASY), "b": tango(model=model, tasks=EASY)}
    recipes = {label: override(one, ["roles.solver.answer_format=hash"]) for label, one in recipes.items()}
    found = asking.answer_settings(recipes, judged, out=tmp_path, device="cpu", say=said.append)
    assert [any("verifier" in one for one in found[label]) for label in "ab"] == [False, True]
    assert [line for line in said if line.startswith("note: no role 'verifier'")] == [
        "note: no role 'verifier' reviews steps in a: what is said of verdicts is for others"
    ]


@pytest.mark.whole
def test_arms_that_sample_otherwise_are_looked_at_apart(model, tmp_path):
    said = []
    a = brief(grpo(model=model, tasks=EASY))
    recipes = {"a": a, "b": override(a, ["roles.solver.sampling.temperature=0.5"])}
    recipes["c"] = replace(a, roles={"solver": recipes["b"].roles["solver"]})  # as b, and not by a setting
    settled(recipes, None, SOLVE, out=tmp_path, say=said.append)
    assert [line.split()[0] for line in said if "answers" in line and not line.startswith(" ")] == [
        *("asking", "answers:"),
        *("asking", "answers:"),
        "answers",
    ]


@pytest.mark.whole
def test_a_solver_is_asked_once_for_arms_with_and_without_a_verifier(model, tmp_path):
    """GRPO beside Tango had asked the same model the same problems twice."""
    said = []
    recipes = {"a": brief(grpo(model=model, tasks=EASY)), "b": brief(tango(model=model, tasks=EASY))}
    chosen = AnswerFormat(answer="last-number", verdict="tags")
    found = asking.answer_settings(recipes, chosen, out=tmp_path, device="cpu", say=said.append)
    assert len([line for line in said if "to see how it answers" in line]) == 1
    assert f"answers of {model} were looked at above, and are read alike" in said
    solvers = [[one for one in settings if one.startswith("roles.solver.")] for settings in found.values()]
    assert solvers[0] == solvers[1] and solvers[0]


def test_a_study_has_them_as_keys(tmp_path):
    head = 'hypothesis = "h"\nmeasure = "solver/pass@1"\nseeds = 3\nout = "runs"\nanswer_format = "boxed"\n'
    (tmp_path / "s.toml").write_text(f'{head}prompt = "{PROMPT}"\n[arms.a]\nrecipe = "grpo"\n')
    (made,) = read_study(tmp_path / "s.toml").parts.values()
    assert (made.answer_format, made.prompt) == ("boxed", PROMPT)


@pytest.mark.whole
def test_the_runs_of_a_comparison_read_so(model, tmp_path):
    (tmp_path / "prompt.txt").write_text(PROMPT)
    words = ["--seeds=1", "--batches=1", "--equal=batches", "--evaluate-every=0", "--operations", "2", "2"]
    words += ["--set=evaluation.tasks=2", "--set=evaluation.splits=[]", "--set=tasks_per_step=2", "--set=group_size=2"]
    words += [
        "--set=roles.solver.sampling.max_tokens=8",
        "--answer-format=last-number",
        f"--prompt={tmp_path}/prompt.txt",
    ]
    assert main(["compare", f"grpo:model={model}", f"--out={tmp_path}/out", *words]) == 0
    (run,) = (tmp_path / "out").glob("*/seed-0/recipe.json")
    solver = json.loads(run.read_text())["settings"]["roles"]["solver"]
    assert (solver["answer_format"], solver["prompt"]) == ("last-number", PROMPT)
