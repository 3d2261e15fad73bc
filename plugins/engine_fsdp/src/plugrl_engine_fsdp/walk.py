"""Collecting what the micro-batches of one batch give, without reading a tensor before the end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from plugrl.engines.base import BatchResult
from plugrl.engines.batching import MicroBatch, merge_rows
from plugrl.metric import Metric


class Walk:
    """Results of the micro-batches of one batch."""

    def __init__(self) -> None:
        self._outputs: list[tuple[MicroBatch, dict[str, torch.Tensor]]] = []
        self._losses: list[torch.Tensor] = []
        self._metrics: dict[str, list[Metric]] = {}

    def add(
        self,
        micro: MicroBatch,
        outputs: Mapping[str, Any] | None,
        loss: torch.Tensor | None,
        metrics: Mapping[str, Metric],
    ) -> None:
        """Keep what one micro-batch gave; ``outputs`` [b, ...] None when they are not wanted."""
        if loss is not None:
            self._losses.append(loss.detach())
        if outputs is not None:
            tensors = {key: value.detach() for key, value in outputs.items() if isinstance(value, torch.Tensor)}
            self._outputs.append((micro, tensors))
        for name, metric in metrics.items():
            self._metrics.setdefault(name, []).append(metric)

    def result(self) -> BatchResult:
        """Add up losses, merge metrics, and put output rows back into their original order, on the CPU."""
        loss = float(torch.stack(self._losses).sum().item()) if self._losses else None
        metrics = {name: Metric.merge(items) for name, items in self._metrics.items()}
        outputs = {name: rows.cpu() for name, rows in merge_rows(self._outputs).items()}
        return BatchResult(outputs=outputs, loss=loss, metrics=metrics)


def zero_loss(outputs: Mapping[str, Any]) -> torch.Tensor | None:
    """A loss of 0 that reaches every parameter the outputs depend on: a dummy micro-batch only keeps ranks in step."""
    terms = [value.sum() * 0.0 for value in outputs.values() if isinstance(value, torch.Tensor) and value.requires_grad]
    return torch.stack([term.float() for term in terms]).sum() if terms else None
