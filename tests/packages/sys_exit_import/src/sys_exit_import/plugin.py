"""A manifest that tries to end the process."""

from __future__ import annotations

import sys

sys.exit(3)
