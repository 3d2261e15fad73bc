"""The environment variables PlugRL obeys, read in this one place.

========================  ==========================================================================================
``VERL_PLATFORM``         platform by registered name or alias
``VERL_ENGINE_DEVICE``    device that the engine look-up uses instead of the platform's
``VERL_ENGINE_VENDOR``    vendor that the engine look-up uses instead of the platform's
``RLINF_EXT_MODULE``      extension modules, comma-separated, imported on driver and workers
``PLUGRL_PLUGINS``        plugins to load: ``a,b`` only these, ``-a`` all but these, empty none, unset all
``PLUGRL_STRICT``         any failed or incompatible plugin stops the run
``PLUGRL_CPU_DEVICES``    number of device slots the cpu platform offers
``PLUGRL_NODE_RANK``      set where a Ray node is started: its number among the nodes; :mod:`plugrl.runtime.node_facts`
``PLUGRL_PATH_ENV_MERGE_MODE``  how search paths are merged; :mod:`plugrl.runtime.placement.environment` reads it
``PLUGRL_FINGERPRINT``    set for workers: the driver's plugin fingerprint
``PLUGRL_PLUGIN_ROWS``    set for workers: what the fingerprint was made of, so that a difference can be named
``PLUGRL_SETUP_HOOK``     set for workers: the user's own setup function, called after PlugRL's
``*_ALLOW_ACCELERATE_ENV``  see :mod:`plugrl.runners.launcher_guard`, which reads them
========================  ==========================================================================================
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from plugrl.errors import ConfigError, nearest

SEED_VARIABLES = ("VERL_PLATFORM", "VERL_ENGINE_DEVICE", "VERL_ENGINE_VENDOR", "RLINF_EXT_MODULE")
OWN_VARIABLES = (
    "PLUGRL_PLUGINS",
    "PLUGRL_STRICT",
    "PLUGRL_CPU_DEVICES",
    "PLUGRL_NODE_RANK",
    "PLUGRL_PATH_ENV_MERGE_MODE",
    "PLUGRL_FINGERPRINT",
    "PLUGRL_PLUGIN_ROWS",
    "PLUGRL_SETUP_HOOK",
    "PLUGRL_ALLOW_ACCELERATE_ENV",
)
_PREFIX = "PLUGRL_"
_TRUE = {"1", "true", "yes", "on"}
_FALSE = {"", "0", "false", "no", "off"}


@dataclass(frozen=True, kw_only=True)
class Environment:
    """The variables with their types; None (or empty) where a variable is not set or blank.

    ``plugins`` alone tells unset (None: all plugins) from empty (no plugin).
    """

    platform: str | None = None
    engine_device: str | None = None
    engine_vendor: str | None = None
    ext_modules: tuple[str, ...] = ()
    plugins: str | None = None
    strict: bool = False
    cpu_devices: int | None = None
    fingerprint: str | None = None
    plugin_rows: str | None = None
    setup_hook: str | None = None


def read_environment(environ: Mapping[str, str] | None = None) -> Environment:
    """Read the variables from ``environ`` (default: the process's own).

    Raises:
        ConfigError: a variable holds what it cannot mean; the text names the variable.
    """
    source = os.environ if environ is None else environ

    def text(name: str) -> str | None:
        return source.get(name, "").strip() or None

    return Environment(
        platform=text("VERL_PLATFORM"),
        engine_device=text("VERL_ENGINE_DEVICE"),
        engine_vendor=text("VERL_ENGINE_VENDOR"),
        ext_modules=split_list(source.get("RLINF_EXT_MODULE", "")),
        plugins=source.get("PLUGRL_PLUGINS"),
        strict=_flag("PLUGRL_STRICT", source.get("PLUGRL_STRICT", "")),
        cpu_devices=_positive("PLUGRL_CPU_DEVICES", text("PLUGRL_CPU_DEVICES")),
        fingerprint=text("PLUGRL_FINGERPRINT"),
        plugin_rows=text("PLUGRL_PLUGIN_ROWS"),
        setup_hook=text("PLUGRL_SETUP_HOOK"),
    )


def in_force(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the variables that are set, by name and sorted: the seeds' four and every ``PLUGRL_*``."""
    source = os.environ if environ is None else environ
    return {name: source[name] for name in sorted(source) if name in SEED_VARIABLES or name.startswith(_PREFIX)}


def unknown_variables(environ: Mapping[str, str] | None = None) -> dict[str, str | None]:
    """Return each ``PLUGRL_*`` variable that nothing reads, with the nearest name that something does."""
    names = [name for name in in_force(environ) if name not in SEED_VARIABLES and name not in OWN_VARIABLES]
    return {name: nearest(name, OWN_VARIABLES) for name in names}


def split_list(text: str) -> tuple[str, ...]:
    """Split a comma-separated list: items trimmed, empty ones dropped, repeated ones kept once."""
    return tuple(dict.fromkeys(item.strip() for item in text.split(",") if item.strip()))


def _flag(name: str, text: str) -> bool:
    value = text.strip().lower()
    if value not in _TRUE | _FALSE:
        raise ConfigError(f'{name}="{text}" is neither on nor off: use 1 or 0.')
    return value in _TRUE


def _positive(name: str, text: str | None) -> int | None:
    if text is None:
        return None
    # A bound, because a list is made of the devices: a slip must not fill the memory.
    if not text.isdecimal() or len(text) > 6 or int(text) < 1:
        raise ConfigError(f'{name}="{text}" is no positive whole number.')
    return int(text)
