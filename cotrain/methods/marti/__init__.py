from cotrain.methods.marti.recipe import marti as marti
