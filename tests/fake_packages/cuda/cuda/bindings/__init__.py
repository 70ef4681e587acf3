"""CUDA's Python bindings, of which there is the runtime."""
