from cotrain.recipes.ssp.recipe import ssp as ssp
