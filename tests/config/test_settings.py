"""What every run has comes with ``@recipe``: settings, their defaults, their refusals, and ``from cotrain import
…``."""

import inspect
from dataclasses import replace

import pytest

import cotrain
from cotrain.cli.flags import comments_of
from cotrain.config.policies import Adapter, Learning
from cotrain.config.recipe import Recipe
from cotrain.config.registry import find_recipe
from cotrain.config.run_config import RUN_CONFIG_NAMES, RunConfig, recipe
from cotrain.core.errors import UserError
from cotrain.recipes import NAMES as SHIPPED
from cotrain.recipes.grpo import grpo
from cotrain.recipes.magrpo.halves import Halves
from cotrain.recipes.ssrl.world import World
from cotrain.runs.changes import rebuild_recipe
from cotrain.runs.directory import RunDirectory, recipe_json
from cotrain.trainer.trainer import CoTrainer
from tests.helpers import EASY, TINY
from tests.sentences import refuses

SIZES = {"model": TINY, "tasks": EASY, "steps": 1, "tasks_per_step": 2, "group_size": 4, "evaluation_tasks": 1}


def signature_of(name):
    return find_recipe(name).parameters


@pytest.mark.parametrize("name", SHIPPED)
def test_every_recipe_has_all_settings_and_none_of_them_in_its_own_function(name):
    own = list(inspect.signature(find_recipe(name).build).parameters)
    assert own[0] == "run" and not set(own) & set(RUN_CONFIG_NAMES)
    missing = set(RUN_CONFIG_NAMES) - set(signature_of(name))
    refused = {"constitutional": {"kl"}, "self_rewarding": {"kl"}}
    refused |= {one: {"group_size", "kl"} for one in ("alphaproof", "spin")}
    refused |= {"dpo": {"group_size", "kl", "temperature"}, "reward": {"group_size", "kl", "lora", "temperature"}}
    assert missing == (refused | {"distill": {"kl"}, "genprm": {"kl"}, "prime": {"kl"}, "demo": {"tasks"}}).get(
        name, set()
    )


@pytest.mark.whole
@pytest.mark.parametrize("name", SHIPPED)
def test_every_parameter_says_what_it_is(name):
    said = comments_of(find_recipe(name).build)
    own = set(signature_of(name)) - set(RUN_CONFIG_NAMES)
    assert name == "demo" or set(said) >= own
    assert set(comments_of(RunConfig)) >= set(RUN_CONFIG_NAMES)


def test_a_method_has_defaults_of_its_own_and_refuses_what_it_does_not_take():
    assert (signature_of("tango")["steps"].default, signature_of("grpo")["steps"].default) == (160, 100)
    with refuses("E_SETTING_NOT_TAKEN", names=("genprm", "'kl'")):
        find_recipe("genprm")(kl=0.1)
    with refuses("E_UNKNOWN_PARAMETER", names="'group_size'"):
        grpo(group_sise=4)
    with refuses("E_ARGUMENT_TYPE", names=("temperature of grpo", "'hot'", "a finite number")):
        grpo(temperature="hot")
    with refuses("E_SAMPLING_RANGE", names="temperature -1.0"):
        grpo(temperature=-1.0)


def test_a_function_that_is_no_recipe_is_told_what_to_change():
    def bare():
        return grpo()

    def shadowing(run: RunConfig, *, steps: int = 3) -> Recipe:
        return grpo()

    def good(run: RunConfig) -> Recipe:
        return grpo(**run.values())

    with refuses("E_RECIPE_SIGNATURE", names="bare"):
        recipe(bare)
    with refuses("E_PARAMETER_IS_SETTING", names=("'steps'", "run", "steps")):
        recipe(shadowing)
    with refuses("E_UNKNOWN_SETTING", names="'steps'"):
        recipe(stepps=3)(good)
    with refuses("E_ARGUMENT_TYPE", names=("'good'", "'many'", "a whole number")):
        recipe(steps="many")(good)
    assert recipe(steps=7)(good)().steps == 7
    assert recipe(good)(steps=5).origin.arguments["steps"] == 5


@pytest.mark.whole
@pytest.mark.parametrize("name", sorted(set(SHIPPED) - {"dpo", "reward"}))  # they sample nothing
def test_temperature_and_warm_up_of_rates_reach_every_role_and_policy(name):
    made = find_recipe(name)(temperature=0.7, lr_warmup=3, lr_decay="cosine")
    assert {role.sampling.temperature for role in made.roles.values()} == {0.7}
    assert {(p.lr_warmup, p.lr_decay) for p in made.policies.values() if isinstance(p, Learning)} == {(3, "cosine")}
    plain = {role.sampling.temperature for role in find_recipe(name)().roles.values()}
    made_as = {"cooper": {1.0, 1.3}, "demo": {1.0, 1.5}, "self_rewarding": {0.7}}
    assert plain == made_as.get(name, {1.0})


SIGNED = {"invalid", "unread"}  # rewards


@pytest.mark.whole
@pytest.mark.parametrize("name", sorted(SHIPPED))
def test_no_weight_or_share_of_a_method_is_negative(name):
    """Rates are held against 0 where a policy has them."""
    build = find_recipe(name)
    for parameter, argument in build.parameters.items():
        if isinstance(argument.default, float) and not (parameter in SIGNED or parameter.endswith("lr")):
            with pytest.raises(UserError):
                build(**{parameter: -1.0})


def test_a_share_has_two_ends():
    for value in (-0.1, 1.1):
        with refuses("E_ARGUMENT_TYPE", names=("gamma of genprm", str(value), "from 0 to 1")):
            find_recipe("genprm")(gamma=value)
    assert find_recipe("genprm")(gamma=1.0)
    with refuses("E_ARGUMENT_TYPE", names=("alpha of grpo", "-1")):
        find_recipe("grpo")(alpha=-1)


FOLLOWED = {
    "co_rewarding",
    "constitutional",
    "self_rewarding",
    "spin",
    "reward",
}  # a policy of theirs follows another, which an adapter cannot be, or is trained whole


@pytest.mark.whole
@pytest.mark.parametrize("name", sorted(set(SHIPPED) - FOLLOWED))
def test_adapters_of_every_recipe(name):
    made = find_recipe(name)(lora=4)
    adapters = {n: p for n, p in made.policies.items() if isinstance(p, Adapter)}
    full = {n for n, p in made.policies.items() if isinstance(p, Learning)} - set(adapters)
    assert adapters and {p.lora.rank for p in adapters.values()} == {4}
    heads = {
        "rise": {"critic"},
        "cooper": {"rm"},
        "generator_verifier_critic": {"critic"},
    }  # of their own
    assert full == heads.get(name, set())


@pytest.mark.whole
@pytest.mark.parametrize("name", sorted(set(SHIPPED) - FOLLOWED - {"demo", "dpo"}))
def test_adapters_at_another_temperature_make_a_step(name):
    alone = {"warmup": 0} if "warmup" in signature_of(name) else {}
    own = {"magrpo": Halves(), "ssrl": World()}
    played = {"tasks": own.get(name, EASY)}
    sizes = {key: value for key, value in SIZES.items() if key in signature_of(name)}
    sizes |= {"teacher": TINY} if name == "distill" else {}
    CoTrainer(find_recipe(name)(**sizes | alone | played, lora=2, temperature=0.8)).step()


def test_an_average_of_an_adapter_is_refused():
    with refuses("E_FOLLOWS_ADAPTER", names=("'generator'", "'teacher'")):
        find_recipe("co_rewarding")(lora=4)
    for name in ("self_rewarding", "spin"):
        with refuses("E_FOLLOWS_ADAPTER", names="'generator'"):
            find_recipe(name)(lora=4)
    assert isinstance(find_recipe("co_rewarding")(lora=4, teacher="frozen").policies["generator"], Adapter)


def test_one_call_of_a_recipe_hands_its_settings_to_another():
    again = grpo(**RunConfig(steps=3, seed=2, temperature=0.9).values())
    assert (again.steps, again.seed, again.roles["solver"].sampling.temperature) == (3, 2, 0.9)
    assert replace(again, origin=None).steps == 3


# ---- task sources of the user's own


SOURCE = """
from cotrain.recipes.grpo import grpo
from cotrain.data.word_problems.source import WordProblems

class Mine(WordProblems):
    def describe(self):
        return {"kind": "mine", "settings": {"operations": list(self.operations)}}

    def __init__(self, operations=(2, 2)):
        super().__init__(operations=tuple(operations))
"""


@pytest.fixture
def saved(tmp_path):
    """A run directory of a recipe whose problems are a class of a file."""
    (tmp_path / "mine.py").write_text(SOURCE)
    from cotrain.data.sources import task_source

    made = grpo(steps=2, tasks=task_source(f"{tmp_path / 'mine.py'}:Mine"))
    (tmp_path / "run").mkdir()
    RunDirectory(tmp_path / "run").write_with_hashes({"recipe.json": recipe_json(made, checkpoint_every=1)})
    return made, tmp_path


def test_a_source_of_ones_own_is_made_again_by_its_class(saved):
    made, place = saved
    assert made.origin.arguments["tasks"]["class"] == f"{place / 'mine.py'}:Mine"
    again = rebuild_recipe(place / "run")
    assert again.tasks.describe() == made.tasks.describe() and again.tasks.get("train", 3).prompt
    assert "class" not in grpo(tasks=EASY).origin.arguments["tasks"]


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lambda file: file.unlink(), "E_CODE_FILE_MISSING"),
        (lambda file: file.write_text(SOURCE.replace("Mine", "Other")), "E_NO_SUCH_CLASS: unknown class 'Mine'"),
        (lambda file: file.write_text(SOURCE.replace('"mine"', '"ours"')), "E_PROBLEMS_NOT_REBUILT"),
        (lambda file: file.write_text(SOURCE.replace("operations=(2, 2)", "sizes=(2, 2)")), "E_TASK_SOURCE_NOT_MADE"),
        (lambda file: file.write_text("1 / 0\n" + SOURCE), "E_USER_CODE_FAILED: line 1"),
        (
            lambda file: file.write_text("class Mine:\n    def __init__(self, operations): pass\n"),
            "E_NOT_TASK_SOURCE: 'name'",
        ),
    ],
)
def test_a_source_that_changed_is_refused_in_one_line(saved, change, code):
    _, place = saved
    change(place / "mine.py")
    with refuses(code) as error:
        rebuild_recipe(place / "run")
    assert isinstance(error.value, cotrain.core.errors.CotrainError) and "\n" not in str(error.value)
