"""An exponential moving average of the trained parameters, kept where they lie: each rank averages its shard."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch.distributed.tensor import DTensor

from plugrl_engine_fsdp.config.ema import EmaConfig

Tensors = Mapping[str, torch.Tensor]
"""By published name, as :meth:`plugrl_engine_fsdp.layouts.base.Layout.named_tensors` gives them."""


class Ema:
    """Averages, in fp32, of the parameters named ``trained``; ``updates`` counts applied optimizer updates."""

    def __init__(self, config: EmaConfig, tensors: Tensors, trained: Iterable[str]) -> None:
        self.config = config
        self._trained = frozenset(trained)
        self.restart(tensors)

    def restart(self, tensors: Tensors) -> None:
        """Begin with the parameters as they are."""
        self.updates = 0
        self.shadow: dict[str, torch.Tensor] = {
            name: tensor.detach().float().clone() for name, tensor in tensors.items() if name in self._trained
        }

    @torch.no_grad()
    def update(self, tensors: Tensors) -> None:
        """Move the averages towards the parameters, after an optimizer update that was applied."""
        self.updates += 1
        averages = [_local(average) for average in self.shadow.values()]
        current = [
            _local(tensors[name]).to(average.device, torch.float32)
            for name, average in zip(self.shadow, averages, strict=True)
        ]
        if averages:
            torch._foreach_lerp_(averages, current, 1.0 - self.config.decay_at(self.updates))

    def to(self, device: torch.device) -> None:
        """Move the averages; where the parameters lie does not matter to them."""
        self.shadow = {name: average.to(device) for name, average in self.shadow.items()}

    def weights(self, tensors: Tensors) -> dict[str, torch.Tensor]:
        """All of ``tensors`` with the averages in place of what is averaged."""
        return {name: self.shadow.get(name, tensor) for name, tensor in tensors.items()}

    @contextmanager
    def applied(self, read: Callable[[], Tensors], written: Callable[[Tensors], None]) -> Iterator[None]:
        """Give the policy the averages inside the block and its own weights, bit for bit, after it.

        ``read`` returns the policy's tensors; ``written`` is told which of them were written to.
        """
        own = {name: tensor for name, tensor in read().items() if name in self.shadow}
        kept = {name: tensor.detach().clone() for name, tensor in own.items()}
        _copy(own, self.shadow)
        written(own)
        try:
            yield
        finally:
            own = {name: tensor for name, tensor in read().items() if name in self.shadow}
            _copy(own, kept)
            written(own)


@torch.no_grad()
def _copy(targets: Tensors, values: Tensors) -> None:
    for name, target in targets.items():
        _local(target).copy_(_local(values[name]))


def _local(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's part, sharing its memory."""
    tensor = tensor.detach()
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
