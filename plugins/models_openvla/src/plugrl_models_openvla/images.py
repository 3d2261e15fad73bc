"""From camera images to pixel values: resizing, centre crop, and the normalisation of each vision tower.

Numbers agree with the published preprocessor to one grey level; nothing but torch is needed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from plugrl.errors import ConfigError, DataError, one_of

IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
UNIT = ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
"""Mean and deviation of the channels: of DINOv2 and of SigLIP."""

CROPPED_AREA = 0.9
"""The part of an image's area that the centre crop of published evaluations keeps."""

STRATEGIES = ("resize-naive", "resize-crop", "letterbox")


@dataclass(frozen=True)
class TowerImage:
    """What one vision tower sees: square images of ``size`` pixels a side, normalised by ``mean`` and ``std``."""

    size: int
    mean: tuple[float, ...]
    std: tuple[float, ...]


@dataclass(frozen=True)
class ImagePlan:
    """Turns uint8 images into the pixel values of all towers, in two steps: prepared images are small to keep and to
    move, and are normalised where they are computed with.

    Args:
        towers: one per vision tower, in the order of the channels.
        strategy: ``resize-naive`` scales both sides to the size, ``resize-crop`` the shorter one and takes the centre,
            ``letterbox`` first pads to a square in the tower's mean colour.
        center_crop: keep the central 90 % of the area, scaled back to the size, as evaluations of models do that were
            trained on random crops.
    """

    towers: tuple[TowerImage, ...]
    strategy: str = "resize-naive"
    center_crop: bool = False

    def __post_init__(self) -> None:
        if self.strategy not in STRATEGIES:
            raise ConfigError(f"image_resize_strategy: {self.strategy!r} is none of {one_of(STRATEGIES)}.")
        if len({tower.size for tower in self.towers}) != 1:
            sizes = [tower.size for tower in self.towers]
            raise ConfigError(f"image_sizes: all vision towers must see images of one size, not {sizes}.")

    @property
    def is_shared(self) -> bool:
        """Whether all towers see the same grey levels, so that they are prepared once."""
        return self.strategy != "letterbox" or len({tower.mean for tower in self.towers}) == 1

    def __call__(self, images: torch.Tensor) -> torch.Tensor:
        """Return ``normalise(prepare(images))``."""
        return self.normalise(self.prepare(images))

    def prepare(self, images: torch.Tensor) -> torch.Tensor:
        """Return uint8 [B, K, S, S] for images [B, H, W, 3], or [B, N, H, W, 3] of N cameras: resized and cropped.

        K is 3 N where the towers share what they see, else 3 N times the number of towers; the channels of a camera
        stand together. Raises DataError for another type or shape.
        """
        if images.dtype != torch.uint8 or images.dim() not in (4, 5) or images.shape[-1] != 3:
            raise DataError(
                f"images must be uint8 of shape [B, H, W, 3] or [B, cameras, H, W, 3], not {images.dtype} of "
                f"{list(images.shape)}."
            )
        flat = images.reshape(-1, *images.shape[-3:]).movedim(-1, -3)
        seen = self.towers[:1] if self.is_shared else self.towers
        found = torch.cat([self._resized(flat, tower) for tower in seen], dim=1).to(torch.uint8)
        return found.reshape(len(images), -1, *found.shape[-2:])

    def normalise(self, pixels: torch.Tensor) -> torch.Tensor:
        """Return the pixel values float32 [B, N * 3 * towers, S, S], camera after camera, for prepared images."""
        seen = 3 if self.is_shared else 3 * len(self.towers)
        per_camera = pixels.reshape(-1, seen, *pixels.shape[-2:]).float() / 255
        parts = [per_camera] * len(self.towers) if self.is_shared else per_camera.split(3, dim=1)
        values = torch.cat([_normalised(part, tower) for part, tower in zip(parts, self.towers, strict=True)], dim=1)
        return values.reshape(len(pixels), -1, *values.shape[-2:])

    def _resized(self, images: torch.Tensor, tower: TowerImage) -> torch.Tensor:
        """Return [B, 3, S, S], float32 with the values of grey levels."""
        size = tower.size
        if self.strategy == "resize-naive":
            values = resize(images, size, size)
        else:
            if self.strategy == "letterbox":
                images = _letterboxed(images, tower.mean)
            height, width = images.shape[-2:]
            short = min(height, width)
            values = resize(images, size * height // short, size * width // short)
            top, left = round((values.shape[-2] - size) / 2), round((values.shape[-1] - size) / 2)
            values = values[..., top : top + size, left : left + size]
        return _centre(values) if self.center_crop else values


def resize(images: torch.Tensor, height: int, width: int) -> torch.Tensor:
    """Return uint8 images [..., H, W] at another size: bicubic with antialiasing, whole grey levels in float32."""
    values = images.float()
    if values.shape[-2:] == (height, width):
        return values
    values = F.interpolate(values, size=(height, width), mode="bicubic", antialias=True, align_corners=False)
    return values.round_().clamp_(0, 255)


def _centre(values: torch.Tensor) -> torch.Tensor:
    """Return the central part of square images at their own size: bilinear, from border pixel to border pixel."""
    side = torch.linspace(-1, 1, values.shape[-1], device=values.device) * math.sqrt(CROPPED_AREA)
    grid = torch.stack(torch.meshgrid(side, side, indexing="xy"), dim=-1).expand(values.shape[0], -1, -1, -1)
    return F.grid_sample(values, grid, mode="bilinear", align_corners=True).round_().clamp_(0, 255)


def _letterboxed(images: torch.Tensor, mean: tuple[float, ...]) -> torch.Tensor:
    height, width = images.shape[-2:]
    longest = max(height, width)
    top, left = (longest - height) // 2, (longest - width) // 2
    colour = torch.tensor([int(value * 255) for value in mean], dtype=torch.uint8, device=images.device)
    padded = colour.view(-1, 1, 1).expand(images.shape[0], -1, height + 2 * top, width + 2 * left).clone()
    padded[..., top : top + height, left : left + width] = images
    return padded


def _normalised(values: torch.Tensor, tower: TowerImage) -> torch.Tensor:
    mean = torch.tensor(tower.mean, device=values.device).view(-1, 1, 1)
    std = torch.tensor(tower.std, device=values.device).view(-1, 1, 1)
    return (values - mean) / std
