"""One sequence of all tokens that count: no padding, and a prompt that several rows share only once.

Every operation of a decoder but attention works on tokens alone, so the rows of a batch may stand one after the other
in a single sequence. Attention takes them apart: each prompt attends to itself, each response to its prompt and itself.

U distinct prompts of P columns, B rows of Q response inputs (the last token of each response predicts nothing, so it is
no input), N tokens. H query heads, G key-value heads, D head size.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from plugrl_models_hf.layout import TextLayout

logger = logging.getLogger(__name__)

ATTENTION = "plugrl_packed"
"""Name of the attention code below in transformers; without packed rows it is ``sdpa``."""

WORTH_IT = 0.85
"""Rows are packed when this share of the columns or less remains: taking attention apart costs something too."""

TOLERANCE = 1e-4
"""Largest difference of fp32 states, relative to their size, between a packed forward and a plain one."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Grid:
    """Tokens of the sequence that stand in a padded grid.

    place: int64 [rows, columns], where in the sequence; arbitrary where ``valid`` (bool [rows, columns]) does not hold.
    mask: bool, which columns attend to which keys, broadcast over heads; None is causal.
    """

    place: torch.Tensor
    valid: torch.Tensor
    mask: torch.Tensor | None

    def spread(self, tokens: torch.Tensor) -> torch.Tensor:
        """Put ``tokens`` [N, heads, D] into the grid: [rows, heads, columns, D]."""
        grid = tokens.index_select(0, self.place.flatten()).view(*self.place.shape, *tokens.shape[1:])
        return grid.transpose(1, 2)

    def collect(self, grid: torch.Tensor) -> torch.Tensor:
        """Take the valid tokens of a grid [rows, heads, columns, D] in their order: [n, heads, D]."""
        return grid.transpose(1, 2)[self.valid]


@dataclass(frozen=True, kw_only=True, eq=False)
class Packing:
    """How attention takes the sequence apart: prompts, responses (None when they have no inputs), and whose is whose.

    owner: the prompt of each row, int64 [B]. The tokens of the prompts come first.
    """

    prompts: Grid
    responses: Grid | None
    owner: torch.Tensor


@dataclass(frozen=True, kw_only=True)
class PackedLayout(TextLayout):
    """A batch whose valid tokens are one sequence. predictor_of: int64 [B, R], the token that predicts each one."""

    sequence: torch.Tensor
    positions: torch.Tensor
    predictor_of: torch.Tensor
    packing: Packing

    def model_inputs(self) -> dict[str, Any]:
        """Return the keyword arguments of a Hugging Face forward with the attention :data:`ATTENTION`."""
        return {
            "input_ids": self.sequence.unsqueeze(0),
            "position_ids": self.positions.unsqueeze(0),
            # With four axes it counts as made already; nothing reads it.
            "attention_mask": self.sequence.new_zeros((1, 1, 1, 1), dtype=torch.bool),
            "use_cache": False,
            "packing": self.packing,
        }

    def predictors(self, states: torch.Tensor) -> torch.Tensor:
        """Pick from ``states`` [1, N, ...] those that predict the valid response tokens."""
        return states[0].index_select(0, self.predictor_of.flatten().index_select(0, self.picked))


def packed(layout: TextLayout, *, worth_it: float = WORTH_IT) -> TextLayout:
    """Return the layout with its rows packed, or as it is where that saves too little."""
    ids, width = layout.input_ids, layout.input_ids.shape[1] - layout.num_response
    attention = (
        torch.ones_like(ids, dtype=torch.bool) if layout.attention_mask is None else layout.attention_mask.bool()
    )
    new_prompt = _starts(ids[:, :width], attention[:, :width])
    first = new_prompt.nonzero().flatten()
    prompt_valid = attention[first, :width]
    response_valid = attention[:, width:-1] & attention[:, width + 1 :]
    num_prompt, num_response = int(prompt_valid.sum()), int(response_valid.sum())
    if num_prompt + num_response > worth_it * ids.numel():
        return layout
    owner = new_prompt.long().cumsum(0) - 1
    positions = (attention.long().cumsum(dim=1) - 1).clamp_(min=0)
    prompts = Grid(place=_place(prompt_valid, 0), valid=prompt_valid, mask=_prompt_mask(prompt_valid))
    responses = None
    if num_response:
        mask = _response_mask(prompt_valid[owner], response_valid)
        responses = Grid(place=_place(response_valid, num_prompt), valid=response_valid, mask=mask)
    last_of_prompt = prompts.place[owner, -1:]
    return PackedLayout(
        input_ids=ids,
        attention_mask=layout.attention_mask,
        position_ids=layout.position_ids,
        mask=layout.mask,
        num_columns=layout.num_columns,
        sequence=torch.cat((ids[first, :width][prompt_valid], ids[:, width:-1][response_valid])),
        positions=torch.cat((positions[first, :width][prompt_valid], positions[:, width:-1][response_valid])),
        predictor_of=torch.cat((last_of_prompt, _place(response_valid, num_prompt)), dim=1),
        packing=Packing(prompts=prompts, responses=responses, owner=owner),
    )


def _starts(ids: torch.Tensor, valid: torch.Tensor) -> torch.Tensor:
    """Return bool [B]: whether the row has another prompt than the row before it."""
    same = ((ids[1:] == ids[:-1]) & (valid[1:] == valid[:-1])).all(dim=1)
    return torch.cat((same.new_ones(1), ~same))


def _place(valid: torch.Tensor, offset: int) -> torch.Tensor:
    """Number the valid entries in their order from ``offset`` on; an invalid one gets the number of one before it."""
    return ((valid.flatten().long().cumsum(0) - 1).clamp_(min=0) + offset).view(valid.shape)


def _prompt_mask(valid: torch.Tensor) -> torch.Tensor | None:
    if bool(valid.all()):
        return None
    columns = torch.arange(valid.shape[1], device=valid.device)
    # A column of padding attends to itself: nothing reads it, but softmax over nothing gives NaN gradients.
    allowed = (columns[:, None] >= columns) & valid[:, None] | (columns[:, None] == columns)
    return allowed.unsqueeze(1)


def _response_mask(prompt_valid: torch.Tensor, valid: torch.Tensor) -> torch.Tensor:
    columns = torch.arange(valid.shape[1], device=valid.device)
    causal = columns[:, None] >= columns
    if bool(prompt_valid.all()) and bool(valid.all()):
        return torch.cat((causal.new_ones(len(columns), prompt_valid.shape[1]), causal), dim=1)[None, None]
    own = causal & valid[:, None] | (columns[:, None] == columns)
    return torch.cat((prompt_valid[:, None].expand(-1, len(columns), -1), own), dim=2).unsqueeze(1)


# --------------------------------------------------------------------- attention
def packed_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    packing: Packing | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Attention in transformers' form: query [1, H, N, D], key and value [1, G, N, D]; returns [1, N, H, D]."""
    if packing is None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, dropout, scaling, **kwargs)
    tokens = [states[0].transpose(0, 1) for states in (query, key, value)]
    options = {"dropout_p": dropout, "scale": scaling, "enable_gqa": query.shape[1] != key.shape[1]}
    prompt_query, prompt_key, prompt_value = (packing.prompts.spread(states) for states in tokens)
    mask = packing.prompts.mask
    mixed = F.scaled_dot_product_attention(
        prompt_query, prompt_key, prompt_value, attn_mask=mask, is_causal=mask is None, **options
    )
    outputs = [packing.prompts.collect(mixed)]
    if packing.responses is not None:
        own_query, own_key, own_value = (packing.responses.spread(states) for states in tokens)
        keys = torch.cat((prompt_key.index_select(0, packing.owner), own_key), dim=2)
        values = torch.cat((prompt_value.index_select(0, packing.owner), own_value), dim=2)
        mixed = F.scaled_dot_product_attention(own_query, keys, values, attn_mask=packing.responses.mask, **options)
        outputs.append(packing.responses.collect(mixed))
    return torch.cat(outputs).unsqueeze(0), None


AttentionInterface.register(ATTENTION, packed_attention)
AttentionMaskInterface.register(ATTENTION, sdpa_mask)


# --------------------------------------------------------------------- which models
def enable_packing(model: PreTrainedModel, forward: Callable[[dict[str, Any]], torch.Tensor]) -> bool:
    """Give the model the attention that takes packed rows, if then they get the numbers they get in a padded batch.

    ``forward`` maps keyword arguments of the model to per-token outputs [rows, columns, X]. Models with windows or with
    an attention of their own are left alone.
    """
    if model.device.type == "meta":
        return False  # who builds without weights is told what another found, see HFPolicy.take_measured
    config = model.config.get_text_config()
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    sliding = getattr(config, "sliding_window", None) if not hasattr(config, "layer_types") else None
    if config._attn_implementation != "sdpa" or kinds != {"full_attention"} or sliding:
        return False
    training = model.training
    model.eval().set_attn_implementation(ATTENTION)
    try:
        agrees = _agrees(model, forward)
    finally:
        model.train(training)
    if not agrees:
        model.set_attn_implementation("sdpa")
        logger.warning(
            "model.use_remove_padding: %s does not give the same numbers without padding; it is trained with padding.",
            type(model).__name__,
        )
    return agrees


@torch.no_grad()
def _agrees(model: PreTrainedModel, forward: Callable[[dict[str, Any]], torch.Tensor]) -> bool:
    ids = (torch.arange(4 * 7).view(4, 7) * 7919 + 3) % model.config.get_text_config().vocab_size
    ids[1, :3] = ids[0, :3]
    mask = torch.ones_like(ids)
    mask[2, :2] = mask[0, 6:] = mask[3, 5:] = 0
    rows = {"input_ids": ids, "attention_mask": mask, "response_mask": mask[:, 3:]}
    layout = TextLayout.trim({name: tensor.to(model.device) for name, tensor in rows.items()})
    compact = packed(layout, worth_it=1.0)
    assert isinstance(compact, PackedLayout)
    try:
        wanted, got = (item.predictors(forward(item.model_inputs())).float() for item in (layout, compact))
    except (AttributeError, IndexError, RuntimeError, TypeError, ValueError) as error:
        # Models differ in what they do with keywords, masks and shapes; with padding all of them work.
        logger.info("A trial without padding failed: %s", error)
        return False
    size = TOLERANCE if next(model.parameters()).dtype == torch.float32 else 100 * TOLERANCE
    return bool((wanted - got).abs().max() <= size * wanted.abs().max().clamp(min=1e-6))
