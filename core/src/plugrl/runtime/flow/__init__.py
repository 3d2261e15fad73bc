"""The micro flow of a step: stages over portions of its items, run as their inputs and devices become free.

A runner declares stages (:class:`StageSpec`); placement and the section ``flow`` of the configuration decide their
portions, phases and turns (:func:`arrange`); :func:`run_flow` runs them, :func:`simulate` tells what that would take.
"""

from plugrl.runtime.flow.arrange import Arrangement, arrange
from plugrl.runtime.flow.engine import run_flow
from plugrl.runtime.flow.loops import loop_stages
from plugrl.runtime.flow.measure import FlowRecord, Span
from plugrl.runtime.flow.schedule import Schedule
from plugrl.runtime.flow.stages import DRIVER, Item, Stage, StageSpec
from plugrl.runtime.flow.virtual import simulate

__all__ = [
    "DRIVER",
    "Arrangement",
    "FlowRecord",
    "Item",
    "Schedule",
    "Span",
    "Stage",
    "StageSpec",
    "arrange",
    "loop_stages",
    "run_flow",
    "simulate",
]
