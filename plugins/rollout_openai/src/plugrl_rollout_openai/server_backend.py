"""The rollout backend ``openai``: samples come from servers."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from plugrl.errors import ConfigError
from plugrl_rollout_openai.backend import EngineBackend, training_sampling
from plugrl_rollout_openai.client import Client
from plugrl_rollout_openai.engine import EngineRefusal, GenerationEngine, LogprobsMode, is_exact
from plugrl_rollout_openai.options import ServerOptions
from plugrl_rollout_openai.servers import PlainServer, ServerEngine, SGLangServer, VLLMServer
from plugrl_rollout_openai.weights_folder import WeightsFolder


class ServerRolloutBackend(EngineBackend):
    """Each rank of the rollout drives servers of its own, one or several, and brings its weights to all of them."""

    options_class = ServerOptions
    options: ServerOptions

    @property
    def start_timeout_s(self) -> float:
        """As configured."""
        return self.options.start_timeout_s

    def make_engines(self, folder: WeightsFolder) -> list[GenerationEngine]:
        """Return the servers of this rank, after asking each what it speaks. Raises ConfigError where it has none."""
        urls = self.options.urls[self.place.engine :: self.place.engines]
        if not urls:
            raise ConfigError(
                f"rollout.options.urls: {len(self.options.urls)} servers for {self.place.engines} ranks of the "
                "rollout: each needs one. Name more, or place fewer ranks (cluster.component_placement.rollout)."
            )
        return self._control(self._connect_all(urls), "Asking the servers", True)

    async def _connect_all(self, urls: Sequence[str]) -> list[GenerationEngine]:
        return list(await asyncio.gather(*(self._connect(url) for url in urls)))

    async def _connect(self, url: str) -> GenerationEngine:
        client = Client(url, api_key_env=self.options.api_key_env)
        try:
            dialect: str = self.options.dialect
            if dialect == "auto":
                dialect = await self._ask_dialect(client)
            return self._server(dialect, client)
        except BaseException:
            await client.close()
            raise

    def _server(self, dialect: str, client: Client) -> ServerEngine:
        model = self.options.model
        if dialect == "vllm":
            return VLLMServer(client, model, self._mode())
        return SGLangServer(client, model) if dialect == "sglang" else PlainServer(client, model)

    def _mode(self) -> LogprobsMode:
        """What the server has to report, so that training gets the log-probabilities it needs."""
        needed, given = needed_mode(self.rollout_config), self.options.logprobs_mode
        if given is not None and not is_exact(given, training_sampling(self.rollout_config)):
            raise ConfigError(
                f"rollout.options.logprobs_mode: {given} log-probabilities are not those that training needs at this "
                f"temperature and truncation; start the server with --logprobs-mode {needed}_logprobs."
            )
        return given or needed

    async def _ask_dialect(self, client: Client) -> str:
        """Find out what a server is, once it is healthy."""
        found: list[str] = []

        async def ask() -> None:
            await client.call("GET", "/health")
            for dialect, path, key in (("vllm", "/version", "version"), ("sglang", "/server_info", "version")):
                try:
                    answer = await client.call("GET", path)
                except EngineRefusal:
                    continue
                if isinstance(answer, dict) and key in answer:
                    found.append(dialect)
                    return
            found.append("plain")

        await self._retried(ask, self.start_timeout_s)
        return found[-1]


def needed_mode(rollout_config: Any) -> LogprobsMode:
    """Return how an engine that knows raw and processed log-probabilities must report them. Raises ConfigError.

    Neither is the temperature-scaled, untruncated one where there is a temperature and truncation as well.
    """
    params = training_sampling(rollout_config)
    modes: tuple[LogprobsMode, ...] = ("raw", "processed")
    for mode in modes:
        if is_exact(mode, params):
            return mode
    raise ConfigError(
        f"rollout.temperature: {params.temperature:g} together with rollout.top_k={params.top_k} or "
        f"rollout.top_p={params.top_p:g} leaves the engine no way to tell log-probabilities of the untruncated "
        "distribution. Use temperature 1, or top_k -1 and top_p 1."
    )

