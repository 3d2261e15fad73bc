"""The engines of plugrl-engine-fsdp on flagos's devices. Only ``initialize`` may differ."""

from __future__ import annotations

from plugrl_engine_fsdp.backends import DdpEngine, Fsdp1Engine, Fsdp2Engine


class FlagosFsdp2Engine(Fsdp2Engine):
    """Parameters, gradients and optimizer state sharded over all ranks."""

    def initialize(self) -> None:
        """Build everything as the parent does."""
        super().initialize()


class FlagosFsdp1Engine(Fsdp1Engine):
    """torch's FSDP1."""


class FlagosDdpEngine(DdpEngine):
    """A whole copy on every rank."""
