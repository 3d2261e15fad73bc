"""What is wrong with a placement: one error for the whole configuration, with a code for each mistake."""

from __future__ import annotations

from collections.abc import Sequence

from plugrl.errors import ConfigError

Problem = tuple[str, str, str]
"""Key path, code, message."""


class PlacementError(ConfigError):
    """A placement is wrong; ``errors`` lists ``(key path, code, message)``, all of the configuration's at once.

    ``wanted`` is the number of devices that would be enough, 0 where no device is missing.
    """

    def __init__(self, errors: Sequence[Problem], wanted: int = 0):
        super().__init__("\n".join(f"{path}: {message}" for path, _, message in errors))
        self.errors = list(errors)
        self.wanted = wanted

    def __reduce__(self) -> tuple[type[PlacementError], tuple[list[Problem], int]]:
        return type(self), (self.errors, self.wanted)


class Wrong(Exception):
    """The first mistake in one value: a code and a message, without the path that only the caller knows."""

    def __init__(self, code: str, message: str, wanted: int = 0):
        super().__init__(message)
        self.code = code
        self.wanted = wanted


class Problems:
    """Collects the mistakes of a configuration, each once."""

    def __init__(self) -> None:
        self.found: list[Problem] = []
        self.wanted = 0

    def add(self, path: str, code: str, message: str, wanted: int = 0) -> None:
        """Note a mistake; one that is known already, as that of a key which names several components, stays one."""
        self.wanted = max(self.wanted, wanted)
        if (path, code, message) not in self.found:
            self.found.append((path, code, message))

    def catch(self, path: str, wrong: Wrong) -> None:
        """Note what was wrong with the value at ``path``."""
        self.add(path, wrong.code, str(wrong), wrong.wanted)

    def raise_if_any(self) -> None:
        """Raise PlacementError with everything that was noted."""
        if self.found:
            raise PlacementError(self.found, self.wanted)
