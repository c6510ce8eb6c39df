"""Every method of the zoo is found by its name, builds with every control, is documented, and measures something."""

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest
from zoo_cases import AGAIN, CASES, MEASURED, NAMES, built

from cotrain.cli.main import main
from cotrain.config.registry import find_recipe
from cotrain.core.registry import RECIPES, TASKS, ZOO, ZOO_RECIPES, joined_places, load_named
from cotrain.data.sources import problem_source
from cotrain.runs.choose_formats import AnswerFormat, choose_answer_format
from cotrain.trainer.trainer import CoTrainer
from tests.contracts.test_methods_are_safe import unsafe_places
from tests.helpers import EASY
from tests.recipes import test_outside_tasks as outside
from tests.recipes import test_own_words as own_words
from tests.recipes import test_recipes as shipped
from tests.recipes.test_digests import digest_of_steps, machine
from tests.recipes.test_outside_tasks import files  # noqa: F401
from tests.recipes.test_too_long import check_too_long
from tests.sentences import check_line, refuses

CRATES = """
from dataclasses import dataclass

from cotrain_zoo.spiral import Game


@dataclass(frozen=True)
class Count:
    total: int = 0

    @property
    def mover(self):
        return self.total % 2 if self.total < 3 else None

    @property
    def moves(self):
        return ("1",)

    @property
    def payoff(self):
        return 1.0

    @property
    def view(self):
        return f"crates: {self.total}"

    def after_move(self, move):
        return Count(self.total + 1)


GAME = Game(name="crates", rules="Say 1.", stake=1.0, starts=lambda: (Count(),))
"""
ROOT = Path(__file__).parents[1]
FILES = sorted((ROOT / "cotrain_zoo").rglob("*.py"))
IN_TAGS_ALONE = {"rubric_judge", "spiral"}  # methods without a solver that could answer in its own words
IN_WORDS = {"coverrl": {"regenerate": "review"}, "dsm": {"analysis": "asked"}}  # settings with which it can


def test_the_names_that_cotrain_knows_of_are_those_that_there_are():
    assert set(ZOO[RECIPES]) == set(NAMES) <= set(joined_places(RECIPES))
    assert set(ZOO[TASKS]) <= set(joined_places(TASKS))


@pytest.mark.whole
def test_a_name_of_the_zoo_says_what_to_install_where_it_is_not():
    """In a process that does not see the zoo."""
    script = (
        "import importlib.metadata as m; m.entry_points = lambda **_: []; "
        "from cotrain.cli.main import main; import sys; "
        "sys.exit(main(['run', *sys.argv[1:], '--out', 'nowhere', '--log-level', 'debug']))"
    )
    for words, name in ((["gar"], "recipe 'gar'"), (["grpo", "--tasks", "games:nim"], "task source 'games'")):
        done = subprocess.run([sys.executable, "-c", script, *words], capture_output=True, text=True)
        assert done.returncode == 2
        check_line(done.stderr.splitlines()[-1], f"E_IN_ZOO: {name} | pip install -e zoo")


@pytest.mark.whole
def test_the_list_has_the_zoo_behind_what_ships(capsys):
    assert main(["list", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)["recipes"]
    apart = {one["name"]: one["about"] for one in listed if one["question"] == "in the zoo, a package of its own"}
    assert apart == ZOO_RECIPES and set(apart) == set(NAMES) and listed[0]["name"] == "demo"


@pytest.mark.parametrize("file", FILES, ids=[str(file.relative_to(ROOT / "cotrain_zoo")) for file in FILES])
def test_a_method_draws_by_address_and_asks_no_clock(file):
    text = file.read_text(encoding="utf-8")
    assert not [*unsafe_places(ast.parse(text), may_ask_clocks=False)]
    assert "import torch" not in text and "from torch" not in text  # a protocol never sees tensors


@pytest.mark.whole
@pytest.mark.parametrize("name", NAMES)
def test_every_control_builds_a_recipe(name):
    for case in CASES:
        if case.split(":")[0] == name:
            made = built(case)
            assert made.objectives and made.origin.target == name, case


@pytest.mark.parametrize("name", NAMES)
def test_a_method_is_documented(name):
    assert (ROOT / "docs" / f"{name}.md").read_text().startswith("# ")
    assert f"[`{name}`](docs/{name}.md)" in (ROOT / "README.md").read_text()


@pytest.mark.whole
@pytest.mark.parametrize("name", NAMES)
def test_what_a_method_measures(name):
    shipped.check_measures(built(name), MEASURED.get(name, "solver/pass@1"))


@pytest.mark.whole
@pytest.mark.parametrize("name", NAMES)
def test_the_first_steps_are_the_stored_ones(name):
    stored = json.loads((ROOT / "tests" / "digests.json").read_text()).get(machine(), {})
    if name not in stored:
        pytest.skip(f"no digest of {name} is stored for {machine()}")
    assert digest_of_steps(built(name)) == stored[name]


@pytest.mark.nightly
@pytest.mark.parametrize("case", CASES)
def test_a_method_learns_and_does_not_depend_on_latency_or_interruption(case):
    shipped.check_learning(built(case), again=":" not in case or case in AGAIN)


@pytest.mark.nightly
@pytest.mark.parametrize("case", [case for case in CASES if ":" not in case or case in AGAIN])
def test_a_method_plays_the_same_in_any_order(case):
    shipped.check_any_order(lambda: built(case))


@pytest.mark.whole
@pytest.mark.parametrize("name", NAMES)
def test_what_is_too_long_fails_alone(name):
    check_too_long(built(name), alone=name != "spiral")  # a game without a move is none


@pytest.mark.whole
@pytest.mark.parametrize("name", NAMES)
def test_adapters_at_another_temperature_make_a_step(name):
    arguments = dict(CASES[name])
    if "warmup" in arguments:
        arguments["warmup"] = 0
    if name == "spiral":
        arguments["pool"] = 0  # earlier selves follow the player, which an adapter cannot have
    tasks = {} if name in ("coder_tester", "spiral") else {"tasks": EASY}
    CoTrainer(find_recipe(name)(**{**shipped.SMALL, **tasks, **arguments}, lora=2, temperature=0.8)).step()


@pytest.mark.whole
@pytest.mark.parametrize("form", own_words.ENDS)
@pytest.mark.parametrize("name", [name for name in NAMES if name != "coder_tester"])  # its problems ask for programs
def test_a_solver_in_its_own_words_is_worth_what_it_is_in_tags(name, form):
    if name not in IN_TAGS_ALONE:
        own_words.test_a_solver_in_its_own_words_is_worth_what_it_is_in_tags(name, IN_WORDS.get(name, {}), form)
        return
    recipe, how = own_words.recipe_of(name, {}), AnswerFormat(answer=form, steps_as="lines")
    with refuses(("E_ANSWERS_IN_TAGS_ALONE", "E_NO_PLAIN_SOLVER"), names=f"'{name}'"):
        choose_answer_format(recipe, how, device="cpu", say=lambda text: None, look=False)


@pytest.mark.whole
@pytest.mark.parametrize("name", NAMES)
def test_a_method_plays_what_a_user_brings(name, files, tmp_path):  # noqa: F811
    own = {}
    if name == "spiral":
        (tmp_path / "crates.py").write_text(CRATES)
        own["game"] = f"{tmp_path}/crates.py:GAME"
    if name == "rubric_judge":
        own["tasks"] = problem_source("pairs", str(files / "pairs.jsonl"))
    elif name == "coder_tester":
        own["tasks"] = problem_source("mbpp", str(files / "programs.jsonl"))
    elif name != "spiral":
        own["tasks"] = problem_source(None, str(files / "rows.jsonl"))
    outside.check_playing(name, own)


def test_a_task_source_is_found_by_its_name():
    assert load_named(TASKS, "games", {}, "task source")("nim").name == "games:nim"
