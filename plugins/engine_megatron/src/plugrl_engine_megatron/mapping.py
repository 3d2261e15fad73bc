"""The parameters of a stage, and which tensors of the Hugging Face model lie in each."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

from plugrl.errors import PlugRLError
from plugrl_engine_megatron.architecture import Architecture
from plugrl_engine_megatron.boxes import Slot
from plugrl_engine_megatron.parallel import Place

_LAYER = re.compile(r"decoder\.layers\.(\d+)\.(.+)")
_EXPERT = re.compile(r"mlp\.experts\.local_experts\.(\d+)\.(linear_fc[12])\.weight")
_WHOLE = {
    "input_layernorm.weight": "input_layernorm.weight",
    "pre_mlp_layernorm.weight": "post_attention_layernorm.weight",
    "self_attention.q_layernorm.weight": "self_attn.q_norm.weight",
    "self_attention.k_layernorm.weight": "self_attn.k_norm.weight",
    "mlp.router.weight": "mlp.gate.weight",
}
_SCORE = ("score.weight", "score.bias")


@dataclass(frozen=True, kw_only=True, eq=False)
class Mapped:
    """A parameter, its name on this stage, and the tensors of the model in it. is_expert: whether an expert has it."""

    name: str
    parameter: torch.nn.Parameter
    slots: tuple[Slot, ...]
    is_expert: bool


def map_stage(stage: Any, architecture: Architecture, place: Place) -> Iterator[Mapped]:
    """Yield every parameter of a stage. Raises PlugRLError for one that is unknown."""
    maker = _Maker(architecture, place)
    for name, parameter in stage.named_parameters():
        found = _LAYER.fullmatch(name)
        if found is None:
            slots = maker.outside(name, stage)
        else:
            layer = stage.decoder.layers[int(found[1])].layer_number - 1
            slots = maker.in_layer(found[2], f"model.layers.{layer}.", tuple(parameter.shape))
        for slot in slots:
            if _size(slot.view) != parameter.numel():
                raise PlugRLError(f"megatron: {name} {tuple(parameter.shape)} is not laid out as {slot.view}")
        is_expert = found is not None and _EXPERT.fullmatch(found[2]) is not None
        yield Mapped(name=name, parameter=parameter, slots=tuple(slots), is_expert=is_expert)


def _size(shape: tuple[int, ...]) -> int:
    total = 1
    for size in shape:
        total *= size
    return total


class _Maker:
    """Makes slots for one rank."""

    def __init__(self, architecture: Architecture, place: Place) -> None:
        self.architecture = architecture
        self.place = place

    def outside(self, name: str, stage: Any) -> list[Slot]:
        """The slots of a parameter outside the layers."""
        size = self.architecture.hidden_size
        if name == "embedding.word_embeddings.weight":
            return self._vocabulary("model.embed_tokens.weight", is_owner=True)
        if name == "output_layer.weight":
            if self.architecture.tied:  # the last stage's copy of the embedding
                return self._vocabulary("model.embed_tokens.weight", is_owner=False)
            return self._vocabulary("lm_head.weight", is_owner=True)
        if name == "decoder.final_layernorm.weight":
            return [self._whole("model.norm.weight", (size,))]
        if name in _SCORE:
            return [self._whole(name, (1, size) if name.endswith("weight") else (1,))]
        raise PlugRLError(f"megatron: {name} is no parameter that this engine knows")

    def in_layer(self, name: str, prefix: str, shape: tuple[int, ...]) -> list[Slot]:
        """The slots of a parameter of a layer."""
        if name in _WHOLE:
            return [self._whole(prefix + _WHOLE[name], shape)]
        if name.startswith("self_attention.linear_qkv."):
            return self._qkv(f"{prefix}self_attn.", name.rpartition(".")[2])
        architecture, tensor = self.architecture, (self.place.tensor, self.place.tensor_size)
        hidden = architecture.hidden_size
        if name == "self_attention.linear_proj.weight":
            columns = architecture.num_heads * architecture.head_size
            return [_columns(f"{prefix}self_attn.o_proj.weight", (hidden, columns), *tensor)]
        if name == "mlp.linear_fc1.weight":
            whole = (architecture.ffn_hidden_size, hidden)
            parts = enumerate(("gate", "up"))
            return [_half(f"{prefix}mlp.{part}_proj.weight", whole, index, *tensor) for index, part in parts]
        if name == "mlp.linear_fc2.weight":
            return [_columns(f"{prefix}mlp.down_proj.weight", (hidden, architecture.ffn_hidden_size), *tensor)]
        found = _EXPERT.fullmatch(name)
        if found is None:
            raise PlugRLError(f"megatron: {prefix}{name} is no parameter that this engine knows")
        return self._expert(f"{prefix}mlp.experts.", int(found[1]), found[2])

    def _whole(self, name: str, shape: tuple[int, ...]) -> Slot:
        """A tensor that all ranks of a matrix have."""
        box = tuple((0, size) for size in shape)
        merged = tuple((dim,) for dim in range(len(shape)))
        offsets = (0,) * len(shape)
        owner = self.place.tensor == 0
        return Slot(name=name, shape=shape, offsets=offsets, view=shape, box=box, merged=merged, is_owner=owner)

    def _vocabulary(self, name: str, *, is_owner: bool) -> list[Slot]:
        size, hidden = self.architecture.vocab_size, self.architecture.hidden_size
        rows = self.architecture.padded_vocab_size(self.place.tensor_size) // self.place.tensor_size
        first = rows * self.place.tensor
        real = max(0, min(rows, size - first))
        slot = Slot(
            name=name, shape=(size, hidden), offsets=(first, 0), view=(rows, hidden), box=((0, real), (0, hidden)),
            merged=((0,), (1,)), is_owner=is_owner,
        )  # fmt: skip
        return [slot] if real else [replace(slot, box=((0, 0), (0, hidden)))]

    def _qkv(self, prefix: str, kind: str) -> list[Slot]:
        """Queries, keys and values: of each group its queries, its key, its value."""
        architecture, place = self.architecture, self.place
        per_group = architecture.num_heads // architecture.num_groups
        groups, size = architecture.num_groups // place.tensor_size, architecture.head_size
        tail = (architecture.hidden_size,) if kind == "weight" else ()
        view = (groups, per_group + 2, size, *tail)
        found = []
        for part, first, count in (("q", 0, per_group), ("k", per_group, 1), ("v", per_group + 1, 1)):
            rows = architecture.num_groups * count * size
            box = ((0, groups), (first, first + count), *((0, length) for length in (size, *tail)))
            found.append(
                Slot(
                    name=f"{prefix}{part}_proj.{kind}",
                    shape=(rows, *tail),
                    offsets=(rows // place.tensor_size * place.tensor, *(0 for _ in tail)),
                    view=view,
                    box=box,
                    merged=((0, 1, 2), *((3,) for _ in tail)),
                )
            )
        return found

    def _expert(self, prefix: str, local: int, kind: str) -> list[Slot]:
        """The matrices of one expert, which are rows of tensors of all experts of a layer."""
        architecture, place = self.architecture, self.place
        experts = architecture.experts
        assert experts is not None
        index = experts.count // place.expert_size * place.expert + local
        hidden, size = architecture.hidden_size, experts.ffn_hidden_size
        tensor = (place.expert_tensor, place.expert_tensor_size)
        if kind == "linear_fc2":
            return [_stacked(_columns(f"{prefix}down_proj", (hidden, size), *tensor), experts.count, index)]
        halves = []
        for part in (0, 1):
            slot = _half(f"{prefix}gate_up_proj", (size, hidden), part, *tensor)
            moved = replace(slot, shape=(2 * size, hidden), offsets=(part * size + slot.offsets[0], 0))
            halves.append(_stacked(moved, experts.count, index))
        return halves


def _columns(name: str, shape: tuple[int, int], rank: int, size: int) -> Slot:
    """A matrix of which each rank has some columns."""
    rows, columns = shape[0], shape[1] // size
    view = (rows, columns)
    return Slot(
        name=name, shape=shape, offsets=(0, columns * rank), view=view, box=((0, rows), (0, columns)),
        merged=((0,), (1,)),
    )  # fmt: skip


def _half(name: str, shape: tuple[int, int], half: int, rank: int, size: int) -> Slot:
    """One of two matrices of which each rank has some rows, the first above the second."""
    rows, columns = shape[0] // size, shape[1]
    return Slot(
        name=name, shape=shape, offsets=(rows * rank, 0), view=(2, rows, columns),
        box=((half, half + 1), (0, rows), (0, columns)), merged=((0, 1), (2,)),
    )  # fmt: skip


def _stacked(slot: Slot, count: int, index: int) -> Slot:
    """A matrix that is one of ``count`` in a tensor."""
    return replace(
        slot, shape=(count, *slot.shape), offsets=(index, *slot.offsets), merged=((), *slot.merged)
    )
