"""The manifest: the rollout backend ``sglang`` and the schema of its options. Imports nothing heavy."""

from __future__ import annotations

from plugrl.plugins import PLUGIN_API, Plugin, RolloutEntry

plugin = Plugin(
    name="rollout_sglang",
    api=PLUGIN_API,
    requires_core=">=0.1,<0.2",
    summary="Rollout backend sglang: SGLang in processes of the rollout worker, over one device or several",
    rollouts=(
        RolloutEntry(
            name="sglang",
            target="plugrl_rollout_sglang.backend:SGLangRolloutBackend",
            schema="plugrl_rollout_sglang.options:SGLangOptions",
            summary="sampling by SGLang on the rollout's own devices",
        ),
    ),
)
