"""The manifest: one environment. Imports nothing heavy."""

from __future__ import annotations

from plugrl.plugins import PLUGIN_API, EnvEntry, Plugin

plugin = Plugin(
    name="envs_metaworld",
    api=PLUGIN_API,
    requires_core=">=0.1,<0.2",
    summary="Meta-World: fifty manipulation tasks of a robot arm on MuJoCo",
    envs=(
        EnvEntry(
            name="metaworld",
            target="plugrl_envs_metaworld.env:MetaworldEnv",
            schema="plugrl_envs_metaworld.config:MetaworldParams",
            example="plugrl_envs_metaworld.example:env",
            needs=("metaworld", "mujoco"),
            summary="states, camera pictures, instructions and expert policies of Meta-World 3.1",
        ),
    ),
)
