from cotrain.recipes.pair_judge.recipe import pair_judge as pair_judge
