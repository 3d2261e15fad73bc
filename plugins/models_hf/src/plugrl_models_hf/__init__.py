"""Policies and value models from Hugging Face transformers. Importing this package is light; its modules are not."""

from __future__ import annotations
