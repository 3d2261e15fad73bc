"""L1, streams and events: work is ordered, and one can tell when it is done."""

from __future__ import annotations

from typing import Any

import torch

from plugrl.testing.kit.checks import check, expect, expect_equal
from plugrl.testing.kit.context import Context


def _module(kit: Context) -> Any:
    return kit.platform.device_module


@check("L1.streams.current", capability="platform.streams", fix="stream(s) must set and restore the current stream.")
def current(kit: Context) -> None:
    """The stream of a ``with`` block is the current one inside it, and the one before is so afterwards."""
    module = _module(kit)
    before, side = module.current_stream(), module.Stream()
    with module.stream(side):
        expect_equal(module.current_stream(), side, "the current stream inside the block")
    expect_equal(module.current_stream(), before, "the current stream after the block")


@check("L1.streams.order", capability="platform.streams", fix="wait_stream must order the work of two streams.")
def order(kit: Context) -> None:
    """What a side stream computes is there for the stream that waits for it, also by an event and with a priority."""
    module, device = _module(kit), kit.device(kit.platform.current_device())
    value = torch.ones(256, 256, device=device)
    side = module.Stream(priority=-1)
    side.wait_stream(module.current_stream())
    with module.stream(side):
        for _ in range(4):
            value = value @ value / 256
        done = side.record_event()
    module.current_stream().wait_event(done)
    module.current_stream().wait_stream(side)
    value.record_stream(module.current_stream())
    expect_equal((value + 1).sum().item(), 2.0 * 256 * 256, "what was computed on another stream")
    side.synchronize()
    expect(side.query(), "a stream that was waited for says that it is still busy")


@check("L1.streams.events", capability="platform.streams", fix="Events must be recorded and measure time.")
def events(kit: Context) -> str:
    """A recorded event is done after synchronize, and two events tell the time between them in milliseconds."""
    module = _module(kit)
    start, end = module.Event(enable_timing=True), module.Event(enable_timing=True)
    start.record()
    value = torch.ones(512, 512, device=kit.device(kit.platform.current_device()))
    for _ in range(4):
        value = value @ value / 512
    end.record()
    end.synchronize()
    expect(end.query(), "an event that was waited for says that it is not done")
    spent = start.elapsed_time(end)
    expect(0.0 < spent < 30_000.0, "elapsed_time of four matrix products", got=f"{spent} ms", expected="more than 0")
    return f"{spent:.2f} ms"
