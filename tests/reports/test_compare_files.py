"""What a comparison writes, from made-up run directories: nothing is trained here."""

import json
import random
import re
import shutil
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from cotrain.analysis.comparison.arms import parse_arm
from cotrain.analysis.comparison.compare import ComparisonPlan, claim_directory, compare
from cotrain.core.verbosity import is_hidden
from cotrain.reports.compare_markdown import comparison_markdown
from cotrain.reports.compare_svg import curves_svg, differences_svg
from cotrain.reports.compare_table import comparison_table, runs_of, strip_folders
from cotrain.runs.directory import RunDirectory
from tests.sentences import refuses

POISON = "<script>alert(1)</script>'\">]]><b>|`*\x1b[2J\u202e\u200b\ud800"
START = {"solver/pass@1": 0.3, "verifier/balanced_accuracy": 0.5, "verifier/step_balanced_accuracy": 0.6}
END = {
    "grpo": {"solver/pass@1": 0.5},
    "tango": {"solver/pass@1": 0.6, "verifier/balanced_accuracy": 0.7, "verifier/step_balanced_accuracy": 0.8},
    "tango:verifier=frozen": {"solver/pass@1": 0.4, "verifier/balanced_accuracy": 0.55},
}
VERDICTS = {
    "verifier/error_precision": 0.71,
    "verifier/error_recall": 0.62,
    "verifier/predicted_positive": 0.53,
    "verifier/right_verdict_wrong_step": 0.24,
    "verifier/fixed/balanced_accuracy": 0.65,
}
COST = {"grpo": 1000, "tango": 3000, "tango:verifier=frozen": 2000}  # tokens an update
SEEDS, UPDATES, EVERY = 3, 40, 10


def fake_run(folder: Path, arm: str, seed: int, updates: int) -> None:
    """The two files that a comparison reads: straight curves from START to END, a little apart for each seed."""
    folder.mkdir(parents=True)
    rng, rows = random.Random(f"{arm} {seed}"), []
    end = {key: value + rng.gauss(0, 0.01) for key, value in END[arm].items()}
    for done in range(0, updates + 1, EVERY):
        row = {"step": done - 1, "kind": "evaluation"}
        rows.append(row | {f"eval/{k}": START[k] + (v - START[k]) * done / updates for k, v in end.items()})
        for step in range(done, min(done + EVERY, updates)):
            paid = {"solver/traces": 8, "solver/accuracy": 0.4, "solver/reward/step": 0.1 + 0.01 * step, "gap": 0.2}
            spent = {"generator/flops/sampling": 10 * COST[arm], "generator/flops/learning": 30 * COST[arm]}
            rows.append({"step": step, "tokens": COST[arm] * (step + 1)} | spent | paid)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    further = VERDICTS if arm.startswith("tango") else {}
    clock = [{"step": i, "rollout": 2.0, "update": 1.0, "solver/seconds": 1.9} for i in range(updates)]
    (folder / "timings.jsonl").write_text("".join(json.dumps(row) + "\n" for row in clock))
    summary = {"tokens": COST[arm] * updates, "steps": updates, "before": {k: {"value": START[k]} for k in end}}
    summary["updates"] = {"generator": updates, "verifier": 3}
    further = further | {"generator/update_sparsity": 0.1 if arm == "grpo" else 0.25}
    after = {k: {"value": v} for k, v in (end | further).items()}  # of the last evaluation
    RunDirectory(folder).write_with_hashes({"summary.json": summary | {"after": after}})


def begun_before(out: Path, settings=()) -> None:
    """As a comparison leaves its directory, to which more is added."""
    spare = out.with_name(f"{out.name}-spare")
    claim_directory(plan([], spare, overrides=settings), [])
    shutil.copy(spare / "settings.json", out)


def plan(arms, out: Path, **options) -> ComparisonPlan:
    """A comparison of runs that lasted as long as ``fake_run`` makes them."""
    usual = {"seeds": SEEDS, "batches": UPDATES, "evaluate_every": EVERY, "equal": "batches"}
    return ComparisonPlan(arms=tuple(map(parse_arm, arms)), out=out, **{**usual, **options})


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    """A comparison of finished runs: nothing is trained. GRPO, the cheapest, went on to as many tokens."""
    out = tmp_path_factory.mktemp("compare")
    for arm in END:
        for seed in range(SEEDS):
            slug = "".join(c if c.isalnum() or c in "-_." else "-" for c in arm)
            fake_run(out / slug / f"seed-{seed}", arm, seed, 120 if arm == "grpo" else UPDATES)
    model = f"policies.generator.model={out}/mine"
    begun_before(out, settings=(model,))
    result = compare(plan(list(END), out, overrides=(model,)))
    assert not list(out.glob("*/*.log"))  # every run was found finished
    return out, result


@pytest.mark.whole
def test_a_directory_takes_further_arms_and_no_other_settings(tmp_path):
    for arm in ("grpo", "tango"):
        for seed in range(SEEDS):
            fake_run(tmp_path / arm / f"seed-{seed}", arm, seed, UPDATES)
    with refuses("E_OUT_NOT_COMPARISON"):
        compare(plan(["grpo"], tmp_path))
    begun_before(tmp_path)
    assert list(compare(plan(["grpo"], tmp_path))["recipes"]) == ["grpo"]
    assert list(compare(plan(["tango", "grpo"], tmp_path, workers=3))["recipes"]) == ["tango", "grpo"]
    for other in ({"batches": UPDATES + 1}, {"equal": "flops"}, {"operations": (4, 4)}):
        with refuses("E_COMPARISON_DIFFERS"):
            compare(plan(["grpo"], tmp_path, **other))


@pytest.mark.whole
def test_the_order_of_settings_is_free(tmp_path):
    one, other = "tasks_per_step=3", "group_size=5"
    fake_run(tmp_path / "grpo/seed-0", "grpo", 0, UPDATES)
    begun_before(tmp_path, settings=(one, other))
    compare(plan(["grpo"], tmp_path, seeds=1, overrides=(other, one)))
    for settings in ((one,), (other, one, "group_size=6")):
        with refuses("E_COMPARISON_DIFFERS"):
            compare(plan(["grpo"], tmp_path, seeds=1, overrides=settings))


@pytest.mark.whole
def test_what_the_first_arm_lacks_is_compared_with_the_first_that_has_it(compared):
    _, result = compared
    rows = {(row["at"], row["metric"], row["recipe"]): row for row in result["table"]}
    for at in ("batches", "tokens", "flops", "seconds", "end"):
        assert rows[at, "solver/pass@1", "grpo"]["reference"] is None
        assert rows[at, "solver/pass@1", "tango"]["reference"] == "grpo"
        assert (at, "verifier/balanced_accuracy", "grpo") not in rows
        assert rows[at, "verifier/balanced_accuracy", "tango"]["reference"] is None
        frozen = rows[at, "verifier/balanced_accuracy", "tango:verifier=frozen"]
        assert frozen["reference"] == "tango" and frozen["difference"]["n"] == SEEDS
        assert frozen["words"].startswith("worse by" if at == "end" else "−")
    assert (
        "verifier: balanced accuracy, at the end of each run, against tango, the first that has it" in result["lines"]
    )
    assert "solver: pass@1, at the end of each run" in result["lines"]


@pytest.mark.whole
def test_updates_needed_are_read_off_the_mean_curve(compared):
    _, result = compared
    found = {(level["axis"], level["name"]): level for level in result["levels"] if level["name"]}
    # grpo rises from 0.3 to about 0.5 in 120 updates, so after 40 it has about 0.367, which tango, rising to about 0.6
    # in 40, has after about 40 * 0.067 / 0.3 = 8.9
    level = found["batches", "what grpo has after 40 batches"]
    grpo, tango, frozen = level["reached"]
    assert level["level"] == pytest.approx(0.367, abs=0.01)
    assert grpo["at"] == pytest.approx(40) and tango["at"] == pytest.approx(8.9, abs=1.5)
    assert min(x for _, x in tango["seeds"]) <= tango["at"] <= max(x for _, x in tango["seeds"])
    assert tango["difference"]["n"] == SEEDS and tango["difference"]["high"] < 0
    assert frozen["recipe"] == "tango:verifier=frozen"
    rounds = [level for level in result["levels"] if not level["name"] and level["axis"] == "batches"]
    assert 0.5 in [level["level"] for level in rounds]
    never = next(r for level in rounds if level["level"] == 0.5 for r in level["reached"] if r["recipe"] != "tango")
    assert never["difference"] is None  # not every seed gets there


def test_table_and_pictures_can_be_committed(compared):
    out, _ = compared
    table = (out / "table.md").read_text()
    assert "![curves](curves.svg)" in table and "![differences](differences.svg)" in table
    assert "## After 40 batches" in table and "## At the end of each run" in table and "Verdicts at the end" in table
    assert "undefined" not in table and "nan" not in table
    changed = "| generator: weights as at the start, in bfloat16 | {} | – | {}"
    assert changed.format("grpo", "10.0") in table and changed.format("tango", "25.0") in table
    for block in re.split("\n\n", table):
        if block.startswith("|"):
            assert len({len(re.split(r"(?<!\\)\|", line)) for line in block.splitlines()}) == 1
    for name, rows in (("curves.svg", 3), ("differences.svg", 2)):
        svg = ElementTree.fromstring((out / name).read_text())
        tags = {element.tag.removeprefix("{http://www.w3.org/2000/svg}") for element in svg.iter()}
        assert tags == {"svg", "title", "style", "rect", "text", "path"}
        panels = [e for e in svg.iter() if e.get("class") == "title"]
        assert len(panels) == 1 + 4 * rows
    for name in ("table.md", "curves.svg", "differences.svg"):
        assert str(out) not in (out / name).read_text()


def test_hostile_names_stay_text():
    curve = [{"spent": {"batches": x, "tokens": 2 * x}, "figures": {"solver/pass@1": x / 50}} for x in (0, 5)]
    run = {"seed": 0, "curve": curve, "after": {POISON: 0.5}}
    compare = {"recipes": {f"a{POISON}": {"seeds": [run]}, f"b{POISON}": {"seeds": [run]}}, "settings": [POISON]}
    for svg in (curves_svg(runs_of(compare)), differences_svg(runs_of(compare))):
        tags = {element.tag.rpartition("}")[2] for element in ElementTree.fromstring(svg).iter()}
        assert tags == {"svg", "title", "style", "rect", "text", "path"}
    table = comparison_markdown(compare | comparison_table(compare), [])
    assert not re.search(r"(?<!\\)[<>`]", table) and not any(is_hidden(c) for c in table if c != "\n")


def test_a_sentence_about_an_arm_stays_whole():
    """Why it lacks a figure was cut after 200 characters."""
    run = {"seed": 0, "after": {"solver/pass@1": 0.5}}
    why = f"it has no role 'verifier'; its roles are {', '.join(f'speaker number {n}' for n in range(20))}"
    lacking = [{"recipe": "a", "metrics": ["verifier/balanced accuracy"], "why": why}]
    compare = {"recipes": {"a": {"seeds": [run]}}, "settings": [], "lacking": lacking}
    assert f"{why}." in comparison_markdown(compare | comparison_table(compare), [])


def test_names_lose_the_folders_of_this_machine():
    assert strip_folders("tango:model=/home/me/models/a,lr=1e-4") == "tango:model=a,lr=1e-4"
    assert (
        strip_folders("/home/me/mine.py:mine") == "mine.py:mine"
        and strip_folders("../x/mine.py:mine") == "mine.py:mine"
    )
    assert strip_folders("~/a/b.py:c") == "b.py:c"
    assert strip_folders("tango:model=Qwen/Qwen3-0.6B,alpha=0.5") == "tango:model=Qwen/Qwen3-0.6B,alpha=0.5"


def test_one_row_for_each_recipe_with_what_it_reached_and_cost(compared):
    parts = {part.split("\n")[0]: part for part in (compared[0] / "table.md").read_text().split("## ")[1:]}

    def rows(title):
        lines = [line.strip("| ").split(" | ") for line in parts[title].splitlines() if line.startswith("|")]
        return {line[0]: line[1:] for line in lines[2:]}

    reached, cost = rows("At the start and at the end"), rows("What it cost, means over seeds")
    assert list(reached) == list(cost) == ["grpo", "tango", "tango:verifier=frozen"]
    assert re.match(r"30.0\u202f% → (59|60|61)\.\d\u202f% \(", reached["tango"][0])
    assert re.match(r"50.0\u202f% → (69|70|71)\.", reached["tango"][1]) and reached["grpo"][1:] == ["–", "–"]
    shares = ["0.0\u202f%", "25.0\u202f%", "0.0\u202f%", "75.0\u202f%"]
    assert cost["grpo"] == ["120", "120", "120\u202f000", "4.80e6", *shares, "360"]  # three seconds a step
    assert cost["tango"][:4] == ["40", "40", "120\u202f000", "4.80e6"]


def test_training_is_drawn_from_its_own_rows(compared):
    page = (compared[0] / "training.svg").read_text()
    ElementTree.fromstring(page)
    assert (
        page.count("tango:verifier=frozen") == 1
        and "![training](training.svg)" in (compared[0] / "table.md").read_text()
    )
    panels = re.findall(r'class="title">([^<]*)<', page)[1:]
    assert len(panels) == 4 * 3 and any("gap" in title.lower() or "believed" in title.lower() for title in panels), (
        panels
    )
    assert page.count("fill-opacity") == 3 * 4 * len(END)  # a band for each recipe in each panel
