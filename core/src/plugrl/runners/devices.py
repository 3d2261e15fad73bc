"""Which components of a run lie on their devices, and when."""

from __future__ import annotations

from plugrl.config.schema import RunConfig
from plugrl.runners.components import Components
from plugrl.runtime.flow.residency import Residency, Resident


def rl_residency(config: RunConfig, components: Components) -> Residency:
    """Return what holds the devices of a run's components, which stand on their devices now.

    What does not fit beside the others (``cluster.device_memory_mib``) is off-loaded at once. Raises DeviceMemoryError
    when a component does not fit alone.
    """
    groups = {
        "rollout": components.rollout, "ref": components.ref, "critic": components.critic, "actor": components.actor,
    }  # fmt: skip
    budget, declared = config.cluster.device_memory_mib, config.flow.memory_mib
    residents = []
    for name, group in groups.items():
        if group is None:
            continue
        weights, need = group.memory_mib() if budget is not None else (0, 0)
        if name in declared:
            weights, need = min(weights, declared[name]), declared[name]
        per_device = max(group.group.devices.count(device) for device in group.group.devices)
        devices = tuple(sorted(set(group.group.devices)))
        residents.append(Resident(name, devices, need * per_device, group.reside, weights * per_device))
    all_devices = {device for resident in residents for device in resident.devices}
    budgets = {device: budget for device in all_devices} if budget is not None else {}
    residency = Residency(residents, budgets, timeout=config.cluster.step_timeout_s)
    residency.check()
    residency.settle()
    return residency
