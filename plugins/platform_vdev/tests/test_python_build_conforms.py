"""The kit on the build without a compiler: it passes what it offers, and offers no more."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow


@pytest.mark.timeout(600)
def test_the_python_build_passes_all_that_it_offers(tmp_path: Path) -> None:
    record = tmp_path / "record.json"
    done = subprocess.run(
        [sys.executable, "-m", "plugrl", "plugins", "check", "vdev", "--level", "L1-L3", "--json", str(record)],
        env={**os.environ, "VDEV_BUILD": "python"},
        capture_output=True,
        text=True,
        timeout=500,
    )
    (report,) = json.loads(record.read_text())["reports"]
    found = {row["id"]: row["status"] for row in report["results"]}
    failed = [f"{row['id']}: {row['detail']}" for row in report["results"] if row["status"] == "failed"]
    assert done.returncode == 0 and not failed, failed
    assert found["L3.ddp.parity"] == "supported" and found["L3.fsdp2.parity"] == "not_declared"
