"""The levels of the conformance kit that need the device: run where it is, left out elsewhere."""

from __future__ import annotations

import pytest

from plugrl.platforms.probe import Available
from plugrl.testing.platform import platform_tests
from plugrl_platform_flagos.probe import probe

if not isinstance(probe(), Available):
    pytest.skip("the device is not here", allow_module_level=True)

pytestmark = pytest.mark.gpu
test_device = platform_tests("platform_flagos", levels=("L1", "L2", "L3", "L4", "L5"))
