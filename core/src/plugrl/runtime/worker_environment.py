"""The variables that every worker of a run starts with."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from plugrl.plugins import bootstrap
from plugrl.runtime.device_assignment import check_mask_is_free

if TYPE_CHECKING:
    from plugrl.config.schema import ClusterConfig
    from plugrl.platforms.base import PlatformBase
    from plugrl.plugins.ledger import Ledger

_THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


def thread_variables(count: int) -> dict[str, str]:
    """Return the variables that limit the threads of numerical libraries when they are loaded."""
    return dict.fromkeys(_THREAD_VARIABLES, str(count))


def worker_environment(
    platform: PlatformBase, platform_name: str, config: ClusterConfig, ledger: Ledger, own: Mapping[str, str]
) -> dict[str, str]:
    """Return the variables of all workers: the platform's, the plugins' and, strongest, the caller's ``own``.

    Raises:
        DeviceError: ``own`` holds the platform's mask.
        PluginError: plugins contradict each other.
    """
    from plugrl.runtime.rendezvous import loopback_interface  # which imports torch

    check_mask_is_free(platform, own)
    env = {name: os.environ[name] for name in platform.forward_env_vars() if name in os.environ}
    env.update(dict.fromkeys(platform.ray_noset_envvars(), "1"))
    # Ray must not hide the devices of a process that asks it for none; its default is about to change.
    env["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"
    env.update(thread_variables(config.threads_per_worker))
    env.update({name: os.environ.get(name, value) for name, value in platform.worker_env_vars().items()})
    interface = loopback_interface()
    if config.ray_address is None and interface:
        env["GLOO_SOCKET_IFNAME"] = interface
    env.update(bootstrap.worker_env_vars(ledger))
    # What was chosen here, by whatever: some platforms are available only where they are named.
    env["VERL_PLATFORM"] = platform_name
    env.update(own)
    # Each worker has a mask of its own; this machine's would be wrong on another node, and so would its rank.
    env.pop(platform.visible_devices_envvar(), None)
    env.pop("PLUGRL_NODE_RANK", None)
    return env
