"""The program of a simulator process: it builds an environment and does what its parent says, until one of them ends.

Standard output and standard error go to a file that the parent reads when something goes wrong.
"""

from __future__ import annotations

import faulthandler
import fcntl
import os
import pickle
import select
import signal
import socket
import sys
import threading
import traceback
from typing import Any

import numpy as np

from plugrl.envs.episodic import EpisodicEnv
from plugrl.envs.process.memory import SharedArrays
from plugrl.envs.process.messages import (
    Answer,
    Ask,
    Chunk,
    Close,
    Hello,
    Observed,
    Raised,
    Ready,
    Refused,
    Reset,
    Stepped,
    Wire,
)
from plugrl.errors import EnvContractError, UserError, one_line

BOOK_FIELDS = ("running", "lengths", "returns", "success_once", "success_at_end")
"""The state of the running episodes as it is shared after each chunk."""
_OWN_CODE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


def main(arguments: list[str]) -> None:
    """Run a simulator: ``arguments`` are the descriptors of the socket, the shared memory and the parent's lifeline."""
    wire_end, memory, lifeline = map(int, arguments)
    for descriptor in (wire_end, memory, lifeline):
        os.set_inheritable(descriptor, False)
    end_with_parent(lifeline)
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    serve(Wire(socket.socket(fileno=wire_end)), SharedArrays(memory))


def end_with_parent(lifeline: int) -> None:
    """Let the system kill this process and those it starts as soon as nobody holds the other end of ``lifeline``.

    The kernel sends the signal itself where it can (Linux): a simulator that hangs in foreign code ends all the same.
    """
    if hasattr(fcntl, "F_SETSIG"):
        fcntl.fcntl(lifeline, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(lifeline, fcntl.F_SETOWN, -os.getpgrp())
        fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)
        if select.select([lifeline], [], [], 0)[0]:
            os._exit(1)
    else:
        threading.Thread(target=_wait_for_end, args=(lifeline,), daemon=True).start()


def _wait_for_end(lifeline: int) -> None:
    os.read(lifeline, 1)
    os.killpg(os.getpgrp(), signal.SIGKILL)


def serve(wire: Wire, memory: SharedArrays) -> None:
    """Answer each message, until the last one or the end of the parent."""
    env: EpisodicEnv | None = None
    while True:
        try:
            message = wire.receive(None)
        except (EOFError, OSError):
            break
        if isinstance(message, Close):
            break
        try:
            if isinstance(message, Hello):
                env = build(message)
                answer: Any = Ready(env.num_envs, env.action_dim, env.max_episode_steps)
            else:
                assert env is not None
                answer = handle(env, memory, message)
        except (UserError, EnvContractError) as error:
            answer = Refused(type(error).__name__, str(error))
        except Exception as error:  # The border to foreign code: the parent decides what becomes of it.
            answer = Raised(one_line(error), _traceback(error))
        wire.send(answer, None)
    if env is not None:
        env.close()


def _traceback(error: Exception) -> str:
    """Return the traceback without the calls that lead to the simulator, unless it has no others."""
    first = error.__traceback__
    while first is not None and first.tb_frame.f_code.co_filename.startswith(_OWN_CODE):
        first = first.tb_next
    return "".join(traceback.format_exception(type(error), error, first or error.__traceback__))


def build(message: Hello) -> EpisodicEnv:
    """Return the environment of a recipe. Raises UserError for what is none."""
    sys.path[:] = list(message.search_path)
    try:
        make, params = pickle.loads(message.recipe)
    except (AttributeError, ImportError) as error:
        raise UserError(
            f"A simulator process cannot import what builds the environment ({one_line(error)}). It must be a class "
            "or a function at the top of an importable module, not of a script or a notebook."
        ) from error
    env = make(params)
    if not isinstance(env, EpisodicEnv):
        raise UserError(f"{make!r} builds a {type(env).__name__}; a simulator process takes an EpisodicEnv.")
    return env


def handle(env: EpisodicEnv, memory: SharedArrays, message: Any) -> Any:
    """Do what one message says and return the answer."""
    if isinstance(message, Chunk):
        if message.layout is not None:
            memory.use(message.layout)
        return step(env, memory)
    if isinstance(message, Reset):
        obs = env.reset_arrays(message.seeds, message.indices)
        env.book.running[list(message.waiting)] = False
        return Observed(obs, env.seeds)
    assert isinstance(message, Ask)
    return Answer(np.asarray(getattr(env, message.method)(*message.arguments)))


def step(env: EpisodicEnv, memory: SharedArrays) -> Stepped:
    """Carry out the actions in shared memory and put what came of them beside."""
    views = memory.views
    result = env.chunk_arrays(views["actions"].copy())
    for name in ("rewards", "executed", "terminations", "truncations"):
        _put(views, name, getattr(result, name))
    for name in ("success_once", "success_at_end"):
        _put(views, f"result/{name}", getattr(result, name))
    for name in BOOK_FIELDS:
        _put(views, f"book/{name}", getattr(env.book, name))
    texts = _put_observations(views, "obs", result.obs)
    final = {} if result.final_obs is None else _put_observations(views, "final", result.final_obs)
    return Stepped(result.final_obs is not None, texts, final, result.episodes, env.seeds)


def _put_observations(views: dict[str, Any], prefix: str, fields: dict[str, Any]) -> dict[str, list[Any]]:
    texts = {name: value for name, value in fields.items() if isinstance(value, list)}
    arrays = {f"{prefix}/{name}": value for name, value in fields.items() if name not in texts}
    known = {name for name in views if name.startswith(f"{prefix}/")}
    if known != set(arrays):
        raise EnvContractError(f"Observations had the fields {sorted(known)} at the reset, now {sorted(arrays)}.")
    for name, value in arrays.items():
        _put(views, name, value)
    return texts


def _put(views: dict[str, Any], name: str, value: Any) -> None:
    view = views[name]
    if view.shape != value.shape or view.dtype != value.dtype:
        raise EnvContractError(
            f"{name} was {view.dtype}{list(view.shape)} at the reset and is {value.dtype}{list(value.shape)} now."
        )
    view[...] = value
