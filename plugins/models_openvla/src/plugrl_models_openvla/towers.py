"""The sizes of the vision towers that checkpoints name, and how a checkpoint changes them. Light: standard library."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from plugrl.errors import nearest, one_of

IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
UNIT = ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))


@dataclass(frozen=True, kw_only=True)
class TowerConfig:
    """A vision transformer on square images.

    Args:
        embed_dim, depth, num_heads, mlp_dim: width, number of blocks, attention heads, width of the hidden layer.
        image_size, patch_size: pixels a side.
        class_token, reg_tokens: tokens in front of the patches.
        layer_scale: whether the branches of a block are scaled by a learned vector.
        attention_pool: whether there is a pooling head, which OpenVLA does not use.
        mean, std: of the channels of the images the tower was trained on.
    """

    embed_dim: int
    depth: int
    num_heads: int
    mlp_dim: int
    image_size: int
    patch_size: int = 14
    class_token: bool = False
    reg_tokens: int = 0
    layer_scale: bool = False
    attention_pool: bool = False
    mean: tuple[float, ...] = UNIT[0]
    std: tuple[float, ...] = UNIT[1]

    @property
    def num_patches(self) -> int:
        """Patches of one image; pixels that fill no patch are left out."""
        return (self.image_size // self.patch_size) ** 2

    @property
    def num_prefix(self) -> int:
        """Tokens in front of the patches."""
        return int(self.class_token) + self.reg_tokens


@dataclass(frozen=True)
class _Published:
    """A tower as it was published, with the ratio by which its hidden layers follow its width."""

    tower: TowerConfig
    mlp_ratio: float


_DINOV2_L = _Published(
    TowerConfig(embed_dim=1024, depth=24, num_heads=16, mlp_dim=4096, image_size=224, class_token=True, reg_tokens=4,
                layer_scale=True, mean=IMAGENET[0], std=IMAGENET[1]),
    mlp_ratio=4.0,
)  # fmt: skip
_SIGLIP_SO = _Published(
    TowerConfig(embed_dim=1152, depth=27, num_heads=16, mlp_dim=4304, image_size=224, attention_pool=True),
    mlp_ratio=3.7362,
)
_SIGLIP_SO_384 = replace(_SIGLIP_SO, tower=replace(_SIGLIP_SO.tower, image_size=384))

_DINO_ID, _SIGLIP_ID, _SIGLIP_384_ID = (
    "vit_large_patch14_reg4_dinov2.lvd142m",
    "vit_so400m_patch14_siglip_224",
    "vit_so400m_patch14_siglip_384",
)
TOWERS: Mapping[str, _Published] = {_DINO_ID: _DINOV2_L, _SIGLIP_ID: _SIGLIP_SO, _SIGLIP_384_ID: _SIGLIP_SO_384}
"""Towers by their published identifiers."""

BACKBONES: Mapping[str, tuple[tuple[str, ...], int]] = {
    "dinosiglip-vit-so-224px": ((_DINO_ID, _SIGLIP_ID), 224),
    "dinosiglip-vit-so-384px": ((_DINO_ID, _SIGLIP_384_ID), 384),
    "siglip-vit-so400m": ((_SIGLIP_ID,), 224),
    "siglip-vit-so400m-384px": ((_SIGLIP_384_ID,), 384),
    "dinov2-vit-l": ((_DINO_ID,), 224),
}
"""Tower identifiers and image size of the backbones that are implemented."""

_SIZES = ("embed_dim", "depth", "num_heads", "mlp_dim", "image_size", "patch_size", "reg_tokens")
_FLAGS = ("class_token", "layer_scale", "attention_pool")
_OVERRIDES = (*_SIZES, *_FLAGS, "mlp_ratio")


def towers_of(
    backbone: str,
    tower_ids: Sequence[str] | None,
    image_sizes: Sequence[int] | None,
    overrides: Sequence[Mapping[str, Any]] | None,
    *,
    fused: bool,
) -> tuple[TowerConfig, ...]:
    """Return the towers of a checkpoint. Raises ValueError that names what is not implemented, or does not fit."""
    if tower_ids is None:
        if backbone not in BACKBONES:
            raise ValueError(f'vision_backbone_id "{backbone}" is not implemented; {one_of(BACKBONES)} are')
        tower_ids = BACKBONES[backbone][0]
    unknown = [name for name in tower_ids if name not in TOWERS]
    if unknown or backbone not in BACKBONES:
        named = f'timm_model_ids "{unknown[0]}"' if unknown else f'vision_backbone_id "{backbone}"'
        raise ValueError(f"{named} is not implemented; {one_of(TOWERS if unknown else BACKBONES)} are")
    count = 2 if fused else 1
    sizes = [BACKBONES[backbone][1]] * count if image_sizes is None else list(image_sizes)
    for name, values in (("timm_model_ids", tower_ids), ("image_sizes", sizes), ("vision_overrides", overrides)):
        if values is not None and len(values) != count:
            raise ValueError(f"{name} must have {count} entries, one for each vision tower, not {len(values)}")
    changes = overrides or [{}] * count
    every = zip(tower_ids, sizes, changes, strict=True)
    return tuple(_tower(TOWERS[name], size, change) for name, size, change in every)


def _tower(published: _Published, image_size: int, changes: Mapping[str, Any]) -> TowerConfig:
    for name, value in changes.items():
        if name not in _OVERRIDES:
            close = nearest(name, _OVERRIDES)
            hint = f"did you mean {close}?" if close else f"it has {one_of(_OVERRIDES)}"
            raise ValueError(f'vision_overrides has no "{name}"; {hint}')
        wanted: type | tuple[type, ...] = bool if name in _FLAGS else (int, float) if name == "mlp_ratio" else int
        if not isinstance(value, wanted) or (isinstance(value, bool) and wanted is not bool):
            kind = "true or false" if wanted is bool else "a number"
            raise ValueError(f"vision_overrides.{name} must be {kind}, not {value!r}")
    sizes = {name: value for name, value in changes.items() if name != "mlp_ratio"}
    tower = replace(published.tower, **{"image_size": image_size, **sizes})
    if "mlp_dim" not in changes:
        tower = replace(tower, mlp_dim=int(tower.embed_dim * changes.get("mlp_ratio", published.mlp_ratio)))
    for name in _SIZES:
        least = 0 if name == "reg_tokens" else 1
        if getattr(tower, name) < least:
            raise ValueError(f"vision_overrides.{name} must be at least {least}, not {getattr(tower, name)}")
    if tower.embed_dim % tower.num_heads:
        raise ValueError(f"embed_dim {tower.embed_dim} of a vision tower is no multiple of its {tower.num_heads} heads")
    if tower.image_size < tower.patch_size:
        raise ValueError(f"image size {tower.image_size} is smaller than a patch of {tower.patch_size} pixels")
    return tower
