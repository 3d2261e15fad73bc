"""L4: the platform under Ray, in a local session of its own: devices, masks, plugins, deaths, nothing left behind."""

from __future__ import annotations

import os
import time
from typing import Any

from plugrl.errors import FingerprintMismatch, WorkerDied
from plugrl.platforms.devices import DeviceError
from plugrl.plugins import load_plugins
from plugrl.testing.kit.checks import CheckFailed, CheckSkipped, check, expect, expect_equal, expect_raises
from plugrl.testing.kit.context import Context

PLACED = "plugrl.testing.kit.runtime_workers:PlacedWorker"
MEETING = "plugrl.testing.kit.runtime_workers:MeetingWorker"
START_S = 180.0
"""Seconds a session or a group of workers has: each worker imports torch and the SDK, perhaps on a busy machine."""

DEATH_S = 30.0
STORE_BYTES = 80 * 2**20


def session_of(kit: Context) -> Any:
    """Return the session that the checks share, started on first use."""
    from plugrl.config.schema import ClusterConfig
    from plugrl.runtime.session import RaySession

    if "session" not in kit.cache:
        config = ClusterConfig(start_timeout_s=START_S, step_timeout_s=60.0)
        kit.cache["session"] = RaySession(config, platform=kit.platform_name, store_bytes=STORE_BYTES).start()
    return kit.cache["session"]


def workers_of(kit: Context) -> Any:
    """Return a group with a worker for each device (virtual ones: two), launched when there is none.

    They stand in a process group where the platform declares one.
    """
    from plugrl.runtime import WorkerGroup

    session = session_of(kit)
    if "workers" not in kit.cache:
        devices = range(min(session.device_count, 2) if kit.has_virtual_devices else session.device_count)
        worker = MEETING if kit.declares("dist.all_reduce.sum") else PLACED
        kit.cache["workers"] = WorkerGroup(session, worker, name="placed", devices=devices).wait_ready()
    return kit.cache["workers"]


def places_of(kit: Context) -> list[dict[str, Any]]:
    """Return what each worker says of its place, asked once."""
    if "places" not in kit.cache:
        kit.cache["places"] = workers_of(kit).execute("place").wait(60.0)
    return kit.cache["places"]


# --------------------------------------------------------------------- the session and its resource
@check(
    "L4.session.starts",
    gate=True,
    deadline_s=START_S + 30,
    fix="Start Ray by hand (`ray start --head`) to see whether it works on this machine at all.",
)
def session_starts(kit: Context) -> str:
    """A local Ray session starts on the platform and has its devices."""
    session = session_of(kit)
    expect_equal(session.platform_name, kit.platform_name, "the platform of the session")
    expect_equal(session.device_count, kit.platform.device_count(), "the number of devices of the session")
    return f"{session.device_count} devices"


@check(
    "L4.resource.counted",
    capability="runtime.resource",
    deadline_s=START_S + 30,
    fix="ray_resource_name() is what Ray counts the devices as; ray_resource_options() asks for it.",
)
def resource_counted(kit: Context) -> str:
    """Ray counts the platform's resource, as many as there are devices, and a worker that asks for it is placed."""
    import ray

    session = session_of(kit)
    name = kit.platform.ray_resource_name()
    expect(name, "ray_resource_name() is empty: Ray cannot count the devices")
    expect_equal(ray.cluster_resources().get(name, 0.0), float(session.device_count), f"Ray's number of {name}")
    workers_of(kit)
    left = ray.available_resources().get(name, 0.0)
    expect(left < session.device_count, f"workers run on devices, and Ray still counts all {left:g} {name} as free")
    return name


@check(
    "L4.resource.shortage",
    capability="runtime.resource",
    deadline_s=START_S + 30,
    fix="The text comes from ray_resource_name(), the mask and the probe of the platform.",
)
def shortage_is_explained(kit: Context) -> None:
    """Asking for one device too many is an error that names the resource, how many there are, and what to do."""
    from plugrl.runtime import WorkerGroup

    session = session_of(kit)
    count, name = session.device_count, kit.platform.ray_resource_name()
    error = expect_raises(
        DeviceError,
        lambda: WorkerGroup(session, PLACED, name="greedy", devices=[count]),
        f"a worker on device {count} of {count}",
    )
    text = str(error)
    for part in (f"{count + 1} {name}", f"{count}"):
        expect(part in text, f"the error does not say {part!r}", got=text)
    expect(len(text.splitlines()) > 2, "the error has no table of the nodes", got=text)


# --------------------------------------------------------------------- devices
@check(
    "L4.index.distinct",
    capability="runtime.index",
    deadline_s=START_S + 60,
    fix="visible_devices_envvar() must name the variable that the SDK obeys: each worker is started with one device in "
    "it. set_device() must take effect.",
)
def devices_are_distinct(kit: Context) -> str:
    """As many workers as devices each have a device of their own, compute on it, and see no other one."""
    places = places_of(kit)
    _all_different([place["name"] for place in places], "names of devices")
    hardware = [place["hardware"] for place in places]
    if None not in hardware:
        _all_different(hardware, "hardware ids (get_device_properties().uuid)")
    for place in places:
        rank = place["rank"]
        expect_equal(place["current"], place["given_index"], f"current_device() of rank {rank}")
        expect_equal(place["computed"], 8.0 * (rank + 1), f"what rank {rank} computed")
        if place["physical_id"] is not None:
            expect_equal(place["count"], 1, f"the number of devices that rank {rank} sees")
            expect_equal(place["mask"], place["physical_id"], f"the mask of rank {rank}")
    return ", ".join(place["name"] for place in places)


@check(
    "L4.index.collective",
    capability="runtime.index",
    devices=2,
    deadline_s=START_S + 90,
    fix="Workers that each see one device as index 0 must still meet in one process group.",
)
def workers_meet(kit: Context) -> None:
    """Workers of a group that each see one device reduce a tensor on their devices."""
    group = workers_of(kit)
    if not kit.declares("dist.all_reduce.sum"):
        raise CheckSkipped("the platform declares no all_reduce")
    expected = float(sum(range(group.size + 1)))
    expect_equal(group.execute("sum_of_ranks").wait(60.0), [expected] * group.size, "the sum over all ranks")


@check(
    "L4.visible_env.before_sdk",
    capability="runtime.visible_env",
    deadline_s=START_S + 60,
    fix="Import the SDK in functions, not at the top of the manifest, of a hook or of an extension module.",
)
def mask_before_sdk(kit: Context) -> None:
    """A worker's mask stands in the environment that its process starts with, and nothing loads the SDK earlier."""
    for place in places_of(kit):
        expect(place["set_at_start"], f"rank {place['rank']} was started without its mask")
        early = f"{place['sdk']} was loaded in rank {place['rank']} before the worker took its device"
        expect(not place["sdk_was_loaded"], early)


# --------------------------------------------------------------------- plugins and deaths
@check("L4.fingerprint.equal", capability="runtime.fingerprint", deadline_s=START_S + 60)
def fingerprints_agree(kit: Context) -> str:
    """All workers have the plugins of the driver."""
    mine = load_plugins().fingerprint
    for place in places_of(kit):
        expect_equal(place["fingerprint"], mine, f"the fingerprint of rank {place['rank']}")
    return mine[:12]


@check(
    "L4.worker_death.typed",
    capability="runtime.worker_death",
    deadline_s=START_S + DEATH_S + 60,
    fix="A device that hangs when its process dies keeps the error from arriving.",
)
def death_is_an_error(kit: Context) -> str:
    """A worker that dies is a WorkerDied with its rank, within seconds; then its name and device are free again."""
    group = workers_of(kit)
    last = group.size - 1
    began = time.monotonic()
    call = group.execute("die", ranks=[last])
    error = expect_raises(WorkerDied, lambda: call.wait(DEATH_S), "a call whose worker dies")
    took = time.monotonic() - began
    expect_equal(getattr(error, "rank", None), last, "the rank in the error")
    kit.cache.pop("workers").close(graceful=False)
    again = workers_of(kit).execute("compute").wait(60.0)
    expect_equal(again, [8.0 * (rank + 1) for rank in range(last + 1)], "what the new workers computed")
    return f"after {took:.1f} s"


@check(
    "L4.fingerprint.difference",
    capability="runtime.fingerprint",
    deadline_s=START_S + 60,
    fix="Workers load plugins by plugrl.plugins.bootstrap.setup; see `plugrl plugins doctor`.",
)
def difference_is_reported(kit: Context) -> None:
    """A worker with other plugins than the driver is refused at its start, by an error that names node and plugin."""
    from plugrl.runtime import WorkerGroup

    _close_workers(kit)
    session = session_of(kit)
    others = sorted(record.name for record in load_plugins().records if record.name != kit.plugin)
    missing = kit.plugin or (others[0] if others else "")
    if not missing:
        raise CheckSkipped("no plugin is installed that a worker could lack")
    group = WorkerGroup(session, PLACED, name="other", devices=[0], env={"PLUGRL_PLUGINS": f"-{missing}"})
    error = expect_raises(FingerprintMismatch, group.wait_ready, f"a worker without plugin {missing}")
    text = "\n".join([str(error), *getattr(error, "__notes__", ())])
    for part in (missing.replace("_", "-"), session.nodes[0].ip):
        expect(part in text.replace("_", "-"), f"the error does not name {part}", got=text)


@check(
    "L4.visible_env.preset",
    capability="runtime.visible_env",
    devices=2,
    deadline_s=2 * START_S + 60,
    fix="device_count() must obey the mask that the driver was started with.",
)
def preset_mask(kit: Context) -> None:
    """A driver that is started with a mask hands out the devices in it: of two devices the second alone."""
    variable = kit.platform.visible_devices_envvar()
    visible = [item.strip() for item in os.environ.get(variable, "0,1").split(",") if item.strip()]
    wanted = visible[-1]
    answer = kit.in_process(_PRESET.format(name=kit.platform_name, worker=PLACED, start=START_S, store=STORE_BYTES),
                            env={variable: wanted}, timeout_s=2 * START_S)  # fmt: skip
    expect_equal(answer["devices"], 1, f"the number of devices with {variable}={wanted}")
    expect_equal(answer["physical_id"], wanted, f"the device of the worker with {variable}={wanted}")


_PRESET = """
from plugrl.config.schema import ClusterConfig
from plugrl.runtime import RaySession, WorkerGroup
config = ClusterConfig(start_timeout_s={start}, step_timeout_s=60.0)
with RaySession(config, platform={name!r}, store_bytes={store}) as session:
    place, = WorkerGroup(session, {worker!r}, name="preset", devices=[0]).wait_ready().execute("place").wait(60.0)
    answer = {{"devices": session.device_count, "physical_id": place["physical_id"]}}
"""


@check("L4.session.leaves_nothing", deadline_s=90, fix="Look for processes that the SDK leaves running.")
def nothing_is_left(kit: Context) -> None:
    """The session ends with all its workers within a minute, and its folder is gone."""
    from plugrl.runtime import process

    session = kit.cache.pop("session", None)
    if session is None:
        raise CheckFailed("there is no session: it did not start, or was ended by an earlier check")
    workers = [(info.pid, info.started) for group in session.open_groups() for info in group.known_processes().values()]
    services = [(pid, process.started_at(pid)) for pid in process.children(os.getpid())]
    session.shutdown(graceful=True)
    kit.cache.clear()
    left = process.wait_gone([*workers, *services], 30.0)
    expect(not left, f"processes are still running: {', '.join(str(pid) for pid, _ in left)}")
    expect(not session.run_directory.exists(), f"{session.run_directory} was left behind")


def _close_workers(kit: Context) -> None:
    """Free the devices: not every platform lets two processes share one. What the workers said is known by then."""
    group = kit.cache.pop("workers", None)
    if group is not None:
        group.close()


def _all_different(names: list[Any], what: str) -> None:
    expect(len(set(names)) == len(names), f"{what} are not all different: two workers have one device", got=names)
