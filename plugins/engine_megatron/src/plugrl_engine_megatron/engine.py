"""The engine: a model spread over ranks by matrices, layers, sequences and experts."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from plugrl.engines.base import BaseEngine, Batch, BatchOptions, BatchResult, LossFunction
from plugrl.engines.state import Block, EngineState, StateParts, StateSpec
from plugrl.engines.topology import Topology
from plugrl.errors import ConfigError
from plugrl.metric import Metric
from plugrl.models.factory import get_model_skeleton
from plugrl.platforms import get_platform
from plugrl_engine_fsdp.checkpoint.saving import Saver
from plugrl_engine_fsdp.distributed import world_size
from plugrl_engine_fsdp.optim import OptimizerSettings, Schedule
from plugrl_engine_megatron import residency
from plugrl_engine_megatron.bridges import quiet
from plugrl_engine_megatron.config import MegatronConfig, as_megatron_config

if TYPE_CHECKING:
    from plugrl_engine_megatron.holdings import Holdings
    from plugrl_engine_megatron.parallel import Place
    from plugrl_engine_megatron.policy import MegatronPolicy
    from plugrl_engine_megatron.stream import Gatherer

_log = logging.getLogger(__name__)
_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


class MegatronEngine(BaseEngine):
    """megatron-core's layers, schedules and optimizer around the weights of a Hugging Face model.

    ``chunks``: what the schedules run, one per virtual stage; ``holdings``: what of the model lies on this rank.
    """

    chunks: list[Any]
    holdings: Holdings
    place: Place

    def __init__(
        self,
        model_config: Any,
        engine_config: Any = None,
        optimizer_config: Any = None,
        checkpoint_config: Any = None,
    ) -> None:
        super().__init__(model_config, engine_config, optimizer_config, checkpoint_config)
        self.config: MegatronConfig = as_megatron_config(engine_config)
        self.settings = None if optimizer_config is None else OptimizerSettings.from_config(optimizer_config)
        if self.config.forward_only:
            self.settings = None
        self.optimizer: Any = None
        self.schedule: Schedule | None = None
        self.dtype = torch.float32
        self.device = torch.device("cpu")
        self.updates = 0
        self.skipped_steps = 0
        self.saver: Saver
        self._policy: MegatronPolicy | None = None
        self._gatherer: Gatherer | None = None

    # ----------------------------------------------------------------- before construction
    @classmethod
    def problems(
        cls, engine_config: Any, optimizer_config: Any, checkpoint_config: Any, world_size: int
    ) -> Iterator[str]:
        """Yield what does not go together, or not with so many ranks; see the contract."""
        yield from as_megatron_config(engine_config).problems(world_size)

    @property
    def topology(self) -> Topology:
        """Copies of the model; each of them lies on several ranks that see the same rows."""
        return Topology(dp_replicate=self.get_data_parallel_size(), dp_shard=1)

    # ----------------------------------------------------------------- construction
    def initialize(self) -> None:
        """Build this rank's part of the model and of the optimizer, then read its weights."""
        problems = list(self.config.problems(world_size()))
        if problems:
            raise ConfigError("; ".join(problems))
        with quiet():
            self._build()
        residency.offload(self, model=self.is_param_offload_enabled, optimizer=self.is_optimizer_offload_enabled)

    def _build(self) -> None:
        # megatron-core is imported from here on.
        from plugrl_engine_megatron.building import build
        from plugrl_engine_megatron.optim import build_optimizer, check_settings, with_gradients
        from plugrl_engine_megatron.origin import fill, open_origin
        from plugrl_engine_megatron.saving import saver

        if self.settings is not None:
            check_settings(self.settings)
        self.dtype = _dtype(self.config, self.model_config)
        outline = get_model_skeleton(self.model_config, torch_dtype=self.dtype)
        built = build(outline, self.config, self.dtype, recompute=self._recomputes)
        self._policy, self.place, self.holdings = built.policy, built.place, built.holdings
        self.device, self.saver = built.device, saver()
        self.chunks = list(built.policy.stages)
        if self.settings is not None:
            self.chunks = with_gradients(self.chunks, self.config)
            self.optimizer = build_optimizer(self.chunks, self.config, self.settings, self.dtype)
            self.holdings.optimizer = self.optimizer
            self.schedule = Schedule(self.optimizer, self.settings)
        else:
            built.policy.requires_grad_(False)
        with open_origin(self.model_config, built.policy.tensor_shapes(), self.weights_dtype) as source:
            fill(source, self.holdings.parameters())
            fill(source, self.holdings.weights())
        built.policy.train(self.settings is not None)

    @property
    def _recomputes(self) -> bool:
        config = self.model_config
        key = "enable_gradient_checkpointing"
        found = config.get(key) if isinstance(config, Mapping) else getattr(config, key, None)
        return bool(found) and self.settings is not None

    @property
    def base_lr(self) -> float:
        """The learning rate of everything but a head for values."""
        return 0.0 if self.settings is None else self.settings.lr

    @property
    def weights_dtype(self) -> torch.dtype:
        """The dtype of the weights that are saved and published: what is trained is fp32."""
        return torch.float32 if self.settings is not None else self.dtype

    @property
    def module(self) -> MegatronPolicy:
        """The policy; its parameters are this rank's."""
        if self._policy is None:
            raise RuntimeError("initialize() builds the policy; it was not called")
        return self._policy

    # ----------------------------------------------------------------- modes and memory
    @property
    def is_param_offload_enabled(self) -> bool:
        """``megatron.param_offload``."""
        return self.config.param_offload

    @property
    def is_optimizer_offload_enabled(self) -> bool:
        """``megatron.optimizer_offload``."""
        return self.config.optimizer_offload

    def train_mode(
        self, disable_auto_offload: bool = False, zero_grad_on_exit: bool = True
    ) -> AbstractContextManager[None]:
        """Load what is off-loaded, train inside, off-load again; gradients are dropped on exit or after an error."""
        return residency.training(self, auto_offload=not disable_auto_offload, zero_grad_on_exit=zero_grad_on_exit)

    def eval_mode(self, disable_auto_offload: bool = False) -> AbstractContextManager[None]:
        """Load off-loaded weights, evaluate inside, off-load again."""
        return residency.evaluation(self, auto_offload=not disable_auto_offload)

    def to(self, device: str, model: bool = True, optimizer: bool = True, grad: bool = True) -> None:
        """Move the named parts to ``"cpu"`` or to the platform's device; gradients lie where their weights do."""
        if grad and not model and not optimizer:
            raise ValueError("gradients move with their parameters: grad=True needs model=True")
        target = torch.device("cpu") if torch.device(device).type == "cpu" else self.device
        residency.move(self, target, model=model, optimizer=optimizer)

    # ----------------------------------------------------------------- training
    def forward_backward_batch(
        self,
        data: Batch,
        loss_function: LossFunction | None,
        forward_only: bool = False,
        options: BatchOptions | None = None,
    ) -> BatchResult:
        """Walk through ``data``; see the contract. All ranks that share a model give the same rows."""
        from plugrl_engine_megatron.passes import run_batch

        if not forward_only and (loss_function is None or self.optimizer is None):
            raise ValueError("a backward pass needs a loss function and an engine with an optimizer")
        with quiet():
            return run_batch(
                self.chunks, data, loss_function, options or BatchOptions(), place=self.place,
                multiple=self.config.sequence_multiple(), device=self.device, forward_only=forward_only,
            )  # fmt: skip

    def train_batch(
        self,
        data: Batch,
        loss_function: LossFunction,
        options: BatchOptions | None = None,
        update_lr_scheduler: bool = True,
    ) -> BatchResult:
        """As the contract says; the metrics also count the steps skipped so far for a gradient that was not finite."""
        result = super().train_batch(data, loss_function, options, update_lr_scheduler)
        result.metrics["skipped_steps"] = Metric(self.skipped_steps, "max")
        return result

    def optimizer_zero_grad(self) -> None:
        """Drop all gradients."""
        if self.optimizer is not None:
            for chunk in self.chunks:
                chunk.zero_grad_buffer()
            with quiet():
                self.optimizer.zero_grad()

    def optimizer_step(self) -> float:
        """Clip over all ranks and step; a norm that is not finite skips the step, counts it and is returned."""
        from plugrl_engine_megatron.optim import update

        if self.optimizer is None or self.settings is None:
            raise RuntimeError("this engine has no optimizer: it is forward-only, or initialize() was not called")
        with quiet():
            norm = update(self.optimizer, self.settings.clip_grad)
        if math.isfinite(norm):
            self.updates += 1
        else:
            self.skipped_steps += 1
            _log.warning("the gradient norm is %s: step skipped (%d so far)", norm, self.skipped_steps)
        return norm

    def lr_scheduler_step(self) -> float:
        """Advance the schedule by one and return the learning rate of the next step."""
        if self.schedule is None:
            raise RuntimeError("this engine has no optimizer: it is forward-only, or initialize() was not called")
        return self.schedule.step()

    # ----------------------------------------------------------------- weights and checkpoints
    def get_per_tensor_param(
        self, merged: bool = True
    ) -> tuple[Iterator[tuple[str, torch.Tensor]], dict[str, Any] | None]:
        """Stream (Hugging Face name, full tensor on the device), one at a time, from the ranks that hold parts of it.

        Collective.
        """
        return self.stream(self.module.tensor_shapes()), None

    def stream(self, shapes: Mapping[str, tuple[int, ...]]) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield tensors of these names and shapes, in this order. Collective."""
        from plugrl_engine_megatron.stream import Gatherer

        if self._gatherer is None:
            self._gatherer = Gatherer(self.holdings.weights())
        return self._gatherer.stream(self.holdings.weights(), shapes, self.weights_dtype, self.device)

    def save_checkpoint(
        self, local_path: str, global_step: int = 0, progress: Mapping[str, Any] | None = None, **kwargs: Any
    ) -> None:
        """Write ``pretrained_model/`` and ``training_state/``, perhaps in the background. Collective."""
        self.saver.save(self, Path(local_path), global_step, progress)

    def load_checkpoint(self, local_path: str, progress: Mapping[str, Any] | None = None, **kwargs: Any) -> None:
        """Restore weights, optimizer, schedule and random state, whatever engine and layout wrote them. Collective."""
        from plugrl_engine_megatron.loading import load

        load(self, Path(local_path), progress)

    def finish_saving(self) -> None:
        """Wait until nothing of this rank is written in the background."""
        self.saver.wait()

    def export_state(self) -> EngineState:
        """This rank's share of everything that a checkpoint would hold."""
        from plugrl_engine_megatron import handover

        return handover.export_state(self)

    def wanted_state(self, specs: Mapping[str, StateSpec]) -> Sequence[Block]:
        """What this rank holds of such a state."""
        from plugrl_engine_megatron import handover

        return handover.wanted_state(self, specs)

    def import_state(self, parts: StateParts, values: Mapping[str, Any], seed: int) -> None:
        """Take over what another engine exported, whatever its layout."""
        from plugrl_engine_megatron import handover

        handover.import_state(self, parts, values, seed)

    # ----------------------------------------------------------------- data parallelism
    def get_data_parallel_size(self) -> int:
        """Ranks that see different rows."""
        return self.place.data_size

    def get_data_parallel_rank(self) -> int:
        """Which rows this rank sees; those that share a model see the same."""
        return self.place.data

    def get_data_parallel_group(self) -> dist.ProcessGroup | None:
        """The ranks that see different rows and hold the same part of the model as this one."""
        from plugrl_engine_megatron.library import parallel_state

        group: dist.ProcessGroup = parallel_state.get_data_parallel_group()
        return group

    def is_mp_src_rank_with_outputs(self) -> bool:
        """Whether this rank answers for its rows: the first of the last stage does."""
        return self.place.gives_outputs


def _dtype(config: MegatronConfig, model_config: Any) -> torch.dtype:
    asked: str = config.dtype
    if asked == "auto":
        key = "precision"
        found = model_config.get(key) if isinstance(model_config, Mapping) else getattr(model_config, key, None)
        asked = str(found or "auto")
    if asked == "auto":
        asked = get_platform().preferred_dtype()
    if asked not in _DTYPES:
        raise ConfigError(f"model.precision: the megatron engine computes in fp32 or bf16, not in {asked!r}")
    return _DTYPES[asked]
