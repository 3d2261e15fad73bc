"""Importing this module makes the device: builds or loads it, registers ``torch.vdev`` and the collectives ``vccl``.

Raises RuntimeError when another backend holds torch's one place for devices from outside, when the build fails, or when
the fault ``init_fail`` is on; ValueError, naming the variable, for a variable that cannot be understood.
"""

from __future__ import annotations

from plugrl_platform_vdev.device.activation import activate

activate()
