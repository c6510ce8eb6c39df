from cotrain.recipes.mae.recipe import mae as mae
