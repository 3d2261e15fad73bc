"""What a probe can find out without torch, without a vendor's SDK and without touching a device.

A probe runs at every start and on every node. Importing torch costs seconds there, and a process that has initialised
a device cannot fork children that use it.
"""

from __future__ import annotations

import ast
import glob
import importlib.util
import os
from pathlib import Path

from plugrl.platforms.devices import parse_mask
from plugrl.platforms.probe import Available, ProbeResult, Unavailable
from plugrl.targets import is_importable


def is_installed(module: str) -> bool:
    """Whether a module could be imported. It is not imported; its parent packages are."""
    return is_importable(module)


def torch_build(name: str) -> str | None:
    """Return what torch's build says under a name of ``torch/version.py``: the release of the SDK it was made for.

    None when torch is missing, has no such name, or was built without it.
    """
    try:
        spec = importlib.util.find_spec("torch")
        if spec is None or spec.origin is None:
            return None
        tree = ast.parse(Path(spec.origin).with_name("version.py").read_text())
    except (ImportError, OSError, SyntaxError, ValueError):
        return None
    for node in tree.body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        value = getattr(node, "value", None)
        if isinstance(value, ast.Constant) and any(isinstance(t, ast.Name) and t.id == name for t in targets):
            return None if value.value is None else str(value.value)
    return None


def device_files(*patterns: str) -> int:
    """Count the files that match any of the shell patterns, such as those that a driver makes for each device."""
    return len({path for pattern in patterns for path in glob.glob(pattern)})


def visible(count: int | None, variable: str, detail: str) -> ProbeResult:
    """Answer for ``count`` devices (None: unknown, at least one) behind the mask in ``variable``.

    ``detail`` says what was seen. Unavailable when there is none or the mask lets none through. What follows a negative
    number in the mask is hidden: drivers end the list there.
    """
    if count == 0:
        return Unavailable("no device found")
    mask = parse_mask(os.environ.get(variable))
    if mask is None:
        return Available(count or 0, detail)
    shown = mask[: next((index for index, item in enumerate(mask) if item.startswith("-")), len(mask))]
    if not shown:
        return Unavailable(f"no device visible ({variable} is {os.environ[variable]!r})")
    return Available(len(shown), f"{detail}, {variable}={','.join(shown)}")
