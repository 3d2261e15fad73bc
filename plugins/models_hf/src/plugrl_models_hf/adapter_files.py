"""What lies in the folder of a LoRA adapter, and how it is added to the weights it was trained on. Needs no PEFT.

An adapter holds for each of its linear layers two matrices, ``lora_A`` [r, inputs] and ``lora_B`` [outputs, r]; the
layer's weight becomes ``weight + scale * lora_B @ lora_A`` (Hu et al., "LoRA"). Names are those of PEFT's files: the
model's own with ``base_model.model.`` in front.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from plugrl.config.schema.model import ADAPTER_CONFIG
from plugrl.errors import CheckpointError

WEIGHTS = "adapter_model.safetensors"
PREFIX = "base_model.model."
PART_A, PART_B = ".lora_A.weight", ".lora_B.weight"

_PLAIN = {
    "use_dora": (False, None),
    "bias": ("none", None),
    "lora_bias": (False, None),
    "rank_pattern": ({}, None),
    "alpha_pattern": ({}, None),
    "target_parameters": ([], None),
    "trainable_token_indices": ([], None),
    "layer_replication": ([], None),
}
"""Keys of adapters that are more than two matrices with one scale, with the values that mean they are not."""


def read_config(folder: str | Path) -> dict[str, Any]:
    """Return the content of ``adapter_config.json``. Raises CheckpointError when it is lacking, broken or not LoRA."""
    file = Path(folder) / ADAPTER_CONFIG
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(f"{folder} is no adapter: it has no {ADAPTER_CONFIG}.") from None
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{file} cannot be read: {error}") from error
    if not isinstance(content, dict) or str(content.get("peft_type", "LORA")).upper() != "LORA":
        raise CheckpointError(f"{file} describes no LoRA adapter, but {content!r:.80}.")
    for key, plain in _PLAIN.items():
        if content.get(key) not in plain:
            raise CheckpointError(f"{file}: adapters with {key}={content[key]!r} are not supported.")
    return content


def scale_of(config: Mapping[str, Any]) -> float:
    """Return the factor of the matrices' product: alpha / r, or alpha / sqrt(r) where the configuration says so."""
    rank = float(config.get("r", 8))
    return float(config.get("lora_alpha", 8)) / (math.sqrt(rank) if config.get("use_rslora") else rank)


def read_tensors(folder: str | Path) -> dict[str, torch.Tensor]:
    """Return the adapter's tensors by name. Raises CheckpointError, which says what to do about shards alone."""
    file = Path(folder) / WEIGHTS
    if not file.is_file():
        shards = next(Path(folder).glob("pytorch_model_fsdp_*"), None)
        hint = f"; run `plugrl checkpoint convert {folder}` to gather its shards" if shards else ""
        raise CheckpointError(f"the adapter in {folder} has no {WEIGHTS}{hint}.")
    try:
        with safe_open(file, framework="pt", device="cpu") as handle:
            return {name: handle.get_tensor(name) for name in handle.keys()}  # noqa: SIM118 (no mapping)
    except SafetensorError as error:
        raise CheckpointError(f"{file} cannot be read: {error}") from error


def merged_weight(
    weight: torch.Tensor, part_a: torch.Tensor, part_b: torch.Tensor, scale: float, *, transposed: bool = False
) -> torch.Tensor:
    """Return the weight with the adapter in it, computed in fp32, in the type of ``weight``.

    ``transposed``: the layer keeps its weight as [inputs, outputs].
    """
    change = scale * (part_b.float() @ part_a.float())
    return (weight.float() + (change.T if transposed else change)).to(weight.dtype)


@torch.no_grad()
def merge_into(model: torch.nn.Module, folder: str | Path) -> None:
    """Add the adapter in ``folder`` to the weights of ``model``, which has none.

    Raises CheckpointError for a tensor that the model has no place for; then the model is no longer of use.
    """
    scale = scale_of(read_config(folder))
    tensors = read_tensors(folder)
    parameters = dict(model.named_parameters(remove_duplicate=False))
    for name, tensor in tensors.items():
        plain = name.removeprefix(PREFIX)
        path = plain.removesuffix(PART_A)
        if plain.endswith(PART_B):
            continue
        target = parameters.get(f"{path}.weight" if plain.endswith(PART_A) else plain)
        if target is None:
            raise CheckpointError(f"{folder}: the model has no place for {name}.")
        value = tensor
        if plain.endswith(PART_A):
            transposed = not isinstance(model.get_submodule(path), torch.nn.Linear)
            other = tensors.get(f"{PREFIX}{path}{PART_B}")
            if other is None:
                raise CheckpointError(f"{folder}: {name} has no {PART_B.strip('.')} beside it.")
            shape = (tensor.shape[1], other.shape[0]) if transposed else (other.shape[0], tensor.shape[1])
            _same_shape(folder, name, shape, target)
            value = merged_weight(target.to(tensor.device), tensor, other, scale, transposed=transposed)
        _same_shape(folder, name, tuple(value.shape), target)
        target.copy_(value)


def _same_shape(folder: str | Path, name: str, shape: tuple[int, ...], target: torch.Tensor) -> None:
    if tuple(target.shape) != shape:
        raise CheckpointError(f"{folder}: {name} is for a weight {list(shape)}, the model's is {list(target.shape)}.")
