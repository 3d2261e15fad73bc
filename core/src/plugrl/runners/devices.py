"""Which components of a run lie on their devices, and when."""

from __future__ import annotations

from plugrl.config.schema import RunConfig
from plugrl.runners.components import Components
from plugrl.runtime.flow.residency import Residency, Resident
from plugrl.workers.groups import RolloutGroup, TrainingGroup


def rl_residency(config: RunConfig, components: Components) -> Residency:
    """Return what holds the devices of a run's components, which stand on their devices now.

    What does not fit beside the others (``cluster.device_memory_mib``) is off-loaded at once. Raises DeviceMemoryError
    when a component does not fit alone.
    """
    residents = [resident_of(name, group, config) for name, group in _groups(components).items() if group is not None]
    budget = config.cluster.device_memory_mib
    all_devices = {device for resident in residents for device in resident.devices}
    budgets = {device: budget for device in all_devices} if budget is not None else {}
    residency = Residency(residents, budgets, timeout=config.cluster.step_timeout_s)
    residency.check()
    residency.settle()
    return residency


def resident_of(name: str, group: TrainingGroup | RolloutGroup, config: RunConfig) -> Resident:
    """Return what a component takes of its devices; measured where a budget asks for it, unless it is declared."""
    budget, declared = config.cluster.device_memory_mib, config.flow.memory_mib
    weights, need = group.memory_mib() if budget is not None else (0, 0)
    if name in declared:
        weights, need = min(weights, declared[name]), declared[name]
    per_device = max(group.group.devices.count(device) for device in group.group.devices)
    devices = tuple(sorted(set(group.group.devices)))
    return Resident(name, devices, need * per_device, group.reside, weights * per_device)


def renew_resident(residency: Residency, config: RunConfig, components: Components, name: str) -> None:
    """Take note that a component stands on other devices now; what does not fit beside it leaves."""
    group = _groups(components)[name]
    assert group is not None
    residency.renew(resident_of(name, group, config), config.cluster.device_memory_mib)


def _groups(components: Components) -> dict[str, TrainingGroup | RolloutGroup | None]:
    return {
        "rollout": components.rollout, "ref": components.ref, "critic": components.critic, "actor": components.actor,
    }  # fmt: skip
