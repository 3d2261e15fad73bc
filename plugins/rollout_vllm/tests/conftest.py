"""A stand-in for vLLM, held to the recorded signatures of the version, and backends that run it."""

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
from plugrl_rollout_vllm.backend import VLLMRolloutBackend

VERSION = "0.33.0"
RECORDED = Recorded.read(Path(__file__).with_name(f"vllm-{VERSION}.json"))
QUICK = {"retry_delay_s": 0.01, "idle_timeout_s": 0.5, "sample_timeout_s": 60.0, "control_timeout_s": 60.0}
ASYNC_LLM = "vllm.v1.engine.async_llm:AsyncLLM"


def held(name: str) -> Any:
    """Hold a method to its recorded signature."""
    return RECORDED.held(f"{ASYNC_LLM}.{name}")


Span, Logprob, Output, Arguments, Sampling, Lora = (
    RECORDED.struct(target)
    for target in (
        "vllm.outputs:WeightVersionSpan", "vllm.logprobs:Logprob", "vllm.outputs:CompletionOutput",
        "vllm.engine.arg_utils:AsyncEngineArgs", "vllm.sampling_params:SamplingParams", "vllm.lora.request:LoRARequest",
    )
)  # fmt: skip


class StandIn:
    """Does what ``AsyncLLM`` does, with a scripted model. ``faults`` are used up by requests."""

    made: list[StandIn] = []

    def __init__(self, arguments: Any) -> None:
        self.arguments, self.model = arguments, ScriptedModel()
        self.mask = os.environ.get("MASK")
        self.label, self.paused, self.level, self.closed = "default", False, 0, False
        self.log: list[str] = []
        self.prefixes_are_old = False
        self.adapters: dict[int, Any] = {}
        self.asked: list[Any] = []
        self.given_up: list[str] = []
        self.faults: list[str] = []
        self.reset_works = True
        StandIn.made.append(self)

    @classmethod
    @held("from_engine_args")
    def from_engine_args(cls, engine_args: Any) -> StandIn:
        """Build it."""
        return cls(engine_args)

    @held("check_health")
    async def check_health(self) -> None:
        """It is well."""

    @held("generate")
    async def generate(self, prompt: Any, sampling_params: Any, request_id: str, lora_request: Any = None) -> Any:
        """Yield partial outputs of three tokens."""
        if self.paused or self.level:
            raise RuntimeError("paused")
        assert not self.prefixes_are_old, "prefixes of old weights are still cached"
        assert sampling_params.output_kind == "delta" and sampling_params.detokenize is False
        assert lora_request is None or self.adapters[lora_request.lora_int_id] is lora_request
        self.asked.append((prompt, sampling_params, lora_request))
        fault = self.faults.pop(0) if self.faults else None
        params = {"count": sampling_params.max_tokens, "stop": sampling_params.stop_token_ids}
        tokens, logprobs, why = self.model.sample(tuple(prompt["prompt_token_ids"]), params, sampling_params.seed)
        try:
            for start in range(0, len(tokens), 3):
                await asyncio.sleep(5 if fault == "hangs" and start else 0)
                if fault == "dies" and start:
                    raise RuntimeError("EngineDeadError")
                end = start + 3
                last = end >= len(tokens)
                values = {
                    "index": 0, "text": "", "token_ids": tokens[start:end], "finish_reason": why if last else None,
                    "logprobs": [
                        {token: Logprob(logprob=value), (token + 1) % 97: Logprob(logprob=-9.0)}
                        for token, value in zip(tokens[start:end], logprobs[start:end], strict=True)
                    ],
                    "weight_versions": [Span(version=self.label, start=0, end=len(tokens))] if last else None,
                }  # fmt: skip
                yield types.SimpleNamespace(outputs=[Output(**values)])
        except (asyncio.CancelledError, GeneratorExit):
            self.given_up.append(request_id)
            raise

    @held("pause_generation")
    async def pause_generation(self, *, mode: str, clear_cache: bool) -> None:
        """Stop."""
        self.log.append(f"pause {mode}")
        self.paused = True

    @held("resume_generation")
    async def resume_generation(self) -> None:
        """Go on."""
        self.log.append("resume")
        self.paused = False

    @held("collective_rpc")
    async def collective_rpc(self, method: str, kwargs: dict[str, Any]) -> None:
        """Call the workers, whose method is recorded too."""
        RECORDED.held("vllm.v1.worker.gpu_model_runner:GPUModelRunner.reload_weights")(lambda *a, **k: None)(
            None, **kwargs
        )
        assert method == "reload_weights" and self.level == 0, "weights are loaded into memory that was given back"
        self.log.append("load")
        self.model.load(kwargs["weights_path"])
        self.prefixes_are_old = True

    @held("reset_prefix_cache")
    async def reset_prefix_cache(self, reset_running_requests: bool) -> bool:
        """Forget."""
        self.log.append("forget")
        self.prefixes_are_old = not self.reset_works
        return self.reset_works

    @held("update_weight_version")
    async def update_weight_version(self, new_version: str) -> None:
        """Take a label."""
        self.log.append("label" if not new_version.endswith("loading") else "label loading")
        self.label = new_version

    @held("get_weight_version")
    async def get_weight_version(self) -> str:
        """Tell it."""
        return self.label

    @held("sleep")
    async def sleep(self, level: int, mode: str) -> None:
        """Lose the weights at level 2."""
        self.level, self.model.weight = level, float("nan")

    @held("wake_up")
    async def wake_up(self) -> bool:
        """Take memory again."""
        self.level = 0
        return True

    @held("add_lora")
    async def add_lora(self, lora_request: Any) -> bool:
        """Take an adapter."""
        assert Path(lora_request.lora_path, "adapter_model.safetensors").is_file() and lora_request.lora_int_id >= 1
        self.adapters[lora_request.lora_int_id] = lora_request
        return True

    @held("remove_lora")
    async def remove_lora(self, lora_id: int) -> bool:
        """Drop one."""
        del self.adapters[lora_id]
        return True

    @held("shutdown")
    def shutdown(self) -> None:
        """End."""
        self.closed = True


def modules() -> dict[str, types.ModuleType]:
    """The modules that the backend imports from."""
    names = {
        "vllm.engine.arg_utils": {"AsyncEngineArgs": Arguments},
        "vllm.v1.engine.async_llm": {"AsyncLLM": StandIn},
        "vllm.inputs": {"TokensPrompt": lambda prompt_token_ids: {"prompt_token_ids": prompt_token_ids}},
        "vllm.sampling_params": {
            "SamplingParams": Sampling, "RequestOutputKind": types.SimpleNamespace(DELTA="delta"),
        },
        "vllm.lora.request": {"LoRARequest": Lora},
    }  # fmt: skip
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
        info = tmp_path / "site" / f"vllm-{version}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n")
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
def start(model_folder: Path, tmp_path: Path) -> Iterator[Callable[..., VLLMRolloutBackend]]:
    """A function that starts a backend; all are closed in the end."""
    backends: list[VLLMRolloutBackend] = []

    def build(
        *, place: RolloutPlace | None = None, rollout: dict[str, Any] | None = None, **options: Any
    ) -> VLLMRolloutBackend:
        given = {**QUICK, "weights_dir": str(tmp_path / "w"), **options}
        model = {"path": str(model_folder), "precision": "bf16"}
        backend = VLLMRolloutBackend(model, {**(rollout or {}), "options": given})
        backend.place = place or RolloutPlace()
        backends.append(backend)
        backend.initialize()
        return backend

    yield build
    for backend in backends:
        backend.close()
