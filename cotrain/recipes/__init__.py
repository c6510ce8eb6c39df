"""The methods that ship with cotrain, each in one place: a file, or a folder where it has a game, a parser or a loss of
its own, with the recipe in ``recipe.py``. A user's own method is the same kind of file outside the package.

``QUESTIONS`` has them by the question that somebody comes with, as `cotrain list` prints them.
"""

QUESTIONS = {
    "begin here": ("demo", "grpo", "tango"),
    "no answer is known, or few are": ("ttrl", "co_rewarding", "semi_supervised", "judged", "self_rewarding"),
    "a reward for each step": ("prime", "stepwiser", "genprm", "critique"),
    "a judge of whole answers, or of pairs": ("reward", "cooper", "pair_judge", "gram", "stv"),
    "preferences, demonstrations or a teacher": ("dpo", "spin", "distill", "constitutional"),
    "one model that solves and judges": ("self_verify", "self_compare", "rise"),
    "several agents on one problem": (
        "agent", "environment", "at_grpo", "marti", "magrpo", "two_agents_split", "generator_verifier_critic", "debate",
        "bipolicy",
    ),
    "problems that a model writes": ("proposer_solver", "mae", "alphaproof"),
    "a model that searches": ("ssp", "ssrl", "mars"),
}  # fmt: skip
MODULES = {  # recipes whose module has another name → the module
    "co_rewarding": "votes", "demo": "tango", "dpo": "preferences", "reward": "preferences", "ttrl": "votes",
}  # fmt: skip
RECIPES = {name: f"cotrain.recipes.{MODULES.get(name, name)}:{name}" for names in QUESTIONS.values() for name in names}
WANTING = ("agent", "environment")  # want a program of the user's, and an environment of an installed package
NAMES = tuple(sorted(name for name in RECIPES if name not in WANTING))  # recipes whose defaults run
TASKS = {  # sources of problems that one method has for itself
    "halves": "cotrain.recipes.magrpo.halves:Halves",
    "world": "cotrain.recipes.ssrl.world:World",
    "environment": "cotrain.envs.verifiers.multi_agent:Environments",
    "variants": "cotrain.recipes.alphaproof.variants:Variants",
}
