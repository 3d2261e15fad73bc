"""Small pictures of what can stand on the table: how much of each pixel a shape covers, at fractions of a pixel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from plugrl_envs_tabletop.words import SHAPES

SAMPLES = 4
"""Points along each axis of a pixel at which a shape is looked up."""

Inside = Callable[[NDArray[np.float64], NDArray[np.float64]], NDArray[np.float64]]
"""Opacity at points (x to the right, y up) in radii of the shape."""


def _cone(x: NDArray[np.float64], y: NDArray[np.float64]) -> NDArray[np.float64]:
    return ((y > -0.75) & (1.05 * np.abs(x) + 0.55 * y < 0.55)).astype(np.float64)


def _cross(x: NDArray[np.float64], y: NDArray[np.float64]) -> NDArray[np.float64]:
    across, along = np.minimum(np.abs(x), np.abs(y)), np.maximum(np.abs(x), np.abs(y))
    return ((across < 0.34) & (along < 1.0)).astype(np.float64)


def _zone(x: NDArray[np.float64], y: NDArray[np.float64]) -> NDArray[np.float64]:
    edge = np.maximum(np.abs(x), np.abs(y))
    return np.where(edge < 0.72, 0.3, 0.9) * (edge < 1.0)


def disc(x: NDArray[np.float64], y: NDArray[np.float64]) -> NDArray[np.float64]:
    """A full disc of radius 1."""
    return (x * x + y * y < 1.0).astype(np.float64)


OUTLINES: dict[str, Inside] = {
    "cube": lambda x, y: (np.maximum(np.abs(x), np.abs(y)) < 0.85).astype(np.float64),
    "ball": disc,
    "cone": _cone,
    "cross": _cross,
    "ring": lambda x, y: disc(x, y) * (x * x + y * y > 0.25),
    "diamond": lambda x, y: (np.abs(x) + np.abs(y) < 1.1).astype(np.float64),
}
"""What each object looks like from above."""

ZONE: Inside = _zone
"""A square with a full border and a pale middle."""


@dataclass(frozen=True)
class Sprites:
    """Opacities, 0 to 256, uint32 [kinds * P * P, K * K], of several shapes at P x P places of the centre within a
    pixel, drawn into a window of K x K pixels."""

    opacity: NDArray[np.uint32]
    places: int
    window: int


def draw_sprites(outlines: Sequence[Inside], radii: Sequence[float], squash: float = 1.0) -> Sprites:
    """Return the sprites of ``outlines`` with ``radii`` in pixels; heights are ``squash`` of the widths."""
    window = 2 * (int(np.ceil(1.1 * max(radii))) + 1)
    places = 8 if window <= 16 else 4 if window <= 48 else 1
    points = (np.arange(window * SAMPLES) + 0.5) / SAMPLES - window // 2
    shift = (np.arange(places) + 0.5) / places
    across = points - shift[:, None]
    found = np.empty((len(outlines), places, places, window * window))
    for kind, (outline, radius) in enumerate(zip(outlines, radii, strict=True)):
        for row in range(places):
            y = -across[row][:, None] / (radius * squash)
            x = (across / radius)[:, None, :]
            fine = outline(*np.broadcast_arrays(x, y))
            parts = fine.reshape(places, window, SAMPLES, window, SAMPLES).mean((2, 4))
            found[kind, row] = parts.reshape(places, -1)
    opacity = np.rint(256.0 * found).astype(np.uint32)
    return Sprites(opacity.reshape(-1, window * window), places, window)


def object_sprites(radius: float, squash: float) -> Sprites:
    """Return the sprites of all shapes, in the order of SHAPES."""
    return draw_sprites([OUTLINES[name] for name in SHAPES], [radius] * len(SHAPES), squash)
