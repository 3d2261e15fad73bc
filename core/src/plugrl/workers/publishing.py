"""The training worker's side of weight synchronisation: what it has, in which form, and the sender."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from plugrl.engines.base import BaseEngine
from plugrl.runtime.sync import SyncReport, TensorSpec, WeightRoute, WeightSender, WeightSource, specs_of


@dataclass(frozen=True, kw_only=True)
class WeightDescription:
    """What an actor publishes: the tensors of the plain model, and the configuration of its adapter if it has one."""

    specs: tuple[TensorSpec, ...]
    adapter: Mapping[str, Any] | None


class WeightPublisher:
    """Sends the weights of an engine from rank 0. All methods marked collective run on every rank."""

    def __init__(self, engine: BaseEngine, rank: int) -> None:
        self._engine = engine
        self._rank = rank
        self._sender: WeightSender | None = None
        self._specs: dict[bool, tuple[TensorSpec, ...]] = {}
        self._frozen_changed = False

    def describe(self) -> WeightDescription | None:
        """Return what is published, on rank 0. Collective."""
        specs = self._specs_of(merged=True)
        adapter = self._engine.get_per_tensor_param(merged=False)[1]
        return WeightDescription(specs=specs, adapter=adapter) if self._rank == 0 else None

    def send(self, route: WeightRoute, version: int, *, merged: bool = True) -> SyncReport | None:
        """Bring the weights to the receivers; rank 0 returns the report. Collective.

        ``merged=False`` sends frozen weights, once, and the adapter apart.
        """
        specs = self._specs_of(merged)
        engine = self._engine
        stream, _ = engine.get_per_tensor_param() if merged else engine.get_unmerged_param()
        if self._rank != 0:
            for _ in stream:
                pass
            return None
        frozen = frozenset() if self._frozen_changed else engine.frozen_names(merged)
        source = WeightSource(tensors=stream, frozen=frozen, specs=specs)
        report = self._sender_of(route).send(source, version)
        self._frozen_changed = False
        return report

    def weights_were_loaded(self) -> None:
        """Note that frozen weights may be others than those that were sent."""
        self._frozen_changed = True

    def close(self) -> None:
        """Drop connections and memory."""
        if self._sender is not None:
            self._sender.close()
        self._sender = None

    def _sender_of(self, route: WeightRoute) -> WeightSender:
        """Return the sender of the route; a new route, of receivers that were launched again, replaces the old one."""
        if self._sender is not None and self._sender.route.name != route.name:
            self.close()
        if self._sender is None:
            self._sender = WeightSender(route)
        return self._sender

    def _specs_of(self, merged: bool) -> tuple[TensorSpec, ...]:
        """Describe what is sent: one pass over the stream, once, since shards tell nothing of what is merged."""
        if merged not in self._specs:
            stream, _ = self._engine.get_per_tensor_param() if merged else self._engine.get_unmerged_param()
            self._specs[merged] = specs_of(stream)
        return self._specs[merged]
