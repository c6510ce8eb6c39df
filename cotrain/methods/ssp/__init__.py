from cotrain.methods.ssp.recipe import ssp as ssp
