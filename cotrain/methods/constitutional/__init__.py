from cotrain.methods.constitutional.recipe import constitutional as constitutional
