"""Trains and saves in forked processes, kills them in the middle of saves, and resumes from what they left.

Run as ``python crash_runner.py FOLDER KIND KILLS SEED`` with a KIND of the table below. Prints one line of JSON
for each kill: the step resumed, whether its weights are those that were saved, and what lay in the folder.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import random
import signal
import sys
import time
import traceback
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from plugrl.checkpoints import CheckpointStore
from plugrl.platforms import set_platform
from plugrl.platforms.cpu import CpuPlatform
from plugrl.plugins import load_plugins

DEADLINE_S = 60.0
MODEL = {"width": 128, "blocks": 3}
KINDS: dict[str, tuple[int, str, dict[str, Any]]] = {
    "sync": (1, "ddp", {}),
    "async": (1, "ddp", {"async_save": True}),
    "dcp": (2, "fsdp2", {"format": "dcp"}),
    "dcp-async": (2, "fsdp2", {"format": "safetensors_dcp", "async_save": True}),
}


def digest(engine: Any) -> str:
    """A hash of all weights. Collective."""
    found = hashlib.sha256()
    for _, tensor in engine.get_per_tensor_param()[0]:
        found.update(tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


def train_and_save(folder: Path, kind: str, rank: int, attempt: int) -> None:
    """Go on from the newest checkpoint, and save after every step until killed."""
    import resharding

    world, backend, checkpoint = KINDS[kind]
    if world > 1:
        meet = f"file://{folder / f'meet-{attempt}'}"
        timeout = timedelta(seconds=30)
        dist.init_process_group("gloo", init_method=meet, rank=rank, world_size=world, timeout=timeout)
    engine = resharding.make_engine(backend, {}, checkpoint, **MODEL)
    store = CheckpointStore(folder / "checkpoints", max_to_keep=3, timeout_s=30.0)
    found = store.resolve("auto")
    step = 0
    if found is not None:
        store.protect(found)
        engine.load_checkpoint(str(found))
        step = int(found.name)
    while True:
        resharding.train(engine, rank, world, step, step + 1)
        step += 1
        weights = digest(engine)
        if rank == 0:
            (folder / f"weights-{step}").write_text(weights)
            (folder / "saving").touch()
        save(engine, store, step, rank, world)


def save(engine: Any, store: CheckpointStore, step: int, rank: int, world: int) -> None:
    """One save, of which rank 0 has the store."""
    path: list[Any] = [None]
    context = store.write(step)
    if rank == 0:
        path = [str(context.__enter__())]
    if world > 1:
        dist.broadcast_object_list(path)
    engine.save_checkpoint(path[0], step)
    if rank == 0:
        context.__exit__(None, None, None)


def fork(folder: Path, kind: str, rank: int, attempt: int) -> int:
    """Start one rank; returns its process id."""
    pid = os.fork()
    if pid:
        return pid
    try:
        train_and_save(folder, kind, rank, attempt)
    except BaseException:  # the border of the process
        traceback.print_exc()
    finally:
        os._exit(1)


def kill_in_a_save(folder: Path, kind: str, attempt: int, dice: random.Random, length_s: float) -> None:
    """Start the ranks, wait for a save to begin, and kill all of them at a random moment of it."""
    flag = folder / "saving"
    flag.unlink(missing_ok=True)
    pids = [fork(folder, kind, rank, attempt) for rank in range(KINDS[kind][0])]
    try:
        for _ in range(dice.randint(1, 3)):
            deadline = time.monotonic() + DEADLINE_S
            while not flag.exists():
                if time.monotonic() > deadline or os.waitpid(pids[0], os.WNOHANG)[0]:
                    raise RuntimeError("the process ended, or no save began")
                time.sleep(0.001)
            flag.unlink()
        time.sleep(dice.uniform(0, length_s))
    finally:
        dice.shuffle(pids)
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        for pid in pids:
            try:
                os.waitpid(pid, 0)
            except ChildProcessError:
                pass  # waited for above


def resume(folder: Path) -> dict[str, Any]:
    """Load the newest checkpoint into one process and compare its weights with those that were saved."""
    import resharding

    store = CheckpointStore(folder / "checkpoints")
    found = store.resolve("auto")
    if found is None:
        return {"step": 0, "equal": True, "left": sorted(path.name for path in store.root.iterdir())}
    engine = resharding.make_engine("ddp", {}, **MODEL)
    engine.load_checkpoint(str(found))
    step = int(found.name)
    equal = (folder / f"weights-{step}").read_text() == digest(engine)
    return {"step": step, "equal": equal, "left": sorted(path.name for path in store.root.iterdir())}


def main() -> None:
    """Kill as often as asked for."""
    folder, kind, kills, seed = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    sys.path.insert(0, str(Path(__file__).parent))
    logging.getLogger().setLevel(logging.ERROR)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    load_plugins()
    set_platform(CpuPlatform())
    (folder / "checkpoints").mkdir(parents=True, exist_ok=True)
    dice = random.Random(seed)
    for attempt in range(kills):
        kill_in_a_save(folder, kind, attempt, dice, length_s=0.12)
        print(json.dumps(resume(folder)), flush=True)


if __name__ == "__main__":
    main()
