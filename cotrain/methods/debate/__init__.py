from cotrain.methods.debate.recipe import debate as debate
