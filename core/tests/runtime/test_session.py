"""A session leaves nothing behind however its driver ends, listens on loopback alone and joins nobody."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("ray")

from plugrl.config.schema import ClusterConfig
from plugrl.errors import FingerprintMismatch, PluginError, PlugRLError, UserError
from plugrl.platforms.cpu import CpuPlatform
from plugrl.platforms.devices import DeviceError
from plugrl.plugins import load_plugins
from plugrl.runtime import RaySession, WorkerGroup, local_ray
from plugrl.runtime.process import is_alive
from plugrl.runtime.rundir import create_run_directory, remove_run_directory, sweep
from plugrl.runtime.worker_environment import worker_environment

ECHO = "plugrl.testing.workers:EchoWorker"
SCRIPT = Path(__file__).with_name("driver_script.py")


def start_driver(*arguments):
    """Start the script beside a foreign Ray that it must not join; return it with a short temporary folder."""
    folder = Path(tempfile.mkdtemp(prefix="r"))
    (folder / "ray").mkdir()
    (folder / "ray" / "ray_current_cluster").write_text("192.0.2.1:6379")
    # A launcher's variables are those of the driver, and none of its workers may take them for its own.
    launcher = {"RANK": "3", "WORLD_SIZE": "8", "MASTER_PORT": "1"}
    environment = {**os.environ, **launcher, "RAY_ADDRESS": "192.0.2.1:6379", "RAY_TMPDIR": str(folder)}
    process = subprocess.Popen(
        [sys.executable, str(SCRIPT), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        start_new_session=True,
    )
    return process, folder


@pytest.fixture(scope="module")
def drivers():
    """The drivers of this module, started together: each costs seconds that they can share."""
    started = {name: start_driver(name) for name in ("interrupt", "kill", "raise", "terminate")}
    yield {name: process for name, (process, _) in started.items()}
    for process, folder in started.values():
        if process.poll() is None:
            process.kill()
        process.communicate(timeout=30)
        shutil.rmtree(folder, ignore_errors=True)


def state_of(process):
    line = process.stdout.readline()
    assert line, process.stderr.read()
    return json.loads(line)


def left_after(pids, seconds):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and any(map(is_alive, pids)):
        time.sleep(0.1)
    return [pid for pid in pids if is_alive(pid)]


def command_of(pid):
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


def test_ctrl_c_leaves_no_process_and_nothing_listened_beyond_loopback(drivers):
    process = drivers["interrupt"]
    state = state_of(process)
    assert state["listeners"] == []
    assert set(state["workers"]) <= set(state["pids"])
    assert any("ray::ChannelHost" in command_of(pid) for pid in state["pids"])
    # As a terminal does: every process of the foreground group gets the signal.
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert process.returncode not in (0, None)
    assert "KeyboardInterrupt" in errors
    assert left_after(state["pids"], 5) == []
    assert not Path(state["run_directory"]).exists()


def test_the_drivers_own_answer_to_sigterm_stays_in_force(drivers):
    process = drivers["terminate"]
    state = state_of(process)
    process.terminate()
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 77, errors
    assert "SIGTERM received" not in errors  # said by Ray's crash handler, which aborts the process 3 s later
    assert left_after(state["pids"], 5) == []
    assert not Path(state["run_directory"]).exists()


def test_an_error_of_the_driver_leaves_no_process(drivers):
    process = drivers["raise"]
    state = state_of(process)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "RuntimeError: the driver fails" in errors
    assert left_after(state["pids"], 5) == []
    assert not Path(state["run_directory"]).exists()


def test_a_killed_driver_takes_its_processes_and_files_along(drivers):
    process = drivers["kill"]
    state = state_of(process)
    process.kill()
    process.wait(timeout=10)
    assert left_after(state["pids"], 30) == []
    assert not Path(state["run_directory"]).exists()


def test_a_run_directory_is_private_and_those_of_dead_owners_go():
    own = create_run_directory("test")
    dead = own.with_name(f"plugrl-{os.getuid()}-4194304-1-test")
    dead.mkdir()
    try:
        assert own not in sweep(own.parent) and not dead.exists()
        assert own.stat().st_mode & 0o777 == 0o700
    finally:
        remove_run_directory(own)


def test_one_process_has_one_session(ray_session):
    with pytest.raises(UserError, match="connected to a Ray already"):
        RaySession(platform="cpu").start()
    with pytest.raises(PlugRLError, match="is not started"):
        WorkerGroup(_unstarted(ray_session), ECHO, name="x", devices=[0])


def test_a_ray_that_does_not_start_is_one_message(monkeypatch):
    import ray

    def fail(**_):
        raise Exception("The current node timed out\nduring startup.")

    monkeypatch.setattr(ray, "init", fail)
    common = {"runtime_env": {}, "namespace": "x"}
    with pytest.raises(PlugRLError, match=r"^Ray did not start on this machine: .* timed out during startup\.$"):
        local_ray.start_local(**common, resources={}, store_bytes=1, dashboard=False)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(PlugRLError, match=rf"^cluster\.ray_address: the Ray at {address} cannot be joined: The"):
            local_ray.join(address, **common)
    with pytest.raises(PlugRLError, match=rf"the Ray at {address} cannot be joined: nothing answers there"):
        local_ray.join(address, **common)


def _unstarted(session):
    other = RaySession(platform="cpu")
    other.platform, other.nodes = session.platform, session.nodes
    return other


def test_a_worker_without_the_drivers_plugins_says_which(ray_session):
    names = [record.distribution for record in load_plugins().active]
    if not names:
        pytest.skip("no plugin is installed")
    group = WorkerGroup(ray_session, ECHO, name="bare", devices=[0], env={"PLUGRL_PLUGINS": ""})
    with pytest.raises(FingerprintMismatch) as caught:
        group.wait_ready(120)
    assert all(name in str(caught.value) for name in names)
    assert f"pid {group.known_processes()[0].pid}" in str(caught.value)


def test_extension_modules_are_loaded_in_workers(ray_session, tmp_path):
    (tmp_path / "runtime_extension.py").write_text("def register():\n    print('registered')\n")
    paths = {"PYTHONPATH": str(tmp_path)}
    good = {**paths, "RLINF_EXT_MODULE": "runtime_extension"}
    bad = {**paths, "RLINF_EXT_MODULE": "runtime_extension,no_such_extension"}
    loaded = WorkerGroup(ray_session, ECHO, name="extended", devices=[0], env=good)
    failing = WorkerGroup(ray_session, ECHO, name="unextended", devices=[0], env=bad)
    loaded.wait_ready(120)
    (row,) = loaded.execute("environment", "runtime_extension").wait(30)
    assert row["modules"] == ["runtime_extension"]
    with pytest.raises(PluginError, match="no_such_extension"):
        failing.wait_ready(120)
    loaded.close()


def test_what_a_platform_sets_for_workers_gives_way_to_the_users_own(monkeypatch):
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "7")
    variables = worker_environment(CpuPlatform(), "cpu", ClusterConfig(), load_plugins(), {"MINE": "1"})
    assert variables["MALLOC_TRIM_THRESHOLD_"] == "7"
    assert variables["MALLOC_MMAP_MAX_"] == "0"
    assert (variables["VERL_PLATFORM"], variables["MINE"]) == ("cpu", "1")


def test_no_worker_gets_the_drivers_mask(monkeypatch):
    monkeypatch.setattr(CpuPlatform, "visible_devices_envvar", lambda self: "ACME_MASK")
    monkeypatch.setattr(CpuPlatform, "forward_env_vars", lambda self: ["ACME_MASK"])
    monkeypatch.setenv("ACME_MASK", "3")
    assert "ACME_MASK" not in worker_environment(CpuPlatform(), "cpu", ClusterConfig(), load_plugins(), {})
    with pytest.raises(DeviceError, match="ACME_MASK cannot be given to workers"):
        worker_environment(CpuPlatform(), "cpu", ClusterConfig(), load_plugins(), {"ACME_MASK": "3"})
