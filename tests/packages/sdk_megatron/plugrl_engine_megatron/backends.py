"""The class from which vendors derive."""

from plugrl_engine_fsdp.backends import DdpEngine


class MegatronEngine(DdpEngine):
    """Stands where the engine on tensor and pipeline parallelism will."""
