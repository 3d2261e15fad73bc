"""Intel GPUs: the platform and its engines."""
