"""The manifest: the model types of the OpenVLA family and their configuration schemas. Imports nothing heavy."""

from __future__ import annotations

from plugrl.plugins import PLUGIN_API, ModelEntry, Plugin

plugin = Plugin(
    name="models_openvla",
    api=PLUGIN_API,
    requires_core=">=0.1,<0.2",
    summary="OpenVLA and OpenVLA-OFT: policies that act from camera images and an instruction",
    models=(
        ModelEntry(
            model_type="openvla",
            category="embodied",
            target="plugrl_models_openvla.policy:build_openvla",
            schema="plugrl_models_openvla.config:OpenVLAConfig",
            example="plugrl_models_openvla.example:openvla",
            observations="plugrl_models_openvla.example:observations",
            summary="OpenVLA: actions as tokens, one after the other",
        ),
        ModelEntry(
            model_type="openvla_oft",
            category="embodied",
            target="plugrl_models_openvla.oft_policy:build_openvla_oft",
            schema="plugrl_models_openvla.oft_config:OpenVLAOFTConfig",
            example="plugrl_models_openvla.example:openvla_oft",
            observations="plugrl_models_openvla.example:observations",
            summary="OpenVLA-OFT: chunks of actions in one pass, as tokens or as numbers",
        ),
    ),
)
