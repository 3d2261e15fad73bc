"""PlugRL training engines on torch's FSDP2 and DDP."""
