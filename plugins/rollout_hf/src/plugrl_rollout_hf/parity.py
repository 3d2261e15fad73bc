"""Does the fused decoder give the numbers of the model's own forward? Asked once, before it is trusted."""

from __future__ import annotations

import torch
from transformers import PreTrainedModel

from plugrl_rollout_hf.decoder import HFDecoder
from plugrl_rollout_hf.fused import SHORT_PROMPT, FusedDecoder
from plugrl_rollout_hf.weights import Weights

_TOLERANCES = {torch.float32: 1e-3, torch.float16: 5e-2, torch.bfloat16: 2e-1}


def tolerance(dtype: torch.dtype) -> float:
    """Return how far log-probabilities may differ by rounding alone; a different formula differs by far more."""
    return _TOLERANCES.get(dtype, 0.0)


def largest_difference(model: PreTrainedModel, weights: Weights) -> float:
    """Step both decoders over the same few tokens; return the largest difference of log-probabilities.

    Once with short prompts and once with long ones, which the fused decoder treats differently; one is padded.
    """
    return max(_difference(model, weights, width) for width in (5, SHORT_PROMPT + 3))


@torch.inference_mode()
def _difference(model: PreTrainedModel, weights: Weights, width: int) -> float:
    device, vocab_size = model.device, model.config.vocab_size
    ids = (torch.arange(2 * width, device=device).view(2, width) * 7919 + 3) % vocab_size
    mask = torch.ones_like(ids, dtype=torch.bool)
    mask[0, :2] = False
    owner = torch.tensor([0, 0, 1], device=device)
    decoders = HFDecoder(model), FusedDecoder(model, weights)
    for decoder in decoders:
        decoder.prefill(ids, mask)
        decoder.fork(owner, 3)
    worst = 0.0
    for step in range(3):
        tokens = (torch.arange(3, device=device) + 5 * step) % vocab_size
        own, fused = (torch.log_softmax(decoder.step(tokens).float(), dim=-1) for decoder in decoders)
        worst = max(worst, float((own - fused).abs().max()))
    return worst
