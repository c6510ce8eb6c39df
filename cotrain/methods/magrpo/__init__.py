from cotrain.methods.magrpo.recipe import magrpo as magrpo
