"""All that the backend and the server dialect use of SGLang, and the versions that were seen to have it. Light."""

from __future__ import annotations

from plugrl_rollout_openai.surface import Use

CHECKED = ("0.5.23",)
"""Versions whose published wheel was read. Others are read where they are installed, before they are used."""

_ENGINE = "sglang.srt.entrypoints.engine:Engine"
_MANAGER = "sglang.srt.managers.tokenizer_manager:TokenizerManager"
_MESSAGE = "sglang.srt.managers.io_struct"

ARGUMENTS = (
    "model_path", "skip_tokenizer_init", "trust_remote_code", "dtype", "random_seed", "tp_size", "mem_fraction_static",
    "enable_memory_saver", "enable_lora", "max_lora_rank", "lora_target_modules",
    "context_length", "stream_interval", "enable_deterministic_inference", "log_level",
)  # fmt: skip
"""Arguments of the engine that the backend sets."""

SAMPLING = (
    "max_new_tokens", "temperature", "top_p", "top_k", "min_new_tokens", "ignore_eos", "stop_token_ids",
    "sampling_seed",
)  # fmt: skip

IN_PROCESS = (
    Use("call", _ENGINE),
    Use("values", "sglang.srt.arg_groups.field_order:POSITIONAL_FIELD_ORDER", ARGUMENTS),
    Use("call", f"{_ENGINE}.async_generate", ("input_ids", "sampling_params", "return_logprob", "stream", "rid",
                                             "lora_path")),
    Use("call", f"{_ENGINE}.shutdown"),
    Use("call", f"{_ENGINE}.get_model_info"),
    Use("fields", "sglang.srt.sampling.sampling_params:SamplingParams", SAMPLING),
    Use("call", f"{_MANAGER}.abort_request", ("rid",)),
    Use("call", f"{_MANAGER}.pause_generation", ("obj",)),
    Use("call", f"{_MANAGER}.continue_generation", ("obj",)),
    Use("call", f"{_MANAGER}.update_weights_from_disk", ("obj",)),
    Use("call", f"{_MANAGER}.update_weight_version", ("obj",)),
    Use("call", f"{_MANAGER}.flush_cache"),
    Use("call", f"{_MANAGER}.load_lora_adapter", ("obj",)),
    Use("call", f"{_MANAGER}.unload_lora_adapter", ("obj",)),
    Use("call", f"{_MANAGER}.release_memory_occupation", ("obj",)),
    Use("call", f"{_MANAGER}.resume_memory_occupation", ("obj",)),
    Use("fields", f"{_MESSAGE}:PauseGenerationReqInput", ("mode",)),
    Use("fields", f"{_MESSAGE}:ContinueGenerationReqInput"),
    Use("fields", f"{_MESSAGE}:UpdateWeightFromDiskReqInput", ("model_path", "weight_version", "flush_cache",
                                                              "abort_all_requests")),
    Use("fields", f"{_MESSAGE}:UpdateWeightVersionReqInput", ("new_version", "abort_all_requests")),
    Use("fields", f"{_MESSAGE}:LoadLoRAAdapterReqInput", ("lora_name", "lora_path")),
    Use("fields", f"{_MESSAGE}:UnloadLoRAAdapterReqInput", ("lora_name",)),
    Use("fields", f"{_MESSAGE}:LoRAUpdateOutput", ("success", "error_message")),
    Use("fields", f"{_MESSAGE}:ReleaseMemoryOccupationReqInput"),
    Use("fields", f"{_MESSAGE}:ResumeMemoryOccupationReqInput"),
)  # fmt: skip

_HTTP = "sglang.srt.entrypoints.http_server"

SERVER = (
    *(Use("route", f"{_HTTP}:{route}") for route in (
        "GET /health", "GET /server_info", "GET /model_info", "GET /v1/models", "POST /generate",
        "POST /pause_generation", "POST /continue_generation", "POST /update_weights_from_disk",
        "POST /update_weight_version", "POST /flush_cache", "POST /release_memory_occupation",
        "POST /resume_memory_occupation", "POST /load_lora_adapter", "POST /unload_lora_adapter")),
    Use("fields", f"{_MESSAGE}:GenerateReqInput", ("rid", "input_ids", "sampling_params", "return_logprob", "stream",
                                                  "lora_path")),
    Use("fields", "sglang.srt.utils.weight_versions:WeightVersionSpan", ("version",)),
)  # fmt: skip

USES = IN_PROCESS + SERVER
