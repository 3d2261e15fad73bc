"""Everything that the engine uses of megatron-core, and nothing private; imported only in processes that train.

Importing this module imports megatron.core, with the bridges that the platform needs.
"""

from __future__ import annotations

from plugrl.platforms import get_platform
from plugrl_engine_megatron.bridges import check_version, importing

check_version()
with importing(get_platform()):
    from megatron.core import parallel_state
    from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec
    from megatron.core.models.gpt.gpt_model import GPTModel
    from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
    from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer
    from megatron.core.optimizer.optimizer_config import ParamKey
    from megatron.core.optimizer_param_scheduler import ParamGroupOverride
    from megatron.core.pipeline_parallel import get_forward_backward_func
    from megatron.core.tensor_parallel import (
        ColumnParallelLinear,
        RowParallelLinear,
        VocabParallelEmbedding,
        copy_to_tensor_model_parallel_region,
        gather_from_sequence_parallel_region,
        reduce_from_tensor_model_parallel_region,
        set_tensor_model_parallel_attributes,
    )
    from megatron.core.tensor_parallel import model_parallel_cuda_manual_seed as seed_model_parallel
    from megatron.core.transformer.identity_op import IdentityOp
    from megatron.core.transformer.module import MegatronModule
    from megatron.core.transformer.transformer_config import TransformerConfig

__all__ = [
    "ColumnParallelLinear",
    "DistributedDataParallel",
    "DistributedDataParallelConfig",
    "DistributedOptimizer",
    "GPTModel",
    "IdentityOp",
    "MegatronModule",
    "OptimizerConfig",
    "ParamGroupOverride",
    "ParamKey",
    "RowParallelLinear",
    "TransformerConfig",
    "VocabParallelEmbedding",
    "copy_to_tensor_model_parallel_region",
    "finalize_model_grads",
    "gather_from_sequence_parallel_region",
    "get_forward_backward_func",
    "get_gpt_decoder_block_spec",
    "get_megatron_optimizer",
    "parallel_state",
    "reduce_from_tensor_model_parallel_region",
    "seed_model_parallel",
    "set_tensor_model_parallel_attributes",
]
