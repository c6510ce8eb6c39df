"""``cotrain run debate --words 0`` ended with "math domain error".

The memory of a run was estimated for as many calls as the largest number among a protocol's options: all were 0."""

from cotrain.recipes.debate.recipe import debate
from cotrain.runs.memory_plan import estimate_run
from tests.helpers import EASY, TINY


def test_a_debate_without_a_word_limit_can_be_estimated():
    made = debate(words=0, model=TINY, tasks=EASY, tasks_per_step=2, group_size=2)
    assert estimate_run(made, device="cpu").memory
