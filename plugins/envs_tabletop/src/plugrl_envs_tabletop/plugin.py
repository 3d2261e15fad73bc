"""The manifest: the environment ``tabletop`` and the schema of its settings. Imports nothing heavy."""

from __future__ import annotations

from plugrl.plugins import PLUGIN_API, EnvEntry, Plugin

plugin = Plugin(
    name="envs_tabletop",
    api=PLUGIN_API,
    requires_core=">=0.1,<0.2",
    summary="A vectorised tabletop: reach, push, pick and place, with camera images and instructions",
    envs=(
        EnvEntry(
            name="tabletop",
            target="plugrl_envs_tabletop.env:TabletopEnv",
            schema="plugrl_envs_tabletop.config:TabletopConfig",
            example="plugrl_envs_tabletop.example:tabletop",
            summary="reach, push, pick and place on a table seen by cameras",
        ),
    ),
)
