"""The manifest: the model types of the OpenVLA family and their configuration schemas. Imports nothing heavy."""

from __future__ import annotations

from plugrl.plugins import PLUGIN_API, Plugin

plugin = Plugin(
    name="models_openvla",
    api=PLUGIN_API,
    requires_core=">=0.1,<0.2",
    summary="OpenVLA and OpenVLA-OFT: policies that act from camera images and an instruction",
)
