"""`flow:`: in which portions the work of a step goes through the components, what overlaps, and what is off-loaded."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from plugrl.config.schema.base import Names, Section

PositiveMiB = Annotated[int, Field(ge=0)]


class PhaseConfig(Section):
    """A part of a step in which components work side by side; the next phase begins when this one is done."""

    chunk: int | None = Field(None, ge=1)
    """Prompts that go through this phase at once; null takes `flow.chunk`."""

    stages: tuple[Names, ...]
    """Components of the phase; those in one inner list share their devices and take turns, portion by portion."""


class AsynchronousConfig(Section):
    """Sampling for later steps while training goes on."""

    enable: bool = False
    """Sample ahead of training."""

    max_staleness: int = Field(1, ge=1)
    """Updates by which the weights of a sample may be behind those that it trains."""


class FlowConfig(Section):
    """In which portions the work of a step flows through the components."""

    chunk: int | None = Field(None, ge=1)
    """Prompts in one portion, which must divide `data.train_batch_size`; null is the whole batch."""

    max_ahead: int | None = Field(None, ge=1)
    """Portions that a component may be ahead of those that wait for its results; null is no limit."""

    phases: tuple[PhaseConfig, ...] = ()
    """Phases in their order. Without any they follow from the placement: components that share a device get a phase
    each, those on devices of their own work side by side."""

    swapped: Names = ()
    """Components that leave their devices whenever their phase is not running, however much memory there is."""

    memory_mib: dict[str, PositiveMiB] = {}
    """Memory that a component takes on each of its devices, where it is not to be measured."""

    asynchronous: AsynchronousConfig = AsynchronousConfig()
    """Sampling for later steps while training goes on."""

    trace: bool = False
    """Write `timeline.json` into the folder of the run: what every process did and when, for Perfetto."""
