"""What this rank holds of a model and of its optimizer's state, as blocks of the Hugging Face model's tensors.

Nothing is gathered for it: of whatever the ranks hold, each can say where it lies in the whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from plugrl_engine_megatron.architecture import Architecture
from plugrl_engine_megatron.boxes import Held, held_in
from plugrl_engine_megatron.library import DistributedOptimizer
from plugrl_engine_megatron.mapping import Mapped, map_stage
from plugrl_engine_megatron.parallel import Place

STEP = "step"


class Holdings:
    """The parameters of this rank's stages. ``optimizer``: megatron-core's, None without training."""

    def __init__(self, stages: Sequence[Any], architecture: Architecture, place: Place) -> None:
        self.mapped: list[Mapped] = [item for stage in stages for item in map_stage(stage, architecture, place)]
        self._place = place
        self.optimizer: Any = None

    # ----------------------------------------------------------------- weights
    def parameters(self) -> Iterator[Held]:
        """Yield the weights that compute, whole ones of this rank."""
        for item in self.mapped:
            yield from self._held(item, item.parameter.detach().view(-1), 0, self._is_first_copy(item))

    def weights(self) -> Iterator[Held]:
        """Yield the weights that are saved: the optimizer's own in fp32 where there are such, else those that compute.

        All ranks' owned ones together are each tensor exactly once.
        """
        for item in self.mapped:
            main = self._main(item)
            if main is None or main[0].dtype == item.parameter.dtype:
                yield from self._held(item, item.parameter.detach().view(-1), 0, self._is_first_copy(item))
            else:
                yield from self._held(item, main[0].detach().view(-1), main[1], self._gives(item))

    # ----------------------------------------------------------------- the optimizer's state
    def states(self) -> Iterator[tuple[str, Held]]:
        """Yield (slot, block) of every moment; slots of parameters that never had a step are not there."""
        for item in self.mapped:
            main = self._main(item)
            if main is None:
                continue
            tensor, start = main
            for slot, value in self._state(tensor).items():
                if slot != STEP:
                    for held in self._held(item, value.view(-1), start, self._gives(item)):
                        yield slot, held

    def steps(self) -> Iterator[tuple[str, torch.Tensor, bool]]:
        """Yield (name, number of steps, whether this rank gives it) of every tensor of which this rank has state."""
        for item in self.mapped:
            main = self._main(item)
            if main is None or STEP not in self._state(main[0]):
                continue
            value = self._state(main[0])[STEP]
            for slot in item.slots:
                blocks = list(slot.within(main[1], main[1] + main[0].numel()))
                gives = slot.is_owner and self._gives(item)
                first = any(not any(offsets) for _, offsets, _ in blocks)
                if blocks:
                    yield slot.name, value, gives and first

    def make_states(self) -> None:
        """Give every parameter that this rank trains the state of a first step, to be overwritten."""
        for item in self.mapped:
            main = self._main(item)
            if main is not None and not self._state(main[0]):
                counter = torch.zeros((), dtype=torch.float32)
                moments = {slot: torch.zeros_like(main[0].detach()) for slot in ("exp_avg", "exp_avg_sq")}
                self._inner(item).state[main[0]] = {STEP: counter, **moments}

    def set_step(self, names: dict[str, torch.Tensor]) -> None:
        """Set the number of steps of every parameter by the tensors that lie in it."""
        for item in self.mapped:
            main = self._main(item)
            if main is not None:
                values = [names[slot.name] for slot in item.slots if slot.name in names]
                if values:
                    self._inner(item).state[main[0]][STEP] = values[0].clone().float().reshape(())

    # ----------------------------------------------------------------- where the optimizer has it
    def _held(self, item: Mapped, flat: torch.Tensor, start: int, gives: bool) -> Iterator[Held]:
        for slot in item.slots:
            for held in held_in(slot, flat, start):
                yield held if gives else Held(
                    block=held.block, shape=held.shape, memory=held.memory, is_owner=False
                )

    def _is_first_copy(self, item: Mapped) -> bool:
        """Whether this rank is the first of those that have the same parameter and see other rows."""
        if item.is_expert:
            return self._place.expert_data == 0
        return self._place.data == 0 and self._place.context == 0

    def _gives(self, item: Mapped) -> bool:
        """Whether what the optimizer has of a parameter here is this rank's to give."""
        return isinstance(self._outer(item), DistributedOptimizer) or self._is_first_copy(item)

    def _outer(self, item: Mapped) -> Any:
        """megatron-core's optimizer of a parameter: experts have one of their own."""
        chained = self.optimizer.chained_optimizers
        return next(one for one in chained if _trains(one, item.parameter))

    def _inner(self, item: Mapped) -> Any:
        """torch's optimizer of a parameter."""
        return self._outer(item).optimizer

    def _state(self, main: torch.Tensor) -> dict[str, torch.Tensor]:
        for one in self.optimizer.chained_optimizers:
            if one.optimizer is not None and main in one.optimizer.state:
                found: dict[str, torch.Tensor] = one.optimizer.state[main]
                return found
        return {}

    def _main(self, item: Mapped) -> tuple[torch.Tensor, int] | None:
        """What the optimizer updates of a parameter on this rank, and from which element on; None where nothing."""
        if self.optimizer is None:
            return None
        outer = next((one for one in self.optimizer.chained_optimizers if _trains(one, item.parameter)), None)
        if outer is None:
            return None
        if isinstance(outer, DistributedOptimizer):
            group, order = outer.model_param_group_index_map[item.parameter]
            buffer, dtype, bucket = outer.model_param_gbuf_map[item.parameter]
            run = outer.gbuf_ranges[buffer][dtype][bucket]["param_map"][item.parameter]["param"]
            return outer.optimizer.param_groups[group]["params"][order], run.start
        return getattr(item.parameter, "main_param", item.parameter), 0


def _trains(outer: Any, parameter: torch.nn.Parameter) -> bool:
    if isinstance(outer, DistributedOptimizer):
        return parameter in outer.model_param_group_index_map
    if outer.optimizer is None:
        return False
    main = getattr(parameter, "main_param", parameter)
    return any(main is other for group in outer.optimizer.param_groups for other in group["params"])
