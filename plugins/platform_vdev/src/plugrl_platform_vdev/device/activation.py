"""Making the device known to torch, once per process."""

from __future__ import annotations

from typing import Any

import torch

from plugrl_platform_vdev.build import compiler, load
from plugrl_platform_vdev.configuration import configuration
from plugrl_platform_vdev.faults import active, is_mutant
from plugrl_platform_vdev.settings import read_settings

NAME = "vdev"
_UNNAMED = "privateuseone"
_BEFORE_TORCHS_OWN = 15


def activate() -> None:
    """Register the device by the build that ``VDEV_BUILD`` names; by default the C++ one where it can be made."""
    _check_name_is_free()
    if active("init_fail"):
        raise RuntimeError("vdev: the driver cannot be initialised (the fault init_fail of VDEV_FAULT).")
    settings = read_settings()
    if settings.build == "python" or (not settings.build and compiler() is None):
        from plugrl_platform_vdev.python_build import activate as activate_python

        activate_python()
        return
    _activate_cpp()


def _activate_cpp() -> None:
    native = load()
    native.configure(configuration())
    torch.utils.rename_privateuse1_backend(NAME)
    from plugrl_platform_vdev.device import module

    torch._register_device_module(NAME, module)
    if is_mutant("load_wrong_index"):
        torch.serialization.register_package(_BEFORE_TORCHS_OWN, lambda storage: None, _load_to_first_device)
    torch.utils.generate_methods_for_privateuse1_backend(
        for_tensor=True, for_module=True, for_packed_sequence=True, for_storage=True
    )
    from plugrl_platform_vdev.collectives import register

    register()


def _load_to_first_device(storage: Any, location: str) -> Any:
    """The mutant that forgets from which device a tensor was saved."""
    return storage.to(device=torch.device(NAME, 0)) if location.startswith(NAME) else None


def _check_name_is_free() -> None:
    """torch has one place for a device that it does not know, and its name cannot be changed."""
    taken = torch._C._get_privateuse1_backend_name()
    if taken not in (_UNNAMED, NAME):
        raise RuntimeError(
            f"vdev cannot be used in this process: the device {taken!r} holds torch's place for devices from outside. "
            "Use one of the two plugins in a process."
        )
