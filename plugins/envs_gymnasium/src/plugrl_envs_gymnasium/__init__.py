"""Environments of gymnasium as PlugRL environments; the adapter is plugrl.envs.gymnasium."""
