"""The manifest: the rollout backend ``openai`` and the schema of its options. Imports nothing heavy."""

from __future__ import annotations

from plugrl.plugins import PLUGIN_API, Plugin, RolloutEntry

plugin = Plugin(
    name="rollout_openai",
    api=PLUGIN_API,
    requires_core=">=0.1,<0.2",
    summary="Rollout backend openai: samples come from servers that speak the OpenAI protocol",
    rollouts=(
        RolloutEntry(
            name="openai",
            target="plugrl_rollout_openai.server_backend:ServerRolloutBackend",
            schema="plugrl_rollout_openai.options:ServerOptions",
            summary="sampling by servers: vLLM, SGLang, or any that speaks the protocol",
        ),
    ),
)
