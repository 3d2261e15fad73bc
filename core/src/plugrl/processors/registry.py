"""The contract of a processor step and the registry of steps; light."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from plugrl.errors import CheckpointError, PluginError
from plugrl.registry import Registry

if TYPE_CHECKING:
    from torch import Tensor

S = TypeVar("S", bound="type[ProcessorStep]")


class ProcessorStep(ABC):
    """One step of a pipeline: tensors by name in, tensors by name out. Built from its configuration alone."""

    @abstractmethod
    def __call__(self, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the batch after this step; what it does not concern is handed on. The given mapping stays as it is."""

    def config(self) -> dict[str, Any]:
        """Return the keywords that build this step again, in plain values."""
        return {}

    def state_dict(self) -> dict[str, Tensor]:
        """Return the tensors that belong to this step; empty for a step without any."""
        return {}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Take what :meth:`state_dict` gave. Raises CheckpointError for missing or unexpected names."""
        check_names(type(self).__name__, self.state_dict(), state)


def check_names(step: str, expected: Mapping[str, Any], given: Mapping[str, Any]) -> None:
    """Raise CheckpointError listing the names of a state that are missing or that a step does not have."""
    missing, unexpected = sorted(expected.keys() - given.keys()), sorted(given.keys() - expected.keys())
    if missing or unexpected:
        raise CheckpointError(
            f"The state does not fit {step}: missing {', '.join(missing) or 'nothing'}; "
            f"unexpected {', '.join(unexpected) or 'nothing'}."
        )


def _check(key: Any, value: object) -> None:
    if not (isinstance(value, type) and issubclass(value, ProcessorStep)):
        raise PluginError(f'Processor step "{key}" must be a subclass of ProcessorStep, got {value!r}.')


PROCESSOR_STEPS: Registry[type[ProcessorStep]] = Registry("processor_step", check=_check)
"""Names are those that files of other trainers use for the same steps."""

for _name, _class, _summary in (
    ("normalizer_processor", "Normalizer", "features to a common scale, by statistics of the data"),
    ("unnormalizer_processor", "Unnormalizer", "actions back to the scale of the data"),
    ("rename_observations_processor", "Renamer", "other names for features"),
):
    PROCESSOR_STEPS.register_target(_name, f"plugrl.processors.steps:{_class}", summary=_summary)


def register_processor_step(name: str, *, force: bool = False) -> Callable[[S], S]:
    """Return a decorator that registers a step under the name by which files refer to it."""

    def decorate(step: S) -> S:
        PROCESSOR_STEPS.register(name, step, force=force)
        return step

    return decorate
