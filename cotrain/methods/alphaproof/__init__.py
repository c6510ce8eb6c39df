from cotrain.methods.alphaproof.recipe import alphaproof as alphaproof
