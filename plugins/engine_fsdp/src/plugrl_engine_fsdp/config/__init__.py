"""The section ``fsdp_config`` of actor, critic and ref. Importing it needs pydantic alone, not torch."""

from plugrl_engine_fsdp.config.section import FsdpConfig

__all__ = ["FsdpConfig"]
