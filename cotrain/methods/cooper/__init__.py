from cotrain.methods.cooper.recipe import cooper as cooper
