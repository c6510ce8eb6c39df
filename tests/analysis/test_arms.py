"""Arms as they are written, and what is said of those that cannot be run."""

import json

from cotrain.analysis.comparison.arms import distinct_arms, make_arm, parse_arm, shown_settings, under_current_names
from cotrain.analysis.comparison.compare import claim_directory
from cotrain.analysis.comparison.plan import ComparisonPlan
from cotrain.recipes.alphaproof.recipe import alphaproof
from tests.sentences import refuses


def test_an_arm_is_a_recipe_with_parameters():
    arm = parse_arm("tango:verifier=frozen,alpha=0.5,balance=false")
    assert arm.target == "tango"
    assert arm.arguments["verifier"] == "frozen" and arm.arguments["alpha"] == 0.5 and arm.arguments["balance"] is False
    assert "--no-balance" in arm.flags()
    assert parse_arm("spiral:game=mine.py:RACE,pool=2").arguments == {"game": "mine.py:RACE", "pool": 2}
    assert parse_arm("tango:ratio=[2,1],alpha=0.5").arguments == {"ratio": (2, 1), "alpha": 0.5}
    mine = parse_arm("my/file.py:mine:lr=0.1")
    assert (mine.target, dict(mine.arguments)) == ("my/file.py:mine", {"lr": 0.1})
    with refuses("E_ARM_PARAMETER"):
        parse_arm("tango:frozen")


def test_a_value_that_is_nested_too_deeply_to_be_json_is_a_text():
    deep = "[" * 9999 + "]" * 9999
    assert parse_arm(f"grpo:model={deep}").arguments == {"model": deep}


def test_what_a_comparison_sets_no_arm_sets():
    for name in ("seed=3", "steps=4", "evaluate_every=5", "evaluation_tasks=6"):
        with refuses("E_ARM_SETS_COMPARISON"):
            parse_arm(f"grpo:{name}")
    with refuses("E_ARMS_ALIKE"):
        distinct_arms([make_arm("a b", "grpo", {}), make_arm("a:b", "grpo", {"kl": 0.0})])
    with refuses("E_ARM_LABEL"):
        distinct_arms([make_arm("..", "grpo", {})])
    with refuses("E_ARMS_ALIKE", names="named twice"):
        distinct_arms([parse_arm("grpo:kl=0.0"), make_arm("mine", "grpo", {"kl": 0.0})])


def test_a_comparison_of_before_goes_on_though_a_setting_has_another_name(tmp_path):
    plan = ComparisonPlan(arms=(parse_arm("grpo"),), seeds=1, out=tmp_path / "out", answer_format="boxed")
    claim_directory(plan, plan.arms)
    path = plan.out / "settings.json"
    settings = json.loads(path.read_text())
    settings["answer"] = settings.pop("answer_format")
    settings["settings"] = settings.pop("overrides")
    path.write_text(json.dumps(settings))
    claim_directory(plan, plan.arms)
    assert json.loads(path.read_text())["answer_format"] == "boxed"
    path.write_text(json.dumps(settings | {"answer": "hash"}))
    with refuses("E_COMPARISON_DIFFERS", names='answer_format "hash"'):
        claim_directory(plan, plan.arms)


def test_an_arm_of_before_goes_on_though_a_parameter_has_another_name(tmp_path):
    """Its further seeds are begun with the name of today, which an arm without runs is told."""
    arm = parse_arm("distill:pull=0.5")
    plan = ComparisonPlan(arms=(arm,), seeds=1, out=tmp_path / "out")
    with refuses("E_UNKNOWN_PARAMETER", names="teacher_kl"):
        plan.make_recipes(plan.arms)

    (plan.out / arm.slug).mkdir(parents=True)
    recipe = plan.make_recipes(plan.arms)["distill:pull=0.5"]
    assert recipe.origin.arguments["teacher_kl"] == 0.5
    today = under_current_names(arm)
    assert (today.label, today.flags()) == ("distill:pull=0.5", ["--teacher-kl=0.5"])


def test_settings_that_are_nested_too_deeply_are_damaged(tmp_path):
    plan = ComparisonPlan(arms=(parse_arm("grpo"),), seeds=1, out=tmp_path / "out")
    claim_directory(plan, plan.arms)
    (plan.out / "settings.json").write_text("[" * 9999)
    with refuses("E_COMPARISON_DAMAGED", names="nested too deeply"):
        claim_directory(plan, plan.arms)


def test_a_setting_without_a_value_is_refused_with_the_arms(tmp_path):
    plan = ComparisonPlan(arms=(parse_arm("grpo"),), seeds=1, out=tmp_path, tasks="words", overrides=("group_size",))
    with refuses("E_OVERRIDE_SHAPE", names="'group_size'"):
        plan.make_recipes(plan.arms)


def test_a_page_says_how_many_test_problems_there_are():
    assert shown_settings(alphaproof(target=2, target_split="test", evaluation_tasks=64))["test_problems"] == 1
    assert shown_settings(alphaproof(evaluation_tasks=64))["test_problems"] == 64
