"""What a layout is: how a policy's parameters, gradients and optimizer state lie on the ranks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.distributed as dist

from plugrl.engines.topology import Topology
from plugrl_engine_fsdp.config import FsdpConfig
from plugrl_engine_fsdp.gradients import global_norm, local_gradients, scale_to_norm
from plugrl_engine_fsdp.names import parameter_names, published_tensors
from plugrl_engine_fsdp.precision import Precision
from plugrl_engine_fsdp.wrapping.watch import UnitWatch

OptimizerState = dict[str, dict[str, torch.Tensor]]
"""``{published parameter name: {slot: tensor laid out like the parameter, or a scalar tensor}}``."""

OptimizerParameter = tuple[int, str, torch.Tensor]
"""(index of the group, published name, tensor laid out as the state of the parameter is)."""


@dataclass(frozen=True, kw_only=True)
class LayoutContext:
    """What a layout is built from. ``trainable``: whether there will be gradients and an optimizer."""

    config: FsdpConfig
    topology: Topology
    precision: Precision
    device: torch.device
    trainable: bool


class Layout(ABC):
    """A policy spread over ranks. Methods marked collective must be called by all of them."""

    name: ClassVar[str]
    """As it stands in checkpoints and messages."""

    has_units: ClassVar[bool] = False
    """Whether the policy is cut into units that a wrap plan decides."""

    spreads_from_host: ClassVar[bool] = False
    """Whether the policy is taken from the host or without weights, so that no device ever holds the whole."""

    def __init__(self, context: LayoutContext) -> None:
        self.context = context
        self.config = context.config
        self.watch = UnitWatch(())

    @property
    def shards_rest_on(self) -> torch.device:
        """Where the sharded parameters lie between two uses."""
        return self.context.device

    # ----------------------------------------------------------------- forward and backward
    @abstractmethod
    def spread(self, policy: torch.nn.Module) -> None:
        """Spread the policy's parameters over the ranks, in place or by a wrapper. Collective."""

    @abstractmethod
    def callable_module(self, training: bool) -> torch.nn.Module:
        """What is called for a forward; its hooks do what the layout needs."""

    def gradient_sync(self, last: bool) -> AbstractContextManager[Any]:
        """Context of one micro-batch's forward and backward; only ``last`` reduces gradients over the ranks."""
        return nullcontext()

    def compute_context(self) -> AbstractContextManager[Any]:
        """Context that makes a forward run in the compute dtype."""
        return autocast(self.context.device, self.context.precision)

    def rest(self) -> None:
        """Bring parameters into the state in which they are read, written and moved."""
        return None

    def recover(self, *, keep_gradients: bool = False) -> None:
        """Forget what an exception left behind in the middle of a step or, with ``keep_gradients``, of a validation.

        The latter may lie between the micro-batches of an accumulation window, whose gradients are still wanted.
        """
        return None

    def leave(self) -> None:
        """Let go of what holds on to the parameters before they change device."""
        return None

    def moved(self) -> None:
        """Follow up on parameters that changed device."""
        return None

    # ----------------------------------------------------------------- gradients
    @property
    def takes_fp32_masters(self) -> bool:
        """Whether ``optim.use_fp32_master_params`` is meant for this layout; another one needs an opt-in."""
        return False

    def check_native_adamw(self, policy: torch.nn.Module) -> None:
        """Raise ConfigError when gradients come in a dtype that torch's AdamW refuses for their parameters."""
        return None

    @property
    def shard_group(self) -> dist.ProcessGroup | None:
        """Ranks over which gradients are sharded, None when every rank holds whole gradients."""
        return None

    def gradient_norm(self, parameters: Iterable[torch.nn.Parameter]) -> float:
        """2-norm of the whole gradient, equal on all ranks. Collective."""
        return global_norm(local_gradients(parameters), self.shard_group, self.context.device)

    def scale_gradients(
        self, parameters: Iterable[torch.nn.Parameter], norm: float, max_norm: float, unscale: float = 1.0
    ) -> None:
        """Multiply gradients in place by ``unscale``, which makes their norm ``norm``, and cut it to ``max_norm``."""
        scale_to_norm(local_gradients(parameters).all, norm, max_norm, unscale)

    # ----------------------------------------------------------------- state, as checkpoints see it
    def named_tensors(self, policy: torch.nn.Module) -> dict[str, torch.Tensor]:
        """Every parameter and persistent buffer once, by published name; a DTensor where it is sharded."""
        self.rest()
        return dict(published_tensors(policy))

    def loaded(self, policy: torch.nn.Module, tensors: Mapping[str, torch.Tensor]) -> None:
        """Take over what was read into some of the tensors of :meth:`named_tensors`, where they share no memory."""
        return None

    def optimizer_parameters(
        self, policy: torch.nn.Module, optimizer: torch.optim.Optimizer
    ) -> Iterator[OptimizerParameter]:
        """Yield every parameter that ``optimizer`` trains, in its order, as :meth:`optimizer_state` names them."""
        names = parameter_names(policy)
        for index, group in enumerate(optimizer.param_groups):
            for parameter in group["params"]:
                yield index, names[id(parameter)], parameter

    def optimizer_state(self, policy: torch.nn.Module, optimizer: torch.optim.Optimizer) -> OptimizerState:
        """The optimizer's state by published name, without parameters that have none; storage is shared."""
        names = parameter_names(policy)
        parameters = (parameter for group in optimizer.param_groups for parameter in group["params"])
        return {
            names[id(parameter)]: {slot: torch.as_tensor(value) for slot, value in optimizer.state[parameter].items()}
            for parameter in parameters
            if optimizer.state.get(parameter)
        }

    def load_optimizer_state(
        self, policy: torch.nn.Module, optimizer: torch.optim.Optimizer, state: Mapping[str, Mapping[str, torch.Tensor]]
    ) -> None:
        """Replace the optimizer's state by tensors that are laid out as :meth:`optimizer_state` returns them.

        A parameter that ``state`` does not name is left without state, as one that never had a gradient.
        """
        names = parameter_names(policy)
        optimizer.state.clear()
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if names[id(parameter)] in state:
                    optimizer.state[parameter] = dict(state[names[id(parameter)]])


def autocast(device: torch.device, precision: Precision) -> AbstractContextManager[Any]:
    """Autocast to the compute dtype, for modules whose weights keep another one; nothing when they agree."""
    return torch.autocast(device.type, dtype=precision.compute) if precision.is_mixed else nullcontext()
