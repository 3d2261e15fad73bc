"""An extension module: simulators that fail when they are told to, and a witness of what a run learns from."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plugrl.envs import EnvParams, register_env
from plugrl.envs.episodes import SceneOutcome
from plugrl.envs.episodic import EpisodicEnv
from plugrl.testing.corridor import Corridor
from plugrl_envs_tabletop.config import TabletopConfig
from plugrl_envs_tabletop.env import TabletopEnv

WITNESS = "PLUGRL_TEST_WITNESS"
"""Variable with a folder into which the driver writes the trajectory of each step."""
ORDERS = ("kill", "hang", "raise")
ALWAYS = "always_raise"


class FailingParams(EnvParams):
    """Where orders are."""

    orders: str
    """Folder; a file `kill`, `hang` or `raise` in it is carried out once, `always_raise` until it is gone."""

    patience: int = 0
    """Actions that every running episode must have before anything but `always_raise` is carried out."""


class FailingTabletopParams(TabletopConfig, FailingParams):
    """The tabletop's settings and where orders are."""


class Failing(EpisodicEnv):
    """What both simulators do before each action."""

    orders: Path
    patience: int

    def enlist(self, params: FailingParams) -> None:
        """Say which process simulates."""
        self.orders, self.patience = Path(params.orders), params.patience
        (self.orders / f"simulator-{os.getpid()}").touch()

    def obey(self) -> None:
        """Do what is ordered; of two simulators that see an order one does it."""
        if (self.orders / ALWAYS).exists():
            raise ArithmeticError("the joint is unstable")
        if self.book.lengths.min() < self.patience:
            return
        for name in ORDERS:
            with suppress(FileNotFoundError):
                (self.orders / name).unlink()
                getattr(self, f"_{name}")()

    def _kill(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def _hang(self) -> None:
        while True:
            time.sleep(0.05)

    def _raise(self) -> None:
        raise ArithmeticError("the joint is unstable")


class FailingCorridor(Corridor, Failing):
    """A corridor that obeys."""

    def __init__(self, params: FailingParams) -> None:
        super().__init__(params)
        self.enlist(params)

    def advance_scenes(self, actions: NDArray[np.float32], active: NDArray[np.bool_]) -> SceneOutcome:
        """Obey, or move by the action."""
        self.obey()
        return super().advance_scenes(actions, active)


class FailingTabletop(TabletopEnv, Failing):
    """A tabletop that obeys."""

    def __init__(self, params: FailingTabletopParams) -> None:
        super().__init__(params)
        self.enlist(params)

    def advance_scenes(self, actions: NDArray[np.float32], active: NDArray[np.bool_]) -> SceneOutcome:
        """Obey, or move by the action."""
        self.obey()
        return super().advance_scenes(actions, active)


def register() -> None:
    """Register the environments, and write down each trajectory where somebody asks for it."""
    register_env("failing_corridor", schema=FailingParams)(FailingCorridor)
    register_env("failing_tabletop", schema=FailingTabletopParams)(FailingTabletop)
    if WITNESS in os.environ:
        _witness(Path(os.environ[WITNESS]))


def _witness(folder: Path) -> None:
    from safetensors.torch import save_file

    from plugrl.workers.embodied.packed import PackedTensors
    from plugrl.workers.embodied.trajectory import Trajectory

    join = Trajectory.join.__func__  # type: ignore[attr-defined]

    def noted(cls: Any, parts: Sequence[PackedTensors]) -> Trajectory:
        found: Trajectory = join(cls, parts)
        tensors = {"rewards": found.rewards, "executed": found.executed, "valid": found.valid, "dones": found.dones}
        tensors |= {name: found.forward_inputs[name] for name in ("states", "choice")}
        path = folder / f"step-{len(list(folder.iterdir())) + 1}.safetensors"
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path)
        return found

    Trajectory.join = classmethod(noted)  # type: ignore[method-assign, assignment]
