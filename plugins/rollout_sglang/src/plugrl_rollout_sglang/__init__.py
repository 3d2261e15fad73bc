"""A rollout backend that generates with SGLang. Importing this package is light."""

from __future__ import annotations
