"""The engine of plugrl-engine-megatron on amd's devices. Only ``initialize`` may differ."""

from __future__ import annotations

from plugrl_engine_megatron.backends import MegatronEngine


class RocmMegatronEngine(MegatronEngine):
    """Tensor and pipeline parallel."""
