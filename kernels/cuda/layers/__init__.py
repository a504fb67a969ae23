"""The kernels that `kernels.protocol` declares, over `runtime` and `products`: one module for each kind of layer."""
