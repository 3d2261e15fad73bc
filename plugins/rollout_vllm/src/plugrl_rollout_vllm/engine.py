"""vLLM's engine in processes of the rollout worker. vLLM is imported when it starts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from plugrl.rollouts.base import RolloutPlace
from plugrl_rollout_openai.engine import (
    EngineFault,
    Finish,
    GenerationEngine,
    LogprobsMode,
    Piece,
    SampleRequest,
)
from plugrl_rollout_openai.in_process import devices_of, installed_version
from plugrl_rollout_vllm.uses import CHECKED, IN_PROCESS


class VLLMEngine(GenerationEngine):
    """One engine of one or several devices. Weights are read in place from a folder in shared memory."""

    title = "vLLM"

    def __init__(
        self, arguments: Mapping[str, Any], place: RolloutPlace, logprobs_mode: LogprobsMode, stream_interval: int
    ) -> None:
        self.logprobs_mode = logprobs_mode
        self._arguments = arguments
        self._place = place
        self._stream_interval = stream_interval
        self._engine: Any = None
        self._adapters: dict[str, Any] = {}
        self._next_adapter = 1

    async def start(self) -> None:
        """Build it. Raises MissingDependency, ConfigError for a version that lacks something, and vLLM's own errors."""
        if self._engine is None:
            version = installed_version("vllm", IN_PROCESS, CHECKED)
            from vllm.engine.arg_utils import AsyncEngineArgs
            from vllm.v1.engine.async_llm import AsyncLLM

            with devices_of(self._place):
                self._engine = AsyncLLM.from_engine_args(engine_args=AsyncEngineArgs(**self._arguments))
            self.version = f"vllm {version}"
        await self._engine.check_health()

    async def stream(self, request: SampleRequest) -> AsyncGenerator[Piece, None]:
        """Sample. The last piece says by which weights; closing the iterator aborts the request."""
        from vllm.inputs import TokensPrompt

        outputs = self._engine.generate(
            prompt=TokensPrompt(prompt_token_ids=list(request.prompt)), sampling_params=self._sampling(request),
            request_id=request.id, lora_request=self._adapters[request.adapter] if request.adapter else None,
        )  # fmt: skip
        try:
            async for output in outputs:
                (sample,) = output.outputs
                yield _piece(sample)
        except (asyncio.CancelledError, GeneratorExit):
            raise
        except Exception as error:  # Of the engine's own kinds: a request that failed, or an engine that died.
            raise EngineFault(f"{type(error).__name__}: {error}") from error
        finally:
            await outputs.aclose()

    def _sampling(self, request: SampleRequest) -> Any:
        from vllm.sampling_params import RequestOutputKind, SamplingParams

        params = request.params
        return SamplingParams(
            n=1, temperature=params.temperature, top_p=params.top_p, top_k=max(params.top_k, 0), seed=request.seed,
            stop_token_ids=list(params.stop_token_ids), ignore_eos=params.ignore_eos,
            max_tokens=params.max_new_tokens, min_tokens=params.min_new_tokens, logprobs=0, detokenize=False,
            output_kind=RequestOutputKind.DELTA, stream_interval=self._stream_interval,
        )  # fmt: skip

    # --------------------------------------------------------------------------------------------------------- weights
    async def label(self) -> str | None:
        """Ask the engine."""
        return str(await self._engine.get_weight_version())

    async def mark(self, label: str) -> None:
        """Tell the engine, which hands the label out with each sample."""
        await self._engine.update_weight_version(new_version=label)

    async def load(self, folder: Path, label: str) -> None:
        """Stop, let all devices read the folder, forget cached prefixes, go on."""
        engine = self._engine
        await engine.pause_generation(mode="abort", clear_cache=True)
        await self.mark(f"{label}.loading")
        await engine.collective_rpc(method="reload_weights", kwargs={"weights_path": str(folder)})
        await self._forget_prefixes()
        await self.mark(label)
        await engine.resume_generation()

    async def _forget_prefixes(self) -> None:
        if not await self._engine.reset_prefix_cache(reset_running_requests=True):
            raise EngineFault("it did not forget cached prefixes: blocks of them are in use")

    async def load_adapter(self, folder: Path, name: str, label: str, old: str | None) -> None:
        """Add it under a number of its own, and remove the old one."""
        from vllm.lora.request import LoRARequest

        request = LoRARequest(lora_name=name, lora_int_id=self._next_adapter, lora_path=str(folder))
        self._next_adapter += 1
        await self._engine.add_lora(lora_request=request)
        self._adapters[name] = request
        await self._forget_prefixes()
        await self.mark(label)
        for other in [key for key in self._adapters if key != name]:
            await self._engine.remove_lora(lora_id=self._adapters.pop(other).lora_int_id)

    # ---------------------------------------------------------------------------------------------------------- memory
    async def sleep(self) -> None:
        """Drop weights and cache from the devices: the weights stand in shared memory."""
        await self._engine.sleep(level=2, mode="abort")

    async def wake(self) -> None:
        """Take the memory again; the weights are loaded before the next sample."""
        await self._engine.wake_up()

    async def close(self) -> None:
        """End its processes."""
        engine, self._engine = self._engine, None
        if engine is not None:
            with suppress(Exception):  # One that died has nothing to end.
                engine.shutdown()


def _piece(sample: Any) -> Piece:
    """Return what a partial output says: the new tokens, each with its own log-probability among those reported."""
    tokens = tuple(int(token) for token in sample.token_ids)
    told = sample.logprobs or ()
    if len(told) != len(tokens):
        raise EngineFault(f"{len(tokens)} tokens came with {len(told)} log-probabilities")
    reason: Finish | None = sample.finish_reason
    if reason not in (None, "stop", "length", "abort"):
        raise EngineFault(f"a sample ended by {reason!r}")
    spans = sample.weight_versions
    return Piece(
        tokens=tokens, logprobs=tuple(float(entry[token].logprob) for token, entry in zip(tokens, told, strict=True)),
        finish=reason, labels=None if spans is None else frozenset(str(span.version) for span in spans),
    )  # fmt: skip
