"""The manifest of the Megatron engine. Imports nothing heavy: targets are resolved on first use."""

from __future__ import annotations

from plugrl.plugins import PLUGIN_API, ConfigSection, EngineEntry, Plugin

plugin = Plugin(
    name="engine_megatron",
    api=PLUGIN_API,
    requires_core=">=0.1,<0.2",
    summary="training engine on megatron-core: tensor, pipeline, context and expert parallel",
    engines=(
        EngineEntry(
            model_type=("language_model", "value_model"),
            backend="megatron",
            device="*",
            target="plugrl_engine_megatron.backends:MegatronEngine",
            capabilities=("bf16", "cpu", "gradient_checkpointing"),
            sections=(ConfigSection(key="megatron", schema="plugrl_engine_megatron.config:MegatronConfig"),),
            summary="layers and matrices spread over ranks, with megatron-core's schedules and distributed optimizer",
            needs=("torch", "megatron.core"),
        ),
    ),
    hooks="plugrl_engine_megatron.hooks",
)
