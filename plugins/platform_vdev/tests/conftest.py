"""Lets the tests of this folder import their helper modules by name. No test of this process may load the device."""

from __future__ import annotations

import sys
from pathlib import Path

from plugrl.testing.ranks import ranks

__all__ = ["ranks"]

sys.path.insert(0, str(Path(__file__).parent))
