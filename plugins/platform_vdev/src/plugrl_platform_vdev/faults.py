"""Faults on demand (``VDEV_FAULT=kind@when,...``) and deliberately wrong devices (``VDEV_MUTANT``)."""

from __future__ import annotations

from plugrl_platform_vdev.settings import read_settings

FAULTS = (
    "oom",
    "op_unsupported",
    "device_lost",
    "stale_rng",
    "memory_leak",
    "slow",
    "init_fail",
    "probe_hang",
    "collective_hang",
    "collective_error",
    "bad_reduce",
    "nan",
)
"""What can go wrong on demand: the device first, then its collectives."""

MUTANTS = (
    "wrong_device_index",
    "index_7_accepted",
    "mixed_devices_accepted",
    "mask_ignored",
    "lying_memory_counter",
    "shared_memory_counter",
    "seed_ignored",
    "rng_state_ignored",
    "cpu_rng_moved",
    "bf16_in_fp32",
    "autocast_casts_not",
    "wrong_conv_gradient",
    "load_wrong_index",
    "avg_sums",
    "last_rank_left_out",
    "gather_wrong_order",
    "barrier_returns_at_once",
    "served_by_gloo",
    "completes_before_copy",
    "reduce_scatter_one_unchanged",
    "two_workers_one_index",
)
"""The deliberately wrong devices, by the level of the conformance kit that finds them: L1, L2, L3, L4."""


def check_names() -> None:
    """Raise ValueError, with the names that there are, for a fault or a mutant that does not exist."""
    settings = read_settings()
    for item in settings.faults:
        if item.partition("@")[0] not in FAULTS:
            raise ValueError(f"VDEV_FAULT: there is no fault {item!r}. There are: {', '.join(FAULTS)}.")
    if settings.mutant and settings.mutant not in MUTANTS:
        raise ValueError(f"VDEV_MUTANT: there is no {settings.mutant!r}. There are: {', '.join(MUTANTS)}.")


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
