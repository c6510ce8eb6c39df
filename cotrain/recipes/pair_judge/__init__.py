from cotrain.recipes.pair_judge.recipe import pair_judge as pair_judge
from cotrain.recipes.pair_judge.rubrics import rubric_judge as rubric_judge
