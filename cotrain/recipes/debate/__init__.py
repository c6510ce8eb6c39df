from cotrain.recipes.debate.recipe import debate as debate
