"""Stand-in for plugrl-engine-megatron: the package whose presence makes the vendors' entries active."""
