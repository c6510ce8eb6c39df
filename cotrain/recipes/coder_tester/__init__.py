from cotrain.recipes.coder_tester.recipe import coder_tester as coder_tester
