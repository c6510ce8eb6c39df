from cotrain.recipes.magrpo.recipe import magrpo as magrpo
