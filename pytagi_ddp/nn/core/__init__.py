"""The foundations of networks and layers: tensors, parameters, the base class of layers, contexts of passes."""
