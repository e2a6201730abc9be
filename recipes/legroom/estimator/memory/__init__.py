"""CUDA's caching allocator: its settings and a model of it."""
