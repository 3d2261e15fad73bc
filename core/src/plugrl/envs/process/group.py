"""The scenes of one simulator process, which outlive it: what ran in it is known here when it dies."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plugrl.envs.arrays import ChunkArrays
from plugrl.envs.config import EnvParams
from plugrl.envs.episodes import EpisodeRecord, next_seed
from plugrl.envs.process.child import BOOK_FIELDS
from plugrl.envs.process.link import Simulator, SimulatorLost
from plugrl.envs.process.memory import Layout, Spec
from plugrl.envs.process.messages import Ask, Chunk, Observed, Ready, Reset, Stepped
from plugrl.errors import SimulatorFailed

_BOOK_TYPES = dict(zip(BOOK_FIELDS, ("bool", "int64", "float64", "bool", "bool"), strict=True))
_BLACK = (64, 64, 3)


class SceneGroup:
    """Scenes ``first`` to ``first + size`` of an environment and the process they run in.

    Args:
        params: of the part of the environment that the process simulates.
        simulators: the processes of the environment that are to be ended with it.
    """

    def __init__(self, index: int, first: int, params: EnvParams, build: Callable[[Any], Any],
                 environment: Mapping[str, str], simulators: list[Simulator]) -> None:  # fmt: skip
        self.first, self.size = first, params.num_envs
        self.seeds = [-1] * self.size
        self._name = f"Simulator {index}"
        self._params, self._build, self._environment = params, build, environment
        self._simulators = simulators
        self._simulator: Simulator | None = None
        self._lost: SimulatorLost | None = None
        self._failures: list[str] = []
        self._obs: dict[str, Any] = {}
        self._wanted: dict[int, int] = {}
        self._actions: NDArray[np.float32] | None = None
        self._laid_out: tuple[int, ...] = ()
        self._picture = np.zeros(_BLACK, dtype=np.uint8)
        self._book: dict[str, NDArray[Any]] = {
            name: np.zeros(self.size, dtype=kind) for name, kind in _BOOK_TYPES.items()
        }

    @property
    def pid(self) -> int:
        """The process; -1 while there is none."""
        return -1 if self._simulator is None else self._simulator.pid

    # ----------------------------------------------------------------- start and end of the process
    def start(self) -> None:
        """Start the process; :meth:`built` waits for it."""
        self._simulator = Simulator(self._name, self._build, self._params, self._environment)
        self._simulators.append(self._simulator)

    def built(self) -> Ready:
        """Return what was built, starting the process again where it fails. Raises SimulatorFailed, UserError."""
        while True:
            try:
                return self._running().ready(self._params.start_timeout_s)
            except SimulatorLost as error:
                self._count(error)
                self.start()

    def _running(self) -> Simulator:
        assert self._simulator is not None
        return self._simulator

    def _count(self, error: SimulatorLost) -> None:
        """End the process and count the failure. Raises SimulatorFailed when it is one too many."""
        self._failures.append(str(error))
        if self._simulator is not None:
            self._simulator.end()
            self._simulators.remove(self._simulator)
            self._simulator = None
        if len(self._failures) >= self._params.max_failures:
            raise SimulatorFailed(
                f"{self._name} failed {len(self._failures)} times in a row, so the environment is closed:\n"
                + told(self._failures),
                causes=tuple(self._failures),
            ) from error

    def _begin_anew(self, error: SimulatorLost) -> None:
        """Start the process again, with the next episode in each scene but those that wait for a reset."""
        waiting = tuple(np.flatnonzero(~self._book["running"]).tolist())
        while True:
            self._count(error)
            self.seeds = [next_seed(seed) for seed in self.seeds]
            try:
                self.start()
                self.built()
                self._send_reset(Reset(tuple(self.seeds), tuple(range(self.size)), waiting))
                self._observe()
                break
            except SimulatorLost as again:
                error = again
        self._lost = None
        for name, value in self._book.items():
            value[...] = False
            if name == "running":
                value[...] = ~np.isin(np.arange(self.size), waiting)

    def _send_reset(self, message: Reset) -> None:
        self._running().send(message, f"to reset scenes with seeds {list(message.seeds)}")

    def _observe(self) -> None:
        simulator = self._running()
        answer = simulator.receive(self._params.step_timeout_s)
        assert isinstance(answer, Observed)
        self._obs, self.seeds = answer.obs, list(answer.seeds)
        simulator.memory.layout = None  # observations may have got another shape: the next chunk lays them out

    # ----------------------------------------------------------------- episodes
    def begin_reset(self, seeds: Mapping[int, int]) -> None:
        """Have episodes begin with ``seeds`` in the scenes that are its keys; :meth:`finish_reset` has the result."""
        self._wanted = dict(seeds)
        try:
            self._check()
            self._send_reset(Reset(tuple(seeds.values()), tuple(seeds)))
        except SimulatorLost as error:
            self._lost = error

    def finish_reset(self) -> tuple[dict[str, Any], list[EpisodeRecord]]:
        """Return the observations of all scenes, and the records of episodes that were not meant but are dropped."""
        dropped = []
        try:
            self._check()
            self._observe()
        except SimulatorLost as error:
            dropped = [record for record in self._running_records() if record.index - self.first not in self._wanted]
            for index, seed in self._wanted.items():
                self.seeds[index] = seed
                self._book["running"][index] = True
            self._begin_anew(error)
        for name, value in self._book.items():
            value[list(self._wanted)] = name == "running"
        return self._obs, dropped

    def begin_chunk(self, actions: NDArray[np.float32]) -> None:
        """Hand the actions [size, C, D] to the process; :meth:`finish_chunk` has the result."""
        self._actions = actions
        try:
            self._check()
            simulator = self._running()
            known = simulator.memory.layout is not None and self._laid_out == actions.shape
            layout = None if known else self._layout(actions.shape)  # only a reset can change what is observed
            if layout is not None:
                simulator.memory.use(layout)
                self._laid_out = actions.shape
            simulator.memory.views["actions"][...] = actions
            simulator.send(Chunk(layout), f"to carry out a chunk of {actions.shape[1]} actions")
        except SimulatorLost as error:
            self._lost = error

    def finish_chunk(self) -> ChunkArrays:
        """Return the result of the chunk, or what there is to say when the process was lost."""
        assert self._actions is not None
        try:
            self._check()
            answer = self._running().receive(self._params.step_timeout_s)
        except SimulatorLost as error:
            return self._dropped(error)
        assert isinstance(answer, Stepped)
        self._failures = []
        self.seeds = list(answer.seeds)
        views = self._running().memory.views
        for name in BOOK_FIELDS:
            self._book[name] = views[f"book/{name}"].copy()
        self._obs = self._read("obs", answer.texts)
        return ChunkArrays(
            obs=self._obs,
            final_obs=self._read("final", answer.final_texts) if answer.has_final else None,
            rewards=views["rewards"].copy(),
            executed=views["executed"].copy(),
            terminations=views["terminations"].copy(),
            truncations=views["truncations"].copy(),
            success_once=views["result/success_once"].copy(),
            success_at_end=views["result/success_at_end"].copy(),
            lost=np.zeros(self.size, dtype=np.bool_),
            episodes=tuple(record.at(record.index + self.first) for record in answer.episodes),
        )

    def _dropped(self, error: SimulatorLost) -> ChunkArrays:
        """Start anew and return a result in which nothing of the chunk counts."""
        assert self._actions is not None
        records, lost = self._running_records(), self._book["running"].copy()
        self._begin_anew(error)
        shape = self._actions.shape[:2]
        no = np.zeros((3, *shape), dtype=np.bool_)
        return ChunkArrays(
            obs=self._obs,
            final_obs=None,
            rewards=np.zeros(shape, dtype=np.float32),
            executed=no[0],
            terminations=no[1],
            truncations=no[2],
            success_once=np.zeros(self.size, dtype=np.bool_),
            success_at_end=np.zeros(self.size, dtype=np.bool_),
            lost=lost,
            episodes=tuple(records),
        )

    def _running_records(self) -> list[EpisodeRecord]:
        """Return the dropped records of the episodes that run, as they stood after the last chunk."""
        book = self._book
        return [
            EpisodeRecord(
                index=self.first + index,
                seed=self.seeds[index],
                return_=float(book["returns"][index]),
                length=int(book["lengths"][index]),
                success_once=bool(book["success_once"][index]),
                success_at_end=bool(book["success_at_end"][index]),
                dropped=True,
            )
            for index in np.flatnonzero(book["running"]).tolist()
        ]

    # ----------------------------------------------------------------- questions
    def ask(self, method: str, *arguments: int) -> NDArray[Any] | None:
        """Return the answer of a method that changes nothing, None when the process is lost: the next chunk says so.

        Raises UserError when the environment refuses it.
        """
        try:
            self._check()
            self._running().send(Ask(method, arguments), f"to call {method}")
            value: NDArray[Any] = self._running().receive(self._params.step_timeout_s).value
            return value
        except SimulatorLost as error:
            self._lost = error
            return None

    def render(self, index: int) -> NDArray[np.uint8]:
        """Return a picture of a scene of this group; black when the process is lost."""
        picture = self.ask("render_scene", index)
        self._picture = np.zeros_like(self._picture) if picture is None else np.array(picture, dtype=np.uint8)
        return self._picture.copy()

    # ----------------------------------------------------------------- shared memory
    def _check(self) -> None:
        if self._lost is not None:
            raise self._lost

    def _layout(self, shape: tuple[int, ...]) -> Layout:
        """Return where actions [n, C, D], the results of their chunk, and observations lie."""
        pairs, row = shape[:2], shape[:1]
        specs: dict[str, Spec] = {"actions": (shape, "float32"), "rewards": (pairs, "float32")}
        specs |= {name: (pairs, "bool") for name in ("executed", "terminations", "truncations")}
        specs |= {f"result/{name}": (row, "bool") for name in ("success_once", "success_at_end")}
        specs |= {f"book/{name}": (row, kind) for name, kind in _BOOK_TYPES.items()}
        for prefix in ("obs", "final"):
            specs |= {f"{prefix}/{name}": (value.shape, value.dtype.str) for name, value in self._obs.items()
                      if isinstance(value, np.ndarray)}  # fmt: skip
        return Layout.of(specs)

    def _read(self, prefix: str, texts: Mapping[str, list[Any]]) -> dict[str, Any]:
        views = self._running().memory.views
        found: dict[str, Any] = {}
        for name in self._obs:
            found[name] = texts[name] if name in texts else views[f"{prefix}/{name}"].copy()
        return found


def told(failures: Sequence[str]) -> str:
    """Return the failures one by one, each with its details below unless a later one has the same."""
    heads, details = zip(*(text.partition("\n")[::2] for text in failures), strict=True)
    lines = []
    for number, (head, detail) in enumerate(zip(heads, details, strict=True)):
        lines.append(f"{number + 1}. {head}")
        if detail and detail not in details[number + 1 :]:
            lines.append(detail)
    return "\n".join(lines)
