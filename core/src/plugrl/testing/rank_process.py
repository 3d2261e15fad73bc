"""What a process of :class:`plugrl.testing.rank_pool.RankPool` does: wait for a function, run it as a rank, answer."""

from __future__ import annotations

import importlib
import importlib.util
import operator
import os
import pickle
import random
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from plugrl.platforms import PlatformBase, get_platform, use_platform
from plugrl.platforms.cpu import CpuPlatform
from plugrl.plugins import load_plugins
from plugrl.testing.rank_pool import message


def main(descriptor: int, platform_name: str) -> None:
    """Serve until the other end closes; a function's error is an answer, not an end."""
    connection = Connection(descriptor)
    try:
        torch.set_num_threads(1)
        load_plugins()
        platform = _platform(platform_name)
    except BaseException:  # The boundary of the process: everything goes to whoever started it.
        connection.send_bytes(message(False, traceback.format_exc()))
        return
    connection.send_bytes(message(True, None))
    while True:
        try:
            target, rank, world, store, timeout_s, args, kwargs = pickle.loads(connection.recv_bytes())
        except EOFError:
            return
        try:
            with as_rank(platform, rank, world, store, timeout_s):
                answer = message(True, _load(*target)(rank, world, *args, **kwargs))
        except BaseException:  # The boundary of the process: everything goes to the test that asked.
            answer = message(False, traceback.format_exc())
        connection.send_bytes(answer)


def _platform(name: str) -> PlatformBase:
    """Return the platform of this process; the name is as explicit as a user's, so an unusable one is an error."""
    if name == "cpu":
        return CpuPlatform()
    os.environ["VERL_PLATFORM"] = name
    return get_platform(name)


@contextmanager
def as_rank(platform: PlatformBase, rank: int, world: int, store: str | None, timeout_s: float) -> Iterator[None]:
    """Run the block as one rank on its device, seeded, with a process group if there is a ``store`` file to meet at."""
    torch.manual_seed(0)
    random.seed(0)
    variables = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world}
    os.environ.update({name: str(value) for name, value in variables.items()})
    with use_platform(platform):
        if platform.device_name != "cpu":
            platform.set_device(rank)
            platform.manual_seed_all(0)
        try:
            if store is not None:
                _join(platform.communication_backend_name(), store, rank, world, timeout_s)
            yield
        finally:
            if dist.is_initialized():
                dist.destroy_process_group()
            for name in variables:
                os.environ.pop(name, None)


def _join(backend: str, store: str, rank: int, world: int, timeout_s: float) -> None:
    timeout = timedelta(seconds=timeout_s)
    dist.init_process_group(backend, init_method=f"file://{store}", rank=rank, world_size=world, timeout=timeout)
    dist.barrier()  # A rank that is done at once must not leave while others still connect.


def _load(file: str, name: str) -> Any:
    """Return the function ``name`` of a file: from its module if that is installed, else by the file."""
    path = Path(file)
    installed = _installed_name(path)
    module = importlib.import_module(installed) if installed else sys.modules.get(path.stem)
    if module is None or getattr(module, "__file__", None) != file:
        sys.path.insert(0, str(path.parent))
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[path.stem] = module
        spec.loader.exec_module(module)
    return operator.attrgetter(name)(module)


def _installed_name(path: Path) -> str | None:
    """Return the dotted name of a file in a package that stands on ``sys.path``."""
    parts, folder = [path.stem], path.parent
    while (folder / "__init__.py").exists():
        parts.insert(0, folder.name)
        folder = folder.parent
    return ".".join(parts) if len(parts) > 1 and str(folder) in sys.path else None


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
