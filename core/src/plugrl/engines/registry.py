"""The registry of engines and its look-up by model type, backend, device and vendor. Importing it imports no torch."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any, TypeVar

from plugrl.engines.lookup import (
    ANY_DEVICE,
    EngineExplanation,
    EngineKey,
    device_text,
    failure_text,
    look_up,
    missing_text,
)
from plugrl.errors import EngineNotFound, PluginError
from plugrl.provenance import calling_origin
from plugrl.registry import Registration, Registry, format_key

if TYPE_CHECKING:
    from plugrl.engines.base import BaseEngine

Names = str | Sequence[str]
E = TypeVar("E", bound=type)
logger = logging.getLogger(__name__)


def check_engine(key: Any, value: Any) -> None:
    """Raise PluginError unless ``value`` is a BaseEngine subclass that leaves no member open (rule EN-5)."""
    from plugrl.engines.base import BaseEngine

    name = format_key(key)
    if not isinstance(value, type) or not issubclass(value, BaseEngine):
        raise PluginError(f"Engine {name} must be a subclass of BaseEngine, got {value!r}.")
    missing = sorted(getattr(value, "__abstractmethods__", ()))
    if missing:
        raise PluginError(f"Engine {name} ({value.__qualname__}) does not implement {', '.join(missing)}.")


ENGINES: Registry[type[BaseEngine]] = Registry("engine", check=check_engine, not_found=EngineNotFound)
"""Keys are ``(model_type, backend, device, vendor)``; device ``"*"`` is any device, vendor None any vendor.

Meta of an entry: ``capabilities``, ``sections``.
"""


class EngineRegistry:
    """Engines by (model type, backend, device, vendor): registration, look-up, and how a look-up went."""

    @classmethod
    def register(
        cls,
        model_type: Names,
        backend: Names,
        device: Names = ANY_DEVICE,
        vendor: Names | None = None,
        force: bool = False,
        summary: str = "",
    ) -> Callable[[E], E]:
        """Return a class decorator that registers an engine under every combination of the given names, or under none.

        Raises ValueError naming an argument that is empty, PluginError for an unfit class, DuplicateRegistration.
        """
        columns = [_names("model_type", model_type), _names("backend", backend), _names("device", device)]
        vendors: tuple[str | None, ...] = (None,) if vendor is None else _names("vendor", vendor)

        def decorate(value: E) -> E:
            origin = calling_origin()
            ENGINES.register_many(
                [
                    Registration(key=key, value=value, origin=origin, summary=summary, force=force)
                    for key in product(*columns, vendors)
                ]
            )
            return value

        return decorate

    @classmethod
    def get_engine_cls(
        cls, model_type: str, backend: str, *, device: str | None = None, vendor: str | None = None
    ) -> type[BaseEngine]:
        """Return the engine's class for the current platform, or for the device and vendor given.

        Raises EngineNotFound with what is known, the steps tried and the plugins that failed; a failed plugin that
        claims a more exact key than the one found is an error too, not a fallback.
        """
        found = cls.explain(model_type, backend, device=device, vendor=vendor)
        failure = failure_text(found)
        if failure is not None:
            raise EngineNotFound(failure)
        if found.entry is None:
            raise EngineNotFound(missing_text(found, ENGINES.keys()))
        if len(found.steps) > 1:
            _log_fallback(found)
        return ENGINES.get(found.entry.key)

    @classmethod
    def new(cls, model_type: str, backend: str, *args: Any, **kwargs: Any) -> BaseEngine:
        """Construct the engine of the current platform; arguments are passed through."""
        return cls.get_engine_cls(model_type, backend)(*args, **kwargs)

    @classmethod
    def explain(
        cls, model_type: str, backend: str, *, device: str | None = None, vendor: str | None = None
    ) -> EngineExplanation:
        """Look up as :meth:`get_engine_cls` does, importing no engine and raising for nothing that is missing."""
        return look_up(ENGINES, model_type, backend, device, vendor)

    @classmethod
    def sections(cls, model_type: str, backend: str) -> tuple[Any, ...]:
        """Return the ``ConfigSection``s that the engine of the current platform reads.

        A vendor's engine that declares none reads those of the other engines of its model type and backend: it is one
        of them with another start.
        """
        entry = cls.explain(model_type, backend).entry
        if entry is None or entry.meta.get("sections"):
            return () if entry is None else tuple(entry.meta["sections"])
        alike = (ENGINES.entry(key) for key in ENGINES.keys() if key[:2] == entry.key[:2])  # type: ignore[index]
        return tuple(dict.fromkeys(section for other in alike for section in other.meta.get("sections", ())))

    @classmethod
    def table(cls) -> list[dict[str, Any]]:
        """Return every registered engine as plain values, one row per key."""
        rows = []
        for row, key in zip(ENGINES.describe(), ENGINES.keys(), strict=True):
            rows.append({**dict(zip(("model_type", "backend", "device", "vendor"), key, strict=True)), **row})
        return rows


def _names(argument: str, names: Names) -> tuple[str, ...]:
    found = (names,) if isinstance(names, str) else tuple(names)
    if not found or not all(isinstance(name, str) and name.strip() for name in found):
        raise ValueError(f"EngineRegistry.register: {argument} is {names!r}; it needs at least one name.")
    return found


_logged: set[EngineKey] = set()


def _log_fallback(found: EngineExplanation) -> None:
    exact, used = found.steps[0].key, found.steps[-1].key
    if exact in _logged:
        return
    _logged.add(exact)
    for step in found.steps:
        if step.skipped:
            logger.warning(
                "Engine %s/%s for %s is passed over. %s",
                found.model_type,
                found.backend,
                device_text(step.key),
                step.skipped,
            )
    logger.info("Engine %s/%s for %s: %s", found.model_type, found.backend, device_text(exact), device_text(used))
