"""What happened in a flow, in numbers: busy times, the bubble, the overlap."""

from __future__ import annotations

from dataclasses import dataclass

from plugrl.runtime.flow.stages import Item


@dataclass(frozen=True)
class Span:
    """A portion with its time, in the unit of the clock that was used."""

    item: Item
    begin: float
    end: float


@dataclass(frozen=True)
class FlowRecord:
    """All portions of a flow in the order in which they began."""

    spans: tuple[Span, ...] = ()

    @property
    def makespan(self) -> float:
        """Time from the first beginning to the last end."""
        if not self.spans:
            return 0
        return max(span.end for span in self.spans) - min(span.begin for span in self.spans)

    def busy(self) -> dict[str, float]:
        """Return the time that each stage worked, by name."""
        times: dict[str, float] = {}
        for span in self.spans:
            times[span.item.stage.name] = times.get(span.item.stage.name, 0) + span.end - span.begin
        return times

    @property
    def bubble_ratio(self) -> float:
        """Share of the time of all devices of the flow in which a device had no work; moving data counts as none."""
        devices = {device for span in self.spans for device in span.item.stage.devices}
        work = [span for span in self.spans if not span.item.stage.transfer]
        worked = sum((span.end - span.begin) * len(span.item.stage.devices) for span in work)
        whole = self.makespan * len(devices)
        return 1 - worked / whole if whole else 0.0

    @property
    def overlap_ratio(self) -> float:
        """Share of the busy time in which two stages or more were at work."""
        edges = sorted(
            [(span.begin, 1) for span in self.spans if span.end > span.begin]
            + [(span.end, -1) for span in self.spans if span.end > span.begin]
        )
        single = several = 0.0
        active, before = 0, 0.0
        for time, change in edges:
            single += (time - before) if active >= 1 else 0.0
            several += (time - before) if active >= 2 else 0.0
            active, before = active + change, time
        return several / single if single else 0.0

    def metrics(self) -> dict[str, float]:
        """Return the metrics of a step."""
        return {"perf/bubble_ratio": self.bubble_ratio, "perf/overlap_ratio": self.overlap_ratio}
