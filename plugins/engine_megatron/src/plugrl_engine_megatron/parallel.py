"""Process groups: who shares matrices, layers, sequences and experts with whom."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist

from plugrl.errors import ConfigError
from plugrl.platforms import get_platform
from plugrl_engine_fsdp.distributed import ensure_process_group, world_size
from plugrl_engine_megatron.config import MegatronConfig
from plugrl_engine_megatron.library import parallel_state, seed_model_parallel

_set_up: list[tuple[object, MegatronConfig]] = []


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where this rank stands; sizes and positions in each kind of group."""

    tensor: int
    tensor_size: int
    stage: int
    num_stages: int
    context: int
    context_size: int
    data: int
    data_size: int
    expert: int
    expert_size: int
    expert_tensor: int
    expert_tensor_size: int
    expert_data: int

    @property
    def is_last_stage(self) -> bool:
        """Whether this rank computes outputs."""
        return self.stage == self.num_stages - 1

    @property
    def gives_outputs(self) -> bool:
        """Whether this rank answers for its rows: one of those that share them does."""
        return self.is_last_stage and self.tensor == 0 and self.context == 0


def current_device() -> torch.device:
    """The device of this process."""
    platform = get_platform()
    name = platform.device_name
    return torch.device(name) if name == "cpu" else torch.device(name, platform.current_device())


def set_up(config: MegatronConfig, seed: int = 0) -> Place:
    """Make the groups that ``config`` asks for, once for a process group. Collective.

    megatron-core keeps them for the whole process. Raises ConfigError for a second engine with other degrees.
    """
    ensure_process_group()
    world, degrees = dist.group.WORLD, _degrees(config)
    if parallel_state.model_parallel_is_initialized():
        if _set_up and _set_up[0][0] is world:
            if _degrees(_set_up[0][1]) != degrees:
                raise ConfigError(
                    "megatron: another engine of this process has other degrees of parallelism, which megatron-core "
                    "keeps for the whole process; give both the same"
                )
            return place()
        parallel_state.destroy_model_parallel()
    parallel_state.initialize_model_parallel(**degrees, create_gloo_process_groups=False)
    _set_up[:] = [(world, config)]
    seed_model_parallel(seed + 1, force_reset_rng=True)
    return place()


def _degrees(config: MegatronConfig) -> dict[str, int | None]:
    return {
        "tensor_model_parallel_size": config.tensor_model_parallel_size,
        "pipeline_model_parallel_size": config.pipeline_model_parallel_size,
        "virtual_pipeline_model_parallel_size": config.virtual_pipeline_model_parallel_size,
        "context_parallel_size": config.context_parallel_size,
        "expert_model_parallel_size": config.expert_model_parallel_size,
        "expert_tensor_parallel_size": config.expert_tensor_parallel_size,
    }


def place() -> Place:
    """Where this rank stands in the groups that are set up."""
    state = parallel_state
    return Place(
        tensor=state.get_tensor_model_parallel_rank(),
        tensor_size=state.get_tensor_model_parallel_world_size(),
        stage=state.get_pipeline_model_parallel_rank(),
        num_stages=state.get_pipeline_model_parallel_world_size(),
        context=state.get_context_parallel_rank(),
        context_size=state.get_context_parallel_world_size(),
        data=state.get_data_parallel_rank(),
        data_size=state.get_data_parallel_world_size(),
        expert=state.get_expert_model_parallel_rank(),
        expert_size=state.get_expert_model_parallel_world_size(),
        expert_tensor=state.get_expert_tensor_parallel_rank(),
        expert_tensor_size=state.get_expert_tensor_parallel_world_size(),
        expert_data=state.get_expert_data_parallel_rank(),
    )


def places() -> list[Place]:
    """Where every rank stands, by rank. Collective."""
    if world_size() == 1:
        return [place()]
    found: list[Place | None] = [None] * world_size()
    dist.all_gather_object(found, place())
    return [one for one in found if one is not None]
