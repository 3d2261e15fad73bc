"""The directory of one run: what was asked for, what was loaded, what came out."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from plugrl.config.show import dump_yaml
from plugrl.tracking.files import read_lines, truncate_after, write_atomic
from plugrl.tracking.redact import redact, redact_argument

_PACKAGES = (
    "torch", "ray", "transformers", "tokenizers", "safetensors", "numpy", "pyarrow", "pydantic", "pluggy", "PyYAML",
)  # fmt: skip
_RECORDS = ("metrics.jsonl", "samples.jsonl")


class RunDirectory:
    """Paths of a run's files, and their writing. Everything written is free of secrets."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path).expanduser().absolute()

    @property
    def config(self) -> Path:
        """The resolved configuration."""
        return self.path / "config.yaml"

    @property
    def plugins(self) -> Path:
        """The plugin ledger of the driver."""
        return self.path / "plugins.json"

    @property
    def versions(self) -> Path:
        """Versions of Python, PlugRL, its plugins and the packages below them."""
        return self.path / "versions.json"

    @property
    def plan(self) -> Path:
        """The plan that placement and flow come from; there after `plugrl plan --apply`."""
        return self.path / "plan.json"

    @property
    def metrics(self) -> Path:
        """One JSON line for each step."""
        return self.path / "metrics.jsonl"

    @property
    def samples(self) -> Path:
        """One JSON line for each sample generation."""
        return self.path / "samples.jsonl"

    @property
    def timeline(self) -> Path:
        """What every process did and when, as a Chrome trace; there with ``flow.trace``."""
        return self.path / "timeline.json"

    @property
    def curves(self) -> Path:
        """The curves as a picture."""
        return self.path / "curves.png"

    @property
    def report(self) -> Path:
        """The report, one page."""
        return self.path / "report.html"

    @property
    def checkpoints(self) -> Path:
        """The folder of the checkpoints."""
        return self.path / "checkpoints"

    def start(
        self,
        config: BaseModel | Mapping[str, Any],
        ledger: Any = None,
        *,
        resume_step: int | None = None,
        phase: str = "rl",
    ) -> None:
        """Create the directory and write configuration, plugins and versions.

        With ``resume_step`` the records after that step of ``phase`` are dropped; without it records of an earlier run
        are kept as `*.previous.jsonl`. ``ledger`` has a `to_dict()`, or is its result.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        self.write_config(config)
        described = ledger.to_dict() if hasattr(ledger, "to_dict") else ledger
        if described is not None:
            write_atomic(self.plugins, json.dumps(redact(described), indent=2, default=str) + "\n")
        write_atomic(self.versions, json.dumps(versions(), indent=2) + "\n")
        for name in _RECORDS:
            path = self.path / name
            if resume_step is not None:
                truncate_after(path, resume_step, phase)
            elif path.exists():
                path.replace(path.with_suffix(".previous.jsonl"))

    def write_config(self, config: BaseModel | Mapping[str, Any]) -> None:
        """Write the resolved configuration; what it replaces is gone."""
        values = config.model_dump(mode="json") if isinstance(config, BaseModel) else dict(config)
        write_atomic(self.config, dump_yaml(redact(values)))

    def read_metrics(self) -> Iterator[dict[str, Any]]:
        """Yield the rows of metrics.jsonl: `phase` and numbers by name."""
        for row in read_lines(self.metrics):
            yield {key: value for key, value in row.items() if key == "phase" or isinstance(value, int | float)}

    def read_samples(self) -> Iterator[dict[str, Any]]:
        """Yield the rows of samples.jsonl."""
        return read_lines(self.samples)


def versions() -> dict[str, Any]:
    """Return what a run depends on: Python, the system, the command, PlugRL with its plugins, and packages."""
    found = {name: _version(name) for name in _PACKAGES}
    own = {
        dist.metadata["Name"]: dist.version
        for dist in importlib.metadata.distributions()
        if (dist.metadata["Name"] or "").lower().replace("_", "-").startswith("plugrl")
    }
    return {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cpus": os.cpu_count(),
        "command": [os.path.basename(sys.argv[0] or "python"), *map(redact_argument, sys.argv[1:])],
        "plugrl": dict(sorted(own.items())),
        "packages": {name: version for name, version in found.items() if version},
    }


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
