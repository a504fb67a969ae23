"""The kernels that `kernels.protocol` declares, over `products` and `runtime`: one module for each kind of layer."""
