"""Stand-in for the vendor's extension: importing it adds ``torch.mlu``."""

from stand_in_device import register

register("mlu")
