"""A rollout backend that generates with vLLM. Importing this package is light."""

from __future__ import annotations
