"""What a flow is made of: stages that work on portions of the items of a step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

DRIVER = "driver"
"""The component of stages that run in the driver itself, in the thread that runs the flow."""

Work = Callable[["Item"], Any]
"""What a stage does with a portion; it blocks until that is done."""


@dataclass(frozen=True, kw_only=True)
class StageSpec:
    """A stage as a runner declares it.

    name: unique in the flow. component: the worker group it runs on, or DRIVER. run: called with each portion, once it
    is bound to whatever a runner's methods need besides.
    after: stages whose results it needs, declared before it. size: items of a portion where the stage wants portions of
    its own; None takes those of its phase. why: what keeps a stage with a ``size`` from taking smaller portions.
    """

    name: str
    component: str
    run: Callable[..., Any]
    after: tuple[str, ...] = ()
    size: int | None = None
    why: str = ""
    turn: int = 0


@dataclass(frozen=True, kw_only=True)
class Stage:
    """A stage in its place.

    devices: what it occupies, empty for the driver. phase: no stage with devices begins before those of lower phases
    are done. size: items of a portion. transfer: ``load`` and ``unload`` are no work but bring a component to its
    devices, or from them.
    """

    name: str
    component: str
    run: Work
    after: tuple[str, ...] = ()
    devices: tuple[int, ...] = ()
    phase: int = 0
    size: int = 1
    why: str = ""
    turn: int = 0
    transfer: Literal["", "load", "unload"] = ""


@dataclass(frozen=True)
class Item:
    """A portion of a stage: the items ``start`` to ``stop`` (exclusive) of the step; ``index`` counts from 0."""

    stage: Stage
    index: int
    start: int
    stop: int

    def __str__(self) -> str:
        return f"{self.stage.name}[{self.start}:{self.stop}]"
