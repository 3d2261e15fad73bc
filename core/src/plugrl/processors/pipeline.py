"""A sequence of steps, and its files beside a policy's weights.

``<name>.json`` holds ``{"name", "steps": [{"registry_name", "config", "state_file"?}]}``; the tensors of step i are in
``<name>_step_<i>_<registry_name>.safetensors``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from plugrl.errors import CheckpointError, NotRegistered, one_line
from plugrl.processors.registry import PROCESSOR_STEPS, ProcessorStep

PREPROCESSOR = "policy_preprocessor"
POSTPROCESSOR = "policy_postprocessor"


class Pipeline:
    """Steps in the order in which they run; ``steps`` are ``(registered name, step)``."""

    def __init__(self, name: str, steps: Sequence[tuple[str, ProcessorStep]] = ()) -> None:
        self.name = name
        self.steps = list(steps)

    def __call__(self, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Run every step."""
        result = dict(batch)
        for _, step in self.steps:
            result = step(result)
        return result

    def state(self) -> dict[str, Tensor]:
        """Return the tensors of all steps as ``<index>.<name>``."""
        numbered = ((index, step.state_dict()) for index, (_, step) in enumerate(self.steps))
        return {f"{index}.{name}": tensor for index, state in numbered for name, tensor in state.items()}

    def save(self, folder: Path) -> None:
        """Write the description, and the tensors of each step that has some."""
        folder.mkdir(parents=True, exist_ok=True)
        records = []
        for index, (registered, step) in enumerate(self.steps):
            record: dict[str, Any] = {"registry_name": registered, "config": step.config()}
            state = step.state_dict()
            if state:
                record["state_file"] = f"{self.name}_step_{index}_{registered}.safetensors"
                tensors = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in state.items()}
                save_file(tensors, folder / record["state_file"])
            records.append(record)
        text = json.dumps({"name": self.name, "steps": records}, indent=2)
        (folder / f"{self.name}.json").write_text(text + "\n", encoding="utf-8")

    @staticmethod
    def exists(folder: Path, name: str) -> bool:
        """Whether ``folder`` has a pipeline of this name."""
        return (folder / f"{name}.json").is_file()

    @staticmethod
    def load(folder: Path, name: str) -> Pipeline:
        """Read what :meth:`save` wrote.

        Raises CheckpointError, naming the file, for one that is missing, malformed, of an unknown step, or whose
        tensors are not exactly those of the step.
        """
        path = folder / f"{name}.json"
        try:
            described = json.loads(path.read_text(encoding="utf-8"))
            records = [(item["registry_name"], item["config"], item.get("state_file")) for item in described["steps"]]
        except OSError as error:
            raise CheckpointError(f"{path} cannot be read: {error.strerror or error}.") from error
        except (ValueError, KeyError, TypeError) as error:
            raise CheckpointError(f"{path} describes no processor: {error!r}.") from error
        return Pipeline(name, [(str(record[0]), _step(path, *record)) for record in records])


def _step(path: Path, registered: Any, config: Any, state_file: Any) -> ProcessorStep:
    try:
        step = PROCESSOR_STEPS.get(registered)(**config)
        step.load_state_dict(_tensors(path.parent, state_file) if state_file else {})
    except (NotRegistered, ValueError, TypeError, KeyError, AttributeError, RuntimeError) as error:
        raise CheckpointError(f"{path}, step {registered}: {one_line(error, with_type=False)}") from error
    return step


def _tensors(folder: Path, name: Any) -> dict[str, Tensor]:
    file = folder / Path(str(name)).name  # never outside the folder
    try:
        return load_file(file)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{file} cannot be read: {error}.") from error
