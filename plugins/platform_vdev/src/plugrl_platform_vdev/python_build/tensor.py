"""Tensors of the Python build: torch sees a tensor on ``vdev``, and the values lie in a tensor of the host.

Every operator comes by :meth:`VdevTensor.__torch_dispatch__`, or, where nothing but its ``device=`` argument names the
device, by the fallback. Both run it on the host tensors and wrap what comes out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_iter, tree_map_only

from plugrl_platform_vdev.python_build.random_numbers import drawing_on
from plugrl_platform_vdev.python_build.state import check_index, current_device

DEVICE = "vdev"
# They move values between devices; everything else computes on one.
_COPIES = frozenset({"aten::copy_", "aten::_to_copy", "aten::_copy_from", "aten::_copy_from_and_resize"})
_INDEXING = frozenset({"aten::index.Tensor", "aten::index_put_", "aten::index_put", "aten::_index_put_impl_"})
# torch makes them empty and resizes them, which this build cannot; or copies below the subclass.
_MADE_WHOLE = (
    "arange", "arange.start", "arange.start_step", "randperm", "randperm.generator", "eye", "eye.m", "copy_",
)  # fmt: skip


class VdevTensor(torch.Tensor):
    """A tensor on the device; ``host`` has the values and shares sizes, strides and aliases with it."""

    host: torch.Tensor
    vdev_index: int

    @staticmethod
    def __new__(cls, host: torch.Tensor, index: int) -> VdevTensor:
        """Wrap ``host`` as a tensor on the device at ``index``."""
        made = torch.Tensor._make_wrapper_subclass(
            cls,
            host.size(),
            strides=host.stride(),
            storage_offset=host.storage_offset(),
            dtype=host.dtype,
            layout=host.layout,
            device=torch.device(DEVICE, index),
            requires_grad=False,
        )
        made.host, made.vdev_index = host, index
        return made

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        """The host's, with the device in it."""
        text = torch.Tensor.__repr__(self.host)
        return f"{text[:-1]}, device='{DEVICE}:{self.vdev_index}')"

    def tolist(self) -> Any:
        """The values as nested lists."""
        return self.host.tolist()

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operator on the host."""
        return run(func, args, kwargs or {})

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Refuse: this build cannot come back from a file. Raises NotImplementedError."""
        raise NotImplementedError("the Python build of vdev does not pickle its tensors; move them to the cpu first")


def run(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Run an operator on the host tensors behind its arguments, and wrap the tensors it makes.

    Raises RuntimeError, as torch does, when tensors lie on different devices or a device does not exist.
    """
    name = func.name()
    wrapped = [leaf for leaf in tree_iter((args, kwargs)) if isinstance(leaf, VdevTensor)]
    target = _target(kwargs, wrapped)
    base = name.partition(".")[0]
    if base not in _COPIES:
        _check_one_device(name, args, kwargs)
    plain_args, plain_kwargs = tree_map_only(VdevTensor, _host_of, (args, dict(kwargs)))
    if _is_device(plain_kwargs.get("device")):
        plain_kwargs["device"] = torch.device("cpu")
    draws = target if torch.Tag.nondeterministic_seeded in func.tags else None
    with drawing_on(draws, plain_kwargs):
        result = func(*plain_args, **plain_kwargs)
    known = {id(tensor.host): tensor for tensor in wrapped}
    _follow(wrapped)
    return tree_map_only(torch.Tensor, lambda made: _wrap(made, known, target), result)


def _host_of(tensor: VdevTensor) -> torch.Tensor:
    return tensor.host


def _wrap(made: torch.Tensor, known: Mapping[int, VdevTensor], target: int | None) -> torch.Tensor:
    if id(made) in known:
        return known[id(made)]
    return made if target is None else VdevTensor(made, target)


def _target(kwargs: Mapping[str, Any], wrapped: list[VdevTensor]) -> int | None:
    """The device on which results lie; None for the host."""
    device = kwargs.get("device")
    if device is None:
        return wrapped[0].vdev_index if wrapped else None
    device = torch.device(device)
    if device.type != DEVICE:
        return None
    return check_index(current_device() if device.index is None else device.index)


def _is_device(device: Any) -> bool:
    return device is not None and torch.device(device).type == DEVICE


def _tensors(args: Any, kwargs: Any) -> Iterator[torch.Tensor]:
    return (leaf for leaf in tree_flatten((args, kwargs))[0] if isinstance(leaf, torch.Tensor))


def _check_one_device(name: str, args: Any, kwargs: Any) -> None:
    """Scalars of the host go with any device, and so do its indices into a tensor."""
    devices = set()
    for tensor in _tensors(args, kwargs):
        if isinstance(tensor, VdevTensor):
            devices.add(f"{DEVICE}:{tensor.vdev_index}")
        elif tensor.dim() and not name.startswith(tuple(_INDEXING)):
            devices.add(str(tensor.device))
    if len(devices) > 1:
        first, second = sorted(devices, reverse=True)[:2]
        raise RuntimeError(
            f"Expected all tensors to be on the same device, but found at least two devices, {first} and {second}! "
            f"(operator {name})"
        )


def _follow(wrapped: list[VdevTensor]) -> None:
    """Take over sizes and strides that an operator changed in place. Raises NotImplementedError: it cannot be done."""
    for tensor in wrapped:
        if tensor.host.shape != tensor.shape:
            raise NotImplementedError("the Python build of vdev cannot change the size of a tensor in place")


def install(library: torch.library.Library) -> list[object]:
    """Take the operators that reach the device without a tensor on it. Returns what torch must find alive."""

    def fallback(func: Any, *args: Any, **kwargs: Any) -> Any:
        return run(func, args, kwargs)

    kept: list[object] = [fallback]
    library.fallback(fallback, "PrivateUse1")
    # Autocast runs and casts nothing.
    library.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")
    operators = torch.library.Library("aten", "IMPL")
    for name in _MADE_WHOLE:
        packet, _, overload = name.partition(".")
        kernel = partial(fallback, getattr(getattr(torch.ops.aten, packet), overload or "default"))
        operators.impl(name, kernel, "PrivateUse1")
        kept.append(kernel)
    return [*kept, operators]
