"""The entries of a manifest: what a plugin can contribute, one type per kind.

Each has a ``target``, a ``"module:attribute"`` string that is imported on first use, so that what a plugin offers is
known even where its implementation cannot be imported.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from itertools import product
from typing import Any, ClassVar, TypeAlias

from plugrl.plugins.capabilities import bad_capabilities
from plugrl.provenance import Origin
from plugrl.registry import Registration

Names: TypeAlias = str | tuple[str, ...]

_SECTION_KEY = re.compile(r"[a-z][a-z0-9_]*")
_TARGET = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
_TARGETS = {"probe", "schema", "processor", "example", "observations"}
"""Fields that name a target, None where there is none."""

_COMMON_FIELDS = {"target", "summary", "needs", "force", "aliases", "file", "line"}

SECTION_OWNERS = ("actor", "critic", "ref")
"""The sections of the configuration to which an engine may add its own."""

MODEL_CATEGORIES = ("language", "value", "embodied")
"""What a model type can be; an engine finds it as ``language_model`` and so on."""


@dataclass(frozen=True, kw_only=True)
class ConfigSection:
    """A section of the configuration that a plugin owns.

    Args:
        owners: the sections it may stand in: ``actor``, ``critic``, ``ref``.
        key: its key there: ``fsdp_config``.
        schema: ``"module:attribute"`` of the pydantic model that checks it.
        aliases: keys that may be given elsewhere, each with the path below the owner where they are kept:
            ``("parallelism", "fsdp_config.parallelism")``; ``{owner}`` in a key stands for each owner.
    """

    owners: tuple[str, ...] = SECTION_OWNERS
    key: str
    schema: str
    aliases: tuple[tuple[str, str], ...] = ()

    def problems(self) -> Iterator[str]:
        """Yield what is wrong with the declaration, each as a phrase."""
        if not isinstance(self.key, str) or not _SECTION_KEY.fullmatch(self.key):
            yield f"key {self.key!r} of a section must match {_SECTION_KEY.pattern}"
        if not isinstance(self.owners, tuple) or not set(self.owners) <= set(SECTION_OWNERS):
            yield f"owners of section {self.key} must be a tuple of {', '.join(SECTION_OWNERS)}, not {self.owners!r}"
        yield from bad_target(f"schema of section {self.key}", self.schema)
        pairs = self.aliases if isinstance(self.aliases, tuple) else (None,)
        if not all(isinstance(pair, tuple) and len(pair) == 2 and all(map(_is_text, pair)) for pair in pairs):
            yield f"aliases of section {self.key} must be a tuple of (key, path) pairs, not {self.aliases!r}"


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One contribution of a plugin.

    Args:
        target: ``"package.module:attribute"``, imported on first use.
        summary: one line for ``plugrl plugins list``.
        needs: modules that must be importable before the target is tried.
        force: override what already has the key; shown by the doctor.
    """

    kind: ClassVar[str] = ""
    key_fields: ClassVar[tuple[str, ...]] = ("name",)
    target: str
    summary: str = ""
    needs: tuple[str, ...] = ()
    force: bool = False
    file: str = field(init=False, compare=False, repr=False, default="")
    line: int = field(init=False, compare=False, repr=False, default=0)

    def __post_init__(self) -> None:
        # One frame up is the generated __init__, two up the manifest: what an error about this entry should point at.
        frame = sys._getframe(2)
        object.__setattr__(self, "file", frame.f_code.co_filename)
        object.__setattr__(self, "line", frame.f_lineno)

    def keys(self) -> tuple[Any, ...]:
        """Return the registry keys this entry claims."""
        return tuple(getattr(self, name) for name in self.key_fields)

    def meta(self) -> dict[str, Any]:
        """Return what the kind declares besides: every field that is neither common to all entries nor in the key."""
        left_out = _COMMON_FIELDS.union(self.key_fields)
        return {item.name: getattr(self, item.name) for item in fields(self) if item.name not in left_out}

    def registrations(self, origin: Origin) -> list[Registration]:
        """Return one claim per key, with this entry's own file and line in the origin."""
        return [
            Registration(
                key=key,
                target=self.target,
                origin=origin.at(self.file, self.line),
                aliases=tuple(getattr(self, "aliases", ())),
                summary=self.summary,
                needs=self.needs,
                meta=self.meta(),
                force=self.force,
            )
            for key in self.keys()
        ]

    def problems(self) -> Iterator[str]:
        """Yield what is wrong with the declaration, each as a phrase."""
        yield from bad_target("target", self.target)
        yield from bad_names("needs", self.needs)
        yield from bad_text("summary", self.summary)
        if not isinstance(self.force, bool):
            yield f"force {self.force!r} must be True or False"
        keys = self.keys()
        if not keys:
            yield "it claims no key: an empty tuple registers nothing"
        for part in (part for key in keys for part in (key if isinstance(key, tuple) else (key,))):
            if part is not None and not (isinstance(part, str) and part.strip()):
                yield f"{part!r} is no name"
        for item in fields(self):
            if item.name in _TARGETS and getattr(self, item.name) is not None:
                yield from bad_target(item.name, getattr(self, item.name))


@dataclass(frozen=True, kw_only=True)
class PlatformEntry(Entry):
    """A platform. ``probe`` names a cheap function that returns ``Available`` or ``Unavailable`` and never initialises
    the device; among available platforms the highest ``priority`` is chosen, and one below zero only when it is named.
    ``device`` is torch's device type. ``capabilities`` are ids of :mod:`plugrl.plugins.capabilities` that the
    conformance kit shall find."""

    kind: ClassVar[str] = "platform"
    name: str
    vendor: str
    device: str
    probe: str
    aliases: tuple[str, ...] = ()
    priority: int = 50
    capabilities: tuple[str, ...] = ()

    def problems(self) -> Iterator[str]:
        """Yield what is wrong with the declaration, each as a phrase."""
        yield from super().problems()
        yield from bad_names("aliases", self.aliases)
        yield from bad_text("vendor", self.vendor)
        yield from bad_text("device", self.device)
        if not isinstance(self.priority, int):
            yield f"priority is {self.priority!r}, not a whole number"
        wrong = list(bad_names("capabilities", self.capabilities))
        yield from wrong or bad_capabilities(self.capabilities)


@dataclass(frozen=True, kw_only=True)
class EngineEntry(Entry):
    """A training engine; it claims every combination of its model types, backends, devices and vendors.

    ``device="*"`` stands for any device, ``vendor=None`` for any vendor. ``sections`` are the parts of the
    configuration that the engine reads.
    """

    kind: ClassVar[str] = "engine"
    key_fields: ClassVar[tuple[str, ...]] = ("model_type", "backend", "device", "vendor")
    model_type: Names
    backend: Names
    device: Names = "*"
    vendor: Names | None = None
    capabilities: tuple[str, ...] = ()
    sections: tuple[ConfigSection, ...] = ()

    def keys(self) -> tuple[Any, ...]:
        """Return ``(model_type, backend, device, vendor)`` of every combination; vendor is None for any."""
        vendors: tuple[str | None, ...] = (None,) if self.vendor is None else _as_tuple(self.vendor)
        return tuple(product(_as_tuple(self.model_type), _as_tuple(self.backend), _as_tuple(self.device), vendors))

    def problems(self) -> Iterator[str]:
        """Yield what is wrong with the declaration, each as a phrase."""
        for name in self.key_fields:
            value = getattr(self, name)
            if not isinstance(value, str | tuple) and not (name == "vendor" and value is None):
                yield f"{name} {value!r} must be a name or a tuple of names"
                return  # the keys cannot be made
        yield from super().problems()
        yield from bad_names("capabilities", self.capabilities)
        if not isinstance(self.sections, tuple):
            yield f"sections must be a tuple of ConfigSection, not {self.sections!r}"
            return
        for section in self.sections:
            if isinstance(section, ConfigSection):
                yield from section.problems()
            else:
                yield f"{section!r} in sections is no ConfigSection"


@dataclass(frozen=True, kw_only=True)
class ModelEntry(Entry):
    """A model type. The target is a builder ``(cfg, torch_dtype)``; ``schema`` names the pydantic model of its
    configuration, ``processor`` a callable ``(cfg)`` that returns its text processor, ``example`` a callable without
    arguments that returns the configuration of a tiny model with random weights, which the conformance kit builds.
    ``observations``, for one that acts, a callable ``(count)`` that returns what it is shown in so many scenes."""

    kind: ClassVar[str] = "model"
    key_fields: ClassVar[tuple[str, ...]] = ("model_type",)
    model_type: str
    category: str = "language"
    schema: str | None = None
    processor: str | None = None
    example: str | None = None
    observations: str | None = None

    def problems(self) -> Iterator[str]:
        """Yield what is wrong with the declaration, each as a phrase."""
        yield from super().problems()
        if self.category not in MODEL_CATEGORIES:
            yield f"category {self.category!r} must be one of {', '.join(MODEL_CATEGORIES)}"


@dataclass(frozen=True, kw_only=True)
class EnvEntry(Entry):
    """A vectorised environment. The target is called with its configuration; ``schema`` names the pydantic model of
    that, a subclass of ``plugrl.envs.config.EnvParams``; ``example`` a callable ``(num_envs)`` that returns a small
    environment and actions for it, for the conformance kit."""

    kind: ClassVar[str] = "env"
    name: str
    schema: str | None = None
    example: str | None = None


@dataclass(frozen=True, kw_only=True)
class RolloutEntry(Entry):
    """A rollout backend; ``schema`` names the pydantic model of ``rollout.options``."""

    kind: ClassVar[str] = "rollout"
    name: str
    schema: str | None = None


@dataclass(frozen=True, kw_only=True)
class RewardEntry(Entry):
    """A reward function."""

    kind: ClassVar[str] = "reward"
    name: str


@dataclass(frozen=True, kw_only=True)
class AdvantageEntry(Entry):
    """An advantage estimator."""

    kind: ClassVar[str] = "advantage"
    name: str


@dataclass(frozen=True, kw_only=True)
class LossEntry(Entry):
    """A policy loss."""

    kind: ClassVar[str] = "loss"
    name: str


@dataclass(frozen=True, kw_only=True)
class LoggerEntry(Entry):
    """A tracking backend."""

    kind: ClassVar[str] = "logger"
    name: str


@dataclass(frozen=True, kw_only=True)
class DatasetEntry(Entry):
    """A source of prompts."""

    kind: ClassVar[str] = "dataset"
    name: str


@dataclass(frozen=True, kw_only=True)
class BalancerEntry(Entry):
    """Who gets which item of a channel."""

    kind: ClassVar[str] = "balancer"
    name: str


@dataclass(frozen=True, kw_only=True)
class HardwareEntry(Entry):
    """A type of hardware that node groups are placed by, such as a robot; the target derives from ``HardwareUnit``."""

    kind: ClassVar[str] = "hardware"
    name: str


@dataclass(frozen=True, kw_only=True)
class WeightSyncerEntry(Entry):
    """A way in which new weights reach the rollout."""

    kind: ClassVar[str] = "weight_syncer"
    name: str


@dataclass(frozen=True, kw_only=True)
class Patch:
    """A change to somebody else's code that no seam of PlugRL makes possible.

    Args:
        target: ``"module:attribute"`` that is replaced, in every worker before its first use.
        replacement: ``"module:attribute"`` that takes its place.
        reason: why there is no other way.
        remove_in: the version of PlugRL in which it should be gone; from then on the doctor and strict mode object.
        applies_to: the distribution whose code it changes, with a version range: ``torch>=2.6,<2.8``; outside the range
            (or without the distribution) the patch is left out.
    """

    target: str
    replacement: str
    reason: str
    remove_in: str
    applies_to: str

    def problems(self) -> Iterator[str]:
        """Yield what is wrong with the declaration, each as a phrase."""
        yield from bad_target("target", self.target)
        yield from bad_target("replacement", self.replacement)
        yield from bad_text("reason", self.reason)
        if isinstance(self.reason, str) and not self.reason.strip():
            yield "reason is empty"
        yield from _bad_versions(self.remove_in, self.applies_to)


def bad_target(name: str, target: Any) -> Iterator[str]:
    """Yield a phrase unless ``target`` has the form ``"package.module:attribute"``."""
    if not isinstance(target, str) or not _TARGET.fullmatch(target):
        yield f'{name} {target!r} must be "package.module:attribute"'


def bad_names(name: str, names: Any) -> Iterator[str]:
    """Yield a phrase unless ``names`` is a tuple of texts; a bare text is the usual slip."""
    if not isinstance(names, tuple) or not all(isinstance(item, str) and item for item in names):
        yield f"{name} must be a tuple of names, not {names!r}"


def bad_text(name: str, text: Any) -> Iterator[str]:
    """Yield a phrase unless ``text`` is a text."""
    if not isinstance(text, str):
        yield f"{name} {text!r} must be a text"


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value)


def _as_tuple(names: Names) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(names)


def _bad_versions(version: Any, requirement: Any) -> Iterator[str]:
    from packaging.requirements import InvalidRequirement, Requirement
    from packaging.version import InvalidVersion, Version

    try:
        Version(version)
    except (InvalidVersion, TypeError):
        yield f"remove_in {version!r} is no version"
    try:
        Requirement(requirement)
    except (InvalidRequirement, TypeError):
        yield f"applies_to {requirement!r} is no requirement such as torch>=2.6,<2.8"
