"""Pictures as PNG without an image library: what is stored is what was seen, bit by bit."""

from __future__ import annotations

import struct
import zlib

import numpy as np
from numpy.typing import NDArray

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_RGB8 = (8, 2, 0, 0, 0)
"""Bits of a channel, red green blue, and the only compression, filtering and order of rows that there is for us."""


def encode_png(picture: NDArray[np.uint8], level: int = 6) -> bytes:
    """Return a picture uint8 [H, W, 3] as a PNG file; each row is stored as differences to the one above.

    Raises ValueError for another shape or type. Source: www.w3.org/TR/png-3.
    """
    if picture.dtype != np.uint8 or picture.ndim != 3 or picture.shape[2] != 3:
        raise ValueError(f"a picture is uint8 [H, W, 3], not {picture.dtype} {list(picture.shape)}")
    height, width = picture.shape[:2]
    rows = np.ascontiguousarray(picture).reshape(height, width * 3)
    above = np.vstack([np.zeros((1, width * 3), np.uint8), rows[:-1]])
    filtered = np.hstack([np.full((height, 1), 2, np.uint8), rows - above])  # 2: "up"; bytes wrap around
    header = struct.pack(">IIBBBBB", width, height, *_RGB8)
    parts = ((b"IHDR", header), (b"IDAT", zlib.compress(filtered.tobytes(), level)), (b"IEND", b""))
    return _SIGNATURE + b"".join(_part(kind, content) for kind, content in parts)


def _part(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
