"""Configuration: the schema, YAML with overrides on the command line, and errors that name the key and the line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from plugrl.config.loader import load_config as load_config
    from plugrl.config.schema import RunConfig as RunConfig

__all__ = ["RunConfig", "load_config"]


def __getattr__(name: str) -> Any:
    """Import the loader and the schema on first use: a list of plugins needs neither."""
    if name == "load_config":
        from plugrl.config.loader import load_config

        return load_config
    if name == "RunConfig":
        from plugrl.config.schema import RunConfig

        return RunConfig
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
