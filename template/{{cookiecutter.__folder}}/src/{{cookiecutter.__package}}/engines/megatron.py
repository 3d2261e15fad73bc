"""The engine of plugrl-engine-megatron on {{ cookiecutter.vendor }}'s devices. Only ``initialize`` may differ."""

from __future__ import annotations

from plugrl_engine_megatron.backends import MegatronEngine


class {{ cookiecutter.__class }}MegatronEngine(MegatronEngine):
    """Tensor and pipeline parallel."""
