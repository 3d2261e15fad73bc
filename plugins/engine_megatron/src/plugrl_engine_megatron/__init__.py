"""The training engine on megatron-core."""
