"""Which cost is equal, who is the dearest, which rate is taken: decided from finished runs, where nothing is
trained."""

from __future__ import annotations

import gzip
import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from cotrain.analysis.comparison import waves
from cotrain.analysis.comparison.arms import make_arm, recipe_of_arm
from cotrain.analysis.comparison.compare import ComparisonPlan, claim_directory, compare
from cotrain.analysis.comparison.lacking import lacking_figures
from cotrain.analysis.comparison.rates import FIRST_SEED, rate_settings
from cotrain.analysis.comparison.runs import collect_run, is_done, run_command
from cotrain.analysis.comparison.waves import RunKey, runs_still_short
from cotrain.config.evaluation import held_out
from cotrain.core.statistics import over_seeds_and_problems
from cotrain.runs.directory import RunDirectory
from cotrain.runs.figures import costs_of
from tests.analysis.made_runs import made_run
from tests.helpers import EASY, TINY
from tests.sentences import refuses

ARMS = (make_arm("plain", "grpo", {"model": TINY}), make_arm("judged", "tango", {"model": TINY, "verifier": "frozen"}))


def plan(out: Path, **options) -> ComparisonPlan:
    return ComparisonPlan(
        **{"arms": ARMS, "seeds": 3, "out": out, "batches": 4, "evaluate_every": 2, "equal": "batches", **options}
    )


def begun(made: ComparisonPlan) -> ComparisonPlan:
    claim_directory(made, list(made.arms))
    return made


def test_costs_are_summed_over_every_step_of_a_run(tmp_path):
    made_run(tmp_path / "run", {"solver/pass@1": 0.5}, steps=3, tokens=7)
    assert costs_of(tmp_path / "run")[2:] == [
        {"batches": 2.0, "tokens": 14.0, "flops": 140.0, "seconds": 2.0},
        {"batches": 3.0, "tokens": 21.0, "flops": 210.0, "seconds": 3.0},
    ]
    found = collect_run(tmp_path / "run", 0, "generator")
    assert [point["spent"]["batches"] for point in found["curve"]] == [0.0, 3.0]
    assert found["flops"] == {"prefill": 0, "sampling": 210, "scoring": 0, "learning": 0} and found["updates"] == 3


def test_seeds_have_problems_of_their_own_and_arms_have_the_same(tmp_path):
    blocks = [[t.id for t in held_out(EASY, "test", 4, seed)] for seed in range(3)]
    assert len({i for block in blocks for i in block}) == 12 and blocks[0][0] == "words/test/0"
    path = tmp_path / "rows.jsonl"
    path.write_text(
        "".join(json.dumps({"question": f"What is {i} and one more?", "answer": str(i + 1)}) + "\n" for i in range(300))
    )
    from cotrain.data.sources import problem_source

    few = problem_source(None, str(path))
    size = few.size("test")
    assert size is not None and size < 60
    around = [t.id for t in held_out(few, "test", size - 1, 1)]
    assert len(set(around)) == size - 1  # it goes round
    assert len(held_out(few, "test", 500, 7)) == size


def test_the_dearest_arm_is_the_one_that_has_spent_most(tmp_path):
    """The arm with one role is the dearer one here; what the others have spent since they went on does not count."""
    made = plan(tmp_path, equal="flops")
    places = {RunKey(arm, seed): tmp_path / f"{arm}/seed-{seed}" for seed in range(3) for arm in ("plain", "judged")}
    for (arm, seed, _), folder in places.items():
        if arm == "plain":
            made_run(folder, {"solver/pass@1": 0.5}, tokens=300 + seed)
        else:
            made_run(folder, {"solver/pass@1": 0.6}, tokens=100, steps=4 if seed else 99)
    (dearest, budget), short = runs_still_short(made, places)
    assert (dearest, budget) == ("plain", 4 * 3010) and short == [RunKey("judged", 1), RunKey("judged", 2)]
    assert runs_still_short(replace(made, equal="seconds"), places)[0].budget == 4.0
    folder = places[RunKey("judged", 1)]
    RunDirectory.open(folder).extend(made.ends_at(budget))
    saved = json.loads((folder / "recipe.json").read_text())
    assert saved["settings"] == {"steps": 10**6, "flops": 12040.0, "policies": {}} and saved["steps"] == 10**6
    assert saved["origin"]["overrides"] == ["steps=1000000", "flops=12040.0"]
    assert not (folder / "summary.json").exists()


def test_a_run_goes_on_to_a_budget_and_its_decays_do_not_stretch(tmp_path):
    made = plan(tmp_path, equal="tokens", budget=5000.4)
    assert made.run_ends == {"steps": 10**6, "tokens": 5000}
    words = run_command(
        ARMS[1],
        tmp_path / "new",
        seed=2,
        ends={**made.run_ends, "horizon": made.batches},
        evaluate_every=2,
        overrides=made.common_overrides,
        device="cpu",
        threads=2,
        checkpoint_every=1,
        tasks=None,
        data=None,
        operations=(4, 5),
        lenient=False,
    )
    assert {"--threads=2", "--checkpoint-every=1"} <= set(words)
    assert {"--seed=2", "--steps=1000000", "--set=tokens=5000", "--set=horizon=4"} <= set(words)
    assert words[words.index("--operations") :][:3] == ["--operations", "4", "5"]
    assert "--set=evaluation.tasks=256" in words and "--verifier=frozen" in words


@pytest.mark.whole
def test_figures_of_the_end_can_be_computed_again_without_the_runs(tmp_path):
    made = begun(plan(tmp_path, seeds=3))
    for arm, figures in {"plain": (0.3, 0.5, 0.4), "judged": (0.5, 0.6, 0.7)}.items():
        for seed, figure in enumerate(figures):
            made_run(tmp_path / arm / f"seed-{seed}", {"solver/pass@1": figure})
    rows = {row["recipe"]: row for row in compare(made)["table"] if row["at"] == "end"}
    for arm in rows:
        shutil.rmtree(tmp_path / arm)
    problems = json.loads(gzip.decompress((tmp_path / "problems.json.gz").read_bytes()))
    for arm, row in rows.items():
        seeds = [list(problems[arm][str(seed)]["solver/pass@1"].values()) for seed in range(3)]
        again = over_seeds_and_problems([(sum(values) / len(values), values) for values in seeds])
        assert row["after"]["value"] == pytest.approx(again.value) and row["after"]["low"] == pytest.approx(again.low)


@pytest.mark.whole
def test_every_arm_takes_the_rate_that_was_best_on_validation_problems(tmp_path):
    made = begun(plan(tmp_path, rates=(1e-4, 4e-4, 2e-4), seeds=1))
    best = {"plain": (0.3, 0.5, 0.4), "judged": (0.5, 0.5, 0.1)}
    for arm, figures in best.items():
        for rate, figure in zip((1e-4, 2e-4, 4e-4), figures, strict=True):
            # on test problems the worst: they are not looked at
            folder = tmp_path / arm / f"rate-{rate:g}" / f"seed-{FIRST_SEED}"
            made_run(folder, {"solver/pass@1": figure})
        made_run(tmp_path / arm / "seed-0", {"solver/pass@1": 0.6})
    result = compare(made)
    arms = result["rates"]["arms"]
    assert (arms["plain"]["chosen"], arms["plain"]["edge"]) == (2e-4, False)
    assert (arms["judged"]["chosen"], arms["judged"]["edge"]) == (1e-4, True)  # of equals the smaller
    assert result["recipes"]["plain"]["settings"]["learning_rate"] == {"generator": 2e-4}
    assert result["recipes"]["judged"]["settings"]["lr_warmup"] == {"generator": 5}
    page = (tmp_path / "report.html").read_text()
    assert "edge of the grid" in page and "40.0" in page
    with refuses("E_UNKNOWN_FIGURE", names=("solver/gredy", "solver/greedy")):  # before anything is run
        compare(replace(made, measure="solver/gredy", out=tmp_path / "new"))
    lines = []
    with refuses("E_UNKNOWN_FIGURE", names=("solver/majority@8", "there are: solver/pass@1")):  # as a run is done
        folder = _with_measure(tmp_path, "solver/majority@8")
        compare(replace(made, measure="solver/majority@8", out=folder), say=lines.append)
    assert not any("begins" in line for line in lines)
    with refuses("E_LR_AND_RATES", names="arm 'x'"):  # before anything runs, so in --dry-run too
        replace(made, arms=(make_arm("x", "grpo", {"model": TINY, "lr": 1e-3}),))


@pytest.mark.whole
def test_rates_are_chosen_at_the_cost_that_is_made_equal(tmp_path, monkeypatch):
    """A rate that is best after four batches may be worst after eight, when the budget ends the arm."""
    waves_of_work = []

    def make(jobs, workers, say, check_done=lambda folder: None):
        waves_of_work.append([folder for folder, _ in jobs])
        for folder, _ in jobs:
            goes_on = (folder / "recipe.json").exists()
            dear, high = "plain" in folder.parts, folder.parent.name == "rate-0.0004"
            figure = (0.2 if high else 0.4) if dear or goes_on else (0.6 if high else 0.4)
            shutil.rmtree(folder, ignore_errors=True)
            made_run(folder, {"solver/pass@1": figure}, tokens=200 if dear else 100, steps=8 if goes_on else 4)
            check_done(folder)

    monkeypatch.setattr(waves, "run_jobs", make)
    for budget, lengths in ((None, [4, 2, 2, 1]), (8000.0, [4, 2])):
        waves_of_work.clear()
        made = begun(plan(tmp_path / str(budget), equal="flops", rates=(1e-4, 4e-4), seeds=1, budget=budget))
        result = compare(made)
        assert [len(wave) for wave in waves_of_work if wave] == lengths
        assert {folder.parent.parent.name for folder in waves_of_work[1]} == {"judged"} or budget
        chosen = {label: arm["chosen"] for label, arm in result["rates"]["arms"].items()}
        assert chosen == {"plain": 1e-4, "judged": 1e-4 if budget is None else 4e-4}
        assert all(is_done(folder) for wave in waves_of_work for folder in wave)


@pytest.mark.whole
def test_of_an_error_the_smallest_is_best_and_a_rate_at_which_it_is_undefined_is_not_taken(tmp_path):
    made = begun(plan(tmp_path, rates=(1e-4, 4e-4, 2e-4), seeds=1, measure="solver/failed"))
    for arm in ("plain", "judged"):
        for rate, failed in ((1e-4, 0.3), (2e-4, 0.1), (4e-4, None)):
            undefined = {} if failed is None else {"solver/failed": failed}
            made_run(tmp_path / arm / f"rate-{rate:g}" / f"seed-{FIRST_SEED}", {"solver/pass@1": 0.5} | undefined)
        made_run(tmp_path / arm / "seed-0", {"solver/pass@1": 0.6})
    lines = []
    result = compare(made, say=lines.append)
    assert result["rates"]["arms"]["plain"]["scores"] == [(1e-4, 0.3), (2e-4, 0.1), (4e-4, None)]
    assert {arm["chosen"] for arm in result["rates"]["arms"].values()} == {2e-4}
    assert any("solver/failed is undefined at 0.0004" in line for line in lines), lines
    assert "undefined" in (tmp_path / "report.html").read_text()


def test_of_a_gap_the_rate_nearest_to_zero_is_best(tmp_path):
    arms = (make_arm("judged", "tango", {"model": TINY, "verifier": "frozen"}),)
    made = begun(plan(tmp_path, arms=arms, rates=(1e-4, 2e-4, 4e-4), seeds=1, measure="gap"))
    for rate, gap in ((1e-4, 0.3), (2e-4, -0.1), (4e-4, -0.4)):
        made_run(tmp_path / "judged" / f"rate-{rate:g}" / f"seed-{FIRST_SEED}", {"solver/pass@1": 0.5, "gap": gap})
    made_run(tmp_path / "judged" / "seed-0", {"solver/pass@1": 0.6})
    result = compare(made, say=lambda line: None)
    assert result["rates"]["arms"]["judged"]["chosen"] == 2e-4


def test_a_measure_without_a_better_direction_chooses_no_rate(tmp_path):
    arms = (make_arm("judged", "tango", {"model": TINY, "verifier": "frozen"}),)
    made = plan(tmp_path, arms=arms, rates=(1e-4, 2e-4), measure="verifier/base_rate")
    with refuses("E_NO_BEST_VALUE", names=("measure", "verifier/base_rate")):
        compare(made)
    assert not list(tmp_path.iterdir())


@pytest.mark.whole
def test_a_figure_that_one_run_lacks_is_a_result_if_another_run_has_it(tmp_path):
    made = begun(plan(tmp_path, seeds=1))
    made_run(tmp_path / "plain" / "seed-0", {"solver/pass@1": 0.6})
    made_run(tmp_path / "judged" / "seed-0", {"solver/pass@1": 0.5, "verifier/balanced_accuracy": 0.7})
    needed = {"plain": {"verifier/balanced_accuracy"}, "judged": {"verifier/balanced_accuracy"}}
    assert compare(made, needed_figures=needed)["table"]
    with refuses("E_UNKNOWN_MEASURE", names="verifier/balanced_acuracy"):
        compare(made, needed_figures={"plain": {"verifier/balanced_acuracy"}})


def test_an_arm_without_a_headline_figure_is_named_with_the_reason(tmp_path):
    """One arm has no verifier, and both were asked for too few answers to have a vote of eight in each run."""
    made = begun(plan(tmp_path, seeds=2))
    for seed, vote in ((0, {"solver/majority@8": 0.7}), (1, {})):
        made_run(tmp_path / "plain" / f"seed-{seed}", {"solver/pass@1": 0.6})
        figures = {"solver/pass@1": 0.5, "verifier/balanced_accuracy": 0.7, **vote}
        made_run(tmp_path / "judged" / f"seed-{seed}", figures)
    result = compare(made, say=lambda line: None)
    lines = "\n".join(result["lines"])
    assert "plain lacks verifier/balanced_accuracy: it has no role 'verifier'; its roles are solver." in lines
    assert "plain lacks solver/majority@8: it is undefined in all of its runs" in lines
    assert "judged lacks solver/majority@8: it is undefined in 1 of 2 runs." in lines
    assert "no role 'verifier'" in (tmp_path / "table.md").read_text()
    assert "no role 'verifier'" in (tmp_path / "report.html").read_text().replace("\\u0027", "'")


def test_settings_that_leave_out_a_headline_figure_are_the_reason():
    recipe = recipe_of_arm(make_arm("plain", "grpo", {"model": TINY}), {}, ("evaluation.group_size=2",))
    without_greedy = recipe_of_arm(make_arm("plain", "grpo", {"model": TINY}), {}, ("evaluation.greedy=false",))
    other = [{"after": {"solver/majority@8": 0.5, "solver/greedy": 0.5, "solver/pass@1": 0.5}}]
    few, no_greedy = [{"after": {"solver/greedy": 0.5}}], [{"after": {"solver/majority@8": 0.5}}]
    recipes = {"few": recipe, "sampled": without_greedy, "other": recipe}
    rows = lacking_figures(recipes, {"few": few, "sampled": no_greedy, "other": other}, ())
    reasons = {(row["recipe"], metric): row["why"] for row in rows for metric in row["metrics"]}
    assert "evaluation.group_size is 2" in reasons["few", "solver/majority@8"]
    assert reasons["sampled", "solver/greedy"] == "evaluation.greedy is false"


def test_a_figure_of_no_role_is_not_said_to_want_one():
    """Of the gap, which is of no role, it was said that an arm has no role 'gap'."""
    judged = recipe_of_arm(make_arm("two", "tango", {"model": TINY}), {}, ())
    plain = recipe_of_arm(make_arm("plain", "grpo", {"model": TINY}), {}, ())
    recipes = {"unread": judged, "plain": plain, "other": judged}
    runs = {"unread": [{"after": {}}], "plain": [{"after": {}}], "other": [{"after": {"gap": 0.1}}]}
    reasons = {row["recipe"]: row["why"] for row in lacking_figures(recipes, runs, {"gap"})}
    assert reasons == {
        "unread": "it is undefined in all of its runs, as where nothing could be read",
        "plain": "no measure of it gives that",
    }


def _with_measure(out: Path, measure: str) -> Path:
    """The same runs under the settings of another measure."""
    settings = json.loads((out / "settings.json").read_text())
    (out / "settings.json").write_text(json.dumps(settings | {"measure": measure}))
    return out


@pytest.mark.whole
def test_a_comparison_is_repeated_on_other_seeds_and_goes_on_where_it_is_older_than_that_setting(tmp_path):
    made = begun(plan(tmp_path, first_seed=3, seeds=2))
    for arm, figure in (("plain", 0.5), ("judged", 0.6)):
        for seed in (3, 4):
            made_run(tmp_path / arm / f"seed-{seed}", {"solver/pass@1": figure})
    result = compare(made)
    assert [run["seed"] for run in result["recipes"]["judged"]["seeds"]] == [3, 4]
    held = json.loads((tmp_path / "settings.json").read_text())
    with refuses("E_COMPARISON_DIFFERS", names="first_seed 3"):
        claim_directory(replace(made, first_seed=0), made.arms)
    del held["first_seed"]
    (tmp_path / "settings.json").write_text(json.dumps(held))
    claim_directory(replace(made, first_seed=0), made.arms)


def test_a_rate_moves_the_other_policies_in_proportion():
    recipe = recipe_of_arm(make_arm("rise", "rise", {"model": TINY}), {}, ())
    assert rate_settings(recipe, 4e-4) == (
        "policies.model.lr=0.0004",
        "policies.critic.lr=0.002",
    )  # 2e-4 and 1e-3 at first


def test_arms_are_measured_alike_or_not_compared(tmp_path):
    ours = make_arm("x", "grpo", {"model": TINY})
    with refuses("E_ARMS_TESTED_UNLIKE", names=("on 256", "8 answers")):
        compare(plan(tmp_path, arms=(ours, make_arm("y", f"{Path(__file__).parent / 'other_method.py'}:fewer", {}))))


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        ({"seeds": 0}, "E_COMPARISON_RANGE: seeds"),
        ({"first_seed": -1}, "E_COMPARISON_RANGE: -1"),
        ({"equal": "steps"}, "E_UNKNOWN_COST_TO_BE_MADE_EQUAL"),
        ({"budget": 5.0}, "E_TWO_LENGTHS"),
        ({"equal": "flops", "budget": -1.0}, "E_COMPARISON_RANGE"),
        ({"rates": (1e-4, 0.0)}, "E_COMPARISON_RANGE"),
        ({"lenient": True}, "E_LENIENT_WITHOUT_DATA"),
        ({"threads": 0}, "E_COMPARISON_RANGE: threads"),
        ({"checkpoint_every": 0}, "E_COMPARISON_RANGE: checkpoint_every"),
    ],
)
def test_what_cannot_be_run_is_refused_before(tmp_path, wrong, code):
    with refuses(code):
        plan(tmp_path, **wrong)


@pytest.mark.whole
def test_a_finished_run_goes_on_as_if_it_had_been_begun_longer(tmp_path):
    """Bit for bit in weights, metrics and episodes, but for the evaluation at what was the end."""
    from cotrain import api
    from cotrain.config.override import override
    from cotrain.recipes.grpo import grpo
    from cotrain.runs import run as loop
    from cotrain.storage import checkpoints

    def small(steps):
        made = grpo(model=TINY, tasks=EASY, tasks_per_step=2, group_size=3, evaluation_tasks=1, lr=1e-3, steps=steps)
        return override(made, ["horizon=2", "evaluation.group_size=1", "evaluation.splits=[]"])

    whole, short = tmp_path / "whole", tmp_path / "short"
    loop.start_run(small(4), whole)
    loop.start_run(small(2), short)
    RunDirectory.open(short).extend({"steps": 4})
    api.resume(short)
    assert (whole / "metrics.jsonl").read_bytes() == (short / "metrics.jsonl").read_bytes()
    one, other = (checkpoints.latest_checkpoint(folder / "checkpoints").load()[0] for folder in (whole, short))
    assert all(one["generator"][name].equal(other["generator"][name]) for name in one["generator"])
    ends = [json.loads((folder / "summary.json").read_text()) for folder in (whole, short)]
    assert ends[0] == ends[1] and ends[0]["flops"] > 0


@pytest.mark.whole
def test_a_small_comparison_is_made_equal_and_not_repeated(tmp_path):
    """Two arms of which one learns from every group and so costs more: the other goes on until it has spent as much."""
    arms = tuple(
        make_arm(by, "grpo", {"model": TINY, "steps_judged_by": by, "tasks_per_step": 2, "group_size": 3})
        for by in ("none", "oracle")
    )
    tiny = (
        "tasks.max_value=20",
        "evaluation.tasks=2",
        "evaluation.group_size=2",
        "evaluation.splits=[]",
        "evaluation.curve_tasks=1",
    )
    made = ComparisonPlan(
        arms=arms, seeds=1, out=tmp_path / "cmp", batches=3, evaluate_every=3, operations=(2, 2), overrides=tiny
    )
    said: list[str] = []
    result = compare(made, say=said.append)
    (why,) = (line for line in said if "has spent most" in line)
    assert why.startswith(f"{result['dearest']} has spent most, ") and "1 run of other arms will go on" in why
    runs = {name: found["seeds"][0] for name, found in result["recipes"].items()}
    cheap = next(name for name in runs if name != result["dearest"])
    assert runs[result["dearest"]]["spent"]["batches"] == 3 < runs[cheap]["spent"]["batches"]
    last, before = costs_of(made.out / cheap / "seed-0")[-1], costs_of(made.out / cheap / "seed-0")[-2]
    assert before["flops"] < result["budget"] <= last["flops"]
    said.clear()
    again = compare(made, say=said.append)
    assert len(said) == 2 and again["table"] == result["table"]  # where to watch it, and how many runs
    assert "one seed: an anecdote" in "".join(result["lines"])
