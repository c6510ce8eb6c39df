from cotrain.methods.mars.recipe import mars as mars
