"""Vendors are named by platform plugins alone."""

from __future__ import annotations

import re
from pathlib import Path

WORDS = (
    *("cuda", "nccl", "nvidia", "rocm", "rccl", "hip", "amd", "npu", "hccl", "huawei"),
    *("xpu", "xccl", "intel"),
    *("mlu", "cncl", "cambricon", "metax", "gcu", "eccl", "enflame", "flagos", "flagcx"),
)
VENDOR = re.compile(rf"(?<![a-z])({'|'.join(WORDS)})(?![a-z])", re.IGNORECASE)
ALLOWED = re.compile(r"CUDA-like|CUDA-compatible|\bcudart\b")
"""Words of the platform contract itself: the seed's member, and the term for platforms that reuse torch's first one."""
FOREIGN = ("plugrl_engine_megatron/bridges.py", "plugrl_engine_megatron/library.py")
"""Where another library's names are bound to what any platform has: they are named there, and nowhere else."""


def test_no_vendor_is_named_outside_the_platform_plugins(trees: dict[Path, object]) -> None:
    found = []
    for path in trees:
        if any(part.startswith("platform_") for part in path.parts) or str(path).endswith(FOREIGN):
            continue
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if VENDOR.search(ALLOWED.sub("", line)):
                found.append(f"{path}:{number}: {line.strip()}")
    assert not found, "\n".join(found)
