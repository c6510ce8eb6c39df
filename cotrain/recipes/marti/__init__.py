from cotrain.recipes.marti.recipe import marti as marti
