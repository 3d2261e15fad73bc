"""How torch, Ray and collectives reach the devices; what is not said here is answered by torch itself."""

from __future__ import annotations

import os

from plugrl.platforms.generic import TorchAcceleratorPlatform


def _flagcx_is_wanted() -> bool:
    return os.environ.get("USE_FLAGCX", "").strip().lower() in ("1", "true")


class EnflamePlatform(TorchAcceleratorPlatform):
    """Enflame GCUs of the fourth generation and later, by ``torch_gcu``, which changes parts of ``torch.cuda`` too."""

    extension = "torch_gcu"

    @property
    def device_name(self) -> str:
        """``"gcu"``."""
        return "gcu"

    @property
    def vendor_name(self) -> str:
        """``"enflame"``."""
        return "enflame"

    def communication_backend_name(self) -> str:
        """``"eccl"``, or ``"flagcx"`` where ``USE_FLAGCX`` asks for it."""
        return "flagcx" if _flagcx_is_wanted() else "eccl"

    def forward_env_vars(self) -> list[str]:
        """What chooses and finds the collective library."""
        return ["USE_FLAGCX", "FLAGCX_PATH"]

    def visible_devices_envvar(self) -> str:
        """``"TOPS_VISIBLE_DEVICES"``."""
        return "TOPS_VISIBLE_DEVICES"

    def ray_resource_name(self) -> str:
        """``"GPU"``, built into Ray."""
        return "GPU"

    def is_ipc_supported(self) -> bool:
        """True for tensors on the device. Python's shared memory does not work with ``torch_gcu``."""
        return True

    def rollout_env_vars(self) -> dict[str, str]:
        """Without compilation and without processes of vLLM's own, which are not reliable here."""
        return {
            "NCCL_CUMEM_ENABLE": "0",
            "TORCH_ECCL_AVOID_RECORD_STREAMS": "1",
            "TORCHGCU_INDUCTOR_ENABLE": "0",
            "TORCHDYNAMO_DISABLE": "1",
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        }
