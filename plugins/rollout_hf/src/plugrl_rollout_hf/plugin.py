"""The manifest: the rollout backend ``hf`` and the schema of its options. Imports nothing heavy."""

from __future__ import annotations

from plugrl.plugins import PLUGIN_API, Plugin, RolloutEntry

plugin = Plugin(
    name="rollout_hf",
    api=PLUGIN_API,
    requires_core=">=0.1,<0.2",
    summary="Rollout backend hf: batched sampling in process with a Hugging Face causal language model",
    rollouts=(
        RolloutEntry(
            name="hf",
            target="plugrl_rollout_hf.backend:HFRolloutBackend",
            schema="plugrl_rollout_hf.options:HFRolloutOptions",
            summary="in-process batched sampling with a KV cache",
        ),
    ),
)
