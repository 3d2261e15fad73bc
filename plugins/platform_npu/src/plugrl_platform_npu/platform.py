"""How torch, Ray and collectives reach the devices; what is not said here is answered by torch itself."""

from __future__ import annotations

import logging
import os
import platform as host
import re
import shutil
import subprocess
from pathlib import Path

from packaging.version import InvalidVersion, Version

from plugrl.errors import PlatformUnavailable
from plugrl.platforms.generic import TorchAcceleratorPlatform

DRIVER_WITH_IPC = Version("25.3rc1")
TOOLKIT_WITH_IPC = Version("8.3rc1")
_SMI_DEADLINE_S = 10.0
_TOOLKIT = "/usr/local/Ascend/ascend-toolkit/latest"

logger = logging.getLogger(__name__)


def _flagcx_is_wanted() -> bool:
    return os.environ.get("USE_FLAGCX", "").strip().lower() in ("1", "true")


class NpuPlatform(TorchAcceleratorPlatform):
    """Huawei Ascend NPUs, by ``torch_npu``."""

    extension = "torch_npu"

    @property
    def device_name(self) -> str:
        """``"npu"``."""
        return "npu"

    @property
    def vendor_name(self) -> str:
        """``"huawei"``."""
        return "huawei"

    def is_platform_available(self, use_smi_check: bool = False) -> bool:
        """With the flag it is enough that ``torch_npu`` loads: a process without devices knows the machine by it."""
        if not use_smi_check:
            return self.is_available()
        try:
            return self.device_module is not None
        except PlatformUnavailable:
            return False

    def communication_backend_name(self) -> str:
        """``"hccl"``, or ``"flagcx"`` where ``USE_FLAGCX`` asks for it."""
        return "flagcx" if _flagcx_is_wanted() else "hccl"

    def forward_env_vars(self) -> list[str]:
        """What chooses and finds the collective library."""
        return ["USE_FLAGCX", "FLAGCX_PATH"]

    def visible_devices_envvar(self) -> str:
        """``"ASCEND_RT_VISIBLE_DEVICES"``."""
        return "ASCEND_RT_VISIBLE_DEVICES"

    def ray_resource_name(self) -> str:
        """``"NPU"``, which Ray counts by itself where it finds the driver."""
        return "NPU"

    def is_ipc_supported(self) -> bool:
        """Whether driver and toolkit are new enough: 25.3.rc1 and 8.3.rc1. What cannot be found out is no."""
        try:
            driver, toolkit = driver_version(), toolkit_version()
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            logger.info("Device memory is not shared between processes: %s", error)
            return False
        return driver >= DRIVER_WITH_IPC and toolkit >= TOOLKIT_WITH_IPC

    def rollout_env_vars(self) -> dict[str, str]:
        """Settings of vLLM's backend; ``VLLM_ASCEND_TASK_QUEUE_ENABLE`` sets the queue of the rollout alone."""
        found = {"NCCL_CUMEM_ENABLE": "0", "VLLM_ASCEND_AUTO_DETECT_QUANTIZATION": "0"}
        queue = os.environ.get("VLLM_ASCEND_TASK_QUEUE_ENABLE")
        return {**found, "TASK_QUEUE_ENABLE": queue} if queue else found


def driver_version() -> Version:
    """Return the version of the driver as ``npu-smi`` prints it. Raises OSError, ValueError or SubprocessError."""
    command = shutil.which("npu-smi")
    if command is None:
        raise FileNotFoundError("npu-smi is not on the path")
    done = subprocess.run(
        [command, "info", "-t", "board", "-i", "0"], capture_output=True, text=True, timeout=_SMI_DEADLINE_S, check=True
    )
    found = re.search(r"^\s*Software Version\s*:\s*(\S+)", done.stdout, re.MULTILINE)
    if found is None:
        raise ValueError("npu-smi names no software version")
    return parse_version(found[1])


def toolkit_version() -> Version:
    """Return the version of CANN from its own record. Raises OSError or ValueError."""
    folder = Path(os.environ.get("ASCEND_HOME_PATH", _TOOLKIT)) / f"{host.machine()}-linux"
    record = folder / "ascend_toolkit_install.info"
    found = re.search(r"^version=(\S+)", record.read_text(), re.MULTILINE)
    if found is None:
        raise ValueError(f"{record} names no version")
    return parse_version(found[1])


def parse_version(text: str) -> Version:
    """Read the vendor's spelling: ``25.3.RC1.2`` is a candidate of 25.3, ``25.5.t3.b001`` a revision of 25.5.

    Raises ValueError.
    """
    found = re.match(r"(\d+\.\d+)(?:\.(rc\d+|\d+))?", text.strip().lower())
    if found is None:
        raise ValueError(f"{text!r} is no version")
    base, rest = found[1], found[2] or ""
    try:
        return Version(base + (rest if rest.startswith("rc") else f".{rest}" if rest else ""))
    except InvalidVersion as error:
        raise ValueError(f"{text!r} is no version") from error
