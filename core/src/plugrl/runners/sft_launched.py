"""`plugrl sft` in processes that torchrun (or `accelerate launch`) started: without Ray, with the same loop."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

from plugrl.checkpoints.shared import place_probe, remove_probe
from plugrl.config.schema import RunConfig
from plugrl.errors import ConfigError, WorkerError
from plugrl.platforms import get_platform
from plugrl.plugins import load_plugins
from plugrl.runners.components import engine_spec
from plugrl.runners.inputs import SftInputs, check_sft_inputs
from plugrl.runners.main import finish, nothing_left, recorded, set_aside, step_of
from plugrl.runners.sft import SftRun, train_sft
from plugrl.runtime.launched import Launch, Link
from plugrl.runtime.launched_worker import RanksHere, serve, worker_here
from plugrl.tracking import RunDirectory
from plugrl.tracking.lock import FolderLock
from plugrl.workers.ranks import SupervisedGroup
from plugrl.workers.supervised import SupervisedWorker

MEET_TIMEOUT_S = 600.0
"""How long the ranks may take to meet, and rank 0 to load data and model settings."""


def run_sft_launched(launch: Launch, load: Callable[[], RunConfig]) -> None:
    """Train as one rank of a launcher's processes; rank 0 alone prints, logs and writes.

    ``load`` reads the configuration in each process. When one rank fails, all end within a deadline with its message.
    """
    try:
        with Link(launch, MEET_TIMEOUT_S) as link:
            if launch.is_first:
                _lead(link, load)
            else:
                logging.getLogger().setLevel(logging.ERROR)
                _follow(link, load)
    except WorkerError as error:
        if launch.is_first or error.rank == launch.rank:
            raise
        raise SystemExit(1) from error  # rank 0 says it


def _lead(link: Link, load: Callable[[], RunConfig]) -> None:
    config = load()
    began = time.time()
    folder = RunDirectory(config.trainer.default_local_dir).path
    with FolderLock(folder) as lock:
        inputs = check_sft_inputs(config, link.launch.world_size)
        go_on = not nothing_left(inputs, config)
        link.publish("run", {"settings": _settings(config), "go_on": go_on})
        if not go_on:
            return
        if inputs.resume_from is None:
            set_aside(folder, config.trainer.resume)
            lock.renew()
        for rank, host in enumerate(link.hosts()):
            print(f"rank {rank} of {link.launch.world_size}: {host}")
        for rank in range(1, link.launch.world_size):
            link.read(f"ready/{rank}")
        with recorded(config, inputs.run_dir, inputs.resume_from, phase="sft") as tracker:
            tracker.start_phase("sft", config.sft.total_steps, step_of(inputs.resume_from))
            group = SupervisedGroup(RanksHere(_worker(config, link), link))
            _check_folder(group, inputs)
            run = SftRun(config, group, tracker, inputs.store, resume_from=inputs.resume_from)
            train_sft(run)
            group.close()
        finish(config, inputs.run_dir, inputs.store, run.validations, began)


def _follow(link: Link, load: Callable[[], RunConfig]) -> None:
    told = link.read("run")
    if not told["go_on"]:
        return
    config = load()
    ours, first = _settings(config), told["settings"]
    differing = sorted(key for key in ours.keys() | first.keys() if ours.get(key) != first.get(key))
    if differing:
        raise ConfigError(
            f"The configuration or the plugins differ from those of rank 0 in {', '.join(differing[:5])}: all nodes "
            "need the same files and packages."
        )
    link.publish(f"ready/{link.launch.rank}", True)
    serve(_worker(config, link), link, config.cluster.step_timeout_s)


def _worker(config: RunConfig, link: Link) -> Any:
    link.timeout_s = config.cluster.step_timeout_s
    spec = engine_spec(config, "actor", config.sft.total_steps, config.sft.optim, shares_device=False)
    return worker_here(
        SupervisedWorker, link, platform=get_platform(config.platform), num_threads=config.cluster.threads_per_worker,
        spec=spec, config=config,
    )  # fmt: skip


def _check_folder(group: SupervisedGroup, inputs: SftInputs) -> None:
    """Every rank writes its part of a checkpoint: all must see the folder of the run as rank 0 does."""
    probe = place_probe(inputs.run_dir.path)
    try:
        group.check_folder(probe)
    finally:
        remove_probe(probe)


def _settings(config: RunConfig) -> dict[str, str]:
    """Return every key of the configuration as text, and the plugins; the folder of the run is rank 0's to choose."""
    found = {"plugins": load_plugins().fingerprint}
    rest: list[tuple[str, Any]] = [("", config.model_dump(mode="json"))]
    while rest:
        path, value = rest.pop()
        if isinstance(value, dict):
            rest += [(f"{path}.{key}".lstrip("."), below) for key, below in value.items()]
        else:
            found[path] = repr(value)
    found.pop("trainer.default_local_dir")
    return found
