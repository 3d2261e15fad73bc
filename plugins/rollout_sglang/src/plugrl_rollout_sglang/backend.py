"""The rollout backend ``sglang``."""

from __future__ import annotations

from typing import Any

from plugrl_rollout_openai.backend import EngineBackend, options_of
from plugrl_rollout_openai.engine import GenerationEngine
from plugrl_rollout_openai.in_process import merged_arguments, precision_of, trusts_remote_code
from plugrl_rollout_openai.weights_folder import WeightsFolder
from plugrl_rollout_sglang.engine import SGLangEngine
from plugrl_rollout_sglang.options import SGLangOptions


class SGLangRolloutBackend(EngineBackend):
    """One SGLang engine on the devices of ``tensor_parallel_size`` ranks."""

    options_class = SGLangOptions
    options: SGLangOptions

    @classmethod
    def ranks_per_engine(cls, rollout_config: Any) -> int:
        """As many as the engine spreads over."""
        size: int = options_of(rollout_config, SGLangOptions).tensor_parallel_size
        return size

    @property
    def start_timeout_s(self) -> float:
        """As configured."""
        return self.options.start_timeout_s

    def make_engines(self, folder: WeightsFolder) -> list[GenerationEngine]:
        """Return the engine. Raises ConfigError for arguments that are set."""
        options = self.options
        own: dict[str, Any] = {
            "model_path": str(folder.start()), "skip_tokenizer_init": True,
            "trust_remote_code": trusts_remote_code(self.model_config), "dtype": precision_of(self.model_config),
            "random_seed": 0, "tp_size": options.tensor_parallel_size,
            "mem_fraction_static": options.mem_fraction_static, "enable_memory_saver": True,
            "stream_interval": options.stream_interval,
            "enable_deterministic_inference": options.deterministic, "log_level": "error",
        }  # fmt: skip
        if options.native_lora:
            own |= {
                "enable_lora": True, "max_lora_rank": options.max_lora_rank,
                "lora_target_modules": list(options.lora_target_modules),
            }  # fmt: skip
        if options.context_length is not None:
            own["context_length"] = options.context_length
        return [SGLangEngine(merged_arguments(own, options.engine_args), self.place)]
