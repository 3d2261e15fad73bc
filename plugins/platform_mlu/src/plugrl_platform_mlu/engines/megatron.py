"""The engine of plugrl-engine-megatron on cambricon's devices. Only ``initialize`` may differ."""

from __future__ import annotations

from plugrl_engine_megatron.backends import MegatronEngine


class MluMegatronEngine(MegatronEngine):
    """Tensor and pipeline parallel."""
