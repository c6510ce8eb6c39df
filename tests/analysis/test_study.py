"""Studies: what a file must say, what git says of it, gates that hold and that do not, and going on. Runs are made, not
trained; one whole study is."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import tomllib
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest

from cotrain.analysis.comparison import study_file
from cotrain.analysis.comparison.compare import claim_directory
from cotrain.analysis.comparison.forecast import phase_counts, run_length
from cotrain.analysis.comparison.runs import run_command
from cotrain.analysis.comparison.study import finished_seeds, run_count_lines, run_study
from cotrain.analysis.comparison.study_file import Study, git_status, read_study
from cotrain.analysis.comparison.study_path import FOLDER, shipped_studies, study_path
from cotrain.cli.main import main
from cotrain.reports.study_words import study_markdown
from cotrain.runs.directory import RunDirectory
from tests.analysis.made_runs import made_run
from tests.helpers import TINY

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))

from domains import program_rows

from tests.sentences import command_refuses, refuses

GYM = find_spec("reasoning_gym") is not None
WITHOUT_GATE = {
    "self-play-spin",
    "second-view",
    "judged-again",
    "judge-errors",
    "judge-errors-longer",
    "distillation",
    "implicit-estimators-slower",
}  # nothing to run first
STUDIES = sorted(shipped_studies().values())
FILE = """
hypothesis = "Oracle steps help."
measure = "solver/greedy"
model = "{tiny}"
seeds = 3
equal = "batches"
batches = 4
overrides = ["evaluation.tasks=16"]
out = "{out}"

[arms.outcome]
recipe = "grpo"
[arms.oracle]
recipe = "grpo"
steps_judged_by = "oracle"
alpha = 0.5

[parts."2 steps"]
operations = [2, 2]
[parts."3 steps"]
operations = [3, 3]
overrides = ["group_size=4"]

[gate]
part = "3 steps"
arm = "oracle"
minus = "outcome"
at_least = 0.1
"""
TWO_WAVES = """
hypothesis = "Oracle steps help."
measure = "solver/greedy"
model = "{tiny}"
seeds = 1
equal = "flops"
batches = 2
evaluate_every = 2
operations = [2, 2]
overrides = ["evaluation.tasks=2", "evaluation.group_size=2", "evaluation.splits=[]", "evaluation.curve_tasks=1"]
out = "{out}"

[arms.one]
recipe = "grpo"
overrides = ["tasks_per_step=2", "group_size=2"]
[arms.more]
recipe = "grpo"
overrides = ["tasks_per_step=2", "group_size=6"]
"""
AFTER = {"2 steps": {"outcome": 0.5, "oracle": 0.5}, "3 steps": {"outcome": 0.3, "oracle": 0.5}}


def written(folder: Path, text: str = FILE) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "mine.toml"
    path.write_text(text.format(out=folder / "out", tiny=TINY))
    return path


def as_if_run(study: Study, after: dict[str, dict[str, float]] = AFTER) -> None:
    alarms = {
        "outcome": [],
        "oracle": [{"band": b, "key": f"solver/{b}", "step": s} for b, s in (("a|b", 7), ("gap", 2), ("rare", 0))],
    }
    """Every run of the study, finished, in a folder that the study has begun."""
    (study.out).mkdir(exist_ok=True)
    for name, plan in study.parts.items():
        claim_directory(plan, list(plan.arms))
        for arm, figure in after[name].items():
            for seed in range(plan.seeds):
                figures = {"solver/greedy": figure + 0.01 * seed * (arm == "oracle"), "solver/pass@1": 0.4}
                made_run(plan.out / arm / f"seed-{seed}", figures, alarms=alarms[arm][: 3 - seed])


def begun(study: Study) -> None:
    """As a study leaves its folder that was killed right after it began."""
    with pytest.raises(RuntimeError, match="killed"):
        run_study(study, say=killed)


def killed(line: str) -> None:
    raise RuntimeError("killed")


def test_a_study_ends_at_the_seeds_that_are_finished_in_every_arm(tmp_path):
    """With fewer seeds than planned it had no table, but from a copy of its file and of its runs."""
    study = read_study(written(tmp_path))
    begun(study)
    as_if_run(study)
    run_study(study)
    part = study.parts["2 steps"].out
    unfinished = part / "outcome" / "seed-2"
    unfinished.rename(tmp_path / "aside")
    document = run_study(study, finished_only=True)
    line = "Ended early: 2 of 3 planned seeds ran in part 2 steps."
    assert document["ended_early"] == {"2 steps": {"seeds": 2, "planned": 3}}
    assert [document["parts"][name]["seeds"] for name in study.parts] == [2, 3]
    assert document["lines"][0] == line and not unfinished.exists()
    assert (study.out / "table.md").read_text().splitlines()[4] == f"- {line}"
    assert "- Ended early: 2 of 3 planned seeds ran.\n" in (part / "table.md").read_text()

    (tmp_path / "aside").rename(unfinished)
    assert run_study(study)["ended_early"] == {}
    assert "Ended early" not in (study.out / "table.md").read_text() + (part / "table.md").read_text()


def test_a_study_ends_at_no_seed_behind_one_that_is_not_finished(tmp_path):
    study = read_study(written(tmp_path, FILE.split("[gate]")[0]))
    begun(study)
    as_if_run(study)
    for name, seed in (("2 steps", 1), ("3 steps", 0)):
        (study.parts[name].out / "oracle" / f"seed-{seed}").rename(tmp_path / name)
    document = run_study(study, finished_only=True)
    assert document["ended_early"] == {
        "2 steps": {"seeds": 1, "planned": 3},
        "3 steps": {"seeds": 0, "planned": 3},
    }
    assert list(document["parts"]) == ["2 steps"]


def test_runs_that_go_on_to_an_equal_cost_were_finished(tmp_path):
    """A study that was stopped while they did could not be ended."""
    study = read_study(written(tmp_path, FILE.replace('"batches"', '"flops"')))
    study.out.mkdir()
    as_if_run(study)
    plan = study.parts["2 steps"]
    for seed in range(3):
        RunDirectory.open(plan.out / "outcome" / f"seed-{seed}").extend(plan.ends_at(5000.0))
    assert finished_seeds(plan) == 3
    begun_anew = plan.out / "oracle" / "seed-1"
    (begun_anew / "summary.json").unlink()  # it has not made all of its batches
    assert finished_seeds(plan) == 1
    assert finished_seeds(replace(plan, equal="batches")) == 0
    (plan.out / "oracle" / "seed-0").rename(tmp_path / "aside")  # which was not begun
    assert finished_seeds(plan) == 0


@pytest.mark.whole
def test_an_early_end_that_was_stopped_goes_on(tmp_path):
    file = written(tmp_path, TWO_WAVES)
    study = read_study(file)

    def stopped_as_a_run_goes_on(line: str) -> None:
        if line.endswith("goes on"):
            raise RuntimeError("stopped")

    with pytest.raises(RuntimeError, match="stopped"):
        run_study(study, say=stopped_as_a_run_goes_on)
    document = run_study(study, finished_only=True)
    assert document["parts"]["all"]["seeds"] == 1 and document["ended_early"] == {}


def test_a_study_that_has_nothing_to_end_with(tmp_path, capsys):
    file = written(tmp_path)
    command_refuses(["study", file, "--finished"], f"E_STUDY_CANNOT_END: gate | cotrain study {file}", capsys)
    without_gate = written(tmp_path / "other", FILE.split("[gate]")[0])
    command_refuses(["study", without_gate, "--finished"], "E_STUDY_CANNOT_END: no seed is finished", capsys)
    assert not (tmp_path / "out").exists()


def test_a_damaged_study_is_not_taken_for_one_without_a_gate(tmp_path, capsys):
    file = written(tmp_path)
    study = read_study(file)
    study.out.mkdir(parents=True)
    (study.out / "study.json").write_text("{")
    command_refuses(["study", file, "--finished"], "E_STUDY_DAMAGED: study.json", capsys)


def test_a_file_says_what_each_part_compares(tmp_path):
    study = read_study(written(tmp_path))
    two, three = study.parts.values()
    assert [arm.label for arm in two.arms] == ["outcome", "oracle"] and two.measure == study.measure == "solver/greedy"
    assert two.arms[1].arguments == {"model": TINY, "steps_judged_by": "oracle", "alpha": 0.5}
    assert (two.operations, three.operations) == ((2, 2), (3, 3)) and two.out == tmp_path / "out" / "2-steps"
    assert three.overrides == ("evaluation.tasks=16", "group_size=4") and two.overrides == ("evaluation.tasks=16",)
    assert run_count_lines(study)[1].startswith("2 steps: 2 arms × 3 seeds = 6 runs, in ")
    alone = written(tmp_path / "alone", FILE.split("[parts")[0])
    assert list(read_study(alone).parts) == ["all"] and read_study(alone).gate is None


@pytest.mark.parametrize(
    ("was", "is_", "code"),
    [
        ('hypothesis = "Oracle steps help."', "", "E_STUDY_KEY_MISSING: hypothesis"),
        ("seeds = 3", "seed = 3", "E_UNKNOWN_KEY: 'seeds'"),
        ("seeds = 3", 'seeds = "3"', "E_STUDY_VALUE: seeds | '3' | a whole number"),
        ("seeds = 3", "seeds = ", "E_NOT_TOML"),
        ('recipe = "grpo"', 'recipes = "grpo"', "E_STUDY_ARM: 'outcome'"),
        ("alpha = 0.5", "seed = 5", "E_ARM_SETS_COMPARISON"),
        ("operations = [2, 2]", "operation = [2, 2]", "E_UNKNOWN_KEY: 'operations'"),
        ('arm = "oracle"', 'arm = "oracel"', "E_UNKNOWN_ARM: 'oracle'"),
        ('part = "3 steps"', 'part = "4 steps"', "E_UNKNOWN_PART"),
        ("at_least = 0.1", "", "E_STUDY_GATE"),
        ("at_least = 0.1", 'at_least = 0.1\nat = "gain"', "E_STUDY_GATE"),
        ("at_least = 0.1", "at_least = 0.1\nseeds = 4", "E_STUDY_GATE"),
        ("at_least = 0.1", "at_least = 0.1\nseeds = 0", "E_STUDY_GATE"),
        ('equal = "batches"', 'equal = "time"', "E_UNKNOWN_COST_TO_BE_MADE_EQUAL"),
        ('[parts."2 steps"]', '[parts.".."]', "E_STUDY_PARTS_ALIKE"),
        ('[parts."2 steps"]', '[parts."3-steps"]', "E_STUDY_PARTS_ALIKE: '3-steps' | 3 steps"),
    ],
)
def test_what_a_file_gets_wrong_is_said_in_one_line(tmp_path, was, is_, code):
    assert was in FILE
    with refuses(code):
        read_study(written(tmp_path, FILE.replace(was, is_, 1)))


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ('arms = ["grpo"]', "E_STUDY_NOT_TABLE: arms | ['grpo'] | [arms.grpo]"),
        ("arms = 3", "E_STUDY_NOT_TABLE: arms is 3"),
        ('parts = ["2 steps"]', "E_STUDY_NOT_TABLE: parts | ['2 steps']"),
        ('overrides = "evaluation.tasks=16"', "E_STUDY_VALUE: overrides | 'evaluation.tasks=16'"),
        ("overrides = 5", "E_STUDY_VALUE: overrides is 5"),
        ('parts = {{a = {{overrides = "group_size=4"}}}}', "E_STUDY_VALUE: overrides | 'group_size=4'"),
    ],
    ids=["arms list", "arms number", "parts list", "overrides text", "overrides number", "overrides of a part"],
)
def test_a_key_of_another_kind_is_said_in_one_line(tmp_path, line, code):
    keys, arms = FILE.split("[parts")[0].split("[arms.outcome]")
    keys = keys.replace('overrides = ["evaluation.tasks=16"]', "")
    text = f"{keys}{line}\n" + ("" if line.startswith("arms") else f"[arms.outcome]{arms}")
    with refuses(code):
        read_study(written(tmp_path, text))


def test_git_says_whether_it_was_written_down_before(tmp_path):
    path = written(tmp_path)
    assert not git_status(path)["committed"] and "no git repository" in git_status(path)["words"]

    def git(*words: str) -> None:
        who = ["-c", "user.name=a", "-c", "user.email=a@b.example", "-c", "commit.gpgsign=false"]
        subprocess.run(["git", *who, "-C", str(tmp_path), *words], check=True, capture_output=True)

    git("init", "-q")
    assert git_status(path)["words"] == "git says that it was never committed"
    git("add", "mine.toml")
    assert not git_status(path)["committed"]
    git("commit", "-qm", "the study")
    said = git_status(path)
    assert (
        said["committed"] and said["commit"][:12] in said["words"] and "unchanged when the study began" in said["words"]
    )
    (tmp_path / "kept").mkdir()
    git("mv", "mine.toml", "kept/mine.toml")
    git("commit", "-qm", "moved as it was")
    path = tmp_path / "kept" / "mine.toml"
    assert git_status(path) == said
    git("checkout", "-qb", "other")
    (tmp_path / "other.txt").write_text("as work goes on elsewhere")
    git("add", "other.txt")
    git("commit", "-qm", "elsewhere")
    git("checkout", "-q", "-")
    git("merge", "-q", "--no-ff", "--no-commit", "other")
    git("mv", "kept/mine.toml", "kept/again.toml")
    git("commit", "-qm", "a merge that moves it")
    path = tmp_path / "kept" / "again.toml"
    assert git_status(path) == said
    first = path.read_text()
    path.write_text(first + "\n# another thought\n")
    assert not git_status(path)["committed"] and "changed since commit" in git_status(path)["words"]
    git("commit", "-qam", "another thought")
    assert git_status(path)["committed"]
    path.write_text(first)  # back to what was written first, when the results are there
    assert not git_status(path)["committed"]


def test_a_git_that_does_not_answer_is_not_taken_for_a_file_that_was_changed(tmp_path, monkeypatch):
    slow_git = tmp_path / "bin" / "git"
    slow_git.parent.mkdir()
    slow_git.write_text("#!/bin/sh\nexec sleep 30\n")
    slow_git.chmod(0o755)
    monkeypatch.setenv("PATH", str(slow_git.parent), prepend=os.pathsep)
    monkeypatch.setattr(study_file, "GIT_WAIT", 0.1)
    said = git_status(written(tmp_path))
    assert not said["committed"] and said["commit"] is None
    assert said["words"] == "git gave no answer in 0.1 s, so nobody can say whether it was committed"


@pytest.mark.whole
def test_a_gate_that_holds_lets_the_rest_be_run(tmp_path):
    study = read_study(written(tmp_path))
    begun(study)
    as_if_run(study)
    held = run_study(study, say=lambda line: None)
    assert held["gate"]["holds"] and held["gate"]["value"] == pytest.approx(0.21)
    assert list(held["parts"]) == ["2 steps", "3 steps"]
    assert held["parts"]["3 steps"]["arms"]["oracle"]["words"].startswith("better by 21.0 points")
    page, table = ((study.out / name).read_text() for name in ("report.html", "table.md"))
    for text in (page, table):
        assert study.sha256 in text and "NOT written down before it ran" in text and "the gate holds" in text
    assert '"name":"2 steps"' in page and (study.out / "3-steps" / "report.html").is_file()
    assert "| 3 steps | 25.0" in table and "| 2 steps | oracle | outcome |" in table


@pytest.mark.whole
def test_alarms_of_single_runs_are_told_of_their_recipe(tmp_path):
    study = read_study(written(tmp_path))
    begun(study)
    as_if_run(study)
    lines = run_study(study, say=lambda line: None)["lines"]
    assert lines.count("  alarms in most runs of oracle: a|b, gap") == 2  # in each part
    assert not any("of outcome" in line for line in lines)
    assert "## At the start and at the end" in (study.out / "2-steps" / "table.md").read_text()
    row = "oracle | a\\|b | solver/a\\|b | 3 of 3 | 8 |"
    assert f"| 2 steps | {row}" in (study.out / "table.md").read_text()
    assert f"| {row}" in (study.out / "2-steps" / "table.md").read_text()
    for page in (study.out, study.out / "2-steps"):
        assert '"3 of 3","8"' in (page / "report.html").read_text()
    held = json.loads((study.out / "study.json").read_text())
    held["parts"]["2 steps"].pop("alarms")  # as an earlier version wrote it
    assert "| 2 steps | oracle | gap" not in study_markdown(held) and "| 3 steps | oracle | gap" in study_markdown(held)


def test_a_gate_that_does_not_hold_ends_the_study_with_its_figure(tmp_path, capsys):
    path = written(tmp_path)
    study = read_study(path)
    begun(study)
    as_if_run(study, AFTER | {"3 steps": {"outcome": 0.5, "oracle": 0.55}})
    assert main(["study", str(path)]) == 0
    out = capsys.readouterr().out
    assert "found 0.060 (95 % interval" in out and "the gate does not hold, so the rest is not run" in out
    held = json.loads((study.out / "study.json").read_text())
    assert held["gate"]["holds"] is False and held["parts"] == {}
    assert "the gate does not hold" in (study.out / "report.html").read_text()
    assert not (study.out / "2-steps" / "report.html").exists()


@pytest.mark.whole
def test_a_gate_may_look_at_one_arm_and_at_the_start(tmp_path):
    gate = '[gate]\narm = "outcome"\nmeasure = "solver/pass@1"\nat = "{at}"\nat_least = 0.2\nat_most = 0.3\n'
    for at, holds in (("start", True), ("end", False)):  # 0.25 and 0.4
        study = read_study(written(tmp_path / at, FILE.split("[gate]")[0] + gate.replace("{at}", at)))
        begun(study)
        as_if_run(study)
        assert run_study(study, say=lambda line: None)["gate"]["holds"] is holds


@pytest.mark.whole
@pytest.mark.parametrize(("least", "holds"), [(0.1, True), (0.2, False)])
def test_a_gate_may_ask_for_a_gain_on_one_seed(tmp_path, least, holds):
    gate = f'[gate]\narm = "outcome"\nmeasure = "solver/pass@1"\nat = "gain"\nseeds = 1\nat_least = {least}\n'
    study = read_study(written(tmp_path, FILE.split("[gate]")[0] + gate))
    begun(study)
    as_if_run(study)  # 0.25 before, 0.4 after
    held = run_study(study, say=lambda line: None)["gate"]
    assert held["holds"] is holds and held["value"] == pytest.approx(0.15)
    assert "outcome, solver/pass@1 gain over the start of '2 steps': at least" in held["found"]
    assert "over 1 seed" in held["found"]


def test_an_arm_may_have_overrides_of_its_own(tmp_path):
    own = FILE.replace("alpha = 0.5\n", 'alpha = 0.5\noverrides = ["roles.solver.sampling.max_tokens=7"]\n')
    plan = read_study(written(tmp_path, own)).parts["2 steps"]
    recipes = plan.make_recipes(plan.arms)
    limits = {label: recipe.roles["solver"].sampling.max_tokens for label, recipe in recipes.items()}
    assert limits["oracle"] == 7 != limits["outcome"]
    words = run_command(plan.arms[1], tmp_path / "new", seed=0, ends={"steps": 4}, evaluate_every=0, overrides=(),
                        device="cpu", tasks=None, data=None, operations=None, lenient=False)  # fmt: skip
    assert "--set=roles.solver.sampling.max_tokens=7" in words
    for wrong, code in (('["seed=3"]', "E_ARM_SETS_COMPARISON: seed"), ('"a=1"', "E_STUDY_ARM")):
        with refuses(code):
            read_study(written(tmp_path, FILE.replace("alpha = 0.5", f"overrides = {wrong}")))


def test_a_file_that_has_changed_is_not_gone_on_with(tmp_path):
    path = written(tmp_path)
    begun(read_study(path))
    path.write_text(path.read_text().replace("at_least = 0.1", "at_least = 0.0"))
    with refuses("E_STUDY_CHANGED", names=("gate.at_least", "bring the file as it was", f'"{tmp_path / "out"}-2"')):
        run_study(read_study(path), say=lambda line: None)
    other = written(tmp_path / "other")
    (tmp_path / "other" / "out").mkdir()
    (tmp_path / "other" / "out" / "thesis.txt").write_text("do not lose me")
    with refuses("E_OUT_NOT_STUDY"):
        run_study(read_study(other), say=lambda line: None)


@pytest.mark.parametrize(
    ("was", "is_", "named"),
    [
        ("seeds = 3", "seeds = 4", "seeds"),
        ("[gate]", '[arms.later]\nrecipe = "grpo"\nlr = 1e-3\n\n[gate]', "arms.later.recipe"),
        ('[arms.outcome]\nrecipe = "grpo"\n', "", "arms.outcome.recipe"),
    ],
    ids=["seeds", "arm", "gone"],
)
def test_what_was_added_or_taken_away_after_a_look_is_named_and_refused(tmp_path, was, is_, named):
    text = FILE if named != "arms.outcome.recipe" else FILE.replace('minus = "outcome"\n', "")
    path = written(tmp_path, text)
    begun(read_study(path))
    path.write_text(path.read_text().replace(was, is_))
    with refuses("E_STUDY_CHANGED", names=named):
        run_study(read_study(path), say=lambda line: None)


def test_arms_in_another_order_have_another_reference(tmp_path):
    path = written(tmp_path)
    study = read_study(path)
    first, second = (
        '[arms.outcome]\nrecipe = "grpo"\n',
        '[arms.oracle]\nrecipe = "grpo"\nsteps_judged_by = "oracle"\nalpha = 0.5\n',
    )
    assert first + second in path.read_text()
    path.write_text(path.read_text().replace(first + second, second + first))
    swapped = read_study(path)
    assert study.settings != swapped.settings and set(study.settings) == set(swapped.settings)


def test_a_file_with_another_comment_goes_on_and_the_page_says_so(tmp_path):
    path = written(tmp_path)
    study = read_study(path)
    begun(study)
    path.write_text("# A word that was forgotten.\n" + path.read_text().replace("seeds = 3", "seeds = 3  # few"))
    changed = read_study(path)
    for _ in range(2):  # the change is told once
        with pytest.raises(RuntimeError, match="killed"):
            run_study(changed, say=killed)
    document = json.loads((study.out / "study.json").read_text())
    assert document["sha256"] == study.sha256 and [one["sha256"] for one in document["changes"]] == [changed.sha256]
    assert "comments alone" in study_markdown(document) and changed.sha256 in study_markdown(document)
    path.write_text(path.read_text().replace("batches = 4", "batches = 4\ncheckpoint_every = 1"))
    with pytest.raises(RuntimeError, match="killed"):
        run_study(read_study(path), say=killed)
    document = json.loads((study.out / "study.json").read_text())
    assert [one["what"] for one in document["changes"]] == ["comments alone", "checkpoint_every"]
    path.write_text(path.read_text().replace("seeds = 3", "seeds = 5"))
    with refuses("E_STUDY_CHANGED", names="seeds"):
        run_study(read_study(path), say=killed)


def test_a_comment_that_was_committed_later_is_not_said_to_be_as_the_study_began(tmp_path):
    path = written(tmp_path)

    def commit() -> None:
        who = ["-c", "user.name=a", "-c", "user.email=a@b.example", "-c", "commit.gpgsign=false"]
        for words in (["init", "-q"], ["add", "mine.toml"], ["commit", "-qm", "the study"]):
            subprocess.run(["git", *who, "-C", str(tmp_path), *words], check=True, capture_output=True)

    commit()
    study = read_study(path)
    begun(study)
    path.write_text(path.read_text() + "\n# another thought\n")
    commit()
    begun(read_study(path))
    page = study_markdown(json.loads((study.out / "study.json").read_text()))
    (line,) = [line for line in page.splitlines() if "The file was changed" in line]
    assert "committed like that in" in line and "unchanged" not in line
    assert "more characters" not in page


@pytest.mark.parametrize(
    ("was", "is_"),
    [
        ('measure = "solver/greedy"', 'measure = "solver/gredy"'),
        ('measure = "solver/greedy"', 'measure = "generator/greedy"'),
        ('arm = "oracle"', 'arm = "oracle"\nmeasure = "solver/gredy"'),
        ("seeds = 3", 'seeds = 3\nrates = [1e-4, 2e-4]\nmeasure = "solver/ood_length/pass@1"'),
    ],
    ids=["typo", "policy", "gate", "rates"],
)
def test_a_measure_that_no_arm_has_is_refused_before_anything_is_run(tmp_path, capsys, was, is_):
    text = FILE.replace('measure = "solver/greedy"\n', "") if "rates" in is_ else FILE
    path = written(tmp_path, text.replace(was, is_, 1))
    code = "E_UNKNOWN_FIGURE" if "rates" in is_ else "E_UNKNOWN_MEASURE"
    command_refuses(["study", path, "--dry-run"], code, capsys, names=("arm 'o", "solver/greedy"))
    with refuses(code):
        run_study(read_study(path), say=killed)
    assert not (tmp_path / "out").exists()


def test_a_measure_that_the_first_two_runs_lack_is_refused(tmp_path):
    """The recipe may give it, and the runs say that they did not. One of them might be the one in which it is
    undefined."""
    study = read_study(written(tmp_path, FILE.replace("solver/greedy", "solver/majority@8").split("[gate]")[0]))
    begun(study)
    plan = study.parts["2 steps"]
    claim_directory(plan, list(plan.arms))
    for arm in ("outcome", "oracle"):
        made_run(plan.out / arm / "seed-0", {"solver/greedy": 0.5})
    lines: list[str] = []
    with refuses("E_UNKNOWN_MEASURE", names=("arm 'outcome'", "'solver/majority@8'", "solver/greedy")):
        run_study(study, say=lines.append)
    assert not any("begins" in line for line in lines)


def test_an_arm_in_which_the_measure_is_undefined_does_not_end_the_study(tmp_path):
    """After all of its runs the study ended in an error, and again each time it was begun again."""
    study = read_study(written(tmp_path, FILE.replace("solver/greedy", "solver/majority@8").split("[gate]")[0]))
    begun(study)
    for plan in study.parts.values():
        claim_directory(plan, list(plan.arms))
        for arm, figures in (("outcome", {"solver/majority@8": 0.5}), ("oracle", {})):
            for seed in range(plan.seeds):
                made_run(plan.out / arm / f"seed-{seed}", {"solver/pass@1": 0.4, **figures})
    document = run_study(study, say=lambda line: None)
    assert "no figure: it is undefined in all of its runs" in "\n".join(document["lines"])
    assert "no figure: it is undefined in all of its runs" in study_markdown(document)


@pytest.mark.parametrize("lacks", ["outcome", "oracle"])
@pytest.mark.parametrize("at", ["end", "start"])
def test_a_gate_whose_figure_is_undefined_says_so(tmp_path, lacks, at):
    """Where the arm that is subtracted had none, the study ended in a traceback."""
    text = FILE.replace("solver/greedy", "solver/majority@8").replace("at_least", f'at = "{at}"\nat_least')
    study = read_study(written(tmp_path, text))
    begun(study)
    plan = study.parts["3 steps"]
    claim_directory(plan, list(plan.arms))
    for arm in ("outcome", "oracle"):
        figures = {} if arm == lacks else {"solver/majority@8": 0.5}
        for seed in range(plan.seeds):
            made_run(plan.out / arm / f"seed-{seed}", {"solver/pass@1": 0.4, **figures})
    with refuses("E_GATE_UNDEFINED", names=("solver/majority@8", lacks)):
        run_study(study, say=lambda line: None)


@pytest.fixture
def prepared(tmp_path, monkeypatch):
    """A folder in which what studies want made first has been made."""
    (tmp_path / "runs" / "domains").mkdir(parents=True)
    rows = "".join(json.dumps(row) + "\n" for row in program_rows(300))
    (tmp_path / "runs" / "domains" / "programs.jsonl").write_text(rows)
    monkeypatch.chdir(tmp_path)


@pytest.mark.whole
@pytest.mark.parametrize("path", STUDIES, ids=lambda path: path.stem)
def test_the_studies_of_the_documentation_can_be_run(path, capsys, prepared):
    study = read_study(path)
    if "gym" in str([plan.tasks for plan in study.parts.values()]) and not GYM:
        command_refuses(["study", path.stem, "--dry-run"], "E_GYM_NOT_INSTALLED: .[gym]", capsys)
        return
    assert main(["study", path.stem, "--dry-run"]) == 0
    assert (study.gate is None) == (path.stem in WITHOUT_GATE) and all(plan.seeds >= 5 for plan in study.parts.values())
    assert str(study.out) == f"runs/studies/{path.stem}" and f"in runs/studies/{path.stem}" in capsys.readouterr().out


def test_arms_that_are_measured_otherwise_are_refused_before_anything_runs(tmp_path, capsys):
    """The dry run says it too, not the first part after an hour of gates."""
    text = shipped_studies()["judges"].read_text(encoding="utf-8")
    file = written(tmp_path, text.replace('"evaluation.group_size=4",', ""))
    command_refuses(
        ["study", str(file), "--dry-run"],
        "E_ARMS_TESTED_UNLIKE: 'frozen' | 'scalar_2e-4' | evaluation.group_size=N",
        capsys,
    )


def test_there_are_studies():
    assert {path.stem for path in STUDIES} >= {"ceiling", "noisy-oracle", "judged", "views"}


def test_a_study_that_ships_is_found_by_its_name_and_any_other_by_its_path(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert study_path("ceiling") == FOLDER / "ceiling.toml" == shipped_studies()["ceiling"]
    assert main(["study", "ceiling", "--dry-run"]) == 0
    assert "ceiling/4-steps" in capsys.readouterr().out
    command_refuses(["study", "cieling"], "E_UNKNOWN_STUDY: 'cieling' | 'ceiling'", capsys)
    command_refuses(
        ["study", "docs/ceiling.toml"], "E_STUDY_NOT_FOUND: docs/ceiling.toml | cotrain study ceiling", capsys
    )
    command_refuses(["study", "mine.toml"], "E_STUDY_NOT_FOUND: mine.toml", capsys)
    mine = written(tmp_path)
    assert study_path("mine.toml").resolve() == mine
    written(tmp_path).rename("ceiling")
    assert study_path("ceiling") == Path("ceiling"), "a file that is there is meant by its name"


def test_studies_are_in_the_package_that_is_installed():
    project = tomllib.loads((FOLDER.parents[1] / "pyproject.toml").read_text(encoding="utf-8"))
    ships = project["tool"]["setuptools"]["package-data"]["cotrain"]
    assert FOLDER.parent.name == "cotrain" and f"{FOLDER.name}/*.toml" in ships


@pytest.mark.whole
@pytest.mark.parametrize("path", STUDIES, ids=lambda path: path.stem)
def test_every_objective_of_every_arm_learns_within_the_batches(path, prepared):
    for plan in read_study(path).parts.values():
        if not GYM and str(plan.tasks).startswith("gym:"):
            plan = replace(plan, tasks=None)  # the schedule is the same
        for label, recipe in plan.make_recipes(plan.arms).items():
            played, cycle = phase_counts(plan, recipe), set(recipe.schedule.cycle)
            for name in recipe.objectives:
                assert recipe.schedule.planned_batches([name], run_length(plan, recipe)), (label, name)
            assert cycle <= set(played), f"{label}: of {cycle} only {played} is played"


def test_a_study_whose_batches_are_all_warm_up_is_refused_before_it_runs(tmp_path, capsys):
    arms = '[arms.all]\nrecipe = "tango"\nwarmup = 4\n[arms.none]\nrecipe = "tango"\nwarmup = 0\n'
    path = written(tmp_path, FILE.split("[arms")[0] + arms)
    command_refuses(["study", str(path), "--dry-run"], "E_OBJECTIVE_NEVER_DUE: 'all' | 'generator' | 4 steps", capsys)
    with refuses("E_OBJECTIVE_NEVER_DUE"):
        run_study(read_study(path), say=lambda line: None)
    assert not [*(tmp_path / "out").rglob("recipe.json")]


@pytest.mark.whole
def test_a_study_that_is_killed_goes_on(tmp_path):
    text = FILE.replace("seeds = 3", "seeds = 1").replace("batches = 4", "batches = 2\nevaluate_every = 0")
    text = (
        text.replace("at_least = 0.1", "at_least = -1.0").split('[parts."3 steps"]')[0]
        + '[gate]\narm = "oracle"\nat_least = 0.0\n'
    )
    small = (
        '["tasks.max_value=20","evaluation.tasks=1","evaluation.group_size=2","evaluation.splits=[]",'
        '"tasks_per_step=2","group_size=3"]'
    )
    path = written(tmp_path, text.replace('["evaluation.tasks=16"]', small))
    command = [sys.executable, "-m", "cotrain.cli.main", "study", str(path), "--workers", "1"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    first = tmp_path / "out" / "2-steps" / "oracle" / "seed-0"
    while not (first / "summary.json").exists() and process.poll() is None:
        time.sleep(0.1)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=600) == 143
    made = (first / "summary.json").stat().st_mtime_ns
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (first / "summary.json").stat().st_mtime_ns == made and "the gate holds" in done.stdout
    assert list(json.loads((tmp_path / "out" / "study.json").read_text())["parts"]) == ["2 steps"]


@pytest.mark.whole
def test_a_long_hypothesis_is_told_in_full(tmp_path):
    study = read_study(written(tmp_path))
    begun(study)
    as_if_run(study)
    said = study_markdown(run_study(study, say=lambda line: None) | {"hypothesis": "Steps help. " * 100})
    assert said.startswith("# mine\n\nExpected: Steps help. ") and said.count("Steps help.") == 100
