"""All that the backend and the server dialect use of vLLM, and the versions that were seen to have it. Light."""

from __future__ import annotations

from plugrl_rollout_openai.surface import Use

CHECKED = ("0.33.0",)
"""Versions whose published wheel was read. Others are read where they are installed, before they are used."""

_ENGINE = "vllm.v1.engine.async_llm:AsyncLLM"

ARGUMENTS = (
    "model", "skip_tokenizer_init", "trust_remote_code", "dtype", "seed", "tensor_parallel_size",
    "distributed_executor_backend", "gpu_memory_utilization", "enable_sleep_mode", "enforce_eager",
    "enable_prefix_caching", "logprobs_mode", "enable_lora", "max_lora_rank", "max_loras", "max_model_len",
    "disable_log_stats", "enable_log_requests",
)  # fmt: skip
"""Arguments of the engine that the backend sets."""

SAMPLING = (
    "n", "temperature", "top_p", "top_k", "seed", "stop_token_ids", "ignore_eos", "max_tokens", "min_tokens",
    "logprobs", "detokenize", "output_kind", "stream_interval",
)  # fmt: skip

IN_PROCESS = (
    Use("call", f"{_ENGINE}.from_engine_args", ("engine_args",)),
    Use("call", f"{_ENGINE}.generate", ("prompt", "sampling_params", "request_id", "lora_request")),
    Use("call", f"{_ENGINE}.check_health"),
    Use("call", f"{_ENGINE}.pause_generation", ("mode", "clear_cache")),
    Use("call", f"{_ENGINE}.resume_generation"),
    Use("call", f"{_ENGINE}.collective_rpc", ("method", "kwargs")),
    Use("call", f"{_ENGINE}.reset_prefix_cache", ("reset_running_requests",)),
    Use("call", f"{_ENGINE}.update_weight_version", ("new_version",)),
    Use("call", f"{_ENGINE}.get_weight_version"),
    Use("call", f"{_ENGINE}.sleep", ("level", "mode")),
    Use("call", f"{_ENGINE}.wake_up"),
    Use("call", f"{_ENGINE}.add_lora", ("lora_request",)),
    Use("call", f"{_ENGINE}.remove_lora", ("lora_id",)),
    Use("call", f"{_ENGINE}.shutdown"),
    Use("fields", "vllm.engine.arg_utils:AsyncEngineArgs", ARGUMENTS),
    Use("fields", "vllm.sampling_params:SamplingParams", SAMPLING),
    Use("fields", "vllm.sampling_params:RequestOutputKind", ("DELTA",)),
    Use("fields", "vllm.lora.request:LoRARequest", ("lora_name", "lora_int_id", "lora_path")),
    Use("call", "vllm.outputs:RequestOutput", ("request_id", "prompt", "prompt_token_ids", "prompt_logprobs", "outputs",
                                               "finished")),
    Use("fields", "vllm.outputs:CompletionOutput", ("token_ids", "logprobs", "finish_reason", "weight_versions")),
    Use("fields", "vllm.outputs:WeightVersionSpan", ("version", "start", "end")),
    Use("fields", "vllm.logprobs:Logprob", ("logprob",)),
    Use("fields", "vllm.inputs:TokensPrompt", ("prompt_token_ids",)),
    Use("call", "vllm.v1.worker.gpu_worker:Worker.reload_weights", ("weights_path",)),
    Use("call", "vllm.v1.worker.gpu_model_runner:GPUModelRunner.reload_weights", ("weights_path",)),
)  # fmt: skip

_RL = "vllm.entrypoints.rl.online.api_router"
_DEV = "vllm.entrypoints.serve.dev"

SERVER = (
    Use("route", "vllm.entrypoints.serve.instrumentator.health:GET /health"),
    Use("route", "vllm.entrypoints.serve.instrumentator.basic:GET /version"),
    Use("route", "vllm.entrypoints.openai.models.api_router:GET /v1/models"),
    Use("route", "vllm.entrypoints.openai.completion.api_router:POST /v1/completions"),
    Use("route", f"{_RL}:POST /pause", ("mode", "clear_cache")),
    Use("route", f"{_RL}:POST /resume"),
    Use("route", f"{_RL}:POST /update_weight_version", ("new_version",)),
    Use("route", f"{_RL}:GET /weight_info"),
    Use("route", f"{_DEV}.rpc.api_router:POST /collective_rpc"),
    Use("route", f"{_DEV}.cache.api_router:POST /reset_prefix_cache", ("reset_running_requests",)),
    Use("route", f"{_DEV}.sleep.api_router:POST /sleep", ("level", "mode")),
    Use("route", f"{_DEV}.sleep.api_router:POST /wake_up"),
    Use("route", "vllm.entrypoints.serve.lora.api_router:POST /v1/load_lora_adapter"),
    Use("route", "vllm.entrypoints.serve.lora.api_router:POST /v1/unload_lora_adapter"),
    Use("fields", "vllm.entrypoints.serve.lora.protocol:LoadLoRAAdapterRequest", ("lora_name", "lora_path")),
    Use("fields", "vllm.entrypoints.serve.lora.protocol:UnloadLoRAAdapterRequest", ("lora_name",)),
    Use("fields", "vllm.entrypoints.openai.completion.protocol:CompletionRequest", (
        "model", "prompt", "max_tokens", "temperature", "top_p", "seed", "logprobs", "stream", "return_token_ids",
        "top_k", "min_tokens", "stop_token_ids", "ignore_eos", "return_weight_versions", "request_id")),
    Use("fields", "vllm.entrypoints.openai.completion.protocol:CompletionResponseStreamChoice", (
        "token_ids", "logprobs", "finish_reason", "weight_versions")),
    Use("fields", "vllm.entrypoints.openai.completion.protocol:CompletionLogProbs", ("token_logprobs",)),
)  # fmt: skip

USES = IN_PROCESS + SERVER
