"""Workers of runs in environments: scenes that are stepped, a policy that acts in them, and its training."""

from __future__ import annotations
