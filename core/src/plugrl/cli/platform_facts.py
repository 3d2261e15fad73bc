"""What the doctor asks of the chosen platform: each member that says what the device can do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from plugrl.errors import STOPS, PlugRLError, one_line
from plugrl.platforms.base import PlatformBase
from plugrl.platforms.selection import construct
from plugrl.targets import is_importable

QUESTIONS: dict[str, Callable[[PlatformBase], Any]] = {
    "torch device": lambda platform: platform.device_name,
    "vendor": lambda platform: platform.vendor_name,
    "torch module": lambda platform: platform.device_module.__name__,
    "devices": lambda platform: platform.device_count(),
    "first device": lambda platform: platform.get_device_uuid(0),
    "capability": lambda platform: _version(platform.get_device_capability()),
    "fast type": lambda platform: platform.preferred_dtype(),
    "collectives": lambda platform: platform.communication_backend_name(),
    "collective module": lambda platform: _name(platform.get_collective_module()),
    "device mask": lambda platform: platform.visible_devices_envvar() or "none",
    "Ray resource": lambda platform: platform.ray_resource_name() or "none",
    "processes may share a device": lambda platform: platform.supports_colocated_worker_groups(),
    "memory shared between processes": lambda platform: platform.is_ipc_supported(),
    "runtime API": lambda platform: _name(platform.cudart()),
}


def platform_facts(name: str, problems: list[str]) -> dict[str, Any]:
    """Return the answers of the platform registered as ``name``; what fails is answered by its error.

    A member that raises is added to ``problems``. Without torch no platform can be built: then there are no answers.
    """
    if not is_importable("torch"):
        return {"torch": "not installed: pip install 'plugrl[train]'"}
    try:
        platform = construct(name)
    except PlugRLError as error:
        problems.append(str(error))
        return {}
    facts: dict[str, Any] = {}
    for question, ask in QUESTIONS.items():
        try:
            facts[question] = ask(platform)
        except STOPS:
            raise
        except BaseException as error:  # Third-party code: the doctor is there to show whatever it raises.
            facts[question] = f"fails: {one_line(error)}"
            problems.append(f'Platform "{name}" fails to tell its {question}: {one_line(error)}')
    return facts


def _version(capability: tuple[int | None, int | None]) -> str:
    major, minor = capability
    return "none" if major is None else f"{major}.{minor}"


def _name(module: Any) -> str:
    return "none" if module is None else str(getattr(module, "__name__", type(module).__name__))
