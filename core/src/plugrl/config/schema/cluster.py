"""`plugins:` and `cluster:`: what is loaded, and where the components run."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from plugrl.config.schema.base import Names, Section


class PluginsConfig(Section):
    """Which plugins may, may not and must be loaded."""

    allow: Names | None = None
    """Only these plugins are loaded; null admits all."""

    deny: Names = ()
    """These plugins are not loaded."""

    required: Names = ()
    """Requirement strings such as `plugrl-engine-fsdp>=0.1`; a missing one stops the run before it starts."""


def _as_sections(value: Any) -> Any:
    return (value,) if isinstance(value, dict) else value


class EnvironmentConfig(Section):
    """Variables and interpreter of the workers on some nodes of a group."""

    node_ranks: str | int | tuple[int, ...] | None = None
    """Nodes of the group: `0-1,4`, a number or `all`; null is every node of the group."""

    env_vars: tuple[dict[str, str], ...] = ()
    """Variables, one to an entry: `[{GLOO_SOCKET_IFNAME: eth0}]`."""

    python_interpreter_path: str | None = None
    """Interpreter of the workers there; null is the driver's."""


class HardwareConfig(Section):
    """Hardware that is no accelerator, such as robots: a group that has some is placed by its units."""

    type: str
    """Registered name of the hardware."""

    configs: tuple[dict[str, Any], ...] = ()
    """The units, each with its `node_rank` and the keys of the type."""


class NodeGroupConfig(Section):
    """Nodes under a label, which placements may name."""

    label: str
    """Name of the group; `cluster` and `node` are taken."""

    node_ranks: str | int | tuple[int, ...]
    """Nodes of the group: `0-3,5`, a number or `all`."""

    env_configs: tuple[EnvironmentConfig, ...] = ()
    """What workers of this group get in their environment."""

    hardware: Annotated[tuple[HardwareConfig, ...], BeforeValidator(_as_sections)] = ()
    """The hardware that the group is placed by instead of its accelerators."""

    ignore_hardware: bool = False
    """Place by whole nodes, whatever hardware they have."""


class TransportConfig(Section):
    """How payloads go from process to process."""

    flows: int = Field(2, ge=1, le=64)
    """Connections of a pair of processes; with two or more, small messages never wait behind large ones."""

    inline_kib: int = Field(64, ge=0)
    """Payloads up to this size travel within the message."""

    memory_mib: int | None = Field(None, ge=1)
    """Shared memory that messages on their way may hold, in each process; null is a quarter of the machine's memory.
    What finds no room goes through sockets."""

    window_mib: int = Field(512, ge=1)
    """What a process may have sent to another one that has not taken it yet."""

    strict_device: bool = False
    """Processes on different devices share no memory, as if they were on two nodes."""


class ClusterConfig(Section):
    """Ray, and the placement of components on devices."""

    num_nodes: int | None = Field(None, ge=1)
    """Nodes to wait for and to use; null takes those that are there."""

    component_placement: dict[str, Any] = {}
    """Devices by component: `actor: 0-1`, `rollout: "2"`, `actor,ref: all`, or within a node group:
    `{node_group: LABEL, placement: 0-1}`. What is left out gets a default place."""

    node_groups: tuple[NodeGroupConfig, ...] = ()
    """Nodes under labels, with variables, interpreters and hardware of their own."""

    ray_address: str | None = None
    """Address of the Ray cluster to join; null starts a local one and never joins another."""

    dashboard: bool = False
    """Start Ray's dashboard."""

    threads_per_worker: int = Field(1, ge=1)
    """Threads that torch may use in each worker."""

    preload_workers: bool = True
    """Workers of a local Ray begin with what all of them import, as forks of one process, where the platform allows
    it."""

    device_memory_mib: int | None = Field(None, ge=1)
    """Memory that the components on a device may take together; what does not fit is off-loaded while others work.
    null keeps everything on the devices, except what `flow.swapped` names."""

    transport: TransportConfig = TransportConfig()
    """How payloads go from process to process."""

    allocator_settings: str | None = None
    """Settings of the device's memory allocator in training workers, such as `expandable_segments:True`; null leaves
    the allocator as it is. A platform whose allocator has no settings ignores them."""

    start_timeout_s: float = Field(120.0, gt=0)
    """Seconds that a worker group has to start."""

    step_timeout_s: float = Field(1800.0, gt=0)
    """Seconds that one call of a worker group has to answer within a step."""

    heartbeat_s: float = Field(0.5, gt=0, le=10)
    """Seconds between two signs of life of a worker, and the time that a cancelled call may take to notice."""

    liveness_timeout_s: float = Field(4.0, gt=0)
    """Seconds after which a stopped worker (SIGSTOP) or a silent node is an error, and an unresponsive worker a
    warning."""

    unresponsive_timeout_s: float = Field(600.0, gt=0)
    """Seconds after which a worker that runs but gives no sign of life, such as one in a long call into C that keeps
    Python's lock, is an error."""
