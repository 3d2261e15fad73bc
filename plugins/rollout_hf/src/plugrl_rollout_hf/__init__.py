"""A rollout backend that generates in process with a Hugging Face model. Importing this package is light."""

from __future__ import annotations
