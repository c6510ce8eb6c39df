from cotrain.recipes.mars.recipe import mars as mars
