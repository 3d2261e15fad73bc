"""Faults on demand (``VDEV_FAULT=kind@when,...``) and deliberately wrong devices (``VDEV_MUTANT``)."""

from __future__ import annotations

from plugrl_platform_vdev.settings import read_settings


def active(kind: str) -> tuple[str, ...]:
    """Return the ``when`` of every fault of this kind, an empty text where it has none; () when the kind is not on."""
    parts = (item.partition("@") for item in read_settings().faults)
    return tuple(when for name, _, when in parts if name == kind)


def is_mutant(name: str) -> bool:
    """Whether the device is to be wrong in this way."""
    return read_settings().mutant == name


def count_of(kind: str) -> int | None:
    """Return the number in ``kind@N`` or ``kind@stepN``, None when the fault is not on.

    Raises ValueError for one without a number.
    """
    for when in active(kind):
        digits = when.removeprefix("step")
        if not digits.isdigit():
            raise ValueError(f"VDEV_FAULT={kind}@{when}: a number is missing, such as {kind}@3.")
        return int(digits)
    return None
