"""Every shipped recipe with a solver that answers in its own words: what is true, paired and paid is as in tags."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from functools import partial
from typing import Any

import pytest

from cotrain.config.policies import Program, RewardModel
from cotrain.config.recipe import Recipe
from cotrain.config.registry import find_recipe
from cotrain.core.types import Completion
from cotrain.formats.role_replies import write_review
from cotrain.formats.solutions import parse_solution, write_solution
from cotrain.prompts.byte_tokenizer import STOP, ByteRenderer
from cotrain.recipes import NAMES as SHIPPED
from cotrain.rollout.role import Role
from cotrain.rollout.runner import RolloutRunner
from cotrain.runs.choose_formats import AnswerFormat, choose_answer_format
from tests.helpers import EASY
from tests.sentences import refuses

ENDS = {
    "phrase": "The answer is {}.",
    "boxed": "So it is \\boxed{{{}}}.",
    "hash": "#### {}",
    "last-number": "So there are {} in all.",
    "tags": "That is it.\n<answer>{}</answer>",  # steps in lines, the answer in tags
}
TASKS = [EASY.get("train", i) for i in range(3)]
PROPOSED = [EASY.get("train", i) for i in range(3, 9)]
GOLD = {task.prompt: task.gold for task in (*TASKS, *PROPOSED)}
REFUSED = {  # they go on from beginnings of solutions, have a format of their own, or no solver
    *("alphaproof", "genprm", "stepwiser", "two_agents_split"),
    *("dpo", "magrpo", "marti", "pair_judge", "reward", "ssrl"),
}
FURTHER = {"spin": [{}, {"control": "sft"}], "cooper": [{}, {"negatives": "model"}, {"negatives": "own"}]}
CASES = [(name, settings) for name in SHIPPED for settings in FURTHER.get(name, [{}])]


def is_scripted(solution: str) -> bool:
    """A worked solution in words, which an expert recites, has its answer on a line of its own, one more than in
    tags."""
    return "<step>" not in solution or "First of all." in solution


class Scripted:
    """Says in each role what its parser reads: solutions of which some are right, some wrong and some are none, drawn
    by the address, in tags or, where ``form`` is given and the role is read so, in words."""

    def __init__(self, recipe: Recipe, form: str, free: bool) -> None:
        self.recipe, self.form, self.free = recipe, form, free
        self.shown: list[str] = []  # what programs and scorers were told

    async def sample(self, request):
        role = self.recipe.roles[request.address.role]
        policy = self.recipe.policies[role.policy]
        rng = random.Random(request.seed)
        score = None
        if isinstance(policy, Program):
            said = policy.speak(request.fields, rng)
        elif isinstance(policy, RewardModel):
            said, score = "", random.Random(request.fields["solution"]).random() - 0.5
            if is_scripted(request.fields["solution"]):
                self.shown.append(request.fields["solution"])
        else:
            said = self.says(role, request.address.task, request.fields, rng)
        ids = (*ByteRenderer().encode(said), STOP)
        logprobs = (-0.1,) * len(ids)
        return Completion(token_ids=ids, logprobs=logprobs, finish="stop", policy="p", version=0, score=score)

    def says(self, role: Role, task: int, fields: Mapping[str, Any], rng: random.Random) -> str:
        kind = getattr(role.parse, "__name__", "")
        if kind in ("parse_solution", "parse_revision"):
            draw = rng.random()
            if draw < 0.2:
                return "I do not know."
            answer = GOLD.get(fields.get("problem", ""), TASKS[task].gold) if draw < 0.6 else "977"
            text = "First of all.\n" + ENDS[self.form].format(answer)
            lines = [line for line in text.split("\n") if "<answer>" not in line]
            return text if self.free and role.is_free_form else write_solution(lines, answer)
        if kind == "parse_review":
            said = [rng.random() < 0.5 for _ in range(int(fields["count"]))]
            return write_review([""] * len(said), said, rng.random() < 0.5)
        if "Write a problem" in role.prompt or "{hint}" in role.prompt:
            return rng.choice(PROPOSED).prompt
        return {
            "parse_meta": f"<final>{rng.choice(('CORRECT', 'INCORRECT'))}</final>",
            "parse_score": f"<score>{rng.randint(1, 10)}</score>",
            "parse_gram": f"<answer>{rng.choice('AB')}</answer>",
            "parse_accusation": f"<answer>{rng.randint(1, 2)}</answer>",
            "parse_search": "<search>pears</search>",
        }.get(kind, "There are 3 apples.")

    def advance(self):
        return False

    def publish(self, policy, version): ...

    def counts(self):
        return {}


def recipe_of(name: str, settings: Mapping[str, Any]) -> Recipe:
    make = find_recipe(name)
    return make(model="somebody/some-model", steps=900, **settings)


def played(recipe: Recipe, form: str, *, free: bool) -> tuple[list[Any], list[str]]:
    """Of each trace what its role reads in it, its truth and its pay, in all phases and the evaluation; and what
    scorers saw."""
    engine = Scripted(recipe, form, free)
    renderers = dict.fromkeys(recipe.policies, ByteRenderer())
    player = RolloutRunner(engine, renderers, recipe.roles, seed=1)
    stores, found = dict(recipe.stores), []
    plays = [(p.protocol, p.group_size or recipe.group_size, p.stores) for p in recipe.schedule.phases[::-1]]
    plays.append((recipe.evaluation.protocol, 2, ()))
    for step, (protocol, group_size, held) in enumerate(plays):
        pools = {name: stores[name] for name in held}
        episodes = player.collect(partial(protocol, **pools), TASKS, step=step, group_size=group_size)
        stores |= {name: stores[name].with_episodes(episodes, step) for name in held}
        for episode in episodes:
            assert episode.failure is None, episode.failure
            for t in episode.traces:
                truth = {key: value for key, value in t.metadata.items() if "step" not in key and key != "first_wrong"}
                pay = sorted((s.name, round(s.value, 6)) for s in t.rewards)
                role = recipe.roles[t.role]
                answer = getattr(role.parse_reply(t.text, {}), "answer", None) if role.parse is parse_solution else None
                found.append((str(t.address), answer, json.dumps(truth, sort_keys=True), pay, t.failure))
    return found, engine.shown


@pytest.mark.whole
@pytest.mark.parametrize("form", ENDS)
@pytest.mark.parametrize(("name", "settings"), CASES, ids=lambda value: str(value))
def test_a_solver_in_its_own_words_is_worth_what_it_is_in_tags(name, settings, form):
    recipe = recipe_of(name, settings)
    how = AnswerFormat(answer=form, steps_as="lines")
    if name in REFUSED and not settings:
        with refuses(("E_ANSWERS_IN_TAGS_ALONE", "E_NO_PLAIN_SOLVER"), names=f"'{recipe.name}'"):
            choose_answer_format(recipe, how, device="cpu", say=lambda text: None, look=False)
        return
    own, _ = choose_answer_format(recipe, how, device="cpu", say=lambda text: None, look=False)
    writers = [role for role in own.roles.values() if role.parse is parse_solution and role.prompt != "{solution}"]
    assert all((role.answer_format, role.step_format) == (form, "lines") for role in writers)
    words, tags = (played(own, form, free=free) if free else played(recipe, form, free=free) for free in (True, False))
    assert words == tags
    assert name != "cooper" or {value for _, _, _, pay, _ in words[0] for n, value in pay if n == "label"} == {0.0, 1.0}
