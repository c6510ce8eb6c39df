from cotrain_zoo.debate_solve.recipe import debate_solve as debate_solve
