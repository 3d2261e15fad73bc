"""Runs functions of :mod:`on_device` on the device, each in a process of its own.

torch's place for such a device can be filled once in a process, and the process of the tests must stay free of it.

A server that has imported torch forks the processes, so that each costs a fraction of a second.
"""

from __future__ import annotations

import multiprocessing
import os
import traceback
from multiprocessing.connection import Connection
from typing import Any

DEADLINE_S = 240.0
"""The first process of a session builds the device where no library is in the cache."""

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["torch", "on_device"])


class Failed(Exception):
    """The function raised; the text is ``Type: message``."""


def run(function: str, *args: Any, **variables: str) -> Any:
    """Call ``on_device.<function>(*args)`` where the variables are set. Raises Failed when it raises."""
    ours, theirs = _context.Pipe(duplex=False)
    process = _context.Process(target=_child, args=(theirs, function, args, variables), daemon=True)
    process.start()
    theirs.close()
    try:
        if not ours.poll(DEADLINE_S):
            raise TimeoutError(f"{function} gave no answer within {DEADLINE_S:g} s.")
        ok, answer = ours.recv()
    except EOFError:
        process.join(10)
        raise Failed(f"the process of {function} ended with {process.exitcode}") from None
    finally:
        process.join(5)
        if process.is_alive():
            process.kill()
        ours.close()
    if not ok:
        raise Failed(answer)
    return answer


def _child(pipe: Connection, function: str, args: tuple[Any, ...], variables: dict[str, str]) -> None:
    for name in [name for name in os.environ if name.startswith("VDEV_") and name != "VDEV_CACHE"]:
        del os.environ[name]
    os.environ.update(variables)
    import on_device
    import torch

    torch.set_num_threads(1)  # threads that wait for each other are what makes tiny tensors slow on a busy machine
    try:
        pipe.send((True, getattr(on_device, function)(*args)))
    except BaseException as error:
        traceback.print_exc()
        pipe.send((False, f"{type(error).__name__}: {error}"))
