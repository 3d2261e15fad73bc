"""Meta-World as a PlugRL environment."""
