"""The manifest. Imports nothing heavy: targets are resolved on first use."""

from __future__ import annotations

{% if cookiecutter.with_engine %}
from plugrl.plugins import PLUGIN_API, EngineEntry, PlatformEntry, Plugin
{% else %}
from plugrl.plugins import PLUGIN_API, PlatformEntry, Plugin
{% endif %}

CAPABILITIES: tuple[str, ...] = ()
# TODO({{ cookiecutter.vendor }}): declare what the device can do. `plugrl plugins check
# platform_{{ cookiecutter.platform_name }} --probe-undeclared` tells what works; plugrl.platforms.capabilities lists all ids.

plugin = Plugin(
    name="platform_{{ cookiecutter.platform_name }}",
    api=PLUGIN_API,
    requires_core=">=0.1,<0.2",
    summary="{{ cookiecutter.summary }}",
    platforms=(
        PlatformEntry(
            name="{{ cookiecutter.platform_name }}",
            aliases=({{ cookiecutter.__aliases }}),
            vendor="{{ cookiecutter.vendor }}",
            device="{{ cookiecutter.device_type }}",
            target="{{ cookiecutter.__package }}.platform:{{ cookiecutter.__class }}Platform",
            probe="{{ cookiecutter.__package }}.probe:probe",
{% if cookiecutter.cuda_compatible %}
            # Above the platform of the vendor that it imitates, whose probe may see this device too.
            priority=60,
{% endif %}
            capabilities=CAPABILITIES,
        ),
    ),
{% if cookiecutter.with_engine %}
    engines=(
{% for backend, class, summary in (
    ("fsdp2", "Fsdp2", "parameters sharded over all ranks"),
    ("fsdp", "Fsdp1", "torch's FSDP1"),
    ("ddp", "Ddp", "a whole copy on every rank"),
) %}
        EngineEntry(
            model_type=("language_model", "value_model", "embodied_model"),
            backend="{{ backend }}",
            device="{{ cookiecutter.device_type }}",
            vendor="{{ cookiecutter.vendor }}",
            target="{{ cookiecutter.__package }}.engines.fsdp:{{ cookiecutter.__class }}{{ class }}Engine",
            summary="{{ summary }}",
            needs=("plugrl_engine_fsdp",),
        ),
{% endfor %}
        EngineEntry(
            model_type="language_model",
            backend="megatron",
            device="{{ cookiecutter.device_type }}",
            vendor="{{ cookiecutter.vendor }}",
            target="{{ cookiecutter.__package }}.engines.megatron:{{ cookiecutter.__class }}MegatronEngine",
            summary="tensor and pipeline parallel; there once plugrl-engine-megatron is installed",
            needs=("plugrl_engine_megatron",),
        ),
    ),
{% endif %}
)
