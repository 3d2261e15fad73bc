"""The manifest: the rollout backend ``vllm`` and the schema of its options. Imports nothing heavy."""

from __future__ import annotations

from plugrl.plugins import PLUGIN_API, Plugin, RolloutEntry

plugin = Plugin(
    name="rollout_vllm",
    api=PLUGIN_API,
    requires_core=">=0.1,<0.2",
    summary="Rollout backend vllm: vLLM in processes of the rollout worker, over one device or several",
    rollouts=(
        RolloutEntry(
            name="vllm",
            target="plugrl_rollout_vllm.backend:VLLMRolloutBackend",
            schema="plugrl_rollout_vllm.options:VLLMOptions",
            summary="sampling by vLLM on the rollout's own devices",
        ),
    ),
)
