"""The engine of plugrl-engine-megatron on enflame's devices. Only ``initialize`` may differ."""

from __future__ import annotations

from plugrl_engine_megatron.backends import MegatronEngine


class EnflameMegatronEngine(MegatronEngine):
    """Tensor and pipeline parallel."""
