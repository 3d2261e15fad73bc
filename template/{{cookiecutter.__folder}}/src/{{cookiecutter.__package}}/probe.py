"""Is the hardware here? Asked at every start, on every node: quick, without the SDK, and no device is initialised."""

from __future__ import annotations

{% if cookiecutter.smi_command %}
from plugrl.platforms.base import PlatformBase
{% endif %}
from plugrl.platforms.probe import ProbeResult{{ ', Unavailable' if cookiecutter.torch_extension or cookiecutter.smi_command }}
from plugrl.platforms.probe_facts import {{ 'is_installed, ' if cookiecutter.torch_extension }}visible

MASK = "{{ cookiecutter.visible_devices_env }}"


def probe() -> ProbeResult:
    """Look for the SDK, then count what the mask lets through."""
{% if cookiecutter.torch_extension %}
    if not is_installed("{{ cookiecutter.torch_extension }}"):
        return Unavailable("{{ cookiecutter.torch_extension }} is not installed")
{% endif %}
{% if cookiecutter.smi_command %}
    if not PlatformBase.check_smi_command("{{ cookiecutter.smi_command }}"):
        return Unavailable("{{ cookiecutter.smi_command }} is missing or fails")
{% endif %}
    # TODO({{ cookiecutter.vendor }}): count the devices from the files of the driver, such as
    # device_files("/dev/{{ cookiecutter.device_type }}[0-9]*"). None means: unknown, at least one.
    return visible(None, MASK, "{{ cookiecutter.torch_extension ~ ' is installed' if cookiecutter.torch_extension else cookiecutter.smi_command ~ ' answers' if cookiecutter.smi_command else 'nothing was looked for' }}")
