from cotrain.methods.spiral.recipe import spiral as spiral
