from cotrain.recipes.ssrl.recipe import ssrl as ssrl
