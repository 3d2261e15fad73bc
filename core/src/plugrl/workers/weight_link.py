"""The driver's side of weight synchronisation: whether the weights of two groups fit, and how they travel."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from plugrl.config.schema.weight_sync import WeightSyncConfig
from plugrl.runtime.group import WorkerGroup
from plugrl.runtime.handle import wait_all
from plugrl.runtime.sync import WeightRoute, check_keys, weight_route
from plugrl.workers.publishing import WeightDescription

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class WeightLink:
    """The way from an actor to a rollout. adapter: its configuration where frozen weights are sent only once."""

    route: WeightRoute
    adapter: Mapping[str, Any] | None
    launches: tuple[tuple[str, int], ...]

    def joins(self, actor: WorkerGroup, rollout: WorkerGroup) -> bool:
        """Whether it is between these two launches; another one needs a new link."""
        return self.launches == launches_of(actor, rollout)


def connect_weights(
    actor: WorkerGroup, rollout: WorkerGroup, options: WeightSyncConfig, *, bucket_megabytes: int, timeout: float
) -> WeightLink:
    """Compare what both have and choose the way.

    Raises WeightSyncError naming the tensors that only one side has or whose shapes differ, and what
    :func:`plugrl.runtime.sync.weight_route` raises.
    """
    route = weight_route(actor, rollout, bucket_megabytes=bucket_megabytes, timeout_s=timeout, options=options)
    described, having = wait_all([actor.execute("describe_weights"), rollout.execute("describe_weights")], timeout)
    published: WeightDescription = next(item for item in described if item is not None)
    for rank, (specs, _) in enumerate(having):
        if specs is not None:
            check_keys(published.specs, specs, f"{rollout.name} rank {rank}")
    adapter = published.adapter
    if adapter is not None and not (
        options.adapter_only and options.dtype is None and all(merges for _, merges in having)
    ):
        # A cast before the adapter is merged would not give the bits of one after.
        adapter = None
    return WeightLink(route=route, adapter=adapter, launches=launches_of(actor, rollout))


def launches_of(*groups: WorkerGroup) -> tuple[tuple[str, int], ...]:
    """Return what tells these launches from all others."""
    return tuple((group.name, group.generation) for group in groups)
