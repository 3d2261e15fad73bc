"""The folder of checkpoints is one that every node sees (rule CK-4)."""

from __future__ import annotations

from pathlib import Path

import pytest

from plugrl.checkpoints.shared import check_probe, place_probe, remove_probe
from plugrl.errors import CheckpointError


def test_probe_is_seen_on_a_shared_folder_and_missed_elsewhere(tmp_path: Path) -> None:
    probe = place_probe(tmp_path / "run")
    check_probe(str(probe), "node-1")
    remove_probe(probe)
    remove_probe(probe)
    with pytest.raises(CheckpointError, match=r"node-7.*default_local_dir"):
        check_probe(probe, "node-7")
    assert list((tmp_path / "run").iterdir()) == []
