"""How torch, Ray and collectives reach the devices; what is not said here is answered by torch itself."""

from __future__ import annotations

import os

from plugrl.platforms.generic import TorchAcceleratorPlatform

_OPERATOR_VARIABLES = ("USE_FLAGGEMS", "TRAINING_FL_FLAGOS_WHITELIST", "TRAINING_FL_FLAGOS_BLACKLIST")


def _flagcx_is_wanted() -> bool:
    return os.environ.get("USE_FLAGCX", "").strip().lower() in ("1", "true")


class FlagosPlatform(TorchAcceleratorPlatform):
    """FlagOS on devices that torch reaches as ``torch.cuda``.

    It is a stack of software and no chip, so this platform is chosen by its name alone. Elsewhere FlagOS is only the
    vendor of engines: ``VERL_ENGINE_VENDOR=flagos`` gives that, on the platform of the chip.
    """

    @property
    def device_name(self) -> str:
        """``"cuda"``."""
        return "cuda"

    @property
    def vendor_name(self) -> str:
        """``"flagos"``."""
        return "flagos"

    def communication_backend_name(self) -> str:
        """``"nccl"``, or ``"flagcx"`` where ``USE_FLAGCX`` asks for it."""
        return "flagcx" if _flagcx_is_wanted() else "nccl"

    def forward_env_vars(self) -> list[str]:
        """What chooses the collective library and the operators."""
        return ["USE_FLAGCX", "FLAGCX_PATH", *_OPERATOR_VARIABLES]

    def visible_devices_envvar(self) -> str:
        """``"CUDA_VISIBLE_DEVICES"``."""
        return "CUDA_VISIBLE_DEVICES"

    def ray_resource_name(self) -> str:
        """``"GPU"``, built into Ray."""
        return "GPU"

    def generic_engine_vendor(self) -> str:
        """``"nvidia"``: its engines run here too, where there is none of flagos itself."""
        return "nvidia"

    def is_ipc_supported(self) -> bool:
        """True."""
        return True

    def rollout_env_vars(self) -> dict[str, str]:
        """Without cuMem allocations, which deadlock where trainer and rollout are apart."""
        return {"NCCL_CUMEM_ENABLE": "0"}
