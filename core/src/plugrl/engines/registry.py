"""The registry of engines and its look-up by model type, backend, device and vendor. Importing it imports no torch."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any, TypeVar

from plugrl.environment import read_environment
from plugrl.errors import EngineNotFound, MissingDependency, PluginError, nearest, one_of
from plugrl.plugins.ledger import current_ledger, failures_for
from plugrl.provenance import calling_origin
from plugrl.registry import Registration, Registry, RegistryEntry, format_key, normalize_name

if TYPE_CHECKING:
    from plugrl.engines.base import BaseEngine

ANY_DEVICE = "*"
Names = str | Sequence[str]
EngineKey = tuple[str, str, str, str | None]
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


@dataclass(frozen=True)
class LookupStep:
    """One key that was tried: what it stands for, whether it is registered, and the failed plugins that claim it."""

    key: EngineKey
    what: str
    found: bool
    failures: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class EngineExplanation:
    """The path of one look-up. ``entry`` is what it ended at, None when nothing matched."""

    model_type: str
    backend: str
    device: str
    vendor: str | None
    steps: tuple[LookupStep, ...]
    entry: RegistryEntry | None

    def lines(self) -> list[str]:
        """Return the path as text, one line per step."""
        rows = []
        for step in self.steps:
            state = "found" if step.found else " ".join(("not registered.", *step.failures))
            rows.append(f"{step.what} {_device_text(step.key)}: {state}")
        rows.append(f"-> {self.entry.location} of {self.entry.origin}" if self.entry else "-> no engine")
        return rows

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for ``--json``."""
        steps = [
            {"key": list(step.key), "what": step.what, "found": step.found, "failures": list(step.failures)}
            for step in self.steps
        ]
        entry = None
        if self.entry is not None:
            entry = {"key": list(self.entry.key), "target": self.entry.location, "origin": self.entry.origin.to_dict()}  # type: ignore[call-overload]
        return {
            "model_type": self.model_type,
            "backend": self.backend,
            "device": self.device,
            "vendor": self.vendor,
            "steps": steps,
            "engine": entry,
        }


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
        for step in found.steps:
            if step.failures and not step.found:
                raise EngineNotFound(f"{_title(found)} {' '.join(step.failures)}")
        if found.entry is None:
            raise EngineNotFound(_explain_missing(found))
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
        model_type, backend = normalize_name(model_type), normalize_name(backend)
        where, who = _device_and_vendor(device, vendor)
        steps: list[LookupStep] = []
        for what, key in _candidates(model_type, backend, where, who):
            found = key in ENGINES
            steps.append(LookupStep(key, what, found, () if found else _failed_providers(key)))
            if found:
                break
        entry = ENGINES.entry(steps[-1].key) if steps[-1].found else None
        return EngineExplanation(
            model_type=model_type, backend=backend, device=where, vendor=who, steps=tuple(steps), entry=entry
        )

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


def _device_and_vendor(device: str | None, vendor: str | None) -> tuple[str, str | None]:
    """Return what the look-up uses: the arguments, then the variables, then the platform of this process."""
    from plugrl.platforms.selection import get_platform

    environment = read_environment()
    device = normalize_name(device or environment.engine_device or "")
    vendor = normalize_name(vendor or environment.engine_vendor or "")
    if not device:
        platform = get_platform()
        return normalize_name(platform.device_name), vendor or normalize_name(platform.vendor_name)
    return device, vendor or _current_vendor(device)


def _current_vendor(device: str) -> str | None:
    """Return the platform's vendor when only a device was named; a device of another platform has none."""
    from plugrl.platforms.selection import get_platform

    platform = get_platform()
    return normalize_name(platform.vendor_name) if normalize_name(platform.device_name) == device else None


def _candidates(model_type: str, backend: str, device: str, vendor: str | None) -> list[tuple[str, EngineKey]]:
    """Return the keys to try, in order, each with what it stands for."""
    found: list[tuple[str, EngineKey]] = []
    if vendor:
        found.append(("device and vendor", (model_type, backend, device, vendor)))
    found.append(("device", (model_type, backend, device, None)))
    generic = _generic_vendor(device, vendor)
    if generic and generic != vendor:
        found.append(("device and generic vendor", (model_type, backend, device, generic)))
    found.append(("any device", (model_type, backend, ANY_DEVICE, None)))
    return found


def _generic_vendor(device: str, vendor: str | None) -> str | None:
    """Return the vendor whose engines also run on this device, as its platform declares."""
    from plugrl.platforms.registry import PLATFORMS
    from plugrl.platforms.selection import current_selection, get_platform

    if current_selection() is not None and normalize_name(get_platform().device_name) == device:
        return normalize_name(get_platform().generic_engine_vendor())
    for name in PLATFORMS.keys():
        meta = PLATFORMS.entry(name).meta
        if normalize_name(meta.get("device")) == device and normalize_name(meta.get("vendor")) == vendor:
            try:
                return normalize_name(PLATFORMS.get(name)().generic_engine_vendor())
            except (PluginError, MissingDependency) as error:
                logger.info("Platform %s cannot name its generic engine vendor: %s", name, error)
    return None


def _failed_providers(key: EngineKey) -> tuple[str, ...]:
    """Return one sentence per plugin that declares this very key but failed or does not fit this core."""
    ledger = current_ledger()
    if ledger is None:
        return ()
    return tuple(
        f"A plugin provides it: {record.sentence()}"
        for record in ledger.records
        if record.state in ("failed", "incompatible") and record.manifest is not None
        if any(key in map(normalize_name, entry.keys()) for entry in record.manifest.engines)
    )


def _device_text(key: EngineKey) -> str:
    device, vendor = key[2], key[3]
    return f"({device}, {vendor})" if vendor else device


def _title(found: EngineExplanation) -> str:
    vendor = f" ({found.vendor})" if found.vendor else ""
    return f"No engine {found.model_type}/{found.backend} for {found.device}{vendor}."


def _explain_missing(found: EngineExplanation) -> str:
    """Say which part of the key nobody registered, what there is instead, and which plugins failed."""
    keys: list[EngineKey] = list(ENGINES.keys())
    types = {key[0] for key in keys}
    reasons = " ".join(failures_for("engine", found.steps[0].key)) or "Run `plugrl plugins list --all`."
    if found.model_type not in types:
        text = f'Unknown model type "{found.model_type}".'
        return f"{_unknown(text, found.model_type, types)} {reasons}"
    backends = {key[1] for key in keys if key[0] == found.model_type}
    if found.backend not in backends:
        text = f'Unknown backend "{found.backend}" for {found.model_type}.'
        return f"{_unknown(text, found.backend, backends)} {reasons}"
    tried = ", ".join(_device_text(step.key) for step in found.steps)
    there = one_of(_device_text(key) for key in keys if key[:2] == (found.model_type, found.backend))
    return (
        f"{_title(found)} Tried: {tried}. {found.model_type}/{found.backend} exists for: {there}. {reasons} "
        f"`plugrl plugins explain engine {found.model_type}/{found.backend}` shows the look-up."
    )


def _unknown(text: str, name: str, known: set[str]) -> str:
    like = nearest(name, known)
    hint = f' Did you mean "{like}"?' if like else ""
    return f"{text}{hint} Known: {one_of(known)}."


_logged: set[EngineKey] = set()


def _log_fallback(found: EngineExplanation) -> None:
    exact, used = found.steps[0].key, found.steps[-1].key
    if exact in _logged:
        return
    _logged.add(exact)
    logger.info("Engine %s/%s for %s: %s", found.model_type, found.backend, _device_text(exact), _device_text(used))
