"""What a process of :class:`plugrl.testing.ranks.RankPool` does: wait for a function, run it as one rank, answer."""

from __future__ import annotations

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

from plugrl.platforms import use_platform
from plugrl.platforms.cpu import CpuPlatform
from plugrl.plugins import load_plugins
from plugrl.testing.ranks import message


def main(descriptor: int) -> None:
    """Serve until the other end closes; a function's error is an answer, not an end."""
    connection = Connection(descriptor)
    torch.set_num_threads(1)
    load_plugins()
    connection.send_bytes(message(True, None))
    while True:
        try:
            target, rank, world, store, timeout_s, args, kwargs = pickle.loads(connection.recv_bytes())
        except EOFError:
            return
        try:
            with as_rank(rank, world, store, timeout_s):
                answer = message(True, _load(*target)(rank, world, *args, **kwargs))
        except BaseException:  # The boundary of the process: everything goes to the test that asked.
            answer = message(False, traceback.format_exc())
        connection.send_bytes(answer)


@contextmanager
def as_rank(rank: int, world: int, store: str | None, timeout_s: float) -> Iterator[None]:
    """Run the block as one rank, seeded, with a process group if there is a ``store`` file to meet at."""
    torch.manual_seed(0)
    random.seed(0)
    variables = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world}
    os.environ.update({name: str(value) for name, value in variables.items()})
    if store is not None:
        timeout = timedelta(seconds=timeout_s)
        dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world, timeout=timeout)
        dist.barrier()  # A rank that is done at once must not leave while others still connect.
    try:
        with use_platform(CpuPlatform()):
            yield
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
        for name in variables:
            os.environ.pop(name, None)


def _load(file: str, name: str) -> Any:
    """Return the function ``name`` of a file, which is imported as a module of its own name."""
    path = Path(file)
    module = sys.modules.get(path.stem)
    if module is None or getattr(module, "__file__", None) != file:
        sys.path.insert(0, str(path.parent))
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[path.stem] = module
        spec.loader.exec_module(module)
    return operator.attrgetter(name)(module)


if __name__ == "__main__":
    main(int(sys.argv[1]))
