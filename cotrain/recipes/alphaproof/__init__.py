from cotrain.recipes.alphaproof.recipe import alphaproof as alphaproof
