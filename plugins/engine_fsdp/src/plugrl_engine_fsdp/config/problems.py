"""Errors of units and their precision: each problem has the code of the rule it breaks, one error holds them all."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from plugrl.errors import ConfigError


@dataclass(frozen=True)
class Problem:
    """One mistake. rule: ``C1`` to ``C19``, ``M1`` to ``M16``, or empty; where: key below ``fsdp_config``."""

    rule: str
    where: str
    text: str

    def __str__(self) -> str:
        return f"{self.where}: {self.text}" + (f" [{self.rule}]" if self.rule else "")


class WrapConfigError(ConfigError):
    """Units or their precision cannot be as configured.

    Attributes:
        problems: all of them, in the order in which they were found. rules: their codes. rule: the first code.
    """

    def __init__(self, problems: Iterable[Problem], *, prefix: str = "fsdp_config.") -> None:
        self.problems = tuple(problems)
        lines = [f"{prefix}{problem}" for problem in self.problems]
        several = [f"{len(lines)} problems with units and their precision:", *(f"  {line}" for line in lines)]
        super().__init__("\n".join(several if len(lines) > 1 else lines))

    @classmethod
    def raise_if(cls, problems: Iterable[Problem], *, prefix: str = "fsdp_config.") -> None:
        """Raise when there are problems; ``prefix`` stands before the key of each."""
        found = tuple(problems)
        if found:
            raise cls(found, prefix=prefix)

    @property
    def rules(self) -> tuple[str, ...]:
        """The codes of the rules that were broken, in the order found."""
        return tuple(problem.rule for problem in self.problems if problem.rule)

    @property
    def rule(self) -> str:
        """The first code, empty when no numbered rule was broken."""
        return self.rules[0] if self.rules else ""
