"""How an engine is found: the keys that are tried in order, and why nothing was found."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from plugrl.environment import read_environment
from plugrl.errors import UserError, nearest, one_of
from plugrl.plugins.ledger import current_ledger, failures_for
from plugrl.registry import Registry, RegistryEntry, install_command, normalize_name
from plugrl.targets import is_importable

ANY_DEVICE = "*"
EngineKey = tuple[str, str, str, str | None]
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class LookupStep:
    """One key that was tried: what it stands for, whether an engine for it can be used, and what is in the way.

    failures: the failed plugins that claim the key. skipped: why the engine registered under it cannot be used here:
    modules that it needs are not installed.
    """

    key: EngineKey
    what: str
    found: bool
    failures: tuple[str, ...] = ()
    skipped: str = ""

    def state(self) -> str:
        """Say what became of the step."""
        if self.found:
            return "found"
        return f"skipped. {self.skipped}" if self.skipped else " ".join(("not registered.", *self.failures))


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
            rows.append(f"{step.what} {device_text(step.key)}: {step.state()}")
        rows.append(f"-> {self.entry.location} of {self.entry.origin}" if self.entry else "-> no engine")
        return rows

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for ``--json``."""
        steps = [
            {
                "key": list(step.key),
                "what": step.what,
                "found": step.found,
                "failures": list(step.failures),
                "skipped": step.skipped,
            }
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


def look_up(
    engines: Registry[Any], model_type: str, backend: str, device: str | None, vendor: str | None
) -> EngineExplanation:
    """Try the keys in order until one has an engine whose needs are there. Imports no engine."""
    model_type, backend = normalize_name(model_type), normalize_name(backend)
    where, who = _device_and_vendor(device, vendor)
    steps: list[LookupStep] = []
    for what, key in _candidates(model_type, backend, where, who):
        steps.append(_step(engines, key, what))
        if steps[-1].found:
            break
    entry = engines.entry(steps[-1].key) if steps[-1].found else None
    return EngineExplanation(
        model_type=model_type, backend=backend, device=where, vendor=who, steps=tuple(steps), entry=entry
    )


def _step(engines: Registry[Any], key: EngineKey, what: str) -> LookupStep:
    """Look at one key. An entry whose needs are missing is passed over: another one may do, and the step says so."""
    if key not in engines:
        return LookupStep(key, what, False, _failed_providers(key))
    entry = engines.entry(key)
    missing = [name for name in entry.needs if not is_importable(name)]
    if not missing:
        return LookupStep(key, what, True)
    text = f"{entry.origin} provides it but needs {', '.join(missing)}, which is not installed: "
    return LookupStep(key, what, False, skipped=text + f"`{install_command(missing, entry.origin)}`.")


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
    from plugrl.platforms.selection import construct, current_selection, get_platform

    if current_selection() is not None and normalize_name(get_platform().device_name) == device:
        return normalize_name(get_platform().generic_engine_vendor())
    for name in PLATFORMS.keys():
        meta = PLATFORMS.entry(name).meta
        if normalize_name(meta.get("device")) == device and normalize_name(meta.get("vendor")) == vendor:
            try:
                return normalize_name(construct(name).generic_engine_vendor())
            except UserError as error:
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


def device_text(key: EngineKey) -> str:
    """Return the device part of a key as messages show it: ``(device, vendor)`` or the device alone."""
    device, vendor = key[2], key[3]
    return f"({device}, {vendor})" if vendor else device


def _title(found: EngineExplanation) -> str:
    vendor = f" ({found.vendor})" if found.vendor else ""
    return f"No engine {found.model_type}/{found.backend} for {found.device}{vendor}."


def failure_text(found: EngineExplanation) -> str | None:
    """Return the error text when a failed plugin claims a more exact key than the one found, else None."""
    reasons = [reason for step in found.steps if not step.found for reason in step.failures]
    return f"{_title(found)} {' '.join(reasons)}" if reasons else None


def missing_text(found: EngineExplanation, keys: Iterable[EngineKey]) -> str:
    """Say which part of the key nobody registered, what there is instead, and which plugins failed."""
    keys = list(keys)
    types = {key[0] for key in keys}
    skipped = [f"{device_text(step.key)}: {step.skipped}" for step in found.steps if step.skipped]
    known = [*skipped, *failures_for("engine", found.steps[0].key)]
    reasons = " ".join(known) or "Run `plugrl plugins list --all`."
    if found.model_type not in types:
        text = f'Unknown model type "{found.model_type}".'
        return f"{_unknown(text, found.model_type, types)} {reasons}"
    backends = {key[1] for key in keys if key[0] == found.model_type}
    if found.backend not in backends:
        text = f'Unknown backend "{found.backend}" for {found.model_type}.'
        return f"{_unknown(text, found.backend, backends)} {reasons}"
    tried = ", ".join(device_text(step.key) for step in found.steps)
    there = one_of(device_text(key) for key in keys if key[:2] == (found.model_type, found.backend))
    return (
        f"{_title(found)} Tried: {tried}. {found.model_type}/{found.backend} exists for: {there}. {reasons} "
        f"`plugrl plugins explain engine {found.model_type}/{found.backend}` shows the look-up."
    )


def _unknown(text: str, name: str, known: set[str]) -> str:
    like = nearest(name, known)
    hint = f' Did you mean "{like}"?' if like else ""
    return f"{text}{hint} Known: {one_of(known)}."
