"""What BaseEngine itself does around the members an engine implements."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from plugrl.engines.base import BaseEngine, BatchOptions, BatchResult  # noqa: E402
from plugrl.metric import Metric  # noqa: E402

Make = Callable[..., type[BaseEngine]]


def test_base_engine_cannot_be_instantiated() -> None:
    with pytest.raises(TypeError, match="abstract"):
        BaseEngine(None, None, None, None)  # type: ignore[abstract]


def _recording(make: Make, calls: list[Any]) -> BaseEngine:
    def run(self: Any, data: Any, loss: Any, forward_only: bool = False, options: Any = None) -> BatchResult:
        calls.append(("forward_only" if forward_only else "train", torch.is_grad_enabled(), options))
        return BatchResult(loss=1.5, metrics={"x": Metric(2.0)})

    def note(name: str, value: Any = None) -> Callable[..., Any]:
        return lambda self: calls.append(name) or value

    members = {
        "forward_backward_batch": run,
        "optimizer_zero_grad": note("zero"),
        "optimizer_step": note("step", 0.5),
        "lr_scheduler_step": note("schedule", 1e-3),
    }
    return make(**members)(None, None, None, None)


def test_train_batch_is_one_optimizer_step(make_engine: Make) -> None:
    calls: list[Any] = []
    options = BatchOptions(micro_batch_size=2)
    result = _recording(make_engine, calls).train_batch({}, lambda *args: None, options)  # type: ignore[arg-type,return-value]
    assert calls == ["zero", ("train", True, options), "step", "schedule"]
    assert {name: float(metric) for name, metric in result.metrics.items()} == {"x": 2.0, "grad_norm": 0.5, "lr": 1e-3}
    assert result.loss == 1.5


def test_schedule_may_wait_for_the_last_mini_batch(make_engine: Make) -> None:
    calls: list[Any] = []
    engine = _recording(make_engine, calls)
    result = engine.train_batch({}, lambda *args: None, update_lr_scheduler=False)  # type: ignore[arg-type,return-value]
    assert "schedule" not in calls and "lr" not in result.metrics


def test_infer_batch_computes_no_gradients(make_engine: Make) -> None:
    calls: list[Any] = []
    _recording(make_engine, calls).infer_batch({})
    assert calls == [("forward_only", False, None)]


@pytest.mark.parametrize("name", ["micro_batch_size", "max_tokens"])
def test_batch_options_are_positive(name: str) -> None:
    with pytest.raises(ValueError, match=name):
        BatchOptions(**{name: 0})
