from cotrain_zoo.coder_tester.recipe import coder_tester as coder_tester
