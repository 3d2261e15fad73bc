"""Camera images of the tables: sprites put on a plain background, all scenes at once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from plugrl_envs_tabletop.config import TabletopConfig
from plugrl_envs_tabletop.scenes import Scenes
from plugrl_envs_tabletop.sprites import ZONE, Sprites, disc, draw_sprites, object_sprites
from plugrl_envs_tabletop.words import COLOURS

TABLE = (72, 70, 76)
"""Colour of the table."""


def packed(colours: Sequence[Sequence[int]]) -> NDArray[np.uint32]:
    """Return RGB colours in one number each, red in the lowest byte: the order of bytes in the image."""
    rgb = np.array(colours, np.uint32)
    return rgb[:, 0] | (rgb[:, 1] << np.uint32(8)) | (rgb[:, 2] << np.uint32(16))


PALETTE = packed(list(COLOURS.values()))
_TABLE, _BLACK, _OPEN, _CLOSED = packed([TABLE, (0, 0, 0), (255, 255, 255), (120, 120, 120)])
_RED_BLUE, _GREEN, _BITS = np.uint32(0xFF00FF), np.uint32(0x00FF00), np.uint32(8)

RIM_RADIUS, TIP_RADIUS = 0.13, 0.09
"""Radii of the hand: a black rim round a tip, white when the gripper is open and grey when closed."""

HEIGHTS = 5
"""Sizes in which the hand is drawn: one that is high is nearer to the camera and looks bigger."""

Floats = NDArray[np.float64]


class Camera:
    """Looks at the tables of a configuration.

    Args:
        scale: pixels per half side of the table.
        squash: the table's depth in the image, relative to its width: 1 from straight above.
        lift: pixels by which something at height 1 stands higher in the image.
        follows: the hand stands in the middle of the image, otherwise the table's centre.
    """

    def __init__(
        self, config: TabletopConfig, *, scale: float, squash: float = 1.0, lift: float = 0.0, follows: bool = False
    ) -> None:
        self.size, self.scale, self.squash, self.lift, self.follows = config.image_size, scale, squash, lift, follows
        self._objects = object_sprites(config.object_radius * scale, squash)
        self._zones = draw_sprites([ZONE], [(config.success_radius + 0.06) * scale], squash)
        grown = [1.0 + 0.5 * level / (HEIGHTS - 1) for level in range(HEIGHTS)]
        self._rims = draw_sprites([disc] * HEIGHTS, [RIM_RADIUS * scale * factor for factor in grown], squash)
        self._tips = draw_sprites([disc] * HEIGHTS, [TIP_RADIUS * scale * factor for factor in grown], squash)
        # A margin as wide as the widest window: what lies outside the image is painted there.
        self._margin = max(sprites.window for sprites in (self._objects, self._zones, self._rims))

    def images(self, scenes: Scenes) -> NDArray[np.uint8]:
        """Return what the camera sees, uint8 [N, S, S, 3]."""
        side = self.size + 2 * self._margin
        canvas = np.full((scenes.count, side, side), _TABLE, np.dtype("<u4"))
        flat = canvas.reshape(-1)
        x, y = self._pixels(scenes, scenes.zones)
        for zone in range(x.shape[1]):
            self._paint(flat, self._zones, 0, x[:, zone], y[:, zone], PALETTE[scenes.zone_colour[:, zone]])
        x, y = self._pixels(scenes, scenes.objects)
        for item in range(x.shape[1]):
            colours = PALETTE[scenes.colour[:, item]]
            self._paint(flat, self._objects, scenes.shape[:, item], x[:, item], y[:, item], colours)
        self._paint_hand(flat, scenes)
        inner = slice(self._margin, self._margin + self.size)
        seen = np.ascontiguousarray(canvas[:, inner, inner])
        return seen.view(np.uint8).reshape(scenes.count, self.size, self.size, 4)[..., :3]

    def _paint_hand(self, flat: NDArray[np.uint32], scenes: Scenes) -> None:
        height = scenes.hand[:, 2]
        x, y = self._pixels(scenes, scenes.hand[:, None, :2])
        x, y = x[:, 0], y[:, 0]
        high = np.flatnonzero(height)
        if len(high):
            away = 0.2 * self.scale * height[high]
            self._paint(flat, self._rims, 0, x[high] + away, y[high] + away * self.squash, _BLACK, rows=high, fade=1)
        y = y - self.lift * height
        level = (height * (HEIGHTS - 1) + 0.5).astype(np.int64)
        self._paint(flat, self._rims, level, x, y, _BLACK)
        self._paint(flat, self._tips, level, x, y, np.where(scenes.closed, _CLOSED, _OPEN))

    def _pixels(self, scenes: Scenes, places: Floats) -> tuple[Floats, Floats]:
        """Columns and rows [N, K] in the image, with fractions, of places [N, K, 2] on the table."""
        x, y = places[..., 0], places[..., 1]
        if self.follows:
            x, y = x - scenes.hand[:, 0, None], y - scenes.hand[:, 1, None]
        middle = self.size / 2
        return middle + x * self.scale, middle - y * (self.scale * self.squash)

    def _paint(
        self,
        flat: NDArray[np.uint32],
        sprites: Sprites,
        kind: NDArray[np.int64] | int,
        x: Floats,
        y: Floats,
        colours: NDArray[np.uint32] | np.uint32,
        rows: NDArray[np.int64] | None = None,
        fade: int = 0,
    ) -> None:
        """Put one sprite into each scene, or into those of ``rows`` [N]. ``flat`` holds the pixels of all scenes,
        ``colours`` is [N] or one for all; ``fade`` halves the opacity as many times."""
        window, places, side = sprites.window, sprites.places, self.size + 2 * self._margin
        column, row = np.floor(x), np.floor(y)
        place = ((y - row) * places).astype(np.int64) * places + ((x - column) * places).astype(np.int64)
        opacity = sprites.opacity[place + kind * (places * places)] >> np.uint32(fade)
        corner = self._margin - window // 2
        left = np.minimum(np.maximum(column.astype(np.int64) + corner, 0), side - window)
        top = np.minimum(np.maximum(row.astype(np.int64) + corner, 0), side - window)
        first = ((np.arange(len(x)) if rows is None else rows) * side + top) * side + left
        offsets = (np.arange(window)[:, None] * side + np.arange(window)).reshape(-1)
        index = first[:, None] + offsets
        flat[index] = _blended(flat[index], np.atleast_1d(colours)[:, None], opacity)


def _blended(
    under: NDArray[np.uint32], over: NDArray[np.uint32], opacity: NDArray[np.uint32]
) -> NDArray[np.uint32]:
    """Mix packed colours; 256 shows ``over`` alone. Red and blue fit into one number: each has 16 bits of room."""
    rest = np.uint32(256) - opacity
    red_blue = (under & _RED_BLUE) * rest + (over & _RED_BLUE) * opacity
    green = ((under & _GREEN) >> _BITS) * rest + ((over & _GREEN) >> _BITS) * opacity
    return ((red_blue >> _BITS) & _RED_BLUE) | (green & _GREEN)


def main_camera(config: TabletopConfig) -> Camera:
    """Return the camera straight above the table, which fills the image, or above the hand, from twice as high."""
    if config.main_camera == "hand":
        return Camera(config, scale=config.image_size / 4, follows=True)
    return Camera(config, scale=config.image_size / 2)


def wrist_camera(config: TabletopConfig) -> Camera:
    """Return the camera at the hand."""
    return Camera(config, scale=2.5 * config.image_size / 2, follows=True)


def front_camera(config: TabletopConfig) -> Camera:
    """Return the camera in front of the table that looks down at an angle."""
    half = config.image_size / 2
    return Camera(config, scale=0.9 * half, squash=0.65, lift=0.35 * half)
