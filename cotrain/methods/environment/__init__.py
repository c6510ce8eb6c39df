from cotrain.methods.environment.recipe import environment as environment
