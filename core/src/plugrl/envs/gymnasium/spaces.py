"""What gymnasium's spaces become: observations by field, and actions of plain numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from plugrl.envs.config import EnvParams
from plugrl.errors import UserError

SUCCESS_KEYS = ("is_success", "success")


def is_picture(space: Any) -> bool:
    """Whether a space holds pictures: bytes with one or three channels, or none, in the last or the first place."""
    if not isinstance(space, spaces.Box) or space.dtype != np.uint8:
        return False
    shape = space.shape
    return len(shape) == 2 or (len(shape) == 3 and (shape[-1] in (1, 3) or shape[0] in (1, 3)))


def as_picture(value: Any) -> NDArray[np.uint8]:
    """Return a picture as [H, W, 3]."""
    picture = np.asarray(value, dtype=np.uint8)
    if picture.ndim == 2:
        picture = picture[..., None]
    elif picture.shape[-1] not in (1, 3):
        picture = np.moveaxis(picture, 0, -1)
    return np.broadcast_to(picture, (*picture.shape[:2], 3)) if picture.shape[-1] == 1 else picture


class ObservationMap:
    """How an observation of one scene becomes fields.

    Args:
        space: the observation space of one scene.
        chosen: field -> key of a dict observation; empty chooses by shape.

    Raises UserError for a key that the observation lacks.
    """

    def __init__(self, space: Any, chosen: Mapping[str, str]) -> None:
        self._pictures: dict[str, str | None] = {}
        self._numbers: list[tuple[str | None, Any]] = []
        if chosen:
            self._choose(space, chosen)
        elif isinstance(space, spaces.Dict):
            for key, part in space.spaces.items():
                if is_picture(part) and "main_images" not in self._pictures:
                    self._pictures["main_images"] = key
                elif not is_picture(part):
                    self._numbers.append((key, part))
        elif is_picture(space):
            self._pictures["main_images"] = None
        else:
            self._numbers.append((None, space))
        alone = self._numbers[0] if len(self._numbers) == 1 else (None, None)
        self._is_vector = alone[0] is None and isinstance(alone[1], spaces.Box) and len(alone[1].shape) == 1

    def _choose(self, space: Any, chosen: Mapping[str, str]) -> None:
        known = space.spaces if isinstance(space, spaces.Dict) else {}
        for field, key in chosen.items():
            if key not in known:
                there = ", ".join(known) or f"none, it is a {type(space).__name__}"
                raise UserError(f"observations.{field}: the observation has no key {key!r}. Its keys: {there}.")
            if field == "states":
                self._numbers.append((key, known[key]))
            elif is_picture(known[key]):
                self._pictures[field] = key
            else:
                raise UserError(f"observations.{field}: {key!r} is {known[key]}, which is no picture of bytes.")

    def fields(self, observations: Sequence[Any]) -> dict[str, Any]:
        """Return the fields of several scenes, each [len(observations), ...]."""
        made: dict[str, Any] = {}
        for field, key in self._pictures.items():
            pictures = np.stack([as_picture(_at(item, key)) for item in observations])
            made[field] = pictures[:, None] if field == "extra_view_images" else pictures
        if self._is_vector:
            made["states"] = np.array(observations, dtype=np.float32)
        elif self._numbers:
            made["states"] = np.stack([self._flat(item) for item in observations])
        return made

    def _flat(self, observation: Any) -> NDArray[np.float32]:
        parts = [
            np.ravel(value) if isinstance(space, spaces.Box) else spaces.utils.flatten(space, value)
            for key, space in self._numbers
            for value in (_at(observation, key),)
        ]
        return (parts[0] if len(parts) == 1 else np.concatenate(parts)).astype(np.float32)


def _at(observation: Any, key: str | None) -> Any:
    return observation if key is None else observation[key]


class ActionMap:
    """How a row of numbers becomes an action: ``dim`` of them.

    Box: its elements, clipped to the bounds. Discrete and MultiDiscrete: whole numbers from 0, rounded and clipped.
    MultiBinary: above one half. Raises UserError for other spaces, and for bounds to stretch to that are infinite.
    """

    def __init__(self, space: Any, normalise: bool) -> None:
        self._space, self._normalise = space, normalise
        if isinstance(space, spaces.Box):
            self.dim = int(np.prod(space.shape))
            self._low, self._high = space.low.ravel(), space.high.ravel()
            if normalise and not (np.isfinite(self._low).all() and np.isfinite(self._high).all()):
                raise UserError(f"normalise_actions: {space} has no finite bounds to stretch actions to.")
        elif isinstance(space, spaces.Discrete):
            self.dim, self._most, self._start = 1, np.int64(space.n) - 1, np.int64(space.start)
        elif isinstance(space, spaces.MultiDiscrete):
            self.dim, self._most, self._start = space.nvec.size, space.nvec.ravel() - 1, space.start.ravel()
        elif isinstance(space, spaces.MultiBinary):
            self.dim = int(np.prod(space.shape))
        else:
            raise UserError(f"An action space {type(space).__name__} is not supported; Box, Discrete, MultiDiscrete "
                            "and MultiBinary are.")  # fmt: skip

    def actions(self, rows: NDArray[np.float32]) -> list[Any] | NDArray[Any]:
        """Return the actions of all scenes, [N, dim] to N actions."""
        space = self._space
        if isinstance(space, spaces.Box):
            if self._normalise:
                rows = self._low + (rows + 1.0) * 0.5 * (self._high - self._low)
            bounded = np.minimum(np.maximum(rows, self._low), self._high)
            return bounded.astype(space.dtype, copy=False).reshape(-1, *space.shape)
        if isinstance(space, spaces.MultiBinary):
            return (rows > 0.5).astype(space.dtype).reshape(-1, *space.shape)
        whole = np.minimum(np.maximum(np.rint(rows), 0), self._most).astype(np.int64) + self._start
        if isinstance(space, spaces.Discrete):
            return whole[:, 0].tolist()  # plain numbers are checked ten times as fast
        return whole.astype(space.dtype).reshape(-1, *space.shape)


def is_solved(info: Mapping[str, Any], key: str | None) -> bool:
    """Whether the info of a step says that the task is solved. Raises UserError when it lacks a key that was given."""
    if not info and key is None:
        return False
    if key is None:
        return any(bool(info[name]) for name in SUCCESS_KEYS if name in info)
    if key not in info:
        raise UserError(f"success_key: the info of a step has no {key!r}. Its keys: {', '.join(info) or '(none)'}.")
    return bool(info[key])


def make(id: str, params: EnvParams, **kwargs: Any) -> Any:
    """Return one environment of gymnasium. Raises UserError for an unknown name, with gymnasium's own advice."""
    if params.max_episode_steps is not None:
        kwargs["max_episode_steps"] = params.max_episode_steps
    try:
        return gymnasium.make(id, **{"disable_env_checker": True, **kwargs})
    except (gymnasium.error.Error, ModuleNotFoundError) as error:
        raise UserError(f"id: gymnasium cannot make {id!r}: {error}") from error


def own_limit(env: Any) -> int | None:
    """Return the number of steps after which an environment truncates, if it says."""
    return None if env.spec is None else env.spec.max_episode_steps
