"""Overrides on the command line: `a.b=c`, `--a.b=c`, and `+a.b=c` as Hydra writes it; the value is YAML."""

from __future__ import annotations

import re
from typing import Any

from plugrl.config.yaml_source import KeyPath, parse_value
from plugrl.errors import ConfigError

_KEY = re.compile(r"^(?:--|\+{1,2})?([A-Za-z_][\w-]*(?:\.[\w,-]+)*)$")


def parse_override(text: str) -> tuple[KeyPath, Any]:
    """Return the key path and the value of one override; raises ConfigError when it has another form."""
    key, equals, value = text.partition("=")
    match = _KEY.match(key.strip())
    if not equals or not match:
        raise ConfigError(f"{text!r} is not an override; write key=value, for example actor.optim.lr=1e-5")
    path = tuple(_as_key(part) for part in match[1].split("."))
    try:
        return path, parse_value(value)
    except ConfigError as error:
        raise ConfigError(f"{match[1]}: {error}; put a text with special signs in quotes") from error


def _as_key(part: str) -> str:
    """Read `clip-ratio` as `clip_ratio`; a part that is no name (`actor,ref`) stays as it is."""
    name = part.replace("-", "_")
    return name if name.isidentifier() else part
