"""The methods that ship with cotrain, each in one place: a file, or a folder where it has a game, a parser or a loss of
its own, with the recipe in ``recipe.py``. A user's own method is the same kind of file outside the package."""

NAMES = (  # of the functions whose defaults run; each is in the module of its name, or in the one given below
    "adversarial_imitation", "alphaproof", "at_grpo", "co_rewarding", "coder_tester", "constitutional", "cooper",
    "coverrl", "critique", "debate", "debate_solve", "demo", "distill", "dpo", "dsm", "gar",
    "generator_verifier_critic", "genprm", "gram", "grpo", "judged", "mae", "magrpo", "mars", "marti", "pair_judge",
    "prime", "proposer_solver", "prover_verifier", "reward", "rise", "rubric_judge", "self_compare",
    "self_rewarding", "self_verify", "semi_supervised", "spin", "spiral", "ssp", "ssrl", "stepwiser", "tango",
    "ttrl", "two_agents_split",
)  # fmt: skip
ELSEWHERE = {"debate_solve": "debate", "dpo": "preferences", "reward": "preferences", "rubric_judge": "pair_judge"}
RECIPES = {name: f"cotrain.recipes.{ELSEWHERE.get(name, name)}:{name}" for name in NAMES}
RECIPES["agent"] = "cotrain.recipes.agent:agent"  # wants a program of the user's
RECIPES["environment"] = "cotrain.recipes.environment:environment"  # wants an environment of an installed package
READ_AS = dict.fromkeys(("dpo", "pair_judge", "reward", "rubric_judge"), "pairs")  # what reads ``--data``, else "jsonl"
TASKS = {  # sources of problems that one method has for itself
    "short_programs": "cotrain.recipes.coder_tester.short_programs:ShortPrograms",
    "games": "cotrain.envs.games.source:Games",
    "halves": "cotrain.recipes.magrpo.halves:Halves",
    "world": "cotrain.recipes.ssrl.world:World",
    "environment": "cotrain.envs.verifiers.multi_agent:Environments",
    "variants": "cotrain.recipes.alphaproof.variants:Variants",
}
