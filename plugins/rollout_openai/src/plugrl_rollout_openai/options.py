"""`rollout.options:` of the backend `openai`, and the keys that engines in this process share. Light: pydantic only."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from plugrl.config.schema.base import Names, Section


class EngineOptions(Section):
    """How samples are asked for and weights handed over, whatever the engine."""

    concurrency: int = Field(256, ge=1)
    """Samples that one engine works on at once."""

    sample_timeout_s: float = Field(600.0, gt=0)
    """Seconds that one sample may take, all tries together, from when an engine is free for it."""

    idle_timeout_s: float = Field(120.0, gt=0)
    """Seconds without a token after which a try is given up."""

    stream_interval: int = Field(16, ge=1)
    """Tokens between two signs of life of an engine in this process; servers decide that themselves."""

    control_timeout_s: float = Field(300.0, gt=0)
    """Seconds that one other call may take: new weights, sleeping, waking."""

    retry_delay_s: float = Field(0.5, gt=0)
    """Seconds before the second try; each further one waits twice as long, 10 s at most."""

    continue_broken: bool = False
    """Go on behind the tokens of a try that broke instead of sampling anew: cheaper, but the sample is then another
    one than its seed gives undisturbed."""

    weights_dir: str | None = None
    """Folder through which weights are handed over; null is memory that the processes of this node share."""

    native_lora: bool = False
    """Let the engine apply a LoRA adapter itself, so that the adapter alone is handed over; false merges it before."""


class ServerOptions(EngineOptions):
    """Servers, and what they are."""

    urls: Names = ()
    """Addresses such as `http://10.0.0.7:8000`. They are shared out among the rollout's engines: each one has its own
    and gives its weights to no other's."""

    dialect: Literal["auto", "vllm", "sglang", "plain"] = "auto"
    """What the servers speak beyond the common protocol; `plain` takes no weights. `auto` asks them."""

    model: str | None = None
    """Name under which the server knows the model; null takes the first that it lists."""

    api_key_env: str | None = Field(None, pattern=r"^[A-Za-z_]\w*$")
    """Environment variable of the workers that holds the key. The key itself never stands in a configuration."""

    start_timeout_s: float = Field(600.0, gt=0)
    """Seconds to wait until the servers are healthy."""

    logprobs_mode: Literal["raw", "processed"] | None = None
    """How a `vllm` server was started (`--logprobs-mode`); null expects what `rollout.temperature` needs."""

    @model_validator(mode="after")
    def _addresses(self) -> Self:
        for url in self.urls:
            if not url.startswith(("http://", "https://")):
                raise ValueError(f"urls: {url!r} must start with http:// or https://")
            if "@" in url.split("/")[2]:
                raise ValueError("urls: an address holds no password; name a variable with api_key_env")
        if len(set(self.urls)) < len(self.urls):
            raise ValueError("urls: an address stands there twice")
        return self
