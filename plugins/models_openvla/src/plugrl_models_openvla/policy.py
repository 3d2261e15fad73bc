"""The policy ``openvla``: acts from a camera image and an instruction, and recomputes what it did."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional as F

from plugrl.errors import ConfigError, DataError, UnsupportedCapability, one_of
from plugrl.models.factory import resolve_dtype
from plugrl_models_hf.adapter import Adapter
from plugrl_models_hf.base import HFPolicy
from plugrl_models_openvla.building import Parts, build_parts
from plugrl_models_openvla.config import OpenVLAConfig, resolve_config
from plugrl_models_openvla.generation import generate
from plugrl_models_openvla.lora import TARGETS
from plugrl_models_openvla.model import OpenVLAModel, Sequences, without_padding
from plugrl_models_openvla.sampling import Sampling, bin_logprobs, draw, entropy, logprob_of
from plugrl_models_openvla.weight_files import write_new

Tensors = Mapping[str, torch.Tensor]


class OpenVLAPolicy(HFPolicy):
    """An action is ``action_dim`` tokens, one after the other; a chunk of actions is as many in a row.

    ``forward_inputs``, all batch-first: ``input_ids`` and ``attention_mask`` int64 [B, L], ``pixels`` uint8
    [B, K, S, S] (images at the size of the towers) and ``action_tokens`` int64 [B, C, D].
    """

    def __init__(self, model: OpenVLAModel, parts: Parts, adapter: Adapter | None = None) -> None:
        super().__init__(model, None, adapter)
        self.parts = parts

    # ----------------------------------------------------------------- declarations
    @property
    def num_action_chunks(self) -> int:
        """Actions of one call, C."""
        return self.parts.config.num_action_chunks

    @property
    def action_dim(self) -> int:
        """Numbers of an action, D."""
        return self.parts.config.action_dim

    @property
    def has_values(self) -> bool:
        """Whether there is a value head."""
        return hasattr(self.model, "value_head")

    def capabilities(self) -> frozenset[str]:
        """Log-probabilities, entropies, actions, supervised loss; values with a head."""
        return frozenset({"logprobs", "entropy", "actions", "sft"} | ({"values"} if self.has_values else set()))

    def measured(self) -> dict[str, Any]:
        """Nothing is decided by comparing outputs."""
        return {}

    def take_measured(self, values: Mapping[str, Any]) -> None:
        """Nothing to take over."""

    def wrap_units(self) -> tuple[str, ...]:
        """Each vision tower, the projector, each layer of the language model, the value head."""
        return self._run_units("LlamaDecoderLayer", "Projector", "VisionTower", *(["ValueHead"] * self.has_values))

    def _run_units(self, *units: str) -> tuple[str, ...]:
        """Leave out the classes of modules that an adapter trains in full: the frozen original, which is never run,
        stands beside each, and an engine waits for the gradients of all units."""
        if self._adapter is None:
            return tuple(sorted(units))
        twice = [part for path in self._adapter.whole for part in self.model.get_submodule(path).modules()]
        return tuple(sorted(set(units) - {type(part).__name__ for part in twice}))

    def lora_targets(self) -> tuple[str, ...]:
        """Names of the linear modules that adapters attach to by default; see :mod:`plugrl_models_openvla.lora`."""
        names = {path for path, _ in self.model.named_modules()}
        return tuple(name for name in TARGETS if any(path.endswith(name) for path in names))

    def critic_parameters(self) -> tuple[str, ...]:
        """Names of the parameters of the value head."""
        return tuple(name for name, _ in self.named_parameters() if ".value_head." in name)

    def gradient_checkpointing_enable(self) -> None:
        """Recompute activations in the backward pass instead of keeping them."""
        self.model.set_gradient_checkpointing(True)

    # ----------------------------------------------------------------- acting
    @torch.no_grad()
    def predict_action_batch(
        self,
        env_obs: Mapping[str, Any],
        mode: str = "train",
        compute_values: bool = True,
        *,
        temperature: float | None = None,
        top_k: int = 0,
        top_p: float = 1.0,
        generator: torch.Generator | None = None,
    ) -> tuple[torch.Tensor, dict[str, Any]]:
        """Return ``(actions, result)``: actions float32 [B, C, D] in the robot's units, on the host.

        ``env_obs``: ``main_images`` uint8 [B, H, W, 3] and ``task_descriptions``, B texts. ``mode``: train draws at
        ``temperature`` (1 when None), eval takes the likeliest tokens unless a temperature above 0 is given.
        ``result``: ``prev_logprobs`` [B, C, D] and ``prev_values`` [B, 1], fp32 (zeros without a value head), and
        ``forward_inputs``. Raises DataError for observations that do not fit.
        """
        if mode not in ("train", "eval"):
            raise ConfigError(f"mode: {mode!r} is neither train nor eval.")
        if temperature is None:
            temperature = 1.0 if mode == "train" else 0.0
        inputs = self.observe(env_obs)
        action_tokens, log_probs, values = self._act(inputs, Sampling(temperature, top_k, top_p), generator)
        if not (compute_values and self.has_values):
            values = log_probs.new_zeros(len(log_probs), 1)
        result = {
            "prev_logprobs": log_probs,
            "prev_values": values,
            "forward_inputs": {**inputs, "action_tokens": action_tokens},
        }
        return self.actions_of(action_tokens), result

    @torch.no_grad()
    def predict_values(self, obs: Mapping[str, Any]) -> torch.Tensor:
        """Return the values fp32 [B, 1] of observations; no action is computed. Raises UnsupportedCapability."""
        self._needs_values()
        sequences = self._sequences(self.observe(obs))
        return self._values(self.model.states(sequences)[:, -1])

    def observe(self, env_obs: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        """Return ``input_ids``, ``attention_mask`` and ``pixels`` of observations, on the policy's device."""
        tasks, images = (given(env_obs, key) for key in ("task_descriptions", "main_images"))
        prompts = self.parts.prompts.encode(list(tasks))
        pixels = self.parts.images.prepare(torch.as_tensor(images))
        if len(pixels) != len(prompts.input_ids):
            raise DataError(f"there are {len(pixels)} main_images for {len(prompts.input_ids)} task_descriptions.")
        device = self._device()
        inputs = {"input_ids": prompts.input_ids, "attention_mask": prompts.attention_mask, "pixels": pixels}
        return {name: tensor.to(device) for name, tensor in inputs.items()}

    def actions_of(self, action_tokens: torch.Tensor) -> torch.Tensor:
        """Return the actions float32 [B, C, D] that ids of the same shape stand for, as they are carried out.

        A transform of actions may change their number, D.
        """
        return self.parts.transform(self.parts.statistics.unnormalise(self.parts.tokens.decode(action_tokens)))

    def _act(
        self, inputs: Tensors, sampling: Sampling, generator: torch.Generator | None
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return ids and log-probabilities [B, C, D] and values [B, 1]."""
        log_probs: list[torch.Tensor] = []
        values: list[torch.Tensor] = []

        def choose(states: torch.Tensor) -> torch.Tensor:
            every = self._distribution(states, sampling)
            ids = draw(every, self.parts.tokens, greedy=sampling.is_greedy, generator=generator)
            if not log_probs and self.has_values:
                values.append(self._values(states))
            log_probs.append(logprob_of(every, ids, self.parts.tokens))
            return ids

        shape = (self.num_action_chunks, self.action_dim)
        ids = generate(self.model, self._sequences(inputs), shape[0] * shape[1], choose)
        joined = torch.stack(log_probs, dim=1)
        empty = joined.new_zeros(len(ids), 1)
        return ids.view(-1, *shape), joined.view(-1, *shape), values[0] if values else empty

    # ----------------------------------------------------------------- recomputing
    def default_forward(
        self,
        forward_inputs: Mapping[str, Any],
        *,
        compute_logprobs: bool = True,
        compute_entropy: bool = False,
        compute_values: bool = False,
        temperature: float = 1.0,
        top_k: int = 0,
        top_p: float = 1.0,
    ) -> dict[str, torch.Tensor]:
        """Return what is asked for: ``logprobs`` and ``entropy`` fp32 [B, C, D], ``values`` fp32 [B, 1].

        With the settings that the actions were drawn with, log-probabilities are those that they were drawn with.
        Raises UnsupportedCapability for values without a value head.
        """
        if compute_values:
            self._needs_values()
        tokens = forward_inputs["action_tokens"]
        states = self._action_states(forward_inputs)
        found: dict[str, torch.Tensor] = {}
        if compute_logprobs or compute_entropy:
            every = self._distribution(states, Sampling(temperature, top_k, top_p), keep=tokens.flatten(1))
            if compute_logprobs:
                found["logprobs"] = logprob_of(every, tokens.flatten(1), self.parts.tokens).view(tokens.shape)
            if compute_entropy:
                found["entropy"] = entropy(every).view(tokens.shape)
        if compute_values:
            found["values"] = self._values(states[:, 0])
        return found

    def _action_states(self, forward_inputs: Mapping[str, Any]) -> torch.Tensor:
        """Return the states [B, C * D, H] that predict the action tokens; the first is that of the prompt's end."""
        tokens = forward_inputs["action_tokens"].flatten(1)
        sequences = self._sequences(forward_inputs)
        start = len(sequences) - 1
        if tokens.shape[1] > 1:  # Nothing is predicted from the last.
            sequences = sequences.extended(self.model.embed_tokens(tokens[:, :-1]))
        return self.model.states(sequences)[:, start:]

    # ----------------------------------------------------------------- supervised
    def sft_inputs(self, env_obs: Mapping[str, Any], actions: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return what :meth:`sft_forward` needs for observations and actions [B, C, D] in the robot's units."""
        self._check_actions(actions)
        inputs = self.observe(env_obs)
        ids = self.parts.tokens.encode(self.parts.statistics.normalise(actions))
        return {**inputs, "action_tokens": ids.to(inputs["input_ids"].device)}

    def _check_actions(self, actions: torch.Tensor) -> None:
        wanted = (self.num_action_chunks, self.action_dim)
        if actions.dim() != 3 or tuple(actions.shape[1:]) != wanted:
            raise DataError(
                f"actions must be [B, {wanted[0]}, {wanted[1]}] (model.num_action_chunks, model.action_dim), not "
                f"{list(actions.shape)}."
            )

    def sft_forward(self, forward_inputs: Mapping[str, Any], **_: Any) -> dict[str, Any]:
        """Return ``losses`` fp32 [B], each the mean negative log-likelihood of a row's action tokens.

        The likelihood is over the whole vocabulary, as in the training of published checkpoints. ``action_mask``
        [B, C] in the inputs leaves out steps of a chunk that are padding. ``metrics``: how many tokens are the
        likeliest, and the mean distance of the likeliest action in [-1, 1].
        """
        tokens = forward_inputs["action_tokens"]
        flat = tokens.flatten(1)
        logits = self.model.logits(self._action_states(forward_inputs)).float()
        losses = F.cross_entropy(logits.flatten(0, 1), flat.flatten(), reduction="none").view(tokens.shape)
        mask = forward_inputs.get("action_mask")
        weights = torch.ones_like(losses) if mask is None else mask.to(losses.dtype)[..., None].expand_as(losses)
        with torch.no_grad():
            bins = logits[..., self.parts.tokens.first : self.parts.tokens.limit]
            likeliest = (bins.argmax(dim=-1) + self.parts.tokens.first).view(tokens.shape)
            distance = (self.parts.tokens.decode(likeliest) - self.parts.tokens.decode(tokens)).abs()
            total = weights.sum().clamp(min=1)
            metrics = {
                "token_accuracy": ((likeliest == tokens) * weights).sum() / total,
                "action_l1": (distance * weights).sum() / total,
            }
        rows = (losses * weights).flatten(1).sum(1) / weights.flatten(1).sum(1).clamp(min=1)
        return {"losses": rows, "logprobs": -losses, "metrics": metrics}

    # ----------------------------------------------------------------- parts that acting and recomputing share
    def _sequences(self, inputs: Mapping[str, Any]) -> Sequences:
        """Return prompts with the patches of their images."""
        ids, mask = without_padding(inputs["input_ids"], inputs["attention_mask"])
        pixels = self.parts.images.normalise(inputs["pixels"])
        return self.model.splice(ids, mask, self.model.embed_images(pixels))

    def _distribution(self, states: torch.Tensor, sampling: Sampling, keep: torch.Tensor | None = None) -> torch.Tensor:
        """Return the log-probabilities [..., n_bins] of the action tokens after states [..., H]."""
        return bin_logprobs(self.model.logits(states), self.parts.tokens, sampling, keep)

    def _values(self, states: torch.Tensor) -> torch.Tensor:
        """Return fp32 [B, outputs] for the states [B, H] of the prompts' ends."""
        return self.model.value_head(states).float()

    def _needs_values(self) -> None:
        if not self.has_values:
            raise UnsupportedCapability("this policy has no value head; set model.add_value_head=true.")

    def _device(self) -> torch.device:
        return next(self.model.parameters()).device

    # ----------------------------------------------------------------- files
    def save_config(self, directory: str | Path) -> None:
        """Write the files beside the weights, as they were read; those of an adapter where one is trained."""
        self.parts.folder.save(Path(directory))
        if self._adapter is not None:
            self._adapter.save_config(directory)

    def save_pretrained(self, directory: str | Path, state: Mapping[str, torch.Tensor]) -> None:
        """Write a checkpoint folder; weights that were read from several files are cut into the same ones."""
        if self._adapter is not None:
            super().save_pretrained(directory, state)
            return
        folder = Path(directory)
        self.save_config(folder)
        weights = self.parts.folder.weights
        if weights is None:
            write_new(folder, state)
        else:
            weights.write(folder, state)


def given(obs: Mapping[str, Any], key: str) -> Any:
    """Return a field of an observation. Raises DataError for one that is not there."""
    if obs.get(key) is None:
        raise DataError(f"the observation has no {key}, which this policy needs. It has: {one_of(obs)}.")
    return obs[key]


def build_openvla(cfg: Any, torch_dtype: torch.dtype | None = None) -> OpenVLAPolicy:
    """Build the policy that ``model:`` describes, on the CPU. Raises ConfigError or CheckpointError with the key."""
    config = resolve_config(cfg, OpenVLAConfig)
    model, parts, adapter = build_parts(config, resolve_dtype(torch_dtype or config.precision))
    return OpenVLAPolicy(model, parts, adapter)
