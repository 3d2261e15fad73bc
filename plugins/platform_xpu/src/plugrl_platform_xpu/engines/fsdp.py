"""The engines of plugrl-engine-fsdp on intel's devices. Only ``initialize`` may differ."""

from __future__ import annotations

from plugrl_engine_fsdp.backends import DdpEngine, Fsdp1Engine, Fsdp2Engine
from plugrl_engine_fsdp.reduction import sum_instead_of_average


class XpuFsdp2Engine(Fsdp2Engine):
    """Parameters, gradients and optimizer state sharded over all ranks."""

    def initialize(self) -> None:
        """Build everything as the parent does, then reduce by sums: xccl cannot average."""
        super().initialize()
        sum_instead_of_average(self.module)


class XpuFsdp1Engine(Fsdp1Engine):
    """torch's FSDP1, which divides by itself."""


class XpuDdpEngine(DdpEngine):
    """A whole copy on every rank; gradients are divided before they are summed."""
