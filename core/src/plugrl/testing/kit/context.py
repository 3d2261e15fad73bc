"""What a check is given: the platform, its devices, a folder, and processes of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plugrl.platforms.base import PlatformBase
from plugrl.testing.kit.checks import CheckFailed, CheckSkipped

if TYPE_CHECKING:
    import torch

    from plugrl.registry import RegistryEntry

HOST = "cpu"
"""torch's own name for the host's memory, which every platform has."""

_MARKER = "\n@plugrl-kit "


@dataclass
class Context:
    """What the checks of one level share, in the process that runs them.

    platform_name: the registered name; empty when a plugin without a platform is checked. plugin: name of the plugin,
    empty for what is built in. declared: its capabilities on this installation. folder: an empty one, removed at the
    end. options: what was given with ``--option``. cache: for results that several checks of a level need.
    """

    level: str
    platform_name: str
    plugin: str
    declared: frozenset[str]
    folder: Path
    subject: str = ""
    options: Mapping[str, str] = field(default_factory=dict)
    cache: dict[str, Any] = field(default_factory=dict)

    @cached_property
    def platform(self) -> PlatformBase:
        """The platform, made that of this process on first use."""
        from plugrl.platforms.selection import get_platform

        return get_platform(self.platform_name or None)

    @cached_property
    def has_virtual_devices(self) -> bool:
        """Whether devices are slots of the host: then ``kit.device`` is the same torch device for each of them."""
        return self.platform.device_name == HOST

    def device(self, index: int = 0) -> torch.device:
        """Return the torch device at a logical index; the extension that adds the device type is imported."""
        import torch

        module = self.platform.device_module
        assert module is not None
        return torch.device(HOST) if self.has_virtual_devices else torch.device(self.platform.device_name, index)

    def declares(self, capability: str) -> bool:
        """Whether this installation declares a capability."""
        return capability in self.declared

    def entries(self, kind: str) -> list[RegistryEntry]:
        """Return what the plugin contributes to a registry. Raises CheckSkipped when that is nothing."""
        from plugrl.registry import registry_of

        registry = registry_of(kind)
        found = [registry.entry(key) for key in registry.keys()]
        mine = [entry for entry in found if entry.origin.plugin == self.plugin]
        if not mine:
            raise CheckSkipped(f"the plugin contributes no {kind}")
        return mine

    def need_devices(self, count: int) -> None:
        """Raise CheckSkipped when there are fewer devices."""
        found = self.platform.device_count()
        if found < count:
            raise CheckSkipped(f"it takes {count} devices, this machine shows {found}")

    def in_process(self, code: str, *, env: Mapping[str, str] | None = None, timeout_s: float = 60.0) -> Any:
        """Run Python ``code`` in a new process and return what it assigns to ``answer``, through JSON.

        The platform's name is in ``VERL_PLATFORM``; ``env`` is laid over the environment. Raises CheckFailed with the
        end of its output when it fails or takes longer than ``timeout_s``.
        """
        script = f"import json\n{code}\nprint({_MARKER!r} + json.dumps(answer))\n"
        environment = {**os.environ, **({"VERL_PLATFORM": self.platform_name} if self.platform_name else {}),
                       **(env or {})}  # fmt: skip
        try:
            done = subprocess.run(
                [sys.executable, "-c", script], env=environment, stdin=subprocess.DEVNULL, capture_output=True,
                text=True, errors="replace", timeout=timeout_s, cwd=self.folder,
            )  # fmt: skip
        except subprocess.TimeoutExpired as error:
            raise CheckFailed(f"a process of the check gave no answer within {timeout_s:g} s") from error
        if done.returncode != 0 or _MARKER not in done.stdout:
            said = (done.stderr.strip() or done.stdout.strip()).splitlines()[-3:]
            raise CheckFailed(f"a process of the check ended with {done.returncode}: {' / '.join(said) or 'no output'}")
        answer, _ = json.JSONDecoder().raw_decode(done.stdout.rpartition(_MARKER)[2])
        return answer
