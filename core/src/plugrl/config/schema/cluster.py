"""`plugins:` and `cluster:`: what is loaded, and where the components run."""

from __future__ import annotations

from pydantic import Field

from plugrl.config.schema.base import Names, Section


class PluginsConfig(Section):
    """Which plugins may, may not and must be loaded."""

    allow: Names | None = None
    """Only these plugins are loaded; null admits all."""

    deny: Names = ()
    """These plugins are not loaded."""

    required: Names = ()
    """Requirement strings such as `plugrl-engine-fsdp>=0.1`; a missing one stops the run before it starts."""


class ClusterConfig(Section):
    """Ray, and the placement of components on devices."""

    component_placement: dict[str, str | int | tuple[int, ...]] = {}
    """Devices by component: `actor: 0-1`, `rollout: "2"`, `actor,ref: all`. What is left out gets a default place."""

    ray_address: str | None = None
    """Address of the Ray cluster to join; null starts a local one and never joins another."""

    dashboard: bool = False
    """Start Ray's dashboard."""

    threads_per_worker: int = Field(1, ge=1)
    """Threads that torch may use in each worker."""

    device_memory_mib: int | None = Field(None, ge=1)
    """Memory that the components on a device may take together; what does not fit is off-loaded while others work.
    null keeps everything on the devices, except what `flow.swapped` names."""

    allocator_settings: str | None = None
    """Settings of the device's memory allocator in training workers, such as `expandable_segments:True`; null leaves
    the allocator as it is. A platform whose allocator has no settings ignores them."""

    start_timeout_s: float = Field(120.0, gt=0)
    """Seconds that a worker group has to start."""

    step_timeout_s: float = Field(1800.0, gt=0)
    """Seconds that one call of a worker group has to answer within a step."""
