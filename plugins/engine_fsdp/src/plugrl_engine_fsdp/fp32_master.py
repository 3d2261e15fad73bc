"""AdamW that updates in fp32 whatever the dtypes of parameters and gradients are.

A plain bf16 parameter loses every update smaller than about 1/256 of its value. Here such a parameter has an fp32
master copy that takes the updates, and is the master rounded down after each step. An fp32 parameter is its own
master; its gradient may still come in a smaller dtype (FSDP's ``keep_low_precision_grads``).

The formulas are those of Loshchilov and Hutter, "Decoupled Weight Decay Regularization", in the order of operations of
``torch.optim.AdamW(foreach=False)``, so that on fp32 parameters and gradients the results are the same bit for bit.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, overload

import torch
from torch.distributed.tensor import DTensor, distribute_tensor

STEP, MEAN, SQUARE, MASTER = "step", "exp_avg", "exp_avg_sq", "fp32_master_param"
"""Slots of a parameter's state. The counter is a 0-dim fp32 tensor on the CPU, the others fp32 of its shape."""

_CACHED = 1 << 18
"""Elements updated at a time on a processor, where the passes over few of them find them in its cache."""

_LAUNCHED = 1 << 26
"""Elements updated at a time elsewhere, where each pass costs a launch; bounds the memory of temporaries."""


class FP32MasterAdamW(torch.optim.Optimizer):
    """AdamW with fp32 state and, for parameters of another floating type, an fp32 master copy.

    Takes sharded parameters (DTensor) as well as plain ones; the update touches local shards alone and sends nothing.
    Raises ValueError for a setting out of range and TypeError for a parameter that is not floating point.
    """

    gradient_factor: float = 1.0
    """What the next step multiplies gradients by, in fp32; it then becomes 1 again. For unscaling and clipping."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": tuple(betas), "eps": eps, "weight_decay": weight_decay})

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group of parameters; what it does not set comes from the constructor. Checks as there."""
        super().add_param_group(param_group)
        try:
            _check_group(self.param_groups[-1])
        except (TypeError, ValueError):
            self.param_groups.pop()
            raise

    @overload
    def step(self, closure: None = None) -> None: ...
    @overload
    def step(self, closure: Callable[[], float]) -> float: ...
    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Update every parameter that has a gradient; the others keep value and state. Returns the closure's loss.

        RuntimeError for a sparse gradient, before any parameter changed.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        found = [[(p, p.grad) for p in group["params"] if p.grad is not None] for group in self.param_groups]
        if any(gradient.is_sparse for pairs in found for _, gradient in pairs):
            raise RuntimeError("FP32MasterAdamW does not support sparse gradients")
        factor, self.gradient_factor = self.gradient_factor, 1.0
        for group, pairs in zip(self.param_groups, found, strict=True):
            for count, work in self._due(pairs).items():
                for part in work.parts():
                    _update(part, count, group, factor)
        return loss

    def _due(self, pairs: list[tuple[torch.nn.Parameter, torch.Tensor]]) -> dict[float, _Work]:
        """Count a step for each parameter and sort the local parts by the number of steps they have now."""
        due: dict[float, _Work] = defaultdict(_Work)
        for parameter, gradient in pairs:
            state = self.state[parameter]
            if not state:
                self._create(parameter, state)
            state[STEP] += 1
            local = _local(parameter)
            due[state[STEP].item()].add(
                local,
                _local(gradient),
                _local(state[MASTER]) if MASTER in state else local,
                _local(state[MEAN]),
                _local(state[SQUARE]),
            )
        return due

    @staticmethod
    def _create(parameter: torch.nn.Parameter, state: dict[str, Any]) -> None:
        state[STEP] = torch.zeros((), dtype=torch.float32)
        for slot in (MEAN, SQUARE):
            state[slot] = torch.zeros_like(parameter, dtype=torch.float32, memory_format=torch.preserve_format)
        if parameter.dtype != torch.float32:
            state[MASTER] = parameter.detach().to(torch.float32)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over copies of a saved state, which stays fp32 whatever the parameters are.

        ValueError, with the own state untouched, for other groups or another number of parameters in one, for a shape
        that does not fit, and for the state of a low-precision parameter without its master.
        """
        pairs = self._pairs(state_dict)
        loaded: dict[torch.Tensor, Any] = {
            parameter: {slot: _restored(parameter, slot, value) for slot, value in saved.items()}
            for parameter, saved in pairs
        }
        # The base class would cast the state down to the type of the parameter, so it gets the groups alone.
        super().load_state_dict({**state_dict, "state": {}})
        self.state.update(loaded)

    def _pairs(self, state_dict: Mapping[str, Any]) -> list[tuple[torch.nn.Parameter, Mapping[str, Any]]]:
        """Match saved states to parameters by position, checking everything before anything is changed."""
        ours = [group["params"] for group in self.param_groups]
        theirs = [group["params"] for group in state_dict["param_groups"]]
        if [len(params) for params in ours] != [len(params) for params in theirs]:
            raise ValueError(
                "the loaded state has a different parameter topology: groups of "
                f"{[len(params) for params in theirs]} parameters, this optimizer has {[len(p) for p in ours]}"
            )
        saved = state_dict["state"]
        keys = [key for params in theirs for key in params]
        found = [(p, key) for p, key in zip((p for params in ours for p in params), keys, strict=True) if key in saved]
        for parameter, key in found:
            if parameter.dtype != torch.float32 and saved[key] and MASTER not in saved[key]:
                raise ValueError(
                    f"the loaded state of parameter {key} ({parameter.dtype}) comes without {MASTER}: "
                    "it was saved by another optimizer or for fp32 parameters"
                )
            for slot in (MEAN, SQUARE, MASTER):
                value = saved[key].get(slot)
                if value is not None and value.shape != parameter.shape:
                    raise ValueError(
                        f"the loaded {slot} of parameter {key} has shape {tuple(value.shape)}, the parameter "
                        f"{tuple(parameter.shape)}: a different parameter topology"
                    )
        return [(parameter, saved[key]) for parameter, key in found]


@dataclass
class _Work:
    """Parallel lists of local tensors; ``masters`` holds the parameter itself where it is fp32."""

    params: list[torch.Tensor] = field(default_factory=list)
    grads: list[torch.Tensor] = field(default_factory=list)
    masters: list[torch.Tensor] = field(default_factory=list)
    means: list[torch.Tensor] = field(default_factory=list)
    squares: list[torch.Tensor] = field(default_factory=list)

    def lists(self) -> tuple[list[torch.Tensor], ...]:
        return self.params, self.grads, self.masters, self.means, self.squares

    def add(self, *tensors: torch.Tensor) -> None:
        if tensors[0].numel():  # A rank may hold no part of a small parameter.
            for items, tensor in zip(self.lists(), tensors, strict=True):
                items.append(tensor)

    def parts(self) -> Iterator[_Work]:
        """Cut the lists into runs of bounded size."""
        start = size = 0
        for index, tensor in enumerate(self.params):
            limit = _CACHED if tensor.device.type == "cpu" else _LAUNCHED
            if size and size + tensor.numel() > limit:
                yield _Work(*(items[start:index] for items in self.lists()))
                start, size = index, 0
            size += tensor.numel()
        if size:
            yield _Work(*(items[start:] for items in self.lists()))


def _update(work: _Work, count: float, group: Mapping[str, Any], factor: float) -> None:
    """One step of AdamW on lists of local tensors; ``count`` is the number of the step, from 1."""
    lr, (beta1, beta2), eps, decay = float(group["lr"]), group["betas"], group["eps"], group["weight_decay"]
    grads = [grad if grad.dtype == torch.float32 else grad.float() for grad in work.grads]
    if factor != 1.0:
        grads = list(torch._foreach_mul(grads, factor))
    if decay != 0:
        torch._foreach_mul_(work.masters, 1 - lr * decay)
    torch._foreach_lerp_(work.means, grads, 1 - beta1)
    torch._foreach_mul_(work.squares, beta2)
    torch._foreach_addcmul_(work.squares, grads, grads, value=1 - beta2)
    roots = torch._foreach_sqrt(work.squares)
    torch._foreach_div_(roots, (1 - beta2**count) ** 0.5)
    torch._foreach_add_(roots, eps)
    torch._foreach_addcdiv_(work.masters, work.means, roots, value=-(lr / (1 - beta1**count)))
    pairs = zip(work.params, work.masters, strict=True)
    low = [(param, master) for param, master in pairs if param.dtype != torch.float32]
    if low:
        torch._foreach_copy_([param for param, _ in low], [master for _, master in low])


def _local(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor.detach()


def _restored(parameter: torch.nn.Parameter, slot: str, value: Any) -> Any:
    """Return a copy of a saved value where and as this optimizer keeps it."""
    if slot == STEP:
        return torch.as_tensor(value, dtype=torch.float32, device="cpu").detach().clone()
    if not isinstance(value, torch.Tensor):
        return value
    value = value.detach().to(device=parameter.device, dtype=torch.float32, copy=True)
    if isinstance(parameter, DTensor) and not isinstance(value, DTensor):
        # Every rank holds the whole value; nothing is sent.
        return distribute_tensor(value, parameter.device_mesh, parameter.placements, src_data_rank=None)
    return value


def _check_group(group: Mapping[str, Any]) -> None:
    if not float(group["lr"]) >= 0.0:
        raise ValueError(f"Invalid learning rate: {group['lr']}")
    if not group["eps"] >= 0.0:
        raise ValueError(f"Invalid epsilon value: {group['eps']}")
    for index, beta in enumerate(group["betas"]):
        if not 0.0 <= beta < 1.0:
            raise ValueError(f"Invalid beta parameter at index {index}: {beta}")
    if not group["weight_decay"] >= 0.0:
        raise ValueError(f"Invalid weight_decay value: {group['weight_decay']}")
    for parameter in group["params"]:
        if not parameter.is_floating_point():
            raise TypeError(f"FP32MasterAdamW updates floating-point parameters, not {parameter.dtype}")


def build_adamw(
    params: Iterable[Any],
    *,
    lr: float = 1e-3,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 1e-2,
    use_fp32_master_params: bool = False,
    fused: bool = False,
) -> torch.optim.Optimizer:
    """Return :class:`FP32MasterAdamW` or torch's AdamW over parameters or parameter groups.

    ``fused`` asks for torch's fused kernel and has no meaning with fp32 masters. RuntimeError where a device has none.
    """
    options: dict[str, Any] = {"lr": lr, "betas": tuple(betas), "eps": eps, "weight_decay": weight_decay}
    if use_fp32_master_params:
        return FP32MasterAdamW(params, **options)
    return torch.optim.AdamW(params, fused=fused or None, **options)
