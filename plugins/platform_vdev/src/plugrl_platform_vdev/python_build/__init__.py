"""The device without a compiler: a tensor subclass over host tensors, on torch's door for backends in Python.

It has what training without sharding needs. What it lacks (accounting and budget of memory, autocast, generators and
streams as objects, FSDP2, files of its tensors) is in :data:`LACKS`, and the platform does not offer it.
"""

from __future__ import annotations

import torch

LACKS = frozenset({
    "platform.accelerator",
    "platform.memory.stats",
    "platform.memory.exact",
    "platform.memory.limit",
    "platform.pin_memory",
    "platform.rng.state",
    "platform.streams",
    "numerics.autocast",
    "numerics.rnn",
    "ckpt.native_load",
    "ckpt.roundtrip",
    "dist.fsdp2",
    "dist.fsdp2.mixed_precision",
    "dist.hsdp",
    "dist.dtensor",
    "dist.dtensor.random",
    "ckpt.sharded",
    "ckpt.async",
    "rl.grpo",
    "rl.weight_sync",
    "rl.resume",
})
"""Capabilities of the manifest, which speaks for the C++ build, that this build does not have."""

_installed: list[object] = []


def activate() -> None:
    """Make ``vdev`` known to torch in this process. Does nothing the second time."""
    if _installed:
        return
    from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

    from plugrl_platform_vdev import collectives
    from plugrl_platform_vdev.python_build.hooks import Guard, Hooks
    from plugrl_platform_vdev.python_build.module import make_module
    from plugrl_platform_vdev.python_build.tensor import install

    hooks, guard = Hooks(), Guard()
    library = torch.library.Library("_", "IMPL")
    # torch keeps no reference to any of them.
    _installed.extend((hooks, guard, library))
    _setup_privateuseone_for_python_backend(
        rename=collectives.DEVICE, backend_module=make_module(), hook=hooks, device_guard=guard
    )
    _installed.extend(install(library))
    # torch believes that a backend in Python has one device, and starts a thread for backward passes on that one alone.
    torch.autograd.set_multithreading_enabled(False)
    collectives.register()
