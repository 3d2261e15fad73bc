"""The device ``vdev`` and its collectives ``vccl``: a vendor's plugin for hardware that does not exist."""
