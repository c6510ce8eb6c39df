"""What makes no sense is refused when the recipe is built, with a line that says what to change."""

from dataclasses import replace
from functools import partial
from typing import Literal

import pytest

from cotrain.algorithms.class_balance import ClassBalance
from cotrain.algorithms.policy_gradient import KLPenalty, PolicyGradient
from cotrain.config.override import override
from cotrain.config.policies import adapter, critic, ema, frozen, program, trainable
from cotrain.config.recipe import Objective, check_due, check_problems
from cotrain.config.registry import find_recipe
from cotrain.config.schedule import constant_schedule
from cotrain.core.arguments import Positive
from cotrain.core.notes import CORRECT
from cotrain.core.signals import AGREEMENT, CLASS_LABEL, FORMAT, OUTCOME, STEP, Signal, gives
from cotrain.metrics.heldout import measure_metadata, measure_selection, measure_solver, measure_verifier
from cotrain.recipes.grpo import grpo
from cotrain.recipes.magrpo import magrpo
from cotrain.recipes.tango import tango
from cotrain.rollout.reviews import solve_then_verify
from cotrain.rollout.stores import TaskPool
from cotrain.runs.changes import rebuild_recipe
from cotrain.runs.directory import RunDirectory, check_same_recipe, recipe_json, resolved_json
from tests.helpers import EASY
from tests.sentences import refuses


def refuse(change, code):
    with refuses(code):
        change()


def test_an_on_policy_algorithm_needs_its_policy_to_play_the_role():
    recipe = tango()
    wrong = {
        **recipe.objectives,
        "generator": Objective(
            policy="generator", role="verifier", algorithm=PolicyGradient(reward_weights={OUTCOME: 1.0})
        ),
    }
    refuse(lambda: replace(recipe, objectives=wrong), "E_OFF_POLICY_ROLE: 'verifier' | 'generator'")


def test_a_frozen_policy_cannot_be_trained():
    recipe = grpo()
    refuse(
        lambda: replace(recipe, policies={**recipe.policies, "generator": frozen("shipped")}), "E_POLICY_NOT_TRAINABLE"
    )


def test_a_reference_must_exist_and_have_the_right_head():
    recipe = grpo(kl=0.0)
    wrong = {
        "generator": Objective(
            policy="generator",
            role="solver",
            algorithm=PolicyGradient(reward_weights={OUTCOME: 1.0}, kl=KLPenalty("strat", 0.1)),
        )
    }
    refuse(lambda: replace(recipe, objectives=wrong), "E_NO_SUCH_PART: unknown policy 'strat'")
    mute = {**recipe.policies, "strat": critic("shipped")}
    refuse(lambda: replace(recipe, objectives=wrong, policies=mute), "E_HEAD_MISMATCH: 'lm'")


def test_a_role_is_played_by_a_policy_that_there_is():
    recipe = grpo()
    roles = {"solver": replace(recipe.roles["solver"], policy="genrator")}
    with refuses("E_NO_SUCH_PART", names=("role 'solver'", "'genrator'", "'generator'")):
        replace(recipe, roles=roles)


def test_a_policy_nobody_uses_is_refused():
    recipe = grpo()
    refuse(
        lambda: replace(recipe, policies={**recipe.policies, "spare": trainable("shipped")}),
        "E_POLICY_UNUSED: 'spare'",
    )


def test_a_program_speaks_in_the_tokens_of_a_model():
    recipe = grpo(kl=0.0)

    def told_by(teller):
        policies = {**recipe.policies, "teacher": program(say_nothing, tokens_of=teller)}
        roles = {**recipe.roles, "teacher": replace(recipe.roles["solver"], policy="teacher")}
        return replace(recipe, policies=policies, roles=roles)

    assert told_by("generator").policies["teacher"].tokens_of == "generator"
    refuse(lambda: told_by("teacher"), "E_TOKENS_OF_NO_MODEL: 'teacher' | 'program'")
    refuse(lambda: told_by("genrator"), "E_NO_SUCH_PART: 'generator'")


def test_an_objective_whose_phase_is_never_played_is_told_by_the_name_of_its_phase():
    made = tango(ratio=(1, 0), warmup=0)
    refuse(lambda: check_due(made), "E_OBJECTIVE_NEVER_DUE: 'verifier'")
    check_due(tango(ratio=(1, 1), warmup=0))


def say_nothing(fields, draws):
    return ""


def test_numbers_below_one_are_refused():
    refuse(lambda: grpo(steps=0), "E_RECIPE_SETTING_RANGE: steps")
    refuse(lambda: tango(group_size=0), "E_RECIPE_SETTING_RANGE: group_size")
    assert replace(find_recipe("spin")(), group_size=1)  # answers need no others to be compared with there


def test_only_reviews_may_be_none_and_only_in_training():
    """Where an oracle judges the steps there are no reviews; every other number of turns is one at least."""

    def counted(recipe, **options):
        phases = tuple(replace(one, protocol=partial(one.protocol, **options)) for one in recipe.schedule.phases)
        return replace(recipe, schedule=replace(recipe.schedule, phases=phases))

    assert counted(tango(), reviews=0)
    refuse(lambda: counted(tango(), reviews=-1), "E_OPTION_RANGE: reviews | -1")
    refuse(lambda: counted(find_recipe("ttrl")(), votes=0), "E_OPTION_RANGE: votes")
    evaluation = replace(tango().evaluation, protocol=partial(solve_then_verify, reviews=0))
    refuse(lambda: replace(tango(), evaluation=evaluation), "E_OPTION_RANGE: evaluation | reviews")


def test_a_policy_follows_one_that_is_trained_whole():
    recipe = grpo()
    follower = {"reference": ema("shipped", of="generator")}
    assert replace(recipe, policies={**recipe.policies, **follower})
    lent = {"generator": adapter("shipped")}
    refuse(lambda: replace(recipe, policies={**recipe.policies, **follower, **lent}), "E_FOLLOWS_ADAPTER")


def test_set_changes_any_setting_and_suggests_the_nearest_name():
    recipe = override(tango(), ["objectives.generator.algorithm.kl.weight=0.5", "roles.solver.sampling.temperature=1"])
    assert recipe.objectives["generator"].algorithm.kl.weight == 0.5
    assert recipe.roles["solver"].sampling.temperature == 1.0
    refuse(lambda: override(tango(), ["policies.genrator.lr=1"]), "E_NO_SUCH_KEY: 'generator'")
    refuse(lambda: override(tango(), ["policies.generator.rl=1"]), "E_NO_SUCH_FIELD: 'lr'")
    refuse(lambda: override(tango(), ["steps=many"]), "E_OVERRIDE_TYPE")
    refuse(lambda: override(tango(), ["steps"]), "E_OVERRIDE_SHAPE")


def test_a_recipe_is_rebuilt_from_its_saved_form(tmp_path):
    recipe = override(tango(steps=7, ratio=(2, 1), balance=False), ["policies.verifier.lr=0.5"])
    saved = recipe_json(recipe, checkpoint_every=5)
    RunDirectory(tmp_path).write_with_hashes({"recipe.json": saved})
    again = rebuild_recipe(tmp_path)
    assert recipe_json(again, checkpoint_every=5) == saved
    assert again.policies["verifier"].lr == 0.5 and again.steps == 7


def test_unknown_recipes_and_functions_suggest_the_nearest(tmp_path):
    with refuses("E_UNKNOWN_RECIPE", names="'tango'"):
        find_recipe("tanog")
    mine = tmp_path / "mine.py"
    mine.write_text(
        "from cotrain import recipe\nfrom cotrain.recipes.grpo import grpo\n@recipe\ndef mine(run):\n    return "
        "grpo(steps=3)\n"
    )
    assert find_recipe(f"{mine}:mine")().steps == 3
    refuse(lambda: find_recipe(f"{mine}:mien"), "E_NO_SUCH_RECIPE_FUNCTION: 'mine'")
    for unnamed in (f"{mine}", f"{mine}:"):
        refuse(lambda unnamed=unnamed: find_recipe(unnamed), f"E_RECIPE_FUNCTION_UNNAMED: {mine}:mine")
    refuse(lambda: find_recipe(f"{tmp_path}/no.py:mine"), "E_CODE_FILE_MISSING")
    mine.write_text("from cotrain import RunConfig\n\ndef mine(run: RunConfig): ...\n")
    refuse(lambda: find_recipe(f"{mine}:mine"), f"E_RECIPE_UNDECORATED: {mine}, line 3")
    refuse(lambda: find_recipe(f"{mine}:RunConfig"), "E_NO_SUCH_RECIPE_FUNCTION: 'RunConfig'")
    mine.write_text("def mine(:\n")
    refuse(lambda: find_recipe(f"{mine}:mine"), "E_SYNTAX: line 1")


# ---- signals


def learning(**settings):
    """The GRPO recipe with another algorithm for its generator."""
    made = grpo(steps=1, kl=0.0)
    return replace(
        made, objectives={"generator": replace(made.objectives["generator"], algorithm=PolicyGradient(**settings))}
    )


def test_what_nobody_gives_is_refused_and_the_nearest_name_suggested():
    refuse(
        lambda: learning(reward_weights={Signal("outcom"): 1.0}),
        "E_SIGNAL_NOT_GIVEN: 'generator' | 'outcom' | 'solver' | 'outcome'",
    )
    refuse(
        lambda: learning(reward_weights={AGREEMENT: 1.0}),
        "E_SIGNAL_NOT_GIVEN: 'agreement' | 'solver'",
    )
    refuse(lambda: learning(reward_weights={Signal("step"): 1.0}), "E_SIGNAL_OF_OTHER_KIND: 'solver'")
    refuse(
        lambda: learning(reward_weights={OUTCOME: 1.0}, balance=ClassBalance()),
        "E_SIGNAL_NOT_GIVEN: 'class_label'",
    )
    made = tango(steps=1, balance=False)
    judged = replace(
        made.objectives["verifier"],
        algorithm=PolicyGradient(reward_weights={AGREEMENT: 1.0}, balance=ClassBalance(class_label=CLASS_LABEL)),
    )
    replace(made, objectives={**made.objectives, "verifier": judged})  # the protocol gives it to this role


def test_a_signal_counts_where_its_role_gets_it():
    @gives(FORMAT.to("verifier"), OUTCOME)
    async def elsewhere(task, roles):
        pass

    made = learning(reward_weights={OUTCOME: 1.0})
    replace(made, schedule=constant_schedule(elsewhere, "generator"))
    refuse(
        lambda: replace(learning(reward_weights={FORMAT: 1.0}), schedule=constant_schedule(elsewhere, "generator")),
        "E_SIGNAL_NOT_GIVEN: 'solver'",
    )


def test_a_protocol_without_a_declaration_is_told_what_to_add():
    async def silent(task, roles):
        pass

    refuse(
        lambda: replace(learning(reward_weights={OUTCOME: 1.0}), schedule=constant_schedule(silent, "generator")),
        "E_PROTOCOL_WITHOUT_GIVES: 'silent' | OUTCOME | 'solver'",
    )


def test_set_changes_the_weight_of_a_reward_and_checks_it():
    weights = (
        override(tango(), ["objectives.verifier.algorithm.reward_weights.format=0.5"])
        .objectives["verifier"]
        .algorithm.reward_weights
    )
    assert weights == {AGREEMENT: 1.0, FORMAT: 0.5}
    assert (
        override(tango(), ["objectives.generator.algorithm.loss.high=0.3"]).objectives["generator"].algorithm.loss.high
        == 0.3
    )
    refuse(
        lambda: override(tango(), ["objectives.verifier.algorithm.reward_weights.formt=0.5"]), "E_NO_SUCH_KEY: 'format'"
    )
    refuse(
        lambda: override(tango(), ["objectives.verifier.algorithm.reward_weights.format=-1"]),
        "E_REWARD_WEIGHT",
    )
    refuse(lambda: override(grpo(), ["objectives.generator.algorithm.advantage=rloo"]), "E_OVERRIDE_NOT_PLAIN")
    refuse(
        lambda: override(tango(estimator="reinforce++"), ["objectives.generator.algorithm.advantage=rloo"]),
        "E_ADVANTAGE_NOT_FUNCTION",
    )


def test_the_estimator_of_a_recipe_is_a_function_by_name():
    assert grpo(estimator="maxrl").objectives["generator"].algorithm.advantage.__name__ == "over_success"
    saved = recipe_json(grpo(estimator="rloo"), checkpoint_every=1)["settings"]["objectives"]["generator"]["algorithm"]
    assert (saved["advantage"], saved["reward_weights"]) == ("leave_one_out", {"outcome": 1.0})
    with refuses("E_UNKNOWN_CHOICE", names="'maxrl'"):
        grpo(estimator="max_rl")
    refuse(lambda: grpo(estimator="maxrl", steps_judged_by="oracle"), "E_MAXRL_WITH_ORACLE")
    assert STEP in grpo(steps_judged_by="oracle").objectives["generator"].algorithm.reward_weights


# ---- policies of other kinds


@pytest.mark.whole
def test_a_critic_of_another_tokenizer_is_refused_before_the_first_step(tmp_path):
    from transformers import AutoModelForCausalLM

    from cotrain.models.load import load_model, save_model
    from cotrain.pretraining.tokenizer import train_tokenizer
    from cotrain.recipes.prime.recipe import prime
    from cotrain.trainer.trainer import CoTrainer

    small, _ = load_model("shipped")
    config = small.config
    other = train_tokenizer(["other words than those of the base " * 40], 300)
    config.vocab_size = len(other)
    save_model(AutoModelForCausalLM.from_config(config), other, tmp_path / "other")
    made = prime(steps=1)
    foreign = replace(made.policies["prm"], model=str(tmp_path / "other"))
    with refuses("E_TOKENIZERS_DIFFER"):
        CoTrainer(replace(made, policies={**made.policies, "prm": foreign}))


def test_a_program_has_no_probabilities_and_a_reward_model_scores_only():
    from cotrain.config.policies import program, reward_model
    from cotrain.recipes.prime.recipe import prime

    made = prime(steps=1)
    with refuses("E_POLICY_WITHOUT_PROBABILITIES", names="'program'"):
        replace(made, policies={**made.policies, "reference": program(lambda fields, rng: "")})
    with refuses("E_HEAD_MISMATCH"):
        replace(made, policies={**made.policies, "generator": reward_model("shipped")})


def test_objectives_in_turn_are_those_of_the_phase():
    from cotrain.config.schedule import Phase, alternate
    from cotrain.rollout.protocols import solve

    with refuses("E_IN_TURN_NAMES"):
        alternate(Phase(name="a", protocol=solve, objectives=("x", "y"), in_turn=("x",)), ratio=(1,))


def test_a_weight_is_positive():
    made = grpo(steps=1)
    (objective,) = made.objectives.values()
    with refuses("E_OBJECTIVE_WEIGHT"):
        replace(made, objectives={"generator": replace(objective, weight=0.0)})


async def voting(task, roles, *, limit: Positive = 3, vote: bool, by: Literal["mean", "most"] = "mean"):
    """A protocol of a user's own: an option that may be left out, and one that may not."""


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"vote": True, "limt": 4}, "E_UNKNOWN_OPTION: voting | 'limt' | 'limit'"),
        ({}, "E_OPTION_MISSING: voting | 'vote'"),
        ({"vote": True, "limit": "4"}, "E_ARGUMENT_TYPE: limit of voting | '4'"),
        ({"vote": True, "limit": 0}, "E_OPTION_RANGE: option limit is 0"),
        ({"vote": True, "by": "msot"}, "E_UNKNOWN_CHOICE: by of voting | 'msot' | 'most'"),
    ],
)
def test_options_of_a_protocol_are_held_against_its_signature(options, code):
    made = grpo(tasks=EASY, kl=0.0)
    with refuses(f"{code} | phase 'train'"):
        replace(made, schedule=constant_schedule(partial(voting, **options), "generator"))
    with refuses(f"{code} | evaluation"):
        replace(made, evaluation=replace(made.evaluation, protocol=partial(voting, **options)))


def test_a_store_that_no_phase_names_is_not_called_an_option_to_bind():
    @gives(OUTCOME.to("solver"))
    async def draws(task, roles, *, pool):
        """A protocol of a user's own."""

    made = replace(grpo(tasks=EASY, kl=0.0), stores={"pool": TaskPool()})
    with refuses("E_STORE_MISSING", names=("draws", "'pool'")):
        replace(made, schedule=constant_schedule(draws, "generator"))
    with refuses("E_OPTION_MISSING", names="'pool'"):
        replace(made, schedule=constant_schedule(draws, "generator"), stores={})
    whole = replace(made, schedule=constant_schedule(draws, "generator", stores=("pool",)))
    assert whole.schedule.phases[0].stores == ("pool",)
    with refuses("E_STORE_KIND", names=("'pool'", "list")):
        replace(whole, stores={"pool": []})


def test_a_measure_of_a_role_that_there_is_not_is_refused():
    made = grpo(tasks=EASY, kl=0.0)
    for measure in (
        measure_solver("solvr", 1),
        measure_verifier("solvr"),
        measure_metadata("solvr", CORRECT),
        measure_selection("solver", "solvr", 2),
    ):
        with refuses("E_NO_SUCH_PART", names=("measures", "'solvr'", "'solver'")):
            replace(made, evaluation=replace(made.evaluation, measures=(measure,)))


def test_what_is_bound_to_a_protocol_has_a_name():
    made = grpo(tasks=EASY, kl=0.0)
    with refuses("E_OPTION_NOT_BOUND", names=("phase 'train'", "True", "voting")):
        replace(made, schedule=constant_schedule(partial(voting, True, limit=3), "generator"))


def test_options_that_are_bound_are_settings_by_name():
    """They stand in recipe.json beside the protocol's name, and ``--set`` reaches them there."""
    recipe = tango()
    phase = resolved_json(recipe.schedule.phases[1])
    assert (phase["protocol"], phase["options"]) == ("solve_then_verify", {"reviews": 8, "step_rewards": "none"})
    changed = override(recipe, ["schedule.phases.1.options.reviews=3", "evaluation.options.reviews=2"])
    assert changed.schedule.phases[1].options == {"reviews": 3, "step_rewards": "none"}
    assert changed.evaluation.options == {"reviews": 2} and changed.evaluation.protocol.func is solve_then_verify
    with refuses("E_UNKNOWN_CHOICE", names=("solve_then_verify", "'meen'", "'mean'")):
        override(recipe, ["schedule.phases.0.options.combine=meen"])


def test_a_protocol_that_was_bound_before_its_options_were_written_down_goes_on(tmp_path):
    made = grpo(tasks=EASY, kl=0.0)
    made = replace(made, evaluation=replace(made.evaluation, protocol=partial(voting, vote=True)))
    saved = {"settings": resolved_json(made)}
    saved["settings"]["evaluation"] |= {"protocol": "partial", "options": {}}
    check_same_recipe(tmp_path, saved, made)


def test_a_protocol_takes_a_task_and_roles():
    async def alone(task):
        pass

    made = grpo(tasks=EASY, kl=0.0)
    with refuses("E_PROTOCOL_SIGNATURE", names=("phase 'train'", "alone", "takes 1")):
        replace(made, schedule=constant_schedule(alone, "generator"))
    with refuses("E_NOT_FUNCTION", names=("evaluation", "'solve'")):
        replace(made, evaluation=replace(made.evaluation, protocol="solve"))


def test_a_loss_without_a_ratio_is_answered_with_what_would_correct_it():
    with refuses("E_LOSS_WITHOUT_RATIO", names=("updates_per_batch=1", "algorithm.loss.cap=2")):
        check_due(magrpo(updates_per_batch=2))


class DrawnAnew:
    """A source that gives another problem each time."""

    name = "drawn"

    def __init__(self):
        self.calls = 0

    def size(self, split):
        return None

    def get(self, split, index):
        self.calls += 1
        return EASY.get(split, self.calls)

    def describe(self):
        return {"kind": self.name, "settings": {}}


def test_a_source_that_gives_another_problem_each_time_is_refused():
    with refuses("E_SOURCE_NOT_REPEATABLE", names="get('train', 0)"):
        check_problems(replace(grpo(), tasks=DrawnAnew()))
