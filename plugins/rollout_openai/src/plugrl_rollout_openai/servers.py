"""What servers speak: the common completions protocol, and the calls by which vLLM and SGLang take weights.

Names of paths and fields are those of the engines' own sources; :mod:`plugrl_rollout_openai.surface` holds them
against a published wheel.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from pathlib import Path
from typing import Any

from plugrl.errors import UnsupportedCapability
from plugrl_rollout_openai.client import Client
from plugrl_rollout_openai.engine import (
    EngineFault,
    EngineRefusal,
    Finish,
    GenerationEngine,
    LogprobsMode,
    Piece,
    SampleRequest,
)


class ServerEngine(GenerationEngine):
    """A server behind an address."""

    def __init__(self, client: Client, model: str | None = None) -> None:
        self.client = client
        self.title = client.url
        self._model = model

    async def start(self) -> None:
        """Ask for its health, its version and the name of its model. Raises EngineFault while it starts."""
        await self.client.call("GET", "/health")
        self.version = await self._version()
        if self._model is None:
            listed = await self.client.call("GET", "/v1/models")
            models = listed.get("data") if isinstance(listed, dict) else None
            if not models:
                raise EngineFault("it lists no model at /v1/models")
            self._model = str(models[0]["id"])

    async def _version(self) -> str:
        return ""

    async def close(self) -> None:
        """Close the connections; the server goes on."""
        await self.client.close()

    def _completion(self, request: SampleRequest) -> dict[str, Any]:
        """The body that all servers understand; ``top_k`` and what follows are extensions that most have."""
        params = request.params
        return {
            "model": request.adapter or self._model,
            "prompt": list(request.prompt),
            "max_tokens": params.max_new_tokens,
            "temperature": params.temperature,
            "top_p": params.top_p,
            "seed": request.seed,
            "logprobs": 0,
            "stream": True,
            "return_token_ids": True,
            "top_k": params.top_k,
            "min_tokens": params.min_new_tokens,
            "stop_token_ids": list(params.stop_token_ids),
            "ignore_eos": params.ignore_eos,
        }

    async def _choices(self, body: Mapping[str, Any]) -> AsyncGenerator[dict[str, Any], None]:
        async for event in self.client.events("/v1/completions", body):
            for choice in event.get("choices") or ():
                yield choice


class PlainServer(ServerEngine):
    """A server of unknown kind: it samples with the weights it has, for ever."""

    async def stream(self, request: SampleRequest) -> AsyncGenerator[Piece, None]:
        """Sample by ``/v1/completions``. The server must tell the ids of tokens (``return_token_ids``)."""
        async for choice in self._choices(self._completion(request)):
            yield piece_of(choice)

    async def label(self) -> str | None:
        """It has none."""
        return None

    async def mark(self, label: str) -> None:
        """It keeps no labels."""

    async def load(self, folder: Path, label: str) -> None:
        """Raise UnsupportedCapability."""
        raise UnsupportedCapability(
            f"{self.title} takes no weights: rollout.options.dialect=plain is for models that stay as they are. Use a "
            "vLLM or SGLang server to train."
        )

    async def load_adapter(self, folder: Path, name: str, label: str, old: str | None) -> None:
        """Raise UnsupportedCapability."""
        await self.load(folder, label)

    async def sleep(self) -> None:
        """It keeps its memory."""

    async def wake(self) -> None:
        """It never slept."""


class VLLMServer(ServerEngine):
    """A vLLM server, started with ``VLLM_SERVER_DEV_MODE=1`` for the calls that write weights."""

    def __init__(self, client: Client, model: str | None = None, logprobs_mode: LogprobsMode = "raw") -> None:
        super().__init__(client, model)
        self.logprobs_mode = logprobs_mode

    async def _version(self) -> str:
        answer = await self.client.call("GET", "/version")
        return f"vllm {answer['version']}"

    def _completion(self, request: SampleRequest) -> dict[str, Any]:
        body = super()._completion(request)
        body["top_k"] = max(request.params.top_k, 0)
        return body | {"return_weight_versions": True, "request_id": request.id}

    async def stream(self, request: SampleRequest) -> AsyncGenerator[Piece, None]:
        """Sample; the last piece says by which weights."""
        async for choice in self._choices(self._completion(request)):
            spans = choice.get("weight_versions")
            labels = None if spans is None else frozenset(str(span["version"]) for span in spans)
            yield piece_of(choice, labels)

    async def label(self) -> str | None:
        """Ask for the label in force."""
        answer = await self.client.call("GET", "/weight_info")
        return str(answer["weight_version"])

    async def mark(self, label: str) -> None:
        """Set the label."""
        await self.client.call("POST", "/update_weight_version", {"new_version": label})

    async def load(self, folder: Path, label: str) -> None:
        """Stop, read the folder in place, forget cached prefixes, go on.

        While it reads, the label says so: what another client samples then bears no version of a run.
        """
        call = self.client.call
        await call("POST", "/pause", mode="abort", clear_cache="true")
        await self.mark(f"{label}.loading")
        await call("POST", "/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": str(folder)}})
        await self._forget_prefixes()
        await self.mark(label)
        await call("POST", "/resume")

    async def _forget_prefixes(self) -> None:
        answer = await self.client.call("POST", "/reset_prefix_cache", reset_running_requests="true")
        if isinstance(answer, dict) and answer.get("success") is False:
            raise EngineFault("it did not forget cached prefixes: blocks of them are in use")

    async def load_adapter(self, folder: Path, name: str, label: str, old: str | None) -> None:
        """Load it by name, which needs ``VLLM_ALLOW_RUNTIME_LORA_UPDATING=True`` at the server."""
        await self._once("/v1/load_lora_adapter", {"lora_name": name, "lora_path": str(folder)}, "already")
        await self._forget_prefixes()
        await self.mark(label)
        if old is not None and old != name:
            await self._once("/v1/unload_lora_adapter", {"lora_name": old}, "not found", "cannot be found")

    async def _once(self, path: str, body: Mapping[str, Any], *done: str) -> None:
        """Call what a server refuses when it was done before: the answer to the first try may have been lost."""
        try:
            await self.client.call("POST", path, body)
        except EngineRefusal as error:
            if not any(word in str(error) for word in done):
                raise

    async def sleep(self) -> None:
        """Drop weights and cache from its devices."""
        await self.client.call("POST", "/sleep", level=2, mode="abort")

    async def wake(self) -> None:
        """Take the memory again."""
        await self.client.call("POST", "/wake_up")


class SGLangServer(ServerEngine):
    """An SGLang server. It samples by its own ``/generate``: its completions name no weights while they stream."""

    async def _version(self) -> str:
        answer = await self.client.call("GET", "/server_info")
        return f"sglang {answer['version']}"

    async def stream(self, request: SampleRequest) -> AsyncGenerator[Piece, None]:
        """Sample; every piece says by which weights."""
        body: dict[str, Any] = {
            "rid": request.id, "input_ids": list(request.prompt), "sampling_params": sglang_params(request),
            "return_logprob": True, "stream": True,
        }  # fmt: skip
        if request.adapter is not None:
            body["lora_path"] = request.adapter
        reader = SGLangReader()
        async for event in self.client.events("/generate", body):
            yield reader.piece(event)

    async def label(self) -> str | None:
        """Ask for the label in force."""
        answer = await self.client.call("GET", "/model_info")
        return str(answer["weight_version"])

    async def mark(self, label: str) -> None:
        """Set the label."""
        await self.client.call(
            "POST", "/update_weight_version", {"new_version": label, "abort_all_requests": True}
        )

    async def load(self, folder: Path, label: str) -> None:
        """Stop, read the folder in place, forget cached prefixes, go on."""
        await self.client.call("POST", "/pause_generation", {"mode": "abort"})
        await self.mark(f"{label}.loading")
        answer = await self.client.call(
            "POST", "/update_weights_from_disk",
            {"model_path": str(folder), "weight_version": label, "flush_cache": True, "abort_all_requests": True},
        )  # fmt: skip
        check_success(answer)
        await self.client.call("POST", "/continue_generation", {})

    async def load_adapter(self, folder: Path, name: str, label: str, old: str | None) -> None:
        """Load it by name."""
        answer = await self.client.call("POST", "/load_lora_adapter", {"lora_name": name, "lora_path": str(folder)})
        check_success(answer)
        await self.client.call("POST", "/flush_cache")
        await self.mark(label)
        if old is not None and old != name:
            await self.client.call("POST", "/unload_lora_adapter", {"lora_name": old})

    async def sleep(self) -> None:
        """Drop weights and cache from its devices, which needs ``--enable-memory-saver`` at the server."""
        await self.client.call("POST", "/release_memory_occupation", {})

    async def wake(self) -> None:
        """Take the memory again."""
        await self.client.call("POST", "/resume_memory_occupation", {})


# -------------------------------------------------------------------------------------------------------------- reading
def piece_of(choice: Mapping[str, Any], labels: frozenset[str] | None = None) -> Piece:
    """Return what a choice of ``/v1/completions`` says. Raises EngineRefusal where it names no token ids."""
    tokens, told = choice.get("token_ids"), choice.get("logprobs") or {}
    values = told.get("token_logprobs") or []
    if tokens is None:
        if values or choice.get("text"):
            raise EngineRefusal("it does not tell the ids of tokens (return_token_ids), without which none can train")
        tokens = []
    if any(value is None for value in values):
        raise EngineFault("a token came without its log-probability")
    return Piece(
        tokens=tuple(map(int, tokens)), logprobs=tuple(map(float, values)),
        finish=_finish(choice.get("finish_reason")), labels=labels,
    )  # fmt: skip


def _finish(reason: Any) -> Finish | None:
    if reason is None or reason in ("stop", "length", "abort"):
        return reason
    raise EngineFault(f"a sample ended by {reason!r}")


def sglang_params(request: SampleRequest) -> dict[str, Any]:
    """Return ``sampling_params`` of SGLang, for its server and for its engine."""
    params = request.params
    if params.ignore_eos and params.stop_token_ids:
        raise EngineRefusal("SGLang looks at no stop token where it is told to go on after end tokens (ignore_eos)")
    return {
        "max_new_tokens": params.max_new_tokens, "temperature": params.temperature, "top_p": params.top_p,
        "top_k": params.top_k, "min_new_tokens": params.min_new_tokens, "ignore_eos": params.ignore_eos,
        "stop_token_ids": list(params.stop_token_ids) or None, "sampling_seed": request.seed,
    }  # fmt: skip


class SGLangReader:
    """Turns one sample's answers into pieces: they repeat what came before, or do not, as the engine is set."""

    def __init__(self) -> None:
        self._have = 0

    def piece(self, event: Mapping[str, Any]) -> Piece:
        """Return what is new in an answer."""
        facts = event.get("meta_info")
        if not isinstance(facts, dict):
            raise EngineFault("an answer has no meta_info")
        pairs = facts.get("output_token_logprobs") or []
        told = facts.get("output_token_logprobs_length")
        total = len(pairs) if told is None else int(told)
        new = pairs[self._have :] if len(pairs) == total else pairs
        if self._have + len(new) != total:
            raise EngineFault(f"tokens are missing: {self._have} were there, {len(new)} came, {total} were sampled")
        self._have = total
        reason = facts.get("finish_reason")
        spans = facts.get("weight_versions")
        labels = {str(span["version"]) for span in spans} if spans else {str(facts.get("weight_version"))}
        if any(value[0] is None for value in new):
            raise EngineFault("a token came without its log-probability")
        return Piece(
            tokens=tuple(int(value[1]) for value in new), logprobs=tuple(float(value[0]) for value in new),
            finish=_finish(reason["type"] if isinstance(reason, dict) else reason), labels=frozenset(labels),
        )  # fmt: skip


def check_success(answer: Any) -> None:
    """Raise EngineFault when an answer says that it did not work."""
    if isinstance(answer, dict) and answer.get("success") is False:
        raise EngineFault(f"it did not work: {answer.get('message') or answer.get('error_message')}")
