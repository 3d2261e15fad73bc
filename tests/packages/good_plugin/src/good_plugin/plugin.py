"""A manifest that keeps to every rule."""

from __future__ import annotations

from plugrl.plugins import PLUGIN_API, EngineEntry, PlatformEntry, Plugin, RewardEntry

plugin = Plugin(
    name="good_plugin",
    api=PLUGIN_API,
    requires_core=">=0.1,<1",
    summary="a reward, a platform that is not here, and an engine for it",
    platforms=(
        PlatformEntry(
            name="acme",
            aliases=("acme1",),
            vendor="acme inc",
            device="acme",
            probe="good_plugin.probe:probe",
            target="good_plugin.reward:length",
        ),
    ),
    engines=(
        EngineEntry(
            model_type=("language_model", "value_model"),
            backend="acme_fsdp",
            device="acme",
            target="good_plugin.reward:length",
        ),
    ),
    rewards=(RewardEntry(name="length", target="good_plugin.reward:length", summary="characters of the answer"),),
    hooks="good_plugin.hooks",
    worker_env={"ACME_LOG_LEVEL": "warning"},
)
