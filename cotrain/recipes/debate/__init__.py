from cotrain.recipes.debate.recipe import debate as debate
from cotrain.recipes.debate.recipe import debate_solve as debate_solve
