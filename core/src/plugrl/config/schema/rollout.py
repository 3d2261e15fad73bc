"""`rollout:` and `reward:`: how responses are sampled and judged."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from plugrl.config.schema.base import Section


class ValidationSampling(Section):
    """Sampling of held-out prompts."""

    temperature: float = Field(0.0, ge=0)
    """0 takes the most likely token."""

    top_k: int = Field(-1, ge=-1)
    """Sample among the k most likely tokens; -1 is all."""

    top_p: float = Field(1.0, gt=0, le=1)
    """Sample among the most likely tokens that hold this probability."""

    n: int = Field(1, ge=1)
    """Responses to each prompt."""

    do_sample: bool = False
    """Draw tokens; false takes the most likely one whatever the temperature."""


class RolloutConfig(Section):
    """Sampling of responses."""

    name: str = "hf"
    """Registered name of the rollout backend."""

    options: Any = {}
    """Options of that backend, checked by the schema it brings."""

    n: int = Field(1, ge=1)
    """Responses to each prompt: the size of a group."""

    temperature: float = Field(1.0, ge=0)
    """Divisor of the logits; 0 takes the most likely token."""

    top_k: int = Field(-1, ge=-1)
    """Sample among the k most likely tokens; -1 is all."""

    top_p: float = Field(1.0, gt=0, le=1)
    """Sample among the most likely tokens that hold this probability."""

    ignore_eos: bool = False
    """Go on after an end token: every training response gets `data.max_response_length` tokens. For measuring speed."""

    max_batch_size: int | None = Field(None, ge=1)
    """Responses that one worker generates at once; null is all."""

    val_kwargs: ValidationSampling = ValidationSampling()
    """Sampling of held-out prompts."""

    log_prob_micro_batch_size_per_gpu: int | None = Field(None, ge=1)
    """Responses in one forward pass when old log-probabilities are recomputed; follows the actor unless given."""

    log_prob_use_dynamic_bsz: bool = False
    """Fill those micro-batches by tokens; follows the actor unless given."""

    log_prob_max_token_len_per_gpu: int = Field(16384, ge=1)
    """Tokens in one of those micro-batches; follows the actor unless given."""

    pipeline_stage_num: int = Field(1, ge=1)
    """Environments: parts of a worker's scenes that take turns, so that one is stepped while the policy looks at
    another."""

    update_weights_bucket_megabytes: int = Field(256, ge=1)
    """Size of the buckets in which weights travel to the rollout."""


class OverlongBufferConfig(Section):
    """DAPO's soft punishment of long responses: a penalty that grows over the last tokens of `max_response_length`."""

    enable: bool = False
    """Take the penalty off the rewards of training; validation does without."""

    len: int = Field(4096, ge=1)
    """Tokens over which the penalty grows from 0 to the whole."""

    penalty_factor: float = Field(1.0, ge=0)
    """The whole penalty, of a response of `data.max_response_length` tokens."""


class RewardConfig(Section):
    """How a response is judged."""

    name: str | None = None
    """Registered name of a reward."""

    function: str | None = Field(None, pattern=r"^[\w.]+:[\w.]+$")
    """`module:function` of your own reward, instead of `name`."""

    reward_kwargs: dict[str, Any] = {}
    """Options handed to the reward."""

    timeout_s: float = Field(600.0, gt=0)
    """Seconds that judging the responses of one batch may take."""

    unparsed_warning_steps: int = Field(5, ge=0)
    """Warn when no response of so many first steps could be parsed; 0 never warns."""

    overlong_buffer: OverlongBufferConfig = OverlongBufferConfig()
    """A penalty for responses that come close to the length limit."""
