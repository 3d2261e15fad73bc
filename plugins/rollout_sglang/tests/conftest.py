"""A stand-in for SGLang, held to the recorded signatures of the version, and backends that run it."""

from __future__ import annotations

import asyncio
import os
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import save_file

from plugrl.rollouts.base import RolloutPlace
from plugrl_rollout_openai.testing import Recorded, ScriptedModel, scripted_weights
from plugrl_rollout_sglang.backend import SGLangRolloutBackend

VERSION = "0.5.23"
RECORDED = Recorded.read(Path(__file__).with_name(f"sglang-{VERSION}.json"))
QUICK = {"retry_delay_s": 0.01, "idle_timeout_s": 0.5, "sample_timeout_s": 60.0, "control_timeout_s": 60.0}
ENGINE = "sglang.srt.entrypoints.engine:Engine"
MANAGER = "sglang.srt.managers.tokenizer_manager:TokenizerManager"
MESSAGES = {
    name: RECORDED.struct(f"sglang.srt.managers.io_struct:{name}")
    for name in (
        "PauseGenerationReqInput", "ContinueGenerationReqInput", "UpdateWeightFromDiskReqInput",
        "UpdateWeightVersionReqInput", "LoadLoRAAdapterReqInput", "UnloadLoRAAdapterReqInput",
        "ReleaseMemoryOccupationReqInput", "ResumeMemoryOccupationReqInput", "LoRAUpdateOutput",
    )
}  # fmt: skip


def held(name: str) -> Any:
    """Hold a method of the tokenizer manager to its recorded signature."""
    return RECORDED.held(f"{MANAGER}.{name}")


class Manager:
    """Does what the tokenizer manager does, with a scripted model."""

    def __init__(self) -> None:
        self.model = ScriptedModel()
        self.label, self.paused, self.released = "default", False, False
        self.log: list[str] = []
        self.adapters: dict[str, str] = {}
        self.given_up: list[str] = []
        self.fails = ""

    @held("abort_request")
    def abort_request(self, rid: str) -> None:
        """Give one up."""
        self.given_up.append(rid)

    @held("pause_generation")
    async def pause_generation(self, obj: Any) -> None:
        """Stop."""
        self.log.append(f"pause {obj.mode}")
        self.paused = True

    @held("continue_generation")
    async def continue_generation(self, obj: Any) -> None:
        """Go on."""
        self.log.append("continue")
        self.paused = False

    @held("update_weights_from_disk")
    async def update_weights_from_disk(self, obj: Any) -> tuple[bool, str, int]:
        """Read a folder."""
        assert self.paused and not self.released and obj.flush_cache and obj.abort_all_requests
        self.log.append("load")
        if self.fails:
            return False, self.fails, 0
        self.model.load(obj.model_path)
        self.label = obj.weight_version
        return True, "", 0

    @held("update_weight_version")
    async def update_weight_version(self, obj: Any) -> None:
        """Take a label."""
        self.log.append("label loading" if obj.new_version.endswith("loading") else "label")
        self.label = obj.new_version

    @held("flush_cache")
    async def flush_cache(self) -> None:
        """Forget."""
        self.log.append("forget")

    @held("load_lora_adapter")
    async def load_lora_adapter(self, obj: Any) -> Any:
        """Take an adapter."""
        assert Path(obj.lora_path, "adapter_config.json").is_file()
        self.adapters[obj.lora_name] = obj.lora_path
        return MESSAGES["LoRAUpdateOutput"](success=not self.fails, error_message=self.fails)

    @held("unload_lora_adapter")
    async def unload_lora_adapter(self, obj: Any) -> Any:
        """Drop one."""
        del self.adapters[obj.lora_name]
        return MESSAGES["LoRAUpdateOutput"](success=True)

    @held("release_memory_occupation")
    async def release_memory_occupation(self, obj: Any) -> None:
        """Lose the weights."""
        self.released, self.model.weight = True, float("nan")

    @held("resume_memory_occupation")
    async def resume_memory_occupation(self, obj: Any) -> None:
        """Take memory again."""
        self.released = False


class StandIn:
    """Does what ``Engine`` does. ``faults`` are used up by requests."""

    made: list[StandIn] = []

    def __init__(self, **arguments: Any) -> None:
        known = set(RECORDED.names("sglang.srt.arg_groups.field_order:POSITIONAL_FIELD_ORDER"))
        assert arguments.keys() <= known, arguments.keys() - known
        self.arguments, self.mask = arguments, os.environ.get("MASK")
        self.tokenizer_manager = Manager()
        self.asked: list[dict[str, Any]] = []
        self.faults: list[str] = []
        self.cumulative, self.closed = True, False
        StandIn.made.append(self)

    @RECORDED.held(f"{ENGINE}.async_generate")
    async def async_generate(
        self, *, input_ids: list[int], sampling_params: dict[str, Any], return_logprob: bool, stream: bool, rid: str,
        lora_path: str | None,
    ) -> Any:  # fmt: skip
        """Return the iterator of the answers."""
        known = set(RECORDED.names("sglang.srt.sampling.sampling_params:SamplingParams"))
        assert sampling_params.keys() <= known and stream and return_logprob
        assert lora_path is None or lora_path in self.tokenizer_manager.adapters
        self.asked.append({"input_ids": input_ids, "lora_path": lora_path, **sampling_params})
        return self._answers(tuple(input_ids), sampling_params)

    async def _answers(self, prompt: tuple[int, ...], params: dict[str, Any]) -> Any:
        manager = self.tokenizer_manager
        assert not manager.paused and not manager.released
        fault = self.faults.pop(0) if self.faults else None
        scripted = {"count": params["max_new_tokens"], "stop": params["stop_token_ids"] or ()}
        tokens, logprobs, why = manager.model.sample(prompt, scripted, params["sampling_seed"])
        triples = [(value, token, None) for token, value in zip(tokens, logprobs, strict=True)]
        for start in range(0, len(tokens), 3):
            await asyncio.sleep(5 if fault == "hangs" and start else 0)
            if fault == "dies" and start:
                raise ValueError("scheduler died")
            end = min(start + 3, len(tokens))
            new = triples[:end] if self.cumulative else triples[start:end]
            facts = {
                "finish_reason": {"type": why} if end == len(tokens) else None, "weight_version": manager.label,
                "output_token_logprobs": new, "output_token_logprobs_length": end, "completion_tokens": end,
            }  # fmt: skip
            yield {"output_ids": tokens[:end], "meta_info": facts}

    @RECORDED.held(f"{ENGINE}.get_model_info")
    def get_model_info(self) -> dict[str, Any]:
        """Tell the label."""
        return {"weight_version": self.tokenizer_manager.label}

    @RECORDED.held(f"{ENGINE}.shutdown")
    def shutdown(self) -> None:
        """End."""
        self.closed = True


def modules() -> dict[str, types.ModuleType]:
    """The modules that the backend imports from."""
    names: dict[str, dict[str, Any]] = {
        "sglang.srt.entrypoints.engine": {"Engine": StandIn},
        "sglang.srt.managers.io_struct": MESSAGES,
    }
    found: dict[str, types.ModuleType] = {}
    for name, members in names.items():
        parts = name.split(".")
        for depth in range(1, len(parts) + 1):
            found.setdefault(".".join(parts[:depth]), types.ModuleType(".".join(parts[:depth])))
        found[name].__dict__.update(members)
    return found


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], None]:
    """A function that lets a version of the stand-in be what is installed."""

    def do(version: str) -> None:
        info = tmp_path / "site" / f"sglang-{version}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: sglang\nVersion: {version}\n")
        monkeypatch.syspath_prepend(str(info.parent))
        for name, module in modules().items():
            monkeypatch.setitem(sys.modules, name, module)
        StandIn.made.clear()

    return do


@pytest.fixture
def model_folder(tmp_path: Path) -> Path:
    """A folder with the tensors of the scripted model."""
    folder = tmp_path / "model"
    folder.mkdir()
    save_file(scripted_weights(0.0), folder / "model.safetensors")
    return folder


@pytest.fixture
def start(model_folder: Path, tmp_path: Path) -> Iterator[Callable[..., SGLangRolloutBackend]]:
    """A function that starts a backend; all are closed in the end."""
    backends: list[SGLangRolloutBackend] = []

    def build(*, place: RolloutPlace | None = None, **options: Any) -> SGLangRolloutBackend:
        given = {**QUICK, "weights_dir": str(tmp_path / "w"), **options}
        backend = SGLangRolloutBackend({"path": str(model_folder), "precision": "bf16"}, {"options": given})
        backend.place = place or RolloutPlace()
        backends.append(backend)
        backend.initialize()
        return backend

    yield build
    for backend in backends:
        backend.close()
