from cotrain.methods.debate.recipe import debate as debate, debate_solve as debate_solve
