"""Stand-in for the vendor's extension: importing it adds ``torch.gcu``."""

from stand_in_device import register

register("gcu")
