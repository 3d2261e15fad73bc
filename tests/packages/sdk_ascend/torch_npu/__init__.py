"""Stand-in for the vendor's extension: importing it adds ``torch.npu``."""

from stand_in_device import register

register("npu")
