"""kernels: other implementations of a model's layers."""
