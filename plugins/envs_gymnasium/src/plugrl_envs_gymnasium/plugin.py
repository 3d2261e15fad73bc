"""The manifest: one environment. Imports nothing heavy."""

from __future__ import annotations

from plugrl.plugins import PLUGIN_API, EnvEntry, Plugin

plugin = Plugin(
    name="envs_gymnasium",
    api=PLUGIN_API,
    requires_core=">=0.1,<0.2",
    summary="Any environment that is registered with gymnasium",
    envs=(
        EnvEntry(
            name="gymnasium",
            target="plugrl.envs.gymnasium:build",
            schema="plugrl.envs.gymnasium:GymnasiumParams",
            example="plugrl_envs_gymnasium.example:env",
            needs=("gymnasium",),
            summary="scenes of a gymnasium environment, stepped one by one or by its vector environments",
        ),
    ),
)
