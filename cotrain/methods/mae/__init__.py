from cotrain.methods.mae.recipe import mae as mae
