"""A platform without hardware, to test what the core does for accelerators; an extension module (``RLINF_EXT_MODULE``).

Its boards compute on the processor. They have a mask, a Ray resource and an SDK that must be loaded after the mask was
set; variables make them scarce, exclusive or somebody else's.

=========================  ==========================================================
``BOARD_VISIBLE_DEVICES``  the mask
``BOARD_COUNT``            boards of the machine (8); 0: there is none
``BOARD_RESOURCE``         the resource that Ray counts (``BOARD``)
``BOARD_EXCLUSIVE``        set: one process owns a board alone
=========================  ==========================================================
"""

from __future__ import annotations

import importlib
import os
from typing import Any

from plugrl.platforms.cpu import CpuPlatform
from plugrl.platforms.probe import Available, ProbeResult, Unavailable
from plugrl.platforms.registry import PlatformRegistry

NAME = "boards"
SDK = "plugrl.testing.board_sdk"
VARIABLE = "BOARD_VISIBLE_DEVICES"
DEFAULT_COUNT = 8


class BoardPlatform(CpuPlatform):
    """Boards that compute on the processor."""

    extension = SDK

    @property
    def vendor_name(self) -> str:
        """``"acme"``."""
        return "acme"

    @property
    def sdk(self) -> Any:
        """The SDK, which is loaded when it is first asked for."""
        return importlib.import_module(SDK)

    def device_count(self) -> int:
        """Number of boards that the SDK sees."""
        return len(self.sdk.visible)

    def visible_devices_envvar(self) -> str:
        """The mask."""
        return VARIABLE

    def ray_resource_name(self) -> str:
        """The resource, which Ray must be told of."""
        return os.environ.get("BOARD_RESOURCE", "BOARD")

    def ray_noset_envvars(self) -> list[str]:
        """One, as real platforms have."""
        return [f"RAY_EXPERIMENTAL_NOSET_{VARIABLE}"]

    def supports_colocated_worker_groups(self) -> bool:
        """Whether ``BOARD_EXCLUSIVE`` is not set."""
        return "BOARD_EXCLUSIVE" not in os.environ

    def worker_env_vars(self) -> dict[str, str]:
        """Nothing: what the processor's platform sets is not for boards."""
        return {}


def probe() -> ProbeResult:
    """Count the boards without loading the SDK."""
    count = int(os.environ.get("BOARD_COUNT", DEFAULT_COUNT))
    return Available(count, "boards for tests") if count else Unavailable("no board is plugged in")


def register() -> None:
    """Register the platform; it is chosen only where it is named."""
    PlatformRegistry.register(NAME, probe=probe, priority=-1)(BoardPlatform)
