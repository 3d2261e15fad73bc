"""How tensors of devices go from process to process without a detour through the host, where a platform has a way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from plugrl.platforms import PlatformBase

_ALIGN = 64
Rebuild = tuple[Callable[..., Any], tuple[Any, ...]]


@dataclass(frozen=True)
class DevicePaths:
    """What the devices of this process offer. The texts say why something is not to be had, and are empty where it is.

    Attributes:
        kind: type of the devices, as torch calls it.
        ipc: why no other process on the same device can take a handle of its memory.
        ccl: why the platform's collectives do not reach other devices.
        backend: the collectives' name.
        index: the device that tensors arrive on.
    """

    kind: str = ""
    ipc: str = "no device takes part"
    ccl: str = "no device takes part"
    backend: str = ""
    index: int = 0

    @classmethod
    def of(cls, platform: PlatformBase, index: int) -> DevicePaths:
        """Ask a platform; ``index`` is this process's device."""
        kind = platform.device_name
        if kind == "cpu":
            return cls()
        ipc = "" if platform.is_ipc_supported() else f"{kind} shares no device memory between processes"
        return cls(kind, ipc, _ccl_problem(platform), platform.communication_backend_name(), index)

    def place(self, kind: str) -> Any:
        """Return the device that a tensor from a device of a type belongs on here; None leaves it on the host."""
        import torch

        return torch.device(self.kind, self.index) if self.kind and kind == self.kind else None


def _ccl_problem(platform: PlatformBase) -> str:
    import torch.distributed as dist

    platform.device_module  # noqa: B018  Whoever brings the device brings its collectives.
    backend = platform.communication_backend_name()
    served = dist.Backend.backend_capability.get(backend, [])
    if platform.device_name not in served:
        return f"{backend} does not serve {platform.device_name}"
    return ""


# --------------------------------------------------------------------- handles
def share(tensor: Any) -> Rebuild:
    """Return what makes a tensor of the same memory in another process, and copies it there."""
    from torch.multiprocessing.reductions import reduce_tensor

    function, arguments = reduce_tensor(tensor)
    return take_shared, (function, arguments)


def take_shared(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    """Open a handle and copy: the sender's memory is free again as soon as this has returned."""
    return function(*arguments).clone()


# --------------------------------------------------------------------- collectives
@dataclass
class Packing:
    """Gathers the tensors of a tree for one message of a platform's collectives: an export of the codec."""

    size: int = 0
    _pieces: list[tuple[int, Any]] = field(default_factory=list)

    def __call__(self, tensor: Any) -> Rebuild:
        """Give a tensor its place."""
        offset = -(-self.size // _ALIGN) * _ALIGN
        self.size = offset + int(tensor.nbytes)
        self._pieces.append((offset, tensor))
        return take_part, (offset, int(tensor.nbytes), tensor.dtype, tuple(tensor.shape))

    def flat(self) -> Any:
        """Return all of them as one tensor of bytes, on the device of the first."""
        import torch

        buffer = torch.empty(self.size, dtype=torch.uint8, device=self._pieces[0][1].device)
        for offset, tensor in self._pieces:
            if tensor.nbytes:
                buffer[offset : offset + tensor.nbytes].copy_(tensor.contiguous().view(-1).view(torch.uint8))
        return buffer


def take_part(offset: int, size: int, dtype: Any, shape: tuple[int, ...]) -> Any:
    """Return a tensor of what came by the collectives, while a message is decoded."""
    import torch

    from plugrl.runtime.transport.codec import device_payload

    buffer = device_payload()
    if not size:
        return torch.empty(shape, dtype=dtype, device=buffer.device)
    return buffer[offset : offset + size].view(dtype).view(shape)
