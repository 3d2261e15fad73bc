"""The variables of a worker from four levels, as pure functions.

From low to high: the node's own, as Ray was started there; what has changed where the driver runs since its node was
started; what the node group says of the node; what the worker group asks for. A higher level replaces a variable, and
puts its entries before those of a search path.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Literal, cast

from plugrl.errors import ConfigError

MergeMode = Literal["append", "override"]

MERGE_MODE_VARIABLE = "PLUGRL_PATH_ENV_MERGE_MODE"

PATH_VARIABLES = frozenset(
    {"PATH", "PYTHONPATH", "LD_LIBRARY_PATH", "LIBRARY_PATH", "CMAKE_PREFIX_PATH", "PKG_CONFIG_PATH", "CPATH"}
)

# What belongs to one process, terminal or launcher, and must not follow the driver to its workers.
_OWN_TO_A_PROCESS = frozenset(
    {
        "_", "PWD", "OLDPWD", "SHLVL", "HOSTNAME", "TERM", "COLUMNS", "LINES", "LS_COLORS", "PS1", "DISPLAY", "TMUX",
        "TMPDIR", "USER", "LOGNAME", "HOME", "SHELL", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE",
        "GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_RANK", "ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT",
        "PLUGRL_NODE_RANK", "VIRTUAL_ENV", "VIRTUAL_ENV_PROMPT",
    }
)  # fmt: skip
_OWN_PREFIXES = ("RAY_", "SSH_", "PYTEST_", "TORCHELASTIC_", "XDG_", "DBUS_", "TMUX_")


def merge_mode(environ: Mapping[str, str] | None = None) -> MergeMode:
    """Return how search paths are merged. Raises ConfigError for a value that is neither append nor override."""
    value = (os.environ if environ is None else environ).get(MERGE_MODE_VARIABLE, "").strip() or "append"
    if value not in ("append", "override"):
        raise ConfigError(f'{MERGE_MODE_VARIABLE}="{value}" is unknown: use append or override.')
    return cast("MergeMode", value)


def merge_variables(
    base: Mapping[str, str], incoming: Mapping[str, str], mode: MergeMode = "append"
) -> dict[str, str]:
    """Return ``base`` with the variables of the higher level.

    With ``append``, a search path has the incoming entries first and then those of the base, each once and no empty
    one. With ``override``, and for every other variable, the incoming value stands alone.
    """
    merged = {**base, **incoming}
    if mode == "append":
        for name in PATH_VARIABLES & incoming.keys():
            entries = (*incoming[name].split(os.pathsep), *base.get(name, "").split(os.pathsep))
            merged[name] = os.pathsep.join(dict.fromkeys(entry for entry in entries if entry))
    return merged


def changed_since(started: Mapping[str, str], now: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that are set or altered ``now``, without those that belong to one process or terminal."""
    return {
        name: value
        for name, value in now.items()
        if started.get(name) != value and name not in _OWN_TO_A_PROCESS and not name.startswith(_OWN_PREFIXES)
    }


def worker_variables(
    node: Mapping[str, str],
    changed: Mapping[str, str],
    group: Mapping[str, str],
    worker: Mapping[str, str],
    mode: MergeMode = "append",
) -> dict[str, str]:
    """Return what a worker's process must start with on top of its node's own variables.

    Args:
        node: the variables of the node, as Ray was started there.
        changed: what the driver has changed since, see :func:`changed_since`.
        group: what the node group says of the node.
        worker: what the worker group asks for.
        mode: see :func:`merge_variables`.
    """
    merged: dict[str, str] = dict(node)
    for level in (changed, group, worker):
        merged = merge_variables(merged, level, mode)
    return {name: merged[name] for name in (*changed, *group, *worker)}
