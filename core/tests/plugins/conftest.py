"""Plugins that exist only for one test: modules in a temporary folder and the metadata that would name them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from plugrl.environment import Environment
from plugrl.plugins.discovery import Discovered
from plugrl.plugins.ledger import Ledger
from plugrl.plugins.loader import isolated, load
from plugrl.plugins.selection import PluginSettings

HEADER = """from plugrl.plugins import *
from plugrl.plugins import PLUGIN_API, Plugin, RewardEntry
"""


class Bench:
    """Writes plugins and loads them; its registries, ledger and hooks are gone after the test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.found: list[Discovered] = []
        self.modules: list[str] = []

    def module(self, name: str, source: str) -> str:
        """Write a module to the import path and return its name."""
        (self.folder / f"{name}.py").write_text(source)
        self.modules.append(name)
        return name

    def plugin(
        self, name: str, body: str = "", *, before: str = "", distribution: str | None = None, version: str = "1.0"
    ) -> Discovered:
        """Write a plugin; ``body`` holds further arguments of its manifest, ``before`` is run before it."""
        distribution = distribution or f"acme-{name}"
        module = self.module(
            f"{distribution}_{name}_manifest".replace("-", "_"),
            f"{HEADER}{before}\n"
            f"arguments = dict(name={name!r}, api=PLUGIN_API, requires_core='>=0.1', summary='for a test')\n"
            f"arguments |= dict({body})\n"
            "plugin = Plugin(**arguments)\n",
        )
        found = Discovered(name=name, value=f"{module}:plugin", distribution=distribution, version=version)
        self.found.append(found)
        return found

    def reward(self, name: str, *keys: str, force: bool = False) -> Discovered:
        """Write a plugin with rewards under these keys."""
        entries = "".join(f"RewardEntry(name={key!r}, target='{name}_impl:score', force={force})," for key in keys)
        return self.plugin(name, f"rewards=({entries})")

    def load(self, environment: Environment | None = None, settings: PluginSettings | None = None) -> Ledger:
        """Load everything that was written."""
        return load(self.found, environment or Environment(), settings or PluginSettings())


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    """Return a bench in a process without plugins."""
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("VERL_PLATFORM", "RLINF_EXT_MODULE", "PLUGRL_PLUGINS", "PLUGRL_STRICT", "PLUGRL_FINGERPRINT"):
        monkeypatch.delenv(name, raising=False)
    made = Bench(tmp_path)
    with isolated():
        yield made
    for name in made.modules:
        sys.modules.pop(name, None)


@pytest.fixture
def states() -> Callable[[Ledger], dict[str, str]]:
    """Return a function from a ledger to the state of each plugin."""
    return lambda ledger: {record.name: record.state for record in ledger.records}
