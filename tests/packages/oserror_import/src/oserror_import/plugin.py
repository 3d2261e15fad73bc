"""A manifest that fails as a native library of another ABI does."""

from __future__ import annotations

raise OSError("libacme.so.1: undefined symbol: acme_init")
