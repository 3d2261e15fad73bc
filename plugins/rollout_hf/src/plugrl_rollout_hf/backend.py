"""The rollout backend ``hf``: a copy of the policy in this process that samples in batches."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch

from plugrl.errors import ConfigError, PlugRLError, UnsupportedCapability, WeightSyncError
from plugrl.models import get_model
from plugrl.models.base import BasePolicy
from plugrl.models.moving import move_module
from plugrl.platforms import get_platform
from plugrl.rollouts.base import Completion, RolloutBackend, SamplingParams
from plugrl_rollout_hf.decoder import Decoder, HFDecoder
from plugrl_rollout_hf.fused import FusedDecoder
from plugrl_rollout_hf.generation import Drawn, Row, batches, generate_batch
from plugrl_rollout_hf.options import HFRolloutOptions
from plugrl_rollout_hf.parity import largest_difference, tolerance
from plugrl_rollout_hf.weights import Weights, lay_out, supports

logger = logging.getLogger(__name__)


class HFRolloutBackend(RolloutBackend):
    """Generates with a policy whose attribute ``model`` is a Hugging Face causal language model.

    Until ``initialize`` and between ``sleep`` and ``wake`` it refuses to generate; after a load of weights that failed
    half-way too, until one succeeds.
    """

    def __init__(self, model_config: Any, rollout_config: Any) -> None:
        super().__init__(model_config, rollout_config)
        self._options = _options(_field(rollout_config, "options", {}))
        self._max_batch_size: int | None = _field(rollout_config, "max_batch_size", None)
        self._policy: Any = None
        self._device = torch.device("cpu")
        self._fused = False
        self._weights: Weights | None = None
        self._version = 0
        self._asleep = False
        self._refusal = "it was not initialised"

    # ----------------------------------------------------------------- life
    def initialize(self) -> None:
        """Build the policy on the platform's device and pick the decoder."""
        policy = get_model(self.model_config)
        if "generate" not in policy.capabilities():
            raise UnsupportedCapability(f"{type(policy).__name__} cannot generate, so rollout.name=hf cannot use it.")
        self._device = _device()
        move_module(policy, self._device)
        self._policy = policy.eval().requires_grad_(False)
        self._refusal = ""
        self._fused = self._pick_decoder()

    def sleep(self) -> None:
        """Move the weights to the host and drop what was derived from them."""
        self._weights = None
        if self._policy is not None:
            move_module(self._policy, torch.device("cpu"))
            get_platform().empty_cache()
        self._asleep = True

    def wake(self) -> None:
        """Bring the weights back to the device."""
        if self._policy is None:
            return
        move_module(self._policy, self._device)
        self._asleep = False

    def close(self) -> None:
        """Drop the model; generating is refused from now on."""
        self._policy = self._weights = None
        self._refusal = "it was closed"

    # ----------------------------------------------------------------- weights
    @property
    def weight_version(self) -> int:
        """Version of the weights in use."""
        return self._version

    def load_weights(self, tensors: Iterable[tuple[str, torch.Tensor]], version: int) -> None:
        """Replace all weights from a stream under published names.

        Raises WeightSyncError when a name is unknown or lacking, a shape differs or the stream breaks; from then on
        :meth:`generate` refuses, since some weights may be new and some old.
        """
        if self._policy is None or self._asleep:
            raise WeightSyncError(f"Cannot load weights: {self._refusal or 'it sleeps'}.")
        self._weights = None
        self._refusal = f"loading the weights of version {version} failed half-way"
        try:
            self._policy.load_published(tensors, strict=True)
        except PlugRLError as error:
            raise WeightSyncError(f"Weights of version {version} did not load: {error}") from error
        self._version = version
        self._refusal = ""

    def adopt_weights(self, tensors: Mapping[str, torch.Tensor], version: int) -> None:
        """Let the policy's parameters be these tensors where they lie on its device in its type, else copy them.

        The policy is never trained, so nobody writes to them. Raises WeightSyncError before anything is changed.
        """
        if self._policy is None or self._asleep:
            raise WeightSyncError(f"Cannot load weights: {self._refusal or 'it sleeps'}.")
        try:
            self._policy.adopt_published(tensors)
        except PlugRLError as error:
            raise WeightSyncError(f"Weights of version {version} did not load: {error}") from error
        self._weights = None
        self._version = version
        self._refusal = ""

    @property
    def merges_adapters(self) -> bool:
        """Whether the policy knows how."""
        return type(self._policy).merge_published is not BasePolicy.merge_published

    def merge_adapter(
        self, tensors: Mapping[str, torch.Tensor], adapter: Mapping[str, Any]
    ) -> Mapping[str, torch.Tensor]:
        """Add a LoRA adapter to the weights of its layers, on the device of the policy."""
        with torch.no_grad():
            return dict(self._policy.merge_published(tensors, adapter, self._device))

    def named_weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the weights in use under published names."""
        if self._policy is None:
            raise WeightSyncError(f"There are no weights to show: {self._refusal}.")
        for name, tensor in self._policy.state_dict().items():
            published = self._policy.published_name(name)
            if published is not None:
                yield published, tensor

    # ----------------------------------------------------------------- generation
    def generate(
        self, prompts: Sequence[Sequence[int]], params: SamplingParams, seeds: Sequence[int]
    ) -> list[Completion]:
        """Sample ``params.n`` completions of each prompt, ordered by prompt, then sample.

        Sample j of prompt i draws its random numbers from (seeds[i], j) alone. In other batches logits may differ in
        the last bit, which changes a token only where a draw falls on the boundary between two.
        Raises WeightSyncError while the weights are not whole and ValueError for empty or strange prompts.
        """
        if self._refusal or self._asleep:
            raise WeightSyncError(f"The rollout cannot generate: {self._refusal or 'it sleeps'}.")
        _check(prompts, seeds, self._policy.model.config.vocab_size)
        rows = [
            Row(tokens=tuple(map(int, prompt)), prompt_index=index, sample_index=sample, seed=int(seed))
            for index, (prompt, seed) in enumerate(zip(prompts, seeds, strict=True))
            for sample in range(params.n)
        ]
        completions: list[Completion] = []
        for batch in batches(rows, self._max_batch_size):
            completions.extend(self._completions(batch, params))
        return sorted(completions, key=lambda item: (item.prompt_index, item.sample_index))

    @torch.inference_mode()
    def _completions(self, rows: Sequence[Row], params: SamplingParams) -> list[Completion]:
        drawn = generate_batch(
            self._decoder(),
            rows,
            params,
            stop_ids=self._stop_ids(params),
            device=self._device,
            compact_at=self._options.compact_at,
        )
        return _unpack(rows, drawn, self._version)

    def _stop_ids(self, params: SamplingParams) -> tuple[int, ...]:
        own = () if params.ignore_eos else self._policy.processor.eos_token_ids
        return tuple({*own, *params.stop_token_ids})

    def _decoder(self) -> Decoder:
        model = self._policy.model
        if not self._fused:
            return HFDecoder(model)
        if self._weights is None:
            self._weights = lay_out(model, pack=self._options.pack_weights)
        return FusedDecoder(model, self._weights)

    def _pick_decoder(self) -> bool:
        """Whether to use the fused decoder: asked for, or known and seen to give the model's own numbers."""
        choice, model = self._options.decoder, self._policy.model
        if choice == "transformers":
            return False
        if not supports(model):
            if choice == "fused":
                raise ConfigError(
                    f"rollout.options.decoder: fused does not know {type(model).__name__} as configured; use auto."
                )
            return False
        self._weights = lay_out(model, pack=self._options.pack_weights)
        difference = largest_difference(model, self._weights)
        if difference <= tolerance(model.dtype):
            return True
        self._weights = None
        message = f"the fused decoder differs from {type(model).__name__} by {difference:.2e} in log-probabilities"
        if choice == "fused":
            raise ConfigError(f"rollout.options.decoder: {message}; use transformers.")
        logger.warning("%s: generating with the model's own forward.", message)
        return False


def _unpack(rows: Sequence[Row], drawn: Drawn, version: int) -> list[Completion]:
    tokens, log_probs = drawn.tokens.cpu(), drawn.log_probs.cpu()
    completions = []
    for index, (row, length, stopped) in enumerate(
        zip(rows, drawn.lengths.tolist(), drawn.stopped.tolist(), strict=True)
    ):
        completions.append(
            Completion(
                prompt_index=row.prompt_index,
                sample_index=row.sample_index,
                tokens=tuple(tokens[index, :length].tolist()),
                logprobs=log_probs[index, :length].clone(),
                finish_reason="stop" if stopped else "length",
                weight_version=version,
            )
        )
    return completions


def _check(prompts: Sequence[Sequence[int]], seeds: Sequence[int], vocab_size: int) -> None:
    if len(prompts) != len(seeds):
        raise ValueError(f"{len(prompts)} prompts came with {len(seeds)} seeds; each prompt needs one.")
    for index, prompt in enumerate(prompts):
        if len(prompt) == 0:
            raise ValueError(f"Prompt {index} is empty: there is nothing to continue.")
        if min(prompt) < 0 or max(prompt) >= vocab_size:
            raise ValueError(f"Prompt {index} holds ids outside the vocabulary of {vocab_size}.")


def _options(value: Any) -> HFRolloutOptions:
    if isinstance(value, HFRolloutOptions):
        return value
    return HFRolloutOptions.model_validate(dict(value or {}))


def _field(config: Any, name: str, default: Any) -> Any:
    """Read a key of a section, a mapping or None."""
    if config is None:
        return default
    return config.get(name, default) if hasattr(config, "get") else getattr(config, name, default)


def _device() -> torch.device:
    """Return the device this process works on; the indices of virtual ones are no torch devices."""
    platform = get_platform()
    if platform.device_name == "cpu":
        return torch.device("cpu")
    return torch.device(platform.device_name, platform.current_device())
