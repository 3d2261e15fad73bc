"""Rollouts from servers, and what engines that sample asynchronously share. Importing this package is light."""

from __future__ import annotations
