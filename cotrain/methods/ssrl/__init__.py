from cotrain.methods.ssrl.recipe import ssrl as ssrl
