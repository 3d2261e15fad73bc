"""MetaX GPUs: the platform and its engines."""
