"""The engine of plugrl-engine-megatron on flagos's devices. Only ``initialize`` may differ."""

from __future__ import annotations

from plugrl_engine_megatron.backends import MegatronEngine


class FlagosMegatronEngine(MegatronEngine):
    """Tensor and pipeline parallel."""
