"""Hooks that keep what they were called with."""

from __future__ import annotations

from typing import Any

from plugrl.plugins import Check, hookimpl

calls: list[str] = []


@hookimpl
def on_plugins_loaded(report: Any) -> None:
    """Keep the number of plugins."""
    calls.append(f"on_plugins_loaded {len(report.records)}")


@hookimpl
def doctor_checks() -> list[Check]:
    """Add one line to the doctor."""
    return [Check(name="acme driver", ok=True, detail="not needed")]


@hookimpl
def report_header() -> str:
    """Add one line to the header of a run."""
    return "acme boards: 0"
