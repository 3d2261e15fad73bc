"""The engines of plugrl-engine-fsdp on vdev. Only ``initialize`` may differ."""

from __future__ import annotations

from plugrl_engine_fsdp.backends import DdpEngine, Fsdp1Engine, Fsdp2Engine
from plugrl_engine_fsdp.reduction import sum_instead_of_average
from plugrl_platform_vdev.settings import read_settings


class VdevFsdp2Engine(Fsdp2Engine):
    """Parameters, gradients and optimizer state sharded over all ranks."""

    def initialize(self) -> None:
        """Build everything as the parent does, then reduce by sums where vccl cannot average (``VDEV_NO_AVG``)."""
        super().initialize()
        if read_settings().refuses_average:
            sum_instead_of_average(self.module)


class VdevFsdp1Engine(Fsdp1Engine):
    """torch's FSDP1, which divides by itself."""


class VdevDdpEngine(DdpEngine):
    """A whole copy on every rank; gradients are divided before they are summed."""
