"""What the manifest names and the platform answers; the kit checks the rest at L0. No device is needed."""

from __future__ import annotations

from {{ cookiecutter.__package }}.plugin import plugin

NAME = "{{ cookiecutter.platform_name }}"
VENDOR = "{{ cookiecutter.vendor }}"
DEVICE = "{{ cookiecutter.device_type }}"


def test_the_manifest_names_the_platform() -> None:
    (entry,) = plugin.platforms
    assert (entry.name, entry.vendor, entry.device) == (NAME, VENDOR, DEVICE)


def test_the_platform_answers() -> None:
    from {{ cookiecutter.__package }}.platform import {{ cookiecutter.__class }}Platform

    platform = {{ cookiecutter.__class }}Platform()
    assert (platform.device_name, platform.vendor_name) == (DEVICE, VENDOR)
    assert platform.communication_backend_name() == "{{ cookiecutter.comm_backend }}"
    assert platform.visible_devices_envvar() == "{{ cookiecutter.visible_devices_env }}"
{% if cookiecutter.ray_resource == 'GPU' %}
    assert platform.ray_resource_options(0.5) == {"num_gpus": 0.5}
{% else %}
    assert platform.ray_resource_options(1) == {"resources": {"{{ cookiecutter.ray_resource }}": 1}}
{% endif %}
{% if cookiecutter.with_engine %}


def test_the_engines_are_found() -> None:
    from plugrl.engines import EngineRegistry
    from plugrl.plugins import load_plugins

    load_plugins()
    for backend in ("fsdp2", "fsdp", "ddp"):
        first = EngineRegistry.explain("language_model", backend, device=DEVICE, vendor=VENDOR).steps[0]
        assert first.found or first.skipped
{% endif %}
