"""What networks and layers are made of: tensors, parameters, the contract of a layer, contexts of passes."""
