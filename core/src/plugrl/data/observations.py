"""Names of what a policy sees, in an environment and in a data set, and the way from one to the other."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from plugrl.errors import DataError, one_of

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

STATE = "observation.state"
ACTION = "action"
IMAGES = "observation.images."
_CAMERAS = {"main_images": f"{IMAGES}main", "wrist_images": f"{IMAGES}wrist"}
_EXTRA = "extra_view_images"
_EXTRA_NAME = re.compile(rf"{re.escape(IMAGES)}extra_view_(\d+)")


def frame_features(obs: Mapping[str, Any], index: int) -> dict[str, NDArray[Any]]:
    """Return the features of a data set's frame for scene ``index`` of an observation, NumPy arrays.

    ``main_images`` is ``observation.images.main``, ``wrist_images`` ``observation.images.wrist``, view v of
    ``extra_view_images`` ``observation.images.extra_view_<v>``, and ``states`` ``observation.state``.
    """
    found: dict[str, NDArray[Any]] = {}
    for field, name in _CAMERAS.items():
        if obs.get(field) is not None:
            found[name] = obs[field][index].numpy()
    if obs.get(_EXTRA) is not None:
        for view, picture in enumerate(obs[_EXTRA][index]):
            found[f"{IMAGES}extra_view_{view}"] = picture.numpy()
    if obs.get("states") is not None:
        found[STATE] = obs["states"][index].float().numpy()
    if not found:
        raise DataError(f"The environment gives neither images nor states; its observations have {one_of(obs)}.")
    return found


def stack_frames(frames: Sequence[Mapping[str, NDArray[Any]]]) -> dict[str, NDArray[Any]]:
    """Return the frames of an episode as one array [T, ...] for each feature."""
    import numpy as np

    return {name: np.stack([frame[name] for frame in frames]) for name in frames[0]}


def observation(batch: Mapping[str, Tensor], tasks: Mapping[int, str]) -> dict[str, Any]:
    """Return the observation [B] that rows of a data set hold, with the fields that an environment gives.

    The only camera of a data set is ``main_images``, whatever it is called; images become uint8 [B, H, W, 3].

    Args:
        batch: features [B, ...], images float [B, 3, H, W] in [0, 1], and ``task_index`` [B].
        tasks: texts by number.

    Raises:
        DataError: several cameras without the names of :func:`frame_features`, or an unknown number of a task.
    """
    import torch

    names = [name for name in batch if name.startswith(IMAGES) and not name.endswith("_is_pad")]
    found: dict[str, Any] = {}
    fields = {name: field for field, name in _CAMERAS.items()}
    extra = sorted((int(match[1]), name) for name in names if (match := _EXTRA_NAME.fullmatch(name)))
    others = [name for name in names if name not in fields and not _EXTRA_NAME.fullmatch(name)]
    if others and len(names) > 1:
        raise DataError(
            f"{others[0]}: a data set with several cameras must call them {IMAGES}main, {IMAGES}wrist and "
            f"{IMAGES}extra_view_0, ...; choose with data.source_options.features. It has: {one_of(names)}."
        )
    for name in names:
        if not _EXTRA_NAME.fullmatch(name):
            found[fields.get(name, "main_images")] = _pictures(batch[name])
    if extra:
        found[_EXTRA] = torch.stack([_pictures(batch[name]) for _, name in extra], dim=1)
    if STATE in batch:
        found["states"] = batch[STATE].float()
    numbers = batch["task_index"].tolist()
    unknown = [number for number in numbers if number not in tasks]
    if unknown and tasks:
        raise DataError(f"meta/tasks.parquet has no text for task {unknown[0]}.")
    found["task_descriptions"] = [tasks.get(number, "") for number in numbers]
    return found


def _pictures(values: Tensor) -> Tensor:
    import torch

    return (values * 255).round().to(torch.uint8).movedim(-3, -1).contiguous()
