"""SGLang's engine in processes of the rollout worker. SGLang is imported when it starts.

Its ``Engine`` waits on its own event loop in every call. Here one loop runs all the time, so the calls go to the
tokenizer manager inside it, as SGLang's own HTTP server does.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from plugrl.rollouts.base import RolloutPlace
from plugrl_rollout_openai.engine import EngineFault, GenerationEngine, Piece, SampleRequest
from plugrl_rollout_openai.in_process import devices_of, installed_version
from plugrl_rollout_openai.servers import SGLangReader, check_success, sglang_params
from plugrl_rollout_sglang.uses import CHECKED, IN_PROCESS


class SGLangEngine(GenerationEngine):
    """One engine of one or several devices. Weights are read in place from a folder in shared memory."""

    title = "SGLang"

    def __init__(self, arguments: Mapping[str, Any], place: RolloutPlace) -> None:
        self._arguments = arguments
        self._place = place
        self._engine: Any = None

    async def start(self) -> None:
        """Build it. Raises MissingDependency, ConfigError for a version that lacks something, SGLang's own errors."""
        if self._engine is not None:
            return
        version = installed_version("sglang", IN_PROCESS, CHECKED)
        from sglang.srt.entrypoints.engine import Engine

        with devices_of(self._place):
            self._engine = Engine(**self._arguments)
        self.version = f"sglang {version}"

    @property
    def _manager(self) -> Any:
        return self._engine.tokenizer_manager

    async def stream(self, request: SampleRequest) -> AsyncGenerator[Piece, None]:
        """Sample; every piece says by which weights. Closing the iterator aborts the request."""
        answers = await self._engine.async_generate(
            input_ids=list(request.prompt), sampling_params=sglang_params(request), return_logprob=True, stream=True,
            rid=request.id, lora_path=request.adapter,
        )  # fmt: skip
        reader, ended = SGLangReader(), False
        try:
            async for answer in answers:
                piece = reader.piece(answer)
                ended = piece.finish is not None
                yield piece
        except (asyncio.CancelledError, GeneratorExit, EngineFault):
            raise
        except Exception as error:  # Of the engine's own kinds: a request that failed, or an engine that died.
            raise EngineFault(f"{type(error).__name__}: {error}") from error
        finally:
            if not ended:
                self._manager.abort_request(rid=request.id)
            await answers.aclose()

    # --------------------------------------------------------------------------------------------------------- weights
    async def label(self) -> str | None:
        """Ask the engine."""
        return str(self._engine.get_model_info()["weight_version"])

    async def mark(self, label: str) -> None:
        """Tell the engine, which hands the label out with each sample."""
        from sglang.srt.managers.io_struct import UpdateWeightVersionReqInput

        await self._manager.update_weight_version(
            obj=UpdateWeightVersionReqInput(new_version=label, abort_all_requests=True)
        )

    async def load(self, folder: Path, label: str) -> None:
        """Stop, let all devices read the folder, forget cached prefixes, go on."""
        from sglang.srt.managers.io_struct import (
            ContinueGenerationReqInput,
            PauseGenerationReqInput,
            UpdateWeightFromDiskReqInput,
        )

        manager = self._manager
        await manager.pause_generation(obj=PauseGenerationReqInput(mode="abort"))
        await self.mark(f"{label}.loading")
        success, message, _ = await manager.update_weights_from_disk(
            obj=UpdateWeightFromDiskReqInput(
                model_path=str(folder), weight_version=label, flush_cache=True, abort_all_requests=True
            )
        )
        check_success({"success": success, "message": message})
        await manager.continue_generation(obj=ContinueGenerationReqInput())

    async def load_adapter(self, folder: Path, name: str, label: str, old: str | None) -> None:
        """Load it by name, and drop the old one."""
        from sglang.srt.managers.io_struct import LoadLoRAAdapterReqInput, UnloadLoRAAdapterReqInput

        manager = self._manager
        answer = await manager.load_lora_adapter(obj=LoadLoRAAdapterReqInput(lora_name=name, lora_path=str(folder)))
        check_success({"success": answer.success, "message": answer.error_message})
        await manager.flush_cache()
        await self.mark(label)
        if old is not None and old != name:
            await manager.unload_lora_adapter(obj=UnloadLoRAAdapterReqInput(lora_name=old))

    # ---------------------------------------------------------------------------------------------------------- memory
    async def sleep(self) -> None:
        """Drop weights and cache from the devices: the weights stand in shared memory."""
        from sglang.srt.managers.io_struct import ReleaseMemoryOccupationReqInput

        await self._manager.release_memory_occupation(obj=ReleaseMemoryOccupationReqInput())

    async def wake(self) -> None:
        """Take the memory again; the weights are loaded before the next sample."""
        from sglang.srt.managers.io_struct import ResumeMemoryOccupationReqInput

        await self._manager.resume_memory_occupation(obj=ResumeMemoryOccupationReqInput())

    async def close(self) -> None:
        """End its processes."""
        engine, self._engine = self._engine, None
        if engine is not None:
            with suppress(Exception):  # One that died has nothing to end.
                engine.shutdown()
