"""What a check is, how one is declared, and what its body says when the platform is wrong. Imports no torch.

::

    @check("L1.rng.seed_reproduces", capability="platform.rng", fix="manual_seed must reset the generator's offset.")
    def seed_reproduces(kit: Context) -> None:
        '''The same seed gives the same numbers.'''
        ...
        expect(torch.equal(first, second), "two draws after the same seed differ", got=second, expected=first)

The docstring states the requirement. A body that returns has passed; a text that it returns is shown beside the result.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from plugrl.platforms.capabilities import LEVELS, PLATFORM_CAPABILITIES

if TYPE_CHECKING:
    from plugrl.testing.kit.context import Context

DEADLINE_S = 60.0
"""Seconds that a check has unless it says otherwise; one that takes longer is ended with its process."""

SUBJECTS = ("engine", "model", "policy", "env", "rollout")
"""Kinds of contributions that have a kit of their own, which is run like a level."""

Body = Callable[["Context"], "str | None"]
B = TypeVar("B", bound=Callable[..., "str | None"])


class CheckFailed(AssertionError):
    """The platform does not do what a check asks; the text says what was found."""


class CheckSkipped(Exception):
    """A check cannot be made on this machine; the text says why. It counts as skipped, which is shown."""


@dataclass(frozen=True, kw_only=True)
class KitCheck:
    """One check.

    Args:
        id: ``LEVEL.subject.requirement``.
        level: the part of the id before the first dot.
        capability: the id of what a platform declares, None where the check always applies.
        requirement: the first paragraph of the body's docstring.
        body: the function.
        fix: what to look at when it fails.
        gate: whether a failure makes what follows meaningless; then later checks and levels are blocked.
        devices: how many devices it takes; with fewer it is skipped.
        deadline_s: seconds it has.
    """

    id: str
    level: str
    capability: str | None
    requirement: str
    body: Body
    fix: str = ""
    gate: bool = False
    devices: int = 1
    deadline_s: float = DEADLINE_S


_checks: dict[str, KitCheck] = {}


def check(
    id: str,
    *,
    capability: str | None = None,
    fix: str = "",
    gate: bool = False,
    devices: int = 1,
    deadline_s: float = DEADLINE_S,
) -> Callable[[B], B]:
    """Return a decorator that makes a function a check. Raises ValueError for an unknown level or capability."""
    level = id.partition(".")[0]
    if level not in (*LEVELS, *SUBJECTS):
        raise ValueError(f"check {id}: {level!r} is neither a level nor the kit of a kind")
    if capability is not None and capability not in PLATFORM_CAPABILITIES:
        raise ValueError(f"check {id}: there is no capability {capability!r}")

    def decorate(body: B) -> B:
        requirement = " ".join((body.__doc__ or "").split("\n\n")[0].split())
        made = KitCheck(
            id=id,
            level=level,
            capability=capability,
            requirement=requirement,
            body=body,
            fix=fix,
            gate=gate,
            devices=devices,
            deadline_s=deadline_s,
        )
        if id in _checks and _checks[id].body.__module__ != body.__module__:
            raise ValueError(f"check {id} stands in {_checks[id].body.__module__} and in {body.__module__}")
        _checks[id] = made
        return body

    return decorate


def checks_of(level: str, modules: Iterable[str] = ()) -> tuple[KitCheck, ...]:
    """Import the modules of a level, by name, and return its checks in the order in which they stand there.

    ``modules`` are imported besides: a vendor's own checks come after those of the kit.
    """
    package = importlib.import_module("plugrl.testing.kit")
    prefix = f"{level.lower()}_"
    for module in sorted(item.name for item in pkgutil.iter_modules(package.__path__)):
        if module.startswith(prefix):
            importlib.import_module(f"{package.__name__}.{module}")
    for module in modules:
        importlib.import_module(module)
    return tuple(item for item in _checks.values() if item.level == level)


# --------------------------------------------------------------------- what bodies say
def expect(condition: Any, message: str, *, got: Any = None, expected: Any = None) -> None:
    """Raise CheckFailed with the message, and what was got and expected where given, unless ``condition`` holds."""
    if condition:
        return
    parts = [message]
    if got is not None or expected is not None:
        parts.append(f"got {_short(got)}" + (f", expected {_short(expected)}" if expected is not None else ""))
    raise CheckFailed(": ".join(parts))


def expect_equal(got: Any, expected: Any, what: str) -> None:
    """Raise CheckFailed unless both are equal."""
    expect(got == expected, f"{what} is wrong", got=got, expected=expected)


def expect_raises(errors: type[BaseException] | tuple[type[BaseException], ...], call: Callable[[], Any],
                  what: str) -> BaseException:  # fmt: skip
    """Return the error that ``call`` raises. Raises CheckFailed when it raises none or another one."""
    wanted = errors if isinstance(errors, tuple) else (errors,)
    names = " or ".join(item.__name__ for item in wanted)
    try:
        answer = call()
    except wanted as error:
        return error
    except Exception as error:  # Whatever a vendor's library raises instead is the finding.
        raise CheckFailed(f"{what} raises {type(error).__name__} ({_short(error)}), expected {names}") from error
    raise CheckFailed(f"{what} is accepted (it returned {_short(answer)}), expected {names}")


def _short(value: Any) -> str:
    text = " ".join(str(value).split())
    return text if len(text) <= 200 else f"{text[:200]}..."
