"""An extension module that is wrong: it loads the SDK when it is imported, before a worker has its device."""

from __future__ import annotations

import plugrl_platform_vdev.device  # noqa: F401
