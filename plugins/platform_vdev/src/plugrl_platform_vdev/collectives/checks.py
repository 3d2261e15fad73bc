"""What vccl refuses before anything is sent."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist

from plugrl_platform_vdev.settings import read_settings


def served_devices() -> tuple[str, ...]:
    """Return the kinds of devices whose tensors are taken; the host's are refused where ``VDEV_NO_HOST`` says so."""
    return ("vdev",) if read_settings().refuses_host else ("vdev", "cpu")


def check_one_device(op: str, tensors: Sequence[torch.Tensor]) -> None:
    """Raise ValueError when tensors lie on several devices, or on one that is not served."""
    found = sorted({str(tensor.device) for tensor in tensors})
    if len(found) > 1:
        raise ValueError(f"vccl: {op} of tensors on {' and '.join(found)}; all must be on one device.")
    served = served_devices()
    if tensors and tensors[0].device.type not in served:
        raise ValueError(f"vccl: {op} of a tensor on {found[0]}; vccl serves {' and '.join(served)}.")


def check_operation(op: str, operation: dist.ReduceOp) -> None:
    """Raise DistBackendError for a reduction that the backend does not have."""
    if operation == dist.ReduceOp.PREMUL_SUM:
        raise dist.DistBackendError(f"vccl: {op}: ReduceOp.PREMUL_SUM is not supported; scale before or after a SUM.")
    if operation == dist.ReduceOp.AVG and read_settings().refuses_average:
        raise dist.DistBackendError(
            f"vccl: {op}: ReduceOp.AVG is not supported (VDEV_NO_AVG is set); use SUM and divide by the group's size."
        )
