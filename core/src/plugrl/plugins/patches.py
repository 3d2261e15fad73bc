"""Patches that plugins declare: applied once in a worker, listed by the doctor, and not for ever."""

from __future__ import annotations

import importlib
import importlib.metadata
from dataclasses import dataclass

import plugrl
from plugrl.errors import STOPS, PluginError, one_line
from plugrl.plugins.entries import Patch
from plugrl.plugins.ledger import Ledger
from plugrl.targets import import_target


@dataclass(frozen=True, kw_only=True)
class AppliedPatch:
    """A patch that is in force in this process, and whose it is."""

    plugin: str
    patch: Patch


_applied: dict[str, AppliedPatch] = {}


def applied_patches() -> tuple[AppliedPatch, ...]:
    """Return the patches in force in this process."""
    return tuple(_applied.values())


def apply_patches(ledger: Ledger) -> None:
    """Apply every patch of the active plugins whose ``applies_to`` matches what is installed; again is nothing.

    Raises:
        PluginError: a patch cannot be applied, or two plugins patch the same thing; the text names plugin and target.
    """
    for record in ledger.active:
        for patch in record.manifest.patches if record.manifest else ():
            wanted = AppliedPatch(plugin=record.name, patch=patch)
            present = _applied.get(patch.target)
            if present == wanted or not matches_installed(patch):
                continue
            if present is not None:
                raise PluginError(f"Plugins {present.plugin} and {record.name} both patch {patch.target}.")
            _apply(wanted)
            _applied[patch.target] = wanted


def expired_patches(ledger: Ledger) -> list[AppliedPatch]:
    """Return the patches that this version of PlugRL should no longer need."""
    from packaging.version import Version

    return [
        AppliedPatch(plugin=record.name, patch=patch)
        for record in ledger.active
        for patch in (record.manifest.patches if record.manifest else ())
        if Version(plugrl.__version__) >= Version(patch.remove_in)
    ]


def matches_installed(patch: Patch) -> bool:
    """Tell whether the distribution that the patch changes is installed in a version it is meant for."""
    from packaging.requirements import Requirement

    requirement = Requirement(patch.applies_to)
    try:
        version = importlib.metadata.version(requirement.name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return requirement.specifier.contains(version, prereleases=True)


def _apply(applied: AppliedPatch) -> None:
    module_name, _, path = applied.patch.target.partition(":")
    *parents, name = path.split(".")
    try:
        holder = importlib.import_module(module_name)
        for parent in parents:
            holder = getattr(holder, parent)
        getattr(holder, name)
        setattr(holder, name, import_target(applied.patch.replacement))
    except STOPS:
        raise
    except BaseException as error:  # Third-party code on both sides.
        text = f"Plugin {applied.plugin} cannot patch {applied.patch.target}: {one_line(error)}"
        raise PluginError(text) from error
