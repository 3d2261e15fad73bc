"""Random numbers by counter: what a scene draws depends on its seed alone, never on the scenes beside it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)
_STREAM = np.uint64(0xD1342543DE82EF95)


def _mixed(bits: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Every bit of the result depends on all of the argument (the finaliser of SplitMix64, Steele et al. 2014)."""
    bits = (bits ^ (bits >> np.uint64(30))) * _FIRST
    bits = (bits ^ (bits >> np.uint64(27))) * _SECOND
    return bits ^ (bits >> np.uint64(31))


def uniforms(seeds: NDArray[np.uint64], stream: int | NDArray[np.int64], count: int) -> NDArray[np.float64]:
    """Return numbers in [0, 1), [n, count], for seeds [n]; another stream (one, or one a seed) gives other numbers."""
    streams = np.asarray(stream).astype(np.uint64)
    keys = _mixed(seeds + streams * _STREAM + _GOLDEN)
    counters = np.arange(1, count + 1, dtype=np.uint64) * _GOLDEN
    return (_mixed(keys[:, None] + counters) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def noise(seeds: NDArray[np.uint64], stream: NDArray[np.int64], count: int) -> NDArray[np.float64]:
    """Return bell-shaped numbers of mean 0 and standard deviation 1, [n, count]: sums of four uniform ones.

    Sums and products round the same way in any batch; logarithms and cosines of vectors need not.
    """
    flat = uniforms(seeds, stream, 4 * count).reshape(len(seeds), count, 4)
    total = flat[..., 0] + flat[..., 1] + flat[..., 2] + flat[..., 3]
    return (total - 2.0) * 3.0**0.5
