from cotrain.recipes.constitutional.recipe import constitutional as constitutional
