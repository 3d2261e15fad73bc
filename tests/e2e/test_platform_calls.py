"""A run calls what the core asks vendors to write: a platform that writes down every call, in driver and workers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

PLATFORM = '''
import os

from plugrl.platforms import PlatformRegistry
from plugrl.platforms.cpu import CpuPlatform

WATCHED = (
    "set_device", "synchronize", "manual_seed_all", "set_allocator_settings", "empty_cache", "rollout_env_vars",
    "get_device_uuid", "nvtx_range", "profiler_start", "profiler_stop", "visible_devices_envvar", "preferred_dtype",
    "communication_backend_name", "apply_model_patches", "rng_state", "ray_noset_envvars", "forward_env_vars",
    "worker_env_vars",
)


def watched(name):
    def call(self, *args):
        detail = " ".join(map(str, args))
        if "TRACED_ROLLOUT" in os.environ:
            detail += f" [{os.environ['TRACED_ROLLOUT']}]"
        with open(os.environ["TRACED_CALLS"], "a") as file:
            file.write(f"{name} {detail}\\n")
        if name == "rollout_env_vars":
            return {"TRACED_ROLLOUT": "rollout"}
        if name == "forward_env_vars":
            return ["TRACED_CALLS"]
        return getattr(CpuPlatform, name)(self, *args)
    return call


@PlatformRegistry.register(platform="traced")
class Traced(CpuPlatform):
    """The processor, with a record of the calls."""


for name in WATCHED:
    setattr(Traced, name, watched(name))
'''


@pytest.mark.slow
def test_a_run_calls_every_member_that_it_can(cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Actor and rollout share a device; the estimator is one that asks the actor for more than log-probabilities."""
    calls = Path(cli.folder / "calls.txt")
    (cli.folder / "plugrl_e2e_platform.py").write_text(PLATFORM)
    monkeypatch.setenv("RLINF_EXT_MODULE", "plugrl_e2e_platform")
    monkeypatch.setenv("TRACED_CALLS", str(calls))
    path = cli.write(
        "traced",
        cluster={"component_placement": {"actor,rollout": "0-1"}, "allocator_settings": "expandable_segments:True"},
        algorithm={"adv_estimator": "optimal_token_baseline"},
        trainer={"total_training_steps": 2, "save_freq": 2, "profile_steps": [2]},
    )
    done = cli.run("train", str(path), "platform=traced", "model.precision=auto")
    assert done.returncode == 0, done.stdout + done.stderr
    lines = calls.read_text().splitlines()
    called = {line.split(" ")[0] for line in lines}
    module: dict[str, Any] = {}
    watched = PLATFORM.partition("WATCHED = (")[2].partition(")")[0]
    exec(f"names = ({watched})", module)
    assert set(module["names"]) <= called, sorted(set(module["names"]) - called)
    assert "set_allocator_settings expandable_segments:True" in lines
    assert "nvtx_range actor.train" in lines and "nvtx_range rollout.generate [rollout]" in lines
    assert lines.count("profiler_start ") == lines.count("profiler_stop ") == 2, "each rank, at step 2"
    assert {"empty_cache ", "empty_cache  [rollout]"} <= set(lines), "the shared device's cache is given back"
    metrics = cli.metrics("traced")
    assert set(metrics) >= {1, 2} and metrics[2]["actor/grad_norm"] > 0
