from cotrain.recipes.prime.recipe import prime as prime
