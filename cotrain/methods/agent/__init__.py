from cotrain.methods.agent.recipe import agent as agent
