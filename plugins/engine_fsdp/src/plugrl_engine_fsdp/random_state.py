"""The random state of this process as named tensors, so that it is stored without pickling."""

from __future__ import annotations

import random
from collections.abc import Mapping

import torch

from plugrl.platforms import get_platform

try:
    import numpy
except ImportError:  # torch works without it
    numpy = None  # type: ignore[assignment]


def random_state() -> dict[str, torch.Tensor]:
    """States of Python's, numpy's, torch's and the device's global generators, as tensors on the CPU."""
    version, words, gauss = random.getstate()
    state = {
        "py_rng_version": torch.tensor(version, dtype=torch.int64),
        "py_rng_state": torch.tensor(words, dtype=torch.int64),
        "py_rng_gauss": torch.tensor(float("nan") if gauss is None else gauss, dtype=torch.float64),
        "torch_rng_state": torch.get_rng_state(),
        "device_rng_state": get_platform().rng_state().clone(),
    }
    if numpy is not None:
        _, values, index, has_gauss, cached = numpy.random.get_state(legacy=True)
        state["np_rng_state_values"] = torch.tensor(values.astype("int64"))
        state["np_rng_state_index"] = torch.tensor(int(index), dtype=torch.int64)
        state["np_rng_has_gauss"] = torch.tensor(int(has_gauss), dtype=torch.int64)
        state["np_rng_cached_gaussian"] = torch.tensor(float(cached), dtype=torch.float64)
    return state


def restore_random_state(state: Mapping[str, torch.Tensor]) -> None:
    """Put back what :func:`random_state` returned."""
    gauss = float(state["py_rng_gauss"])
    words = tuple(state["py_rng_state"].tolist())
    random.setstate((int(state["py_rng_version"]), words, None if gauss != gauss else gauss))
    torch.set_rng_state(state["torch_rng_state"])
    get_platform().set_rng_state(state["device_rng_state"])
    if numpy is not None and "np_rng_state_values" in state:
        values = state["np_rng_state_values"].numpy().astype("uint32")
        index, has_gauss = int(state["np_rng_state_index"]), int(state["np_rng_has_gauss"])
        numpy.random.set_state(("MT19937", values, index, has_gauss, float(state["np_rng_cached_gaussian"])))
