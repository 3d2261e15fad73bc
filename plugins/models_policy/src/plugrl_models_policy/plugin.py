"""The manifest: two model types and their configuration schemas. Imports nothing heavy."""

from __future__ import annotations

from plugrl.plugins import PLUGIN_API, ModelEntry, Plugin

plugin = Plugin(
    name="models_policy",
    api=PLUGIN_API,
    requires_core=">=0.1,<0.2",
    summary="Small policies for control tasks, on states or on camera images",
    models=(
        ModelEntry(
            model_type="mlp_policy",
            category="embodied",
            target="plugrl_models_policy.policy:build_mlp_policy",
            schema="plugrl_models_policy.config:MlpPolicyConfig",
            example="plugrl_models_policy.example:mlp_policy",
            observations="plugrl_models_policy.example:states",
            summary="linear layers on the field states; Gaussian or discrete actions, in chunks; value head",
        ),
        ModelEntry(
            model_type="cnn_policy",
            category="embodied",
            target="plugrl_models_policy.policy:build_cnn_policy",
            schema="plugrl_models_policy.config:CnnPolicyConfig",
            example="plugrl_models_policy.example:cnn_policy",
            observations="plugrl_models_policy.example:pictures",
            summary="convolutions on camera images, with or without states; the same heads",
        ),
    ),
)
