"""The model: patches of images are put into a prompt after its first token, and a Llama goes on from there.

Token order: ``[first token][patches][rest of the prompt][action tokens]``; the attention mask is spliced the same way,
and positions count what it shows (Kim et al., "OpenVLA", https://arxiv.org/abs/2406.09246).
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from transformers import Cache, DynamicCache, LlamaConfig, LlamaForCausalLM

from plugrl_models_openvla.film import Modulation
from plugrl_models_openvla.folder_config import FolderConfig, TextConfig
from plugrl_models_openvla.projector import Projector
from plugrl_models_openvla.value_head import ValueHead
from plugrl_models_openvla.vision import VisionBackbone

IGNORED_LABEL = -100


@dataclass(frozen=True)
class Sequences:
    """What goes into the language model.

    Args:
        embeddings: [B, S, H].
        mask: bool [B, S], where there is a token.
        positions: int64 [B, S].
    """

    embeddings: torch.Tensor
    mask: torch.Tensor
    positions: torch.Tensor

    def __len__(self) -> int:
        return self.mask.shape[1]

    def extended(self, embeddings: torch.Tensor) -> Sequences:
        """Return these sequences with [B, T, H] after them."""
        rows, count = embeddings.shape[:2]
        after = self.positions[:, -1:] + torch.arange(1, count + 1, device=self.positions.device)
        return Sequences(
            torch.cat([self.embeddings, embeddings.to(self.embeddings.dtype)], dim=1),
            torch.cat([self.mask, self.mask.new_ones(rows, count)], dim=1),
            torch.cat([self.positions, after], dim=1),
        )


@dataclass(frozen=True)
class OpenVLAOutput:
    """What :meth:`OpenVLAModel.forward` returns; S counts prompt and patches.

    Args:
        logits: [B, S, V].
        hidden: [B, S, H], after the last norm.
        patches: [B, N, H], what the projector made of the images.
        loss: the mean negative log-likelihood of the labels that are not -100; None without labels.
    """

    logits: torch.Tensor
    hidden: torch.Tensor
    patches: torch.Tensor
    loss: torch.Tensor | None = None


class OpenVLAModel(nn.Module):
    """Vision towers, projector and language model under the names of published checkpoints.

    ``value_head`` stands beside them when the policy has one.
    """

    def __init__(self, config: FolderConfig, *, attention: str = "sdpa", value_head: ValueHead | None = None) -> None:
        super().__init__()
        text = llama_config(config.text_config)
        text._attn_implementation = attention
        self.vision_backbone = VisionBackbone(config.towers)
        self.projector = Projector(self.vision_backbone.embed_dim, text.hidden_size, fused=config.is_fused)
        self.language_model = LlamaForCausalLM(text)
        if value_head is not None:
            self.value_head = value_head
        self._attention = attention

    # ----------------------------------------------------------------- parts of a forward
    def embed_images(
        self, pixel_values: torch.Tensor, modulations: Mapping[str, Sequence[Modulation]] | None = None
    ) -> torch.Tensor:
        """Return [B, cameras * num_patches, H] for normalised pixel values [B, cameras * 3 * towers, S, S].

        ``modulations``: what an instruction makes of the vision towers, by tower.
        """
        return self.projector(self.vision_backbone(pixel_values, modulations))

    def embed_tokens(self, ids: torch.Tensor) -> torch.Tensor:
        """Return [B, T, H] for ids [B, T]."""
        return self.language_model.model.embed_tokens(ids)

    def splice(self, input_ids: torch.Tensor, attention_mask: torch.Tensor, patches: torch.Tensor) -> Sequences:
        """Put ``patches`` [B, N, H] into prompts [B, L] after their first token."""
        tokens = self.embed_tokens(input_ids)
        mask = splice_mask(attention_mask.bool(), patches.shape[1])
        embeddings = torch.cat([tokens[:, :1], patches.to(tokens.dtype), tokens[:, 1:]], dim=1)
        return Sequences(embeddings, mask, positions_of(mask))

    def states(self, sequences: Sequences, cache: Cache | None = None) -> torch.Tensor:
        """Return the hidden states [B, S, H] after the last norm; each token sees those before it.

        A ``cache`` is filled; where it holds something already, see :meth:`next_states`.
        """
        seen = sequences.mask[:, None, None, :]
        length = len(sequences)
        causal = torch.ones(length, length, dtype=torch.bool, device=seen.device).tril()
        return self.run(sequences.embeddings, seen & causal, sequences.positions, cache)

    def next_states(
        self, embedding: torch.Tensor, mask: torch.Tensor, positions: torch.Tensor, cache: Cache
    ) -> torch.Tensor:
        """Return the states [B, 1, H] of one token more, [B, 1, H] at ``positions`` [B, 1].

        ``mask`` [B, S + 1] covers what is in the cache and the token itself.
        """
        return self.run(embedding, mask[:, None, None, :], positions, cache)

    def run(
        self, embeddings: torch.Tensor, mask: torch.Tensor, positions: torch.Tensor, cache: Cache | None = None
    ) -> torch.Tensor:
        """Return the states [B, S, H] after the last norm of embeddings [B, S, H] at ``positions`` [B, S].

        ``mask``: bool, broadcast to [B, heads, S, keys], where a query sees a key.
        """
        output = self.language_model.model(
            inputs_embeds=embeddings,
            attention_mask=_as_bias(mask, embeddings.dtype) if self._attention == "eager" else mask,
            position_ids=positions,
            **cache_arguments(cache),
        )
        return output.last_hidden_state

    def logits(self, states: torch.Tensor) -> torch.Tensor:
        """Return [..., V] for hidden states [..., H]."""
        return self.language_model.lm_head(states)

    def new_cache(self) -> Cache:
        """Return an empty cache of keys and values."""
        return DynamicCache(config=self.language_model.config)

    # ----------------------------------------------------------------- whole
    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        pixel_values: torch.Tensor,
        labels: torch.Tensor | None = None,
    ) -> OpenVLAOutput:
        """Run prompts [B, L] with images. ``labels`` [B, L]: -100 where a token is not to be predicted."""
        patches = self.embed_images(pixel_values)
        hidden = self.states(self.splice(input_ids, attention_mask, patches))
        logits = self.logits(hidden)
        loss = None
        if labels is not None:
            blank = labels.new_full((len(labels), patches.shape[1]), IGNORED_LABEL)
            spliced = torch.cat([labels[:, :1], blank, labels[:, 1:]], dim=1)
            every = logits[:, :-1].flatten(0, 1).float()
            loss = F.cross_entropy(every, spliced[:, 1:].flatten(), ignore_index=IGNORED_LABEL)
        return OpenVLAOutput(logits, hidden, patches, loss)

    def initialise(self) -> None:
        """Draw random weights from torch's generator."""
        for tower in self.vision_backbone.towers:
            tower.initialise()
        self.projector.initialise()
        self.language_model.init_weights()
        if hasattr(self, "value_head"):
            self.value_head.initialise()

    def set_gradient_checkpointing(self, enabled: bool) -> None:
        """Recompute the activations of blocks and layers in the backward pass, or keep them."""
        for tower in self.vision_backbone.towers:
            tower.gradient_checkpointing = enabled
        llama, action = self.language_model, "enable" if enabled else "disable"
        # Newer transformers rename both and warn about the old names.
        switch = getattr(llama, f"activation_checkpointing_{action}", None)
        switch = switch or getattr(llama, f"gradient_checkpointing_{action}")
        switch(*([{"use_reentrant": False}] if enabled else []))


def splice_mask(mask: torch.Tensor, num_patches: int) -> torch.Tensor:
    """Return the mask [B, L + num_patches] with patches, which are all seen, after the first column of [B, L]."""
    return torch.cat([mask[:, :1], mask.new_ones(len(mask), num_patches), mask[:, 1:]], dim=1)


def positions_of(mask: torch.Tensor) -> torch.Tensor:
    """Return int64 positions [B, S] that count the tokens under a mask; padding has the position before it."""
    return (mask.long().cumsum(dim=1) - 1).clamp(min=0)


def without_padding(input_ids: torch.Tensor, attention_mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Leave out the columns [B, L] that are padding in every row; the first one stays."""
    used = attention_mask.bool().any(dim=0)
    used[0] = True
    return (input_ids, attention_mask) if bool(used.all()) else (input_ids[:, used], attention_mask[:, used])


def llama_config(text: TextConfig) -> LlamaConfig:
    """Return transformers' configuration of the language model."""
    values = text.model_dump(exclude={"model_type", "rope_theta", "rope_scaling", "rope_parameters"})
    # A padding id would make a zero row of the embedding that is never trained; checkpoints keep theirs as it is.
    return LlamaConfig(**values, rope_parameters=text.rope(), pad_token_id=None, use_cache=False)


def cache_arguments(cache: Cache | None) -> dict[str, Any]:
    """Return the keyword arguments by which this version of transformers takes a cache."""
    if cache is None:
        return {"use_cache": False}
    return {_CACHE_ARGUMENT: cache, "use_cache": True}


def _cache_argument() -> str:
    from transformers.models.llama.modeling_llama import LlamaModel

    return "cache" if "cache" in inspect.signature(LlamaModel.forward).parameters else "past_key_values"


_CACHE_ARGUMENT = _cache_argument()


def _as_bias(mask: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return 0 where there is something to see and the lowest number elsewhere."""
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill(~mask, torch.finfo(dtype).min)
