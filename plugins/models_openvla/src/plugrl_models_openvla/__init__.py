"""OpenVLA and OpenVLA-OFT on torch and transformers alone. Importing this package is light; its modules are not."""

from __future__ import annotations
