"""Where a registration came from: plugin, distribution, file and line.

Authors write nothing for this. The loader names the plugin it works for in a context variable
(:func:`registering`); file and line are read from the stack.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict, dataclass, replace
from types import FrameType
from typing import Any, Literal

Source = Literal["entry point", "extension module", "decorator", "built-in"]


@dataclass(frozen=True, kw_only=True)
class Origin:
    """Who registered something, and where.

    ``plugin`` and ``distribution`` are None for plain scripts and extension modules; ``path`` is the source folder of
    an editable install, because such an install keeps its version while its code changes.
    """

    plugin: str | None = None
    distribution: str | None = None
    version: str | None = None
    source: Source = "decorator"
    module: str = ""
    file: str = ""
    line: int = 0
    path: str | None = None

    @property
    def owner(self) -> str:
        """The distribution with its version, else what stands in for it: ``plugrl-engine-fsdp 0.1.0``."""
        name = self.distribution or self.plugin
        if name:
            return f"{name} {self.version}" if self.version else name
        return f"{self.source} {self.module}" if self.source == "extension module" else self.module or "?"

    def at(self, file: str, line: int) -> Origin:
        """Return this origin at another place in the code."""
        return replace(self, file=file, line=line)

    def __str__(self) -> str:
        place = f"{os.path.basename(self.file)}:{self.line}" if self.file else ""
        return f"{self.owner} ({place})" if place else self.owner

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as plain values for ``--json``."""
        return asdict(self)


_current: ContextVar[Origin | None] = ContextVar("plugrl_registering", default=None)


@contextmanager
def registering(origin: Origin | None) -> Iterator[None]:
    """Attribute every registration inside the block to ``origin``; None leaves what is already in force."""
    token = _current.set(origin or _current.get())
    try:
        yield
    finally:
        _current.reset(token)


def current_origin() -> Origin | None:
    """Return the origin that :func:`registering` put in force, or None."""
    return _current.get()


def calling_origin() -> Origin:
    """Return the origin of the nearest caller that is not itself a registry module.

    Plugin and distribution come from :func:`registering`, module, file and line from the stack. What the top level of
    a registry module registers is built in, also when a plugin happens to be the first to import that module.
    """
    frame = _calling_frame()
    module = str(frame.f_globals.get("__name__", ""))
    place = Origin(module=module, file=frame.f_code.co_filename, line=frame.f_lineno)
    context = _current.get()
    if context is not None and not (_is_registry(module) and frame.f_code.co_name == "<module>"):
        return replace(context, module=place.module, file=place.file, line=place.line)
    if module == "plugrl" or module.startswith("plugrl."):
        return replace(place, source="built-in", distribution="plugrl")
    return place


def _is_registry(module: str) -> bool:
    return module.startswith("plugrl.") and module.endswith(".registry")


def _calling_frame() -> FrameType:
    """Walk out of this module and of the registries to the code that registers.

    The built-ins are registered by the top level of a registry module: that frame is the caller then.
    """
    frame = sys._getframe(1)
    while frame.f_back is not None:
        module = str(frame.f_globals.get("__name__", ""))
        is_plumbing = module in {__name__, "contextlib", "functools"}
        if not is_plumbing and (not _is_registry(module) or frame.f_code.co_name == "<module>"):
            break
        frame = frame.f_back
    return frame
