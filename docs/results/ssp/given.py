"""The ceiling of Search Self-Play: the same solver and searcher, paid by the truth on the problems' own questions.

    cotrain run docs/results/ssp/given.py:given --seed 0 --evaluate-every 0 --evaluation-tasks 128 --threads 1 \
      --set 'evaluation.splits=[]' --set evaluation.group_size=4 --out runs/given/seed-0

and the same with the seeds 1 to 4.
"""

from dataclasses import replace
from functools import partial

from cotrain.methods.ssp.searching import SearchTrail, find_and_solve, problem_of, search_along
from cotrain.tasks.words.search_corpus import facts_and_question
from cotrain.tasks.words.source import study_problems

from cotrain import (
    OUTCOME,
    Objective,
    Phase,
    Recipe,
    Roles,
    Settings,
    Task,
    alternate,
    examine,
    gives,
    grpo,
    recipe,
    solving,
    together,
)
from cotrain.rollout import common_roles


@gives(OUTCOME.to("searcher"), OUTCOME.to("solver"))
async def search_given(task: Task, roles: Roles, *, samples: int = 5, turns: int = 5) -> None:
    """``samples`` solvers search for the task's own question and answer it; all turns of one earn whether it is
    right."""
    _, question = facts_and_question(task.prompt)
    trails = [SearchTrail(f"{question} About: {problem_of(task).question}.") for _ in range(samples)]
    await search_along(roles.searcher, trails, task.prompt, turns, f"{task.id}/search")
    solved = await together([roles.solver(group=task.id, problem=trail.problem(question)) for trail in trails])
    for trail, turn in zip(trails, solved, strict=True):
        if (is_right := await examine(task, roles, turn)) is not None:
            for earner in (*trail.turns, turn):
                earner.reward(OUTCOME, float(is_right))


@recipe(model="shipped-search", kl=0.0, group_size=5, steps=50)
def given(run: Settings, *, turns: int = 5) -> Recipe:
    run = replace(run, tasks=study_problems((1, 2)) if run.tasks is None else run.tasks)
    learn = grpo(rewards={OUTCOME: 1.0}, kl=run.pull())
    play = partial(search_given, samples=run.group_size, turns=turns)
    phase = Phase(name="play", protocol=play, objectives=("generator",), group_size=1)
    return run.recipe(
        "given",
        policies={"generator": run.learner()},
        roles={
            "solver": common_roles.solver("generator", run.model),
            "searcher": common_roles.planner("generator", run.model),
        },
        objectives={"generator": Objective(policy="generator", on="solver", also=("searcher",), by=learn)},
        schedule=alternate(phase, ratio=(1,)),
        evaluate=partial(find_and_solve, turns=turns),
        measures=(solving("solver", 8),),
    )
