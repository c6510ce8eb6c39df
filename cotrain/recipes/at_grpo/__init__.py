from cotrain.recipes.at_grpo.recipe import at_grpo as at_grpo
