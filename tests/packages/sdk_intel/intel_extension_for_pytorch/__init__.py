"""Stand-in for Intel's extension, which takes the place of ``torch.xpu`` in builds of torch without it."""

from stand_in_device import register

register("xpu", capability=(12, 0), own_type=False)
