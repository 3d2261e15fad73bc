"""AMD GPUs by ROCm: the platform and its engines."""
