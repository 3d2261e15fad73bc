"""A small real server on the loopback that speaks as vLLM and SGLang do, with a scripted model or a real one, and errs.

Its fields and paths are those of the published engines: test_surface holds them against the recorded table.
"""

from __future__ import annotations

import asyncio
import copy
import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from plugrl_rollout_openai.testing import ScriptedModel

KEY = "sk-secret-of-the-test"


@dataclass
class State:
    """What a restart loses."""

    label: str = "default"
    paused: bool = False
    asleep: bool = False
    adapters: dict[str, str] = field(default_factory=dict)


class FakeServer:
    """Runs in a thread. ``faults`` are used up one by one by the requests for samples; None is an ordinary answer."""

    def __init__(self, dialect: str = "vllm", model: Any = None, piece: int = 3, key: str | None = None) -> None:
        self.dialect, self.model, self.piece, self.key = dialect, model or ScriptedModel(), piece, key
        self.state = State()
        self.faults: list[Any] = []
        self.control_faults: list[Any] = []
        self.calls: list[str] = []
        self.bodies: list[dict[str, Any]] = []
        self.served = self.port = 0
        self.on_sample: Callable[[FakeServer, int], None] | None = None
        self.cumulative = True
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._runner: web.AppRunner | None = None
        self._changing = asyncio.Lock()
        self._restarts: set[asyncio.Task[None]] = set()
        self.start()

    # ------------------------------------------------------------------------------------------------------------ life
    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Listen, on the port it had before."""
        asyncio.run_coroutine_threadsafe(self._start(), self._loop).result(20)

    def stop(self) -> None:
        """Drop all connections and refuse new ones."""
        asyncio.run_coroutine_threadsafe(self._stop_now(), self._loop).result(20)

    async def _stop_now(self) -> None:
        await asyncio.gather(*self._restarts)
        await self._stop()

    def restart(self) -> None:
        """Come back without weights and label."""
        asyncio.run_coroutine_threadsafe(self.restart_soon(), self._loop).result(20)

    async def restart_soon(self, pause_s: float = 0.0) -> None:
        """As :meth:`restart`, from within; one at a time."""
        async with self._changing:
            await self._stop()
            self.state = State()
            if isinstance(self.model, ScriptedModel):
                self.model = ScriptedModel()
            await asyncio.sleep(pause_s)
            await self._start()

    def close(self) -> None:
        """End the thread."""
        self.stop()
        asyncio.run_coroutine_threadsafe(_end_tasks(), self._loop).result(20)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    async def _start(self) -> None:
        app = web.Application(middlewares=[self._guard])
        get, post = app.router.add_get, app.router.add_post
        get("/health", self._ok)
        get("/v1/models", self._models)
        if self.dialect == "vllm":
            get("/version", self._version)
            get("/weight_info", self._weight_info)
            post("/v1/completions", self._completions)
            for path in ("/pause", "/resume", "/sleep", "/wake_up", "/reset_prefix_cache", "/update_weight_version",
                         "/collective_rpc", "/v1/load_lora_adapter", "/v1/unload_lora_adapter"):  # fmt: skip
                post(path, self._control)
        elif self.dialect == "sglang":
            get("/server_info", self._version)
            get("/model_info", self._weight_info)
            post("/generate", self._generate)
            for path in ("/pause_generation", "/continue_generation", "/update_weights_from_disk", "/flush_cache",
                         "/update_weight_version", "/release_memory_occupation", "/resume_memory_occupation",
                         "/load_lora_adapter", "/unload_lora_adapter"):  # fmt: skip
                post(path, self._control)
        else:
            post("/v1/completions", self._completions)
        self._runner = web.AppRunner(app, shutdown_timeout=0.05)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self.port, reuse_address=True)
        await site.start()
        self.port = self._runner.addresses[0][1]

    async def _stop(self) -> None:
        if self._runner is not None:
            runner, self._runner = self._runner, None
            for connection in list(runner.server.connections) if runner.server else []:
                if connection.transport is not None:
                    connection.transport.abort()
            await runner.cleanup()

    # ------------------------------------------------------------------------------------------------------ the calls
    @web.middleware
    async def _guard(self, request: web.Request, handler: Any) -> web.StreamResponse:
        self.calls.append(request.path)
        if self.key is not None and request.headers.get("Authorization") != f"Bearer {self.key}":
            return web.json_response({"error": f"bad key {request.headers.get('Authorization')}"}, status=401)
        return await handler(request)

    async def _ok(self, request: web.Request) -> web.Response:
        return web.Response()

    async def _models(self, request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "tiny"}]})

    async def _version(self, request: web.Request) -> web.Response:
        return web.json_response({"version": {"vllm": "0.33.0", "sglang": "0.5.23"}[self.dialect]})

    async def _weight_info(self, request: web.Request) -> web.Response:
        return web.json_response({"weight_version": self.state.label})

    async def _control(self, request: web.Request) -> web.Response:
        text = await request.text()
        body = json.loads(text) if text else {}
        fault = self.control_faults.pop(0) if self.control_faults else None
        if fault == "error":
            return web.json_response({"error": "no memory"}, status=500)
        if fault == "lost_answer":
            await self._act(request.path, body)
            assert request.transport is not None
            request.transport.abort()
        if fault != "ignored":
            await self._act(request.path, body)
        return web.json_response({"success": fault != "unsuccessful", "message": "told so"})

    async def _act(self, path: str, body: dict[str, Any]) -> None:
        state = self.state
        if path in ("/pause", "/pause_generation"):
            state.paused = True
        elif path in ("/resume", "/continue_generation"):
            state.paused = False
        elif path in ("/sleep", "/release_memory_occupation"):
            state.asleep = True
            if isinstance(self.model, ScriptedModel):
                self.model.weight = float("nan")
        elif path in ("/wake_up", "/resume_memory_occupation"):
            state.asleep = False
        elif path == "/update_weight_version":
            state.label = body["new_version"]
        elif path == "/collective_rpc":
            assert body["method"] == "reload_weights"
            await asyncio.to_thread(self.model.load, body["kwargs"]["weights_path"])
        elif path == "/update_weights_from_disk":
            await asyncio.to_thread(self.model.load, body["model_path"])
            state.label = body["weight_version"]
        elif path.endswith("/load_lora_adapter") and "unload" not in path:
            state.adapters[body["lora_name"]] = body["lora_path"]
        elif path.endswith("unload_lora_adapter"):
            del state.adapters[body["lora_name"]]

    # -------------------------------------------------------------------------------------------------------- sampling
    async def _completions(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        params = {"count": body["max_tokens"], "stop": body["stop_token_ids"], **body}

        def event(tokens: list[int], logprobs: list[float], finish: str | None) -> dict[str, Any]:
            choice: dict[str, Any] = {
                "index": 0, "text": "x" * len(tokens), "token_ids": tokens, "finish_reason": finish,
                "logprobs": {"token_logprobs": logprobs},
            }  # fmt: skip
            if finish and body.get("return_weight_versions") and self.dialect == "vllm":
                choice["weight_versions"] = self._spans
            return {"choices": [choice]}

        return await self._answer(request, body, tuple(body["prompt"]), params, body["seed"], event)

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        wanted = body["sampling_params"]
        params = {"count": wanted["max_new_tokens"], "stop": wanted["stop_token_ids"] or (), **wanted}
        seen: list[Any] = []

        def event(tokens: list[int], logprobs: list[float], finish: str | None) -> dict[str, Any]:
            new = [[value, token, None] for token, value in zip(tokens, logprobs, strict=True)]
            seen.extend(new)
            facts = {
                "finish_reason": {"type": finish} if finish else None, "weight_versions": self._spans,
                "output_token_logprobs": list(seen if self.cumulative else new),
                "output_token_logprobs_length": len(seen), "weight_version": self.state.label,
            }  # fmt: skip
            return {"output_ids": tokens, "meta_info": facts}

        return await self._answer(request, body, tuple(body["input_ids"]), params, wanted["sampling_seed"], event)

    async def _answer(
        self, request: web.Request, body: dict[str, Any], prompt: tuple[int, ...], params: dict[str, Any], seed: int,
        event: Callable[..., dict[str, Any]],
    ) -> web.StreamResponse:  # fmt: skip
        self.served += 1
        self.bodies.append(body)
        if self.on_sample is not None:
            self.on_sample(self, self.served)
        fault = self.faults.pop(0) if self.faults else None
        if self.state.paused or self.state.asleep or fault == "busy":
            return web.json_response({"error": "paused"}, status=503)
        if fault == "refuses":
            return web.json_response({"error": "prompt too long"}, status=400)
        label, model = self.state.label, copy.copy(self.model)  # what another request changes meanwhile is not its own
        tokens, logprobs, finish = await asyncio.to_thread(model.sample, prompt, params, seed)
        self._spans = [{"version": "other" if fault == "mixed" else label, "start": 0, "end": len(tokens)}]
        answer = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await answer.prepare(request)
        starts = list(range(0, len(tokens), self.piece))
        for start in starts:
            if fault == "slow":
                await asyncio.sleep(5)
            if fault == "restarts" and start:
                task = asyncio.ensure_future(self.restart_soon(0.05))
                self._restarts.add(task)
                await asyncio.sleep(5)
            end = start + self.piece
            last = (finish if fault != "gives_up" else "abort") if end >= len(tokens) else None
            text = json.dumps(event(tokens[start:end], logprobs[start:end], last))
            if fault == "half" and start:
                await answer.write(f"data: {text[: len(text) // 2]}".encode())
                assert request.transport is not None
                request.transport.abort()
                return answer
            if fault == "error" and start:
                text = json.dumps({"error": {"message": "out of memory", "code": 500}})
            if fault == "ends" and last:
                break
            await answer.write(f"data: {text}\n\n".encode())
        await answer.write(b"data: [DONE]\n\n")
        return answer


async def _end_tasks() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
