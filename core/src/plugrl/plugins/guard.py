"""Whether plugins are being loaded right now, and which: some things must not happen meanwhile."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_loading: ContextVar[str | None] = ContextVar("plugrl_loading", default=None)

HEAVY_MODULES = ("torch", "ray", "transformers", "numpy", "jax", "tensorflow")
"""What a manifest must not import: ``plugrl plugins list`` has to answer at once, everywhere."""


@contextmanager
def loading(name: str) -> Iterator[None]:
    """Mark the block as the loading of the plugin or extension module ``name``.

    The working folder is put back after it: the paths that the user gave are relative to the one before.
    """
    token = _loading.set(name)
    folder = _working_folder()
    try:
        yield
    finally:
        _loading.reset(token)
        if folder is not None and _working_folder() != folder:
            os.chdir(folder)


def _working_folder() -> str | None:
    """Return the working folder, None when it was removed."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        return None


def is_loading() -> bool:
    """Tell whether the code that asks runs because plugins are being loaded."""
    return _loading.get() is not None


def loading_plugin() -> str | None:
    """Return the plugin or extension module that is being loaded, None when nothing is."""
    return _loading.get()


@contextmanager
def watching_imports() -> Iterator[list[str]]:
    """Yield a list that holds, after the block, which of :data:`HEAVY_MODULES` it imported."""
    before = {name for name in HEAVY_MODULES if name in sys.modules}
    found: list[str] = []
    try:
        yield found
    finally:
        found += [name for name in HEAVY_MODULES if name in sys.modules and name not in before]
