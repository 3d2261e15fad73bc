"""The rollout backend ``vllm``."""

from __future__ import annotations

from typing import Any

from plugrl_rollout_openai.backend import EngineBackend, options_of
from plugrl_rollout_openai.engine import GenerationEngine
from plugrl_rollout_openai.in_process import merged_arguments, precision_of, trusts_remote_code
from plugrl_rollout_openai.server_backend import needed_mode
from plugrl_rollout_openai.weights_folder import WeightsFolder
from plugrl_rollout_vllm.engine import VLLMEngine
from plugrl_rollout_vllm.options import VLLMOptions


class VLLMRolloutBackend(EngineBackend):
    """One vLLM engine on the devices of ``tensor_parallel_size`` ranks."""

    options_class = VLLMOptions
    options: VLLMOptions

    @classmethod
    def ranks_per_engine(cls, rollout_config: Any) -> int:
        """As many as the engine spreads over."""
        size: int = options_of(rollout_config, VLLMOptions).tensor_parallel_size
        return size

    @property
    def start_timeout_s(self) -> float:
        """As configured."""
        return self.options.start_timeout_s

    def make_engines(self, folder: WeightsFolder) -> list[GenerationEngine]:
        """Return the engine. Raises ConfigError for log-probabilities it cannot tell and for arguments that are set."""
        mode = needed_mode(self.rollout_config)
        return [VLLMEngine(self._arguments(folder, mode), self.place, mode, self.options.stream_interval)]

    def _arguments(self, folder: WeightsFolder, mode: str) -> dict[str, Any]:
        options = self.options
        own: dict[str, Any] = {
            "model": str(folder.start()), "skip_tokenizer_init": True,
            "trust_remote_code": trusts_remote_code(self.model_config), "dtype": precision_of(self.model_config),
            "seed": 0, "tensor_parallel_size": options.tensor_parallel_size, "distributed_executor_backend": "mp",
            "gpu_memory_utilization": options.gpu_memory_utilization, "enable_sleep_mode": True,
            "enforce_eager": options.enforce_eager, "enable_prefix_caching": True,
            "logprobs_mode": f"{mode}_logprobs", "disable_log_stats": True, "enable_log_requests": False,
        }  # fmt: skip
        if options.native_lora:
            # The one in use and the next.
            own |= {"enable_lora": True, "max_lora_rank": options.max_lora_rank, "max_loras": 2}
        if options.max_model_len is not None:
            own["max_model_len"] = options.max_model_len
        return merged_arguments(own, options.engine_args)
