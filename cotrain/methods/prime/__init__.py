from cotrain.methods.prime.recipe import prime as prime
