"""NVIDIA GPUs: the platform and its engines."""
