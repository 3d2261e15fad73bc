"""A small text policy in plain torch for the engine's tests: transformer-like blocks, tied head, its own wrap units."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from plugrl.models.base import BasePolicy

VOCABULARY = 32
PROMPT, RESPONSE = 5, 6


class Block(nn.Module):
    """Causal attention and a feed-forward layer."""

    def __init__(self, width: int, dropout: float):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )
        self.dropout = nn.Dropout(dropout)

    def forward(self, hidden: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        query, key, value = self.qkv(self.norm(hidden)).unsqueeze(1).chunk(3, dim=-1)
        attended = F.scaled_dot_product_attention(query, key, value, attn_mask=mask).squeeze(1)
        hidden = hidden + self.dropout(self.out(attended))
        return hidden + self.dropout(self.mlp(hidden))


class BlockPolicy(BasePolicy):
    """Token policy of a few blocks; the head shares the embedding's weight."""

    def __init__(self, width: int = 16, blocks: int = 3, dropout: float = 0.0, seed: int = 0, spare: bool = False):
        super().__init__()
        torch.manual_seed(seed)
        self.embed = nn.Embedding(VOCABULARY, width)
        self.blocks = nn.ModuleList(Block(width, dropout) for _ in range(blocks))
        if spare:
            self.spare = Block(width, dropout)  # never called
        self.head = nn.Linear(width, VOCABULARY, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("scale", torch.tensor(2.0))
        self.fail_at: int | None = None
        self.calls = 0

    def wrap_units(self) -> tuple[str, ...]:
        return ("Block",)

    def published_name(self, name: str) -> str | None:
        return None if name == "head.weight" else f"model.{name}"

    def default_forward(
        self, forward_inputs: Mapping[str, Any], temperature: float = 1.0, compute_entropy: bool = False, **_: Any
    ) -> dict[str, Any]:
        self.calls += 1
        if self.fail_at is not None and self.calls == self.fail_at:
            raise RuntimeError("the policy was told to fail")
        tokens, attention = forward_inputs["input_ids"], forward_inputs["attention_mask"].bool()
        response = forward_inputs["response_mask"]
        length = response.shape[1]
        every = torch.ones(tokens.shape[1], tokens.shape[1], dtype=torch.bool, device=tokens.device)
        mask = (every.tril() & attention[:, None, :]) | torch.eye(
            tokens.shape[1], dtype=torch.bool, device=tokens.device
        )
        hidden = self.embed(tokens)
        for block in self.blocks:
            hidden = block(hidden, mask[:, None])
        logits = (self.head(hidden[:, -length - 1 : -1]) * self.scale).float() / temperature
        logs = logits.log_softmax(-1)
        taken = logs.gather(-1, tokens[:, -length:, None]).squeeze(-1)
        outputs = {"logprobs": taken * response}
        if compute_entropy:
            outputs["entropy"] = -(logs.exp() * logs).sum(-1) * response
        return outputs


def build(config: Mapping[str, Any], torch_dtype: torch.dtype | None = None) -> BlockPolicy:
    """Builder of the model type ``engine_test_blocks``."""
    options = {key: value for key, value in config.items() if key in ("width", "blocks", "dropout", "seed", "spare")}
    return BlockPolicy(**options).to(torch_dtype or torch.float32)


def make_rows(count: int, seed: int = 0) -> dict[str, torch.Tensor]:
    """A batch of ``count`` rows of different lengths with advantages."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, VOCABULARY, (count, PROMPT + RESPONSE), generator=generator)
    attention = torch.ones_like(tokens)
    response = torch.zeros(count, RESPONSE, dtype=torch.int64)
    for row in range(count):
        attention[row, : row % PROMPT] = 0
        valid = 1 + (row * 3) % RESPONSE
        response[row, :valid] = 1
        attention[row, PROMPT + valid :] = 0
    advantages = torch.randn(count, RESPONSE, generator=generator)
    return {"input_ids": tokens, "attention_mask": attention, "response_mask": response, "advantages": advantages}


def slice_rows(batch: Mapping[str, torch.Tensor], start: int, stop: int) -> dict[str, torch.Tensor]:
    """Rows ``start`` to ``stop`` of every tensor."""
    return {name: tensor[start:stop] for name, tensor in batch.items()}


def token_mean_loss(outputs: Mapping[str, torch.Tensor], batch: Mapping[str, torch.Tensor], context: Any) -> Any:
    """REINFORCE with the mean over all tokens of all ranks, and one metric weighted by tokens."""
    from plugrl.metric import Metric

    mask = batch["response_mask"]
    loss = -(outputs["logprobs"] * batch["advantages"] * mask).sum() * context.dp_size / context.batch_num_tokens
    mean = (outputs["logprobs"].detach() * mask).sum() / mask.sum().clamp(min=1)
    return loss, {"logprob": Metric(mean, weight=mask.sum())}


def named_gradients(engine: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Whole gradients under the parameters' names. Collective."""
    from plugrl_engine_fsdp.checkpoint.contents import gather

    for name, parameter in engine.module.named_parameters():
        if parameter.grad is not None:
            yield name, gather(parameter.grad, engine.device).clone()
